#!/usr/bin/env python3
"""Compares the verdicts of safemap and the safetensors package on thousands of headers.

    headers.py HEADER_VERDICT [COUNT] [SEED]

HEADER_VERDICT is the program built from header_verdict.cpp. Headers are the labelled cases of
tests/data/safetensors/header_cases.tsv, random valid ones, and mutations of both. It compares the verdict, the family
of the fault, names, dtypes, shapes, every byte of data (which shows the offsets) and the metadata. Needs the package.
"""

import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

from safetensors import SafetensorError, deserialize, safe_open

DATA = pathlib.Path(__file__).parent.parent / "data" / "safetensors"

# safemap's codes for each of the reference's error variants, which are recognised by the text of the exception.
FAMILIES = {
    "header too small": {"header_too_short"},
    "header too large": {"header_too_large"},
    "invalid header length": {"header_past_end"},
    "invalid UTF-8 in header": {"header_not_utf8"},
    "invalid JSON in header": {"header_not_json", "header_bad_field", "header_bad_metadata", "unknown_dtype"},
    "invalid offset": {"offsets_reversed", "offsets_overlap", "offsets_leave_gap", "duplicate_name"},
    "overflow computing": {"shape_overflow"},
    "The slice is slicing": {"partial_byte"},
    "invalid shape, data type": {"size_mismatch"},
    "incomplete metadata": {"file_truncated", "trailing_bytes", "duplicate_name"},
}

SIZES = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
         "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
         "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}


