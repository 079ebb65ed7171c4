#!/usr/bin/env python3
"""Finds types with the same name in the same namespace. Two definitions of one name are one type to the linker, so that
members of the one may run on objects of the other; no compiler reports that across files.

    one_definition.py ROOT            exits 1 if a name is defined twice

Looks at lib/, cli/ and python/. Types in unnamed namespaces and in other types may have any name.
"""
import pathlib
import re
import sys

OPENED = re.compile(r"namespace\s*([\w:]*)\s*\{")
DEFINED = re.compile(r"(?:template\s*<.*>\s*)?(?:struct|class|union|enum(?:\s+(?:struct|class))?)\s+(?:SAFEMAP_API\s+)?"
                     r"(\w+)(?:\s+final)?(?:\s*:[^:;].*)?\s*\{")


def types_in(source: str) -> list[str]:
    """Returns the qualified names of the types that one file defines at namespace scope, by its layout: such lines are
    not indented."""
    found, namespace, unnamed = [], "", False
    for line in source.splitlines():
        if match := OPENED.match(line):
            unnamed = not match[1]
            namespace = namespace if unnamed else match[1]
        elif line.startswith("}  // namespace"):
            unnamed = False
        elif not unnamed and (match := DEFINED.match(line)):
            found.append(f"{namespace}::{match[1]}")
    return found


def twice(root: pathlib.Path) -> dict[str, list[str]]:
    """Returns the files of every name that is defined more than once."""
    where: dict[str, list[str]] = {}
    for folder in ("lib", "cli", "python"):
        for path in sorted((root / folder).rglob("*.[ch]pp")):
            for name in types_in(path.read_text()):
                where.setdefault(name, []).append(str(path.relative_to(root)))
    return {name: files for name, files in where.items() if len(files) > 1}


def main(root: pathlib.Path) -> int:
    found = twice(root)
    for name, files in found.items():
        print(f"{name} is defined in {' and in '.join(files)}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
