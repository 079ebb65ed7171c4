"""Checks that calls whose result would dangle or is lost do not compile, and others do: compile_fail.py ROOT COMPILER.

Each file of tests/compile_fail has both forms. The compiler starts once, with all files in both forms, because parsing
the public headers is most of the work. It must report an error in the lines under `#ifdef MUST_NOT_COMPILE` of each
file, and nowhere else. A lost result is a warning, which counts as an error here. The last line on stdout states how
many forms are as they should be, and how many are not.
"""
import pathlib
import re
import subprocess
import sys

ERROR = re.compile(r'^(?P<path>[^\n:]+):(?P<line>\d+):\d+: (?:fatal )?error: ', re.MULTILINE)


def dangling_lines(text):
    """Returns the numbers of the lines that must not compile."""
    lines = text.split('\n')
    return range(lines.index('#ifdef MUST_NOT_COMPILE') + 2, lines.index('#else') + 1)


def all_forms(root, cases):
    """Returns one source with the safe form of each case, and then the dangling form of each."""
    headers = sorted((root / 'include').rglob('*.hpp'))
    text = [f'#include "{header}"' for header in headers]
    for form in ('safe', 'dangling'):
        text += ['#define MUST_NOT_COMPILE'] if form == 'dangling' else []
        for case in cases:
            text += [f'namespace {form}_{case.stem} {{', f'#include "{case}"', '}']
    return '\n'.join(text) + '\n'


def compile_all(root, compiler, cases):
    no_limit = '-fmax-errors=0'
    if 'clang' in subprocess.run([compiler, '--version'], capture_output=True, text=True, check=True).stdout:
        no_limit = '-ferror-limit=0'
    return subprocess.run([compiler, '-std=c++20', '-fsyntax-only', '-Werror=unused-result', no_limit,
                           f'-I{root}/include', '-x', 'c++', '-'],
                          input=all_forms(root, cases), capture_output=True, text=True, check=False).stderr


def check(root, compiler):
    """Returns how many forms there are, and a line for each that is wrong."""
    cases = sorted((root / 'tests/compile_fail').glob('*.cpp'))
    printed = compile_all(root, compiler, cases)
    errors = {(error['path'], int(error['line'])) for error in ERROR.finditer(printed)}
    faults = []
    for case in cases:
        expected = {(str(case), line) for line in dangling_lines(case.read_text(encoding='utf-8'))}
        if not errors & expected:
            faults.append(f'{case.name}: the dangling form compiles')
        if any(path == str(case) for path, _ in errors - expected):
            faults.append(f'{case.name}: the safe form does not compile')
    if any(pathlib.Path(path) not in cases for path, _ in errors) or not cases:
        faults.append('an error is not in a case')
    return 2 * len(cases), faults, printed


if __name__ == '__main__':
    count, found, said = check(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2])
    if found:
        print(said, *found, sep='\n')
    print(f'{count - len(found)} passed, {len(found)} failed')
    sys.exit(bool(found))