def cases():
    for line in (DATA / "header_cases.tsv").read_text().splitlines():
        if line.startswith("#"):
            continue
        _, size, _, _, text = line.split("\t")
        yield re.sub(rb"~([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), text.encode()), int(size)


NAMES = ["a", "b", "", "w.0", "\u00e9", "\U0001f600", "x" * 40, "\\", '"', "\x7f", "\n", "\u2028", "a/b",
         "__metadata__"]
SCALARS = ["0", "-0", "1", "-1", "4.0", "4e0", "1E+2", "1e999", "-1e999", "1e-999", "18446744073709551615",
           "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "00", "01", "+1", ".5", "1.", "1.e5",
           "1e", "1e+", "0x1", "NaN", "Infinity", "-", "true", "false", "null", "True", "nul", "truee", "nullx", '""',
           '"a"', "[]", "{}", '{"F32":null}', '{"F32":{}}', '{"F32":[]}', '{"F32":{"a":1}}', '{"F32":null,"F32":null}',
           "[[]]", "9" * 400, "0." + "1" * 400, "1" * 300 + "e-290", "1.7976931348623157e308", "1.7976931348623159e308",
           "4.9e-324", "2e-324", "123456789012345678901234567890", '"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"',
           '"\\ud83d\\u0041"', '"\\ud800\\ud800"', '"\\udfff\\ud800"', '"\\u12"', '"\\x"', '"\\/"', '"\\u0000"',
           '"\\uD83D\\uDE00"', '"\x7f"', '"\t"', "'a'", "[1,]", "[,1]", "[1 2]", '{"a" 1}', '{"a":1,}', '{"a":1,"a":1}',
           '{1:2}', "[1}", '{"a":1]', "[", "]", "{", "}", ",", ":", '"', "\\", "\x0c", "\x0b", "\u00a0", "/**/", "#"]
SPACES = ["", "", "", " ", "\n", "\t\r", "  "]


def space(rng):
    return rng.choice(SPACES)


def escaped(rng, text):
    """Returns a JSON string in one of its many forms."""
    if rng.random() < 0.7:
        return json.dumps(text, ensure_ascii=rng.random() < 0.5)
    out = '"'
    for unit in text:
        if rng.random() < 0.4 or unit in '"\\' or ord(unit) < 32:
            out += "".join("\\u%04x" % u for u in struct.unpack("<%dH" % (len(unit.encode("utf-16-le")) // 2),
                                                                unit.encode("utf-16-le")))
        else:
            out += unit
    return out + '"'


def random_header(rng):
    """Returns a mostly valid header in an unusual form, and the size of its data."""
    members, at = [], 0
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 9])):
        dtype = rng.choice(list(SIZES))
        shape = [rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.choice([0, 1, 2, 2, 3]))]
        bits = SIZES[dtype]
        for dimension in shape:
            bits *= dimension
        if bits % 8:
            shape.append(4)
            bits *= 4
        name = rng.choice(NAMES) + (str(rng.randrange(100)) if rng.random() < 0.8 else "")
        begin, at = at, at + bits // 8
        comma, colon = space(rng) + "," + space(rng), space(rng) + ":" + space(rng)
        dtype_text = escaped(rng, dtype)
        if rng.random() < 0.05:
            dtype_text = "{" + dtype_text + colon + rng.choice(["null", "{}", "null", rng.choice(SCALARS)]) + "}"
        shape_text = "[" + comma.join(map(str, shape)) + "]"
        offsets = "[" + str(begin) + comma + str(at) + "]"
        if rng.random() < 0.05:
            value = "[" + comma.join([dtype_text, shape_text, offsets]) + "]"
        else:
            fields = [(escaped(rng, "dtype"), dtype_text), (escaped(rng, "shape"), shape_text),
                      (escaped(rng, "data_offsets"), offsets)]
            if rng.random() < 0.3:
                fields.append((escaped(rng, rng.choice(["x", "dtyp", "shape ", "", "y"])), rng.choice(SCALARS)))
            rng.shuffle(fields)
            value = "{" + space(rng) + comma.join(k + colon + v for k, v in fields) + space(rng) + "}"
        members.append(escaped(rng, name) + colon + value)
    if rng.random() < 0.4:
        pairs = [escaped(rng, rng.choice(NAMES)) + ":" + (escaped(rng, rng.choice(NAMES)) if rng.random() < 0.95
                                                          else rng.choice(SCALARS)) for _ in range(rng.randrange(4))]
        members.append(escaped(rng, "__metadata__") + ":" + (rng.choice(["null", "[]", "1"]) if rng.random() < 0.1
                                                             else "{" + ",".join(pairs) + "}"))
    if rng.random() < 0.5:
        rng.shuffle(members)
    text = space(rng) + "{" + space(rng) + ("," + space(rng)).join(members) + space(rng) + "}" + space(rng)
    return text.encode(), at


TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+0-9.eE]+|[a-z]+|[^\s]|\s+')


def mutated(rng, header, size):
    tokens = TOKEN.findall(header)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.randrange(9)
        if kind == 0:
            size = max(0, size + rng.choice([-4, -1, 1, 4]))
        elif kind <= 2 and header:
            at = rng.randrange(len(header))
            byte = bytes([rng.choice([rng.randrange(256), *b'{}[]",:\\ 0129-\x00\xed\xff'])])
            header = header[:at] + byte + header[at + (kind == 1):]
        elif kind == 3 and header:
            at = rng.randrange(len(header))
            header = header[:at] + header[at + 1 + rng.randrange(3):]
        elif tokens:
            at = rng.randrange(len(tokens))
            if kind == 4:
                tokens[at] = rng.choice(SCALARS).encode("utf-8", "surrogatepass")
            elif kind == 5:
                tokens.insert(at, rng.choice(tokens))
            elif kind == 6:
                del tokens[at]
            elif kind == 7:
                other = rng.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
            else:
                numbers = [i for i, t in enumerate(tokens) if t.isdigit()]
                if numbers:
                    at = rng.choice(numbers)
                    tokens[at] = str(max(0, int(tokens[at]) + rng.choice([-1, 1, 4, 2**32, 2**63]))).encode()
            header = b"".join(tokens)
        if not tokens:
            break
    return header, size


