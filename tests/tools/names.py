#!/usr/bin/env python3
"""Counts the public names of safemap: the declarations of include/safemap/*.hpp at namespace scope.

A name is a type, an alias, a function, a constant or a literal operator; overloads count as one name, and other
operators do not count. Also not counted: namespaces called `detail`, which are private; folders below include/safemap
(advanced/), which few programs need; and the headers of devices, which are experimental.

    names.py ROOT            exits 1 above the limit
    names.py ROOT --list     prints the names, by header
"""
import pathlib
import re
import sys

LIMIT = 100
EXPERIMENTAL = {"bundle.hpp", "device.hpp", "device_budget.hpp", "request.hpp", "upload_order.hpp", "uploader.hpp"}

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')
NAMESPACE = re.compile(r"(?:inline\s+)?namespace(?:\s+(?:inline\s+)?([\w:]+))?\s*$")
TYPE = re.compile(r"(?:template\s*<.*>\s*)?(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+"
                  r"(?:\[\[nodiscard\]\]\s*)?(?:SAFEMAP_API\s+)?(\w+)")
ALIAS = re.compile(r"(?:template\s*<.*>\s*)?using\s+(\w+)\s*=")
CONCEPT = re.compile(r"template\s*<.*>\s*concept\s+(\w+)")
LITERAL = re.compile(r'operator\s*(?:"")?\s*(_\w+)\s*\(')
FUNCTION = re.compile(r"(\w+)\s*\(")
CONSTANT = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)?(?:=|$)")


def name_of(declaration: str, has_body: bool) -> str | None:
    """Returns the name that a declaration at namespace scope introduces, or None."""
    text = " ".join(declaration.split())
    if not text or text.startswith(("static_assert", "extern", "namespace")) or re.match(r"using\s+namespace", text):
        return None
    if match := ALIAS.match(text) or CONCEPT.match(text):
        return match[1]
    if match := TYPE.match(text):
        return match[1] if has_body else None  # a forward declaration introduces no new name
    if match := LITERAL.search(text):
        return match[1]
    if "operator" in text:
        return None
    text = re.sub(r"^template\s*<[^()]*?>\s*", "", text)
    if match := FUNCTION.search(text):
        return match[1]
    match = CONSTANT.search(text)
    return match[1] if match else None


def names_in(source: str) -> list[str]:
    """Returns every public name of one header, once."""
    text = TEXT.sub('""', PREPROCESSOR.sub("", COMMENT.sub("", source)))
    found: list[str] = []
    scopes: list[str] = []  # "namespace", "private" or "body"
    begin = 0

    def take(end: int, has_body: bool) -> None:
        if "private" in scopes or "body" in scopes:
            return
        name = name_of(text[begin:end], has_body)
        if name and name not in found:
            found.append(name)

    round_brackets = 0
    for at, character in enumerate(text):
        if character in "()":
            round_brackets += 1 if character == "(" else -1
        elif round_brackets > 0:
            continue
        elif character == "{":
            head = text[begin:at]
            if match := NAMESPACE.search(head.strip()):
                scopes.append("private" if "detail" in (match[1] or "detail") else "namespace")
            else:
                take(at, True)
                scopes.append("body")
            begin = at + 1
        elif character == "}":
            scopes.pop()
            begin = at + 1
        elif character == ";":
            take(at, False)
            begin = at + 1
    return found


def main(root: pathlib.Path, show: bool) -> int:
    headers = sorted((root / "include" / "safemap").glob("*.hpp"))
    by_header = {h.name: names_in(h.read_text()) for h in headers if h.name not in EXPERIMENTAL}
    names = sorted({name for found in by_header.values() for name in found})
    if show:
        for header, found in by_header.items():
            print(f"{header}: {' '.join(found)}")
    print(f"{len(names)} public names, at most {LIMIT}")
    return 0 if len(names) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), "--list" in sys.argv[2:]))
