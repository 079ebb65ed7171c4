#!/usr/bin/env python3
"""Writes the folders beside it: one state dict, saved by huggingface_hub as shards and as one file.

Made with torch 2.13.0, safetensors 0.8.0, huggingface_hub 2.4.0. tests/write/hub_test.cpp has the same tensors:
byte k of tensor number i is (31 i + 7 k) mod 256.
"""
import pathlib
import shutil

import torch
from huggingface_hub import save_torch_state_dict

TENSORS = [
    ("wte.weight", torch.float32, [16, 8]),
    ("layers.0.big", torch.bfloat16, [40, 20]),
    ("layers.0.ids", torch.int64, [5]),
    ("layers.0.mask", torch.bool, [3, 1]),
    ("größe.€.𝄞", torch.float16, [33]),
    ("empty", torch.float32, [0, 4]),
    ("scalar", torch.float64, []),
    ("layers.10.w", torch.float8_e4m3fn, [2, 3, 5]),
    ("layers.9.w", torch.complex64, [6]),
    ('quote"\\', torch.uint8, [500]),
]


def tensor(i, dtype, shape):
    size = torch.empty(shape, dtype=dtype).nbytes
    data = bytes((31 * i + 7 * k) % 256 for k in range(size))
    if dtype == torch.bool:
        data = bytes(b & 1 for b in data)
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def main():
    here = pathlib.Path(__file__).parent
    state = {name: tensor(i, dtype, shape) for i, (name, dtype, shape) in enumerate(TENSORS)}
    state["filler"] = tensor(10, torch.uint8, [600])
    state["zz.tied"] = state["wte.weight"]
    for name, size in (("shards", 1000), ("whole", 100_000)):
        folder = here / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # huggingface_hub keeps the alphabetically first of tied names. The single file has no tie: the reference writes
        # two metadata keys in random order.
        saved = state if name == "shards" else {k: v for k, v in state.items() if k != "zz.tied"}
        save_torch_state_dict(dict(saved), folder, max_shard_size=size)


if __name__ == "__main__":
    main()
