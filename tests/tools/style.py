"""Fails on faults that .clang-format does not check: style.py ROOT.

Text files end in one newline and have no tabs, carriage returns or trailing spaces; nothing invisible and no curly
quotes; code outside comments and strings is ASCII; C++ and Python lines have at most 120 columns; a C++ file begins
with a line that says what it is for, in more words than its name. The library is in its inline namespace.
"""
import pathlib
import re
import sys

FOLDERS = ['.ci', '.github', 'include', 'lib', 'cli', 'python', 'tests', 'bench', 'fuzz', 'examples', 'docs',
           'packaging']
SUFFIXES = {'.cpp', '.hpp', '.h', '.in', '.py', '.pyi', '.md', '.txt', '.build', '.dict', '.sh', '.yml'}
TOP = ['dev', 'meson.build', 'meson_options.txt', 'README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md',
       'CITATION.cff', 'Doxyfile', 'pyproject.toml', '.clang-format', '.clang-tidy', '.clangd', '.editorconfig',
       '.gitignore', '.pre-commit-config.yaml', '.ci/run']
# Files that other programs wrote.
LEFT_ALONE = ('tests/data/', 'fuzz/corpus/')

# No-break and zero-width spaces, characters that change the direction of text, the byte order mark, curly quotes.
INVISIBLE = re.compile('[\u00a0\u00ad\u200b-\u200f\u2018\u2019\u201c\u201d\u2028-\u202f\u2060-\u206f\ufeff]')
# Outside the inline namespace, a function of a header would be declared a second time.
OUTSIDE_THE_ABI = re.compile(r'namespace safemap(?!::SAFEMAP_ABI)\b.*\{')
INTRODUCTIONS = {'a', 'an', 'cpp', 'file', 'for', 'header', 'hpp', 'implements', 'of', 'test', 'tests', 'the'}
COMMENTS_AND_STRINGS = re.compile(
    r'R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


def texts(root):
    paths = {root / name for name in TOP}
    for folder in FOLDERS:
        paths |= {p for p in (root / folder).rglob('*') if p.suffix in SUFFIXES}
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith(LEFT_ALONE):
            yield name, path


def says_its_purpose(name, line):
    """Returns true if a line is a comment with a word that neither stands in the file's name nor introduces it."""
    known = set(re.split(r'[_.]', pathlib.PurePath(name).name)) | INTRODUCTIONS
    return line.startswith('// ') and bool(set(re.findall(r'[^\W_]+', line.lower())) - known)


def faults_of(name, data):
    try:
        text = data.decode('utf-8')
    except UnicodeDecodeError as error:
        return [(1 + data.count(b'\n', 0, error.start), 'is not UTF-8')]
    faults = []
    cpp = name.endswith(('.cpp', '.hpp', '.h', '.cpp.in'))
    for number, line in enumerate(text.split('\n'), 1):
        if '\t' in line or '\r' in line:
            faults.append((number, 'a tab or carriage return'))
        if line != line.rstrip():
            faults.append((number, 'space at the end'))
        if INVISIBLE.search(line):
            faults.append((number, 'an invisible character or a curly quote'))
        if name.startswith(('include/', 'lib/')) and OUTSIDE_THE_ABI.match(line):
            faults.append((number, 'not `namespace safemap::SAFEMAP_ABI {`'))
        if len(line) > 120 and (cpp or name.endswith('.py')):
            faults.append((number, f'{len(line)} columns, and 120 are the most'))
    if text and not text.endswith('\n') or text.endswith('\n\n'):
        faults.append((text.count('\n'), 'does not end in just one newline'))
    if cpp and not says_its_purpose(name, text.split('\n')[0]):
        faults.append((1, 'does not begin by saying what the file is for'))
    if cpp:
        # Replaces comments and strings by as many newlines as they have.
        code = COMMENTS_AND_STRINGS.sub(lambda match: '\n' * match.group().count('\n'), text)
        faults += [(number, 'a character beyond ASCII in code')
                   for number, line in enumerate(code.split('\n'), 1) if not line.isascii()]
    return faults


def check(root):
    root = pathlib.Path(root)
    files = list(texts(root))
    faults = [f'{name}:{number}: {what}' for name, path in files for number, what in faults_of(name, path.read_bytes())]
    return faults or ([] if files else [f'{root}: no files here'])


if __name__ == '__main__':
    found = check(sys.argv[1])
    for line in found:
        print(line)
    sys.exit(bool(found))
