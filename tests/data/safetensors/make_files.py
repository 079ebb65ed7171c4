#!/usr/bin/env python3
"""Writes the files beside this script with the safetensors and huggingface_hub packages.

The tests build the same content with safemap and compare byte by byte.
"""

import json
import pathlib

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from safetensors import TensorSpec, serialize

HERE = pathlib.Path(__file__).parent

# Name, torch dtype, and torch shape. The order differs from that of the file.
EVERY_DTYPE = [
    ("b", "bool", [3]), ("f4", "float4_e2m1fn_x2", [2, 2]), ("u8", "uint8", [2]), ("i8", "int8", [2]),
    ("e5m2", "float8_e5m2", [1]), ("e4m3", "float8_e4m3fn", [1]), ("e8m0", "float8_e8m0fnu", [1]),
    ("e4m3fnuz", "float8_e4m3fnuz", [1]), ("e5m2fnuz", "float8_e5m2fnuz", [1]), ("i16", "int16", [2]),
    ("u16", "uint16", [2]), ("f16", "float16", [2]), ("bf16", "bfloat16", [2]), ("i32", "int32", [2]),
    ("u32", "uint32", [2]), ("f32", "float32", [2, 3]), ("c64", "complex64", [1]), ("f64", "float64", [1]),
    ("i64", "int64", []), ("u64", "uint64", [0, 5]),
]
SIZES = {"bool": 1, "float4_e2m1fn_x2": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
         "int32": 4, "uint32": 4, "float32": 4, "complex64": 8, "float64": 8, "int64": 8, "uint64": 8}
NAMES = ["\\", '"', "\b\f\n\r\t", "\x01\x1f", "\x7f", "/", "é", "\u2028", "😀", "", "a.10", "a.2", "B", "b"]


def write(name, tensors, metadata):
    specs, keep = {}, []
    for at, (tensor, dtype, shape) in enumerate(tensors):
        count = int(np.prod(shape, dtype=np.int64))
        data = np.full(count * SIZES.get(dtype, 1), at, dtype=np.uint8)
        keep.append(data)
        specs[tensor] = TensorSpec(dtype=dtype, shape=shape, data_ptr=data.ctypes.data, data_len=data.nbytes)
    (HERE / name).write_bytes(bytes(serialize(specs, metadata)))


def main():
    write("every_dtype.safetensors", EVERY_DTYPE, {"format": "pt"})
    write("names.safetensors", [(name, "uint8", [1]) for name in NAMES], {'k"\n': "v\\é😀\x02"})
    write("empty.safetensors", [], None)
    write("no_metadata.safetensors", [("w", "float32", [2, 2])], None)

    state = {name: torch.zeros(2) for name in ["w.1", "é", "😀\x7f", 'q"\\', "w.2"]}
    folder = HERE / "hub"
    folder.mkdir(exist_ok=True)
    for name, size, metadata in [("plain", 16, None), ("metadata", 24, {"who": "né", "z": "1", "a": "2"})]:
        save_torch_state_dict(state, folder, max_shard_size=size, metadata=metadata)
        (folder / "model.safetensors.index.json").rename(HERE / f"hub_{name}.index.json")
        for file in folder.iterdir():
            file.unlink()
    folder.rmdir()

    # The index that save_pretrained() of transformers 5.23.0 writes, with metadata as huggingface_hub would add it.
    state = {"w.1": 6, "é": 6, "😀\x7f": 10, "\uffee": 1, 'q"\\': 2, "w.10": 1, "W": 3}
    shards = {name: f"model-{1 + i // 4:05}-of-00002.safetensors" for i, name in enumerate(state)}
    for name, metadata in [("plain", {}), ("metadata", {"who": "né\n", "total": "", "total_t": "x", "A": "1"})]:
        index = {"metadata": {"total_parameters": sum(state.values()), "total_size": 2**53 + 1, **metadata},
                 "weight_map": shards}
        (HERE / f"transformers_{name}.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n",
                                                              encoding="utf-8")


if __name__ == "__main__":
    main()
