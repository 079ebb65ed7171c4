"""Fails if a source is in no build: built.py ROOT.

Each .cpp of a layer, and each test, must be named in the meson.build beside it. A test that is not named never runs. So
must each file of the Python package in python/meson.build.
"""
import pathlib
import sys


def check(root):
    root = pathlib.Path(root)
    sources = sorted((root / 'lib').glob('*/*.cpp')) + sorted((root / 'tests').glob('*/*_test.cpp'))
    faults = [] if len(sources) > 1 else ['no sources found']
    for source in sources:
        build = source.parent / 'meson.build'
        if not build.exists() or f"'{source.name}'" not in build.read_text(encoding='utf-8'):
            faults.append(f'{source.relative_to(root)}: not named in the meson.build beside it')
    build = (root / 'python/meson.build').read_text(encoding='utf-8') if (root / 'python').is_dir() else ''
    for source in sorted((root / 'python/core').glob('*.cpp')) + sorted((root / 'python/safemap').rglob('*.py')):
        if f"'{source.relative_to(root / 'python')}'" not in build:
            faults.append(f'{source.relative_to(root)}: not named in python/meson.build')
    return faults


if __name__ == '__main__':
    found = check(sys.argv[1])
    for line in found:
        print(line)
    sys.exit(bool(found))
