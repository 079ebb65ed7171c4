#!/usr/bin/env python3
"""Makes the seeds of fuzz_dcp from folders of torch.distributed.checkpoint.

    make_dcp_seeds.py FIXTURES    writes into dcp/: real metadata and an item, and random changes of forged files

The first byte of a seed says which file of a forged folder the rest replaces (fuzz_dcp.cpp).
"""
import pathlib
import random
import sys

metadata, item, rank, packed = range(4)
changes, collects = 0x80, 0x40
folders = ["layout_2_3", "megatron_like", "no_dist", "older_metadata", "unflattened", "zstd"]


def main():
    fixtures = pathlib.Path(sys.argv[1])
    out = pathlib.Path(__file__).parent / "dcp"
    out.mkdir(exist_ok=True)
    for folder in folders:
        whole = (fixtures / folder / ".metadata").read_bytes()
        (out / folder).write_bytes(bytes([metadata | collects]) + whole)
    stored = next((fixtures / "no_dist").glob("*.distcp")).read_bytes()
    (out / "item").write_bytes(bytes([item]) + stored[:2000])
    rng = random.Random(18)
    for number in range(12):
        first = number % 4 | number // 4 << 2 | changes | (collects if number % 3 == 0 else 0)
        steps = [bytes([rng.randrange(3), rng.randrange(256), rng.randrange(6), rng.randrange(256)]) for _ in range(3)]
        (out / f"changes{number}").write_bytes(bytes([first]) + b"".join(steps))


if __name__ == "__main__":
    main()
