"""Fails if an error code has no test or no row: codes.py ROOT.

A test must name every enumerator of Errc (as Errc::code, or as the "code" that --json prints), and the table of
lib/base/error.cpp must have a row for it.
"""
import pathlib
import re
import sys


def without_comments(text):
    return re.sub(r'//[^\n]*|/\*.*?\*/', '', text, flags=re.DOTALL)


def enumerators(header):
    body = re.search(r'enum class Errc\b[^{]*\{(.*?)\};', without_comments(header), re.DOTALL).group(1)
    return re.findall(r'\b([a-z_]+)\b', body)


def named(text):
    """Returns the codes that a source names."""
    return set(re.findall(r'\bErrc::([a-z_]+)', text)) | set(re.findall(r'[\'"]([a-z]+(?:_[a-z]+)*)[\'"]', text))


def check(root):
    root = pathlib.Path(root)
    codes = enumerators((root / 'include/safemap/error.hpp').read_text(encoding='utf-8'))
    rows = without_comments((root / 'lib/base/error.cpp').read_text(encoding='utf-8'))
    table = set(re.findall(r'\b([a-z_]+)\b', rows))
    tested = set()
    for path in sorted((root / 'tests').rglob('*')):
        # The tests of error.hpp walk the whole table; they do not show that a code is ever thrown.
        if path.suffix in ('.cpp', '.py') and path.name not in ('error_test.cpp', 'codes.py'):
            tested |= named(without_comments(path.read_text(encoding='utf-8')))
    faults = [f'{code}: no row in lib/base/error.cpp' for code in codes if code not in table]
    faults += [f'{code}: no test names it' for code in codes if code not in tested]
    if len(codes) < 2:
        faults.append('include/safemap/error.hpp: no codes found')
    return faults


if __name__ == '__main__':
    found = check(sys.argv[1])
    for line in found:
        print(line)
    sys.exit(bool(found))
