#!/usr/bin/env python3
"""Writes corpus/header/ from the labelled headers of tests/data/safetensors/header_cases.tsv."""

import pathlib
import re
import struct

HERE = pathlib.Path(__file__).parent
CASES = HERE.parent.parent / "tests" / "data" / "safetensors" / "header_cases.tsv"

for line in CASES.read_text().splitlines():
    if line.startswith("#"):
        continue
    label, size, _, _, text = line.split("\t")
    header = re.sub(rb"~([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), text.encode())
    name = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")
    (HERE / "header" / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(int(size)))