def with_each_byte_changed():
    """Yields one small file with each of its bytes set to each value."""
    text = b'{"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[1,3],"data_offsets":[0,6]}}'
    file = struct.pack("<Q", len(text)) + text + b"values"
    return [file[:at] + bytes([byte]) + file[at + 1:] for at in range(len(file)) for byte in range(256)]


def deep(rng):
    depth = rng.choice([120, 124, 125, 126, 127, 128, 200])
    kinds = [rng.random() < 0.5 for _ in range(depth)]
    text = "".join("[" if k else '{"k":' for k in kinds) + "1" + "".join("]" if k else "}" for k in reversed(kinds))
    return ('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":%s}}' % text).encode(), 1


def file_of(header, size, rng):
    length = len(header)
    if rng.random() < 0.01:
        length = max(0, length + rng.choice([-8, -1, 1, 8, 10**8, 2**62]))
    data = bytes((i * 7 + (i >> 8)) % 256 for i in range(size))
    file = struct.pack("<Q", length) + header + data
    return file[: rng.randrange(12)] if rng.random() < 0.002 else file


def reference(file, scratch):
    try:
        tensors = {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in deserialize(file)}
    except SafetensorError as error:
        return {"error": str(error)}
    scratch.write_bytes(file)
    try:
        with safe_open(scratch, framework="np") as opened:
            metadata = opened.metadata()
    except SafetensorError as error:
        return {"error": str(error)}
    return {"tensors": tensors, "metadata": metadata}


def disagreement(file, theirs, ours):
    if ("error" in theirs) != ("error" in ours):
        return "verdict"
    if "error" in theirs:
        text = theirs["error"]
        for prefix in ("Error while deserializing header: ", "Error while deserializing: "):
            text = text.removeprefix(prefix)
        for start, codes in FAMILIES.items():
            if text.startswith(start):
                return None if ours["error"] in codes else "family"
        return "unknown text"
    mine = {name: (dtype, shape, file[offset : offset + size]) for name, dtype, shape, offset, size in ours["tensors"]}
    if len(mine) != len(ours["tensors"]) or mine != theirs["tensors"]:
        return "tensors"
    if ours["metadata"] != theirs["metadata"]:
        return "metadata"
    return None


def agrees_at_times(file, scratch, ours):
    """Returns true if the reference names our fault in one of many tries.

    It sorts the entries of a hash table, seeded anew each time, by offsets only: of two invalid tensors with the same
    offsets it names one or the other at random.
    """
    return any(disagreement(file, reference(file, scratch), ours) is None for _ in range(64))


def main():
    program = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rng = random.Random(seed)
    known = list(cases())
    headers = list(known)
    while len(headers) < count:
        kind = rng.random()
        if kind < 0.02:
            header = deep(rng)
        elif kind < 0.35:
            header = random_header(rng)
        elif kind < 0.5:
            header = mutated(rng, *rng.choice(known))
        else:
            header = mutated(rng, *random_header(rng))
        headers.append(header)
    files = [file_of(header, size, rng) for header, size in headers] + with_each_byte_changed()
    stdin = b"".join(struct.pack("<Q", len(file)) + file for file in files)
    lines = subprocess.run([program], input=stdin, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    assert len(lines) == len(files), (len(lines), len(files))

    found, accepted = 0, 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        scratch = pathlib.Path(folder) / "file.safetensors"
        for file, line in zip(files, lines):
            theirs, ours = reference(file, scratch), json.loads(line)
            accepted += "error" not in theirs
            what = disagreement(file, theirs, ours)
            if what is None or (what == "family" and agrees_at_times(file, scratch, ours)):
                continue
            found += 1
            if found <= 20:
                print(f"{what}\n  file   {file[:400]!r}\n  theirs {str(theirs)[:300]}\n  ours   {str(ours)[:300]}")
    print(f"{len(files)} files, {accepted} accepted by the reference, {found} disagreements (seed {seed})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
