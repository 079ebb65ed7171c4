"""Writes the seeds of fuzz_archive: make_archive_seeds.py FOLDER.

The seeds are small files of tests/data/pt, each also without checksums: a mutated pickle would fail its checksum, and
the code after that check would never be reached.
"""
import pathlib
import struct
import sys

SEEDS = ('aligned_1', 'deflated', 'skip_data', 'stored_by_python', 'tensor_root', 'torchscript')
NO_CHECKSUMS = ('aligned_1', 'big_endian', 'conj_neg', 'nested', 'stored_by_python', 'tensor_root')


def without_checksums(file):
    file = bytearray(file)
    # An entry of the central directory: 46 bytes of numbers, then name, extra field and comment.
    count, _, at = struct.unpack_from('<HII', file, file.rindex(b'PK\x05\x06') + 10)
    for _ in range(count):
        file[at + 16:at + 20] = bytes(4)
        at += 46 + sum(struct.unpack_from('<HHH', file, at + 28))
    return bytes(file)


if __name__ == '__main__':
    folder, data = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parents[2] / 'tests/data/pt'
    for name in SEEDS:
        (folder / name).write_bytes((data / f'{name}.pt').read_bytes())
    for name in NO_CHECKSUMS:
        (folder / f'{name}_no_checksums').write_bytes(without_checksums((data / f'{name}.pt').read_bytes()))
