#!/usr/bin/env python3
"""Writes expected.tsv from the expected.json that make.py writes: `table.py FOLDER > expected.tsv`.

One line for each fact, fields between tabs, names percent-encoded. Names are those of safemap's grammar
(lib/state/names.hpp), made here from the trees in expected.json.

    file    NAME
    tensor  NAME DTYPE SHAPE SHA256     shape as 2x3, `-` for 0-d
    alias   NAME NAME ...
    error   WORD
"""

import json
import re
import sys
from pathlib import Path

# Formats without a reader, files of other tests, and a large file that resembles a small one.
SKIPPED = ("train_gpt_legacy", "sharded/")


def string_segment(key: str) -> str:
    escaped = key.replace("~", "~0").replace("/", "~1")
    return "~s" + escaped if key in ("", "__metadata__") or re.fullmatch("-?[0-9]+", key) else escaped


def key_segment(step, place: int) -> str:
    if isinstance(step, dict) and "attr" in step:
        return string_segment(step["attr"])
    if isinstance(step, dict) and ("arg" in step or "state" in step):
        return str(step.get("arg", step.get("state")))
    if isinstance(step, dict) and step["k"] == "bool":
        return "~" + step["v"].lower()
    if isinstance(step, dict) and step["k"] == "NoneType":
        return "~none"
    if isinstance(step, dict) and step["k"] == "int":
        return step["v"]
    if isinstance(step, dict):
        return f"~k{place}"
    if isinstance(step, int):
        return str(step)
    return string_segment(step) if "\0" not in step else f"~k{place}"


def is_attribute(step) -> bool:
    return isinstance(step, dict) and "attr" in step


def module_parts(node) -> dict:
    """Returns the parts of a whole module that its state dict has, by attribute; nothing for other nodes."""
    steps = node["of"] if node["is"] == "object" else []
    parts = {step["attr"]: child for step, child in steps if is_attribute(step)}
    wanted = ("_parameters", "_buffers", "_modules")
    return {name: parts[name] for name in wanted} if all(name in parts for name in wanted) else {}


class Names:
    """Maps the number of each tensor in a file to its name."""

    def __init__(self, entry: dict) -> None:
        self.tensors, self.names = entry["tensors"], {}
        tree = entry["tree"]
        if self.is_flat(tree):
            for step, node in tree["of"]:
                if not is_attribute(step):
                    self.names[int(node[1:])] = step
        else:
            self.walk(tree, "")

    def is_flat(self, tree) -> bool:
        if isinstance(tree, str) or tree["is"] not in ("dict", "OrderedDict"):
            return False
        return all(
            isinstance(step, str) and step not in ("", "__metadata__") and isinstance(node, str) and self.is_plain(node)
            for step, node in tree["of"] if not is_attribute(step)
        )  # fmt: skip

    def is_plain(self, node: str) -> bool:
        if node[0] != "T":
            return False
        tensor = self.tensors[int(node[1:])]
        return not any(tensor.get(field) for field in ("meta", "storage", "numpy", "quantized"))

    def walk(self, node, path: str) -> None:
        below = path + "/" if path else ""
        if isinstance(node, str):
            if node[0] == "T":
                self.names[int(node[1:])] = path or "~root"
        elif node["is"] == "tensor":
            self.walk(node["at"], path)
            self.walk({"is": "object", "of": node["of"]}, path)
        elif module_parts(node):
            self.walk_module(node, below)
        elif node["is"] != "same":
            for place, child in enumerate(node.get("of", [])):
                if isinstance(child, list):
                    self.walk(child[1], below + key_segment(child[0], place))
                else:
                    ordinal = node["is"] in ("set", "frozenset")
                    self.walk(child, below + (f"~k{place}" if ordinal else str(place)))

    def walk_module(self, node, prefix: str) -> None:
        for part in module_parts(node).values():
            for step, child in part["of"]:
                if not isinstance(child, str) and module_parts(child):
                    self.walk_module(child, prefix + step + ".")
                else:
                    self.walk(child, prefix + step)


def encoded(name: str) -> str:
    return "".join(chr(b) if 0x21 <= b < 0x7F and b != 0x25 else f"%{b:02X}" for b in name.encode())


def lines(entry: dict):
    yield ("file", encoded(entry["file"]))
    if entry["error"]:
        yield ("error", entry["error"])
    if entry["tree"] is None:
        return
    names = Names(entry)
    for number, tensor in enumerate(entry["tensors"]):
        no_tensor = any(tensor.get(field) for field in ("meta", "storage"))
        if no_tensor or tensor["dtype"].startswith(("str", "bytes", "void", "datetime")):
            continue
        shape = "x".join(map(str, tensor.get("safetensors_shape", tensor["shape"]))) or "-"
        if tensor["dtype"].startswith("quint4"):
            shape = str(tensor["nbytes"])  # bytes of the storage
        yield ("tensor", encoded(names.names[number]), tensor["dtype"], shape, tensor["sha256"])
    by_path = {json.dumps(t["path"]): number for number, t in enumerate(entry["tensors"])}
    for group in entry["aliases"] + same_arrays(entry):
        yield ("alias", *(encoded(names.names[by_path[json.dumps(path)]]) for path in group))


def same_arrays(entry: dict):
    """Groups arrays that are one object: in the fixtures these are the arrays with equal bytes."""
    groups = {}
    for tensor in entry["tensors"]:
        if tensor.get("numpy") and tensor["nbytes"]:
            groups.setdefault((tensor["sha256"], tensor["dtype"]), []).append(tensor["path"])
    return [group for group in groups.values() if len(group) > 1]


def main() -> None:
    entries = json.loads((Path(sys.argv[1]) / "expected.json").read_text())["files"]
    for entry in entries:
        if entry["file"].startswith("broken/") or not any(word in entry["file"] for word in SKIPPED):
            for line in lines(entry):
                print("\t".join(line))


if __name__ == "__main__":
    main()
