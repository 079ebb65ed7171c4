"""Fails on prose that a script can tell is not plain English: prose.py ROOT.

A comment or docstring does not begin with "Of", "What", "Whether", "Those", "Such" or "That". Comments, docs and
messages do not use phrases that the field does not use. A sentence in the docs has at most 35 words. A script finds the
worst only: CONTRIBUTING.md says how safemap writes.
"""
import ast
import pathlib
import re
import sys

MESSAGES = ('include/', 'lib/', 'cli/', 'python/core/')  # folders whose strings users see
CODE = ['include', 'lib', 'cli', 'python', 'tests', 'bench', 'fuzz', 'examples']
PAGES = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md']
FIRST_WORDS = re.compile(r'(of|what|whether|those|such|that)\b', re.IGNORECASE)
PHRASES = re.compile(
    r'\b(?:is|are|was|were) told\b|\b(?:of|to|from|in) (?:which|whom) (?:none|nothing|no)\b|\b(?:is|are) none\b|'
    r'(?<!there )\b(?:is|are) no (?!longer\b|more\b|larger\b|smaller\b|different\b)(?:\w+)\b(?= *[.,;:]|$)|'
    r'\blitter\b|\bmend(?:s|ed|ing)?\b|\bthe like\b|\bgo(?:es)? over\b|\bis of use\b|\bas it stands\b|\bby way of\b|'
    r'\bwhoever\b|\bwhereof\b|\bthereof\b|\bsome of which\b',
    re.IGNORECASE)
MOST_WORDS = 35

STRING = r'R"(?P<d>[^(\s]*)\((?P<raw>.*?)\)(?P=d)"|"(?P<string>(?:\\.|[^"\\\n])*)"'
CHARACTER = r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # and no digit separator
LEXEMES = re.compile(STRING + '|' + CHARACTER + r'|(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)', re.DOTALL)
MARKERS = re.compile(r'^(//[/!]?<?|/\*+<?)|\*/$')
PYTHON_COMMENT = re.compile(r'^[ \t]*#(?!!)(?P<text>[^\n]*)', re.MULTILINE)


def blocks(lines):
    """Joins lines of comments, each (line number, whether it may go on with the line above, text), to blocks."""
    words, begin, last = [], 0, 0
    for number, goes_on, text in lines:
        if words and not (goes_on and text and last == number - 1):
            yield begin, ' '.join(words)
            words = []
        if text:
            begin = begin if words else number
            words.append(text)
        last = number
    if words:
        yield begin, ' '.join(words)


def comments_of_cpp(text):
    """Yields (line number, text) of each comment; lines that follow each other are one, up to an empty one."""
    def lines():
        for match in LEXEMES.finditer(text):
            raw = match['line'] or match['block']
            if raw is None:
                continue
            alone = text[text.rfind('\n', 0, match.start()) + 1:match.start()].strip() == ''
            number = 1 + text.count('\n', 0, match.start())
            yield number, alone and not raw.startswith('///<'), MARKERS.sub('', raw).strip()
    return blocks(lines())


def strings_of_cpp(text):
    """Yields (line number, text) of each string of several words; strings of one word are keys and names."""
    for match in LEXEMES.finditer(text):
        said = match['string'] or match['raw']
        if said and ' ' in said:
            yield 1 + text.count('\n', 0, match.start()), said


def comments_of_python(text):
    """Yields (line number, text) of each comment that has a line of its own, and of each docstring."""
    yield from blocks((1 + text.count('\n', 0, match.start('text')), True, match['text'].strip())
                      for match in PYTHON_COMMENT.finditer(text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            yield getattr(node, 'lineno', 1), ast.get_docstring(node).replace('\n', ' ')


def paragraphs(text):
    """Yields (line number, text) of each paragraph, item of a list and cell of a table; code blocks are left out."""
    words, begin, fenced = [], 1, False
    for number, line in enumerate([*text.split('\n'), ''], 1):
        if line.lstrip().startswith('```'):
            fenced = not fenced
            line = ''
        elif fenced:
            continue
        if line.lstrip().startswith('|'):
            for cell in line.strip().strip('|').split('|'):
                yield number, cell.strip()
            line = ''
        if words and (not line.strip() or re.match(r'\s*([-*>#]|\d+\.)\s', line)):
            yield begin, ' '.join(words)
            words = []
        if line.strip():
            begin = begin if words else number
            words.append(line.strip())


def sentences(paragraph):
    paragraph = re.sub(r'`[^`]*`', 'code', paragraph)
    paragraph = re.sub(r'\]\([^)]*\)', ']', paragraph)
    paragraph = re.sub(r'^([-*>#]+|\d+\.)\s', '', paragraph)
    return re.split(r'(?<=[.!?:;])\s+', paragraph)


def phrases_in(text):
    for found in PHRASES.finditer(text):
        yield f'not plain English: "{found.group()}"'


def faults_of_page(text):
    for number, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            count = len(re.findall(r"[\w'][\w'.,/-]*", sentence))
            if count > MOST_WORDS:
                yield number, f'a sentence of {count} words, and {MOST_WORDS} are the most: {sentence[:60]}...'
        for fault in phrases_in(re.sub(r'`[^`]*`', 'code', paragraph)):
            yield number, fault


def faults_of_comments(comments):
    for number, comment in comments:
        if FIRST_WORDS.match(comment):
            yield number, f'a comment that begins with "{comment.split()[0]}"'
        for fault in phrases_in(comment):
            yield number, fault


def faults_of(name, text):
    if name.endswith('.md'):
        yield from faults_of_page(text)
    elif name.endswith('.py'):
        yield from faults_of_comments(comments_of_python(text))
    else:
        yield from faults_of_comments(comments_of_cpp(text))
        if name.startswith(MESSAGES):
            yield from ((number, fault) for number, said in strings_of_cpp(text) for fault in phrases_in(said))


def texts(root):
    for name in PAGES:
        if (root / name).exists():
            yield name, (root / name).read_text()
    for path in sorted((root / 'docs').rglob('*.md')):
        yield path.relative_to(root).as_posix(), path.read_text()
    for folder in CODE:
        for path in sorted((root / folder).rglob('*')):
            name = path.relative_to(root).as_posix()
            if path.suffix in {'.cpp', '.hpp', '.h', '.py'} and not name.startswith(('tests/data/', 'fuzz/corpus/')):
                yield name, path.read_text()


def main(root):
    faults = 0
    for name, text in texts(root):
        for number, fault in faults_of(name, text):
            print(f'{name}:{number}: {fault}')
            faults += 1
    return faults != 0


if __name__ == '__main__':
    sys.exit(main(pathlib.Path(sys.argv[1])))
