"""Fails on a public function whose result may be lost without a warning: nodiscard.py ROOT.

A function of include/safemap that returns a value is [[nodiscard]], by itself or by the class that it returns. Exempt
are operators, functions that return *this, noexcept members without parameters (getters), and those of CALLED_TO_ACT.
"""
import pathlib
import re
import sys

import names

# Called for what they do. What they return is a report of it, or a count.
CALLED_TO_ACT = {'add', 'commit', 'edit', 'erase', 'exchange', 'repair', 'save', 'scan', 'sleep'}

ANGLES = re.compile(r'<[^<>]*>')
ATTRIBUTE = re.compile(r'\[\[[^\]]*\]\]')
TYPE = re.compile(r'(?:class|struct)\s+(?P<attribute>\[\[nodiscard\]\]\s*)?(?:SAFEMAP_API\s+)?(?P<name>\w+)')
WORDS = re.compile(r'\b(?:static|virtual|inline|constexpr|explicit|SAFEMAP_API)\b')
NO_FUNCTION = re.compile(r'(?:using|friend|typedef|static_assert|enum|union|concept|class|struct)\b')
ACCESS = re.compile(r'\s*(?:public|private|protected)\s*:(?!:)')
TEMPLATE = re.compile(r'\s*template\s*')
FUNCTION = re.compile(r'(?P<returned>[^(]*?)(?P<name>\w+)\s*\((?P<parameters>.*?)\)(?P<rest>[^()]*)', re.DOTALL)


def blanked(source):
    """Returns the source with comments, texts and preprocessor lines as spaces, so that places stay."""
    for pattern in (names.COMMENT, names.PREPROCESSOR, names.TEXT):
        source = pattern.sub(lambda match: re.sub(r'[^\n]', ' ', match.group()), source)
    return source


def declarations(source):
    """Yields place, text and class of each declaration that is public, of namespaces and of classes."""
    text = blanked(source)
    scopes = []  # a class's name and whether its members are public; None: a body; '': a namespace
    begin = round_brackets = 0
    for at, character in enumerate(text):
        if character in '()':
            round_brackets += 1 if character == '(' else -1
        if round_brackets > 0 or character not in '{};':
            continue
        while match := ACCESS.match(text, begin, at):
            if scopes and scopes[-1]:
                scopes[-1] = (scopes[-1][0], match.group().strip().startswith('public'))
            begin = match.end()
        head = text[begin:at]
        seen = all(scope == '' or scope and scope[1] for scope in scopes)
        if character != '}' and seen and head.strip():
            yield begin + len(head) - len(head.lstrip()), head.strip(), scopes[-1][0] if scopes and scopes[-1] else ''
        if character == '{':
            opened = TYPE.match(without_template(head.strip()))
            if names.NAMESPACE.search(head.strip()):
                scopes.append(None if 'detail' in head else '')
            else:
                scopes.append((opened['name'], not head.lstrip().startswith('class')) if opened else None)
        elif character == '}':
            scopes.pop()
        begin = at + 1


def without_template(text):
    """Returns a declaration without `template <...>` and without the arguments of templates."""
    while (less := ANGLES.sub('', text)) != text:
        text = less
    return TEMPLATE.sub('', text, count=1) if text.lstrip().startswith('template') else text


def loses(text, owner, kept):
    """Returns the name of the function that `text` declares, if its result may be lost."""
    if 'operator' in text or text.endswith('= delete') or '[[nodiscard]]' in text or 'noreturn' in text:
        return None
    text = ATTRIBUTE.sub('', without_template(text)).strip()
    if NO_FUNCTION.match(text) or '=' in text.split('(')[0]:
        return None
    function = FUNCTION.match(text)
    if not function:
        return None
    returned = WORDS.sub('', function['returned']).strip()
    if not returned or returned in ('void', '~', owner + '&') or function['name'] in CALLED_TO_ACT:
        return None
    getter = owner and not function['parameters'].strip() and 'noexcept' in function['rest']
    return None if getter or returned.split('::')[-1] in kept else function['name']


def check(root):
    sources = {path: path.read_text() for path in sorted((root / 'include').rglob('*.hpp'))}
    kept = {match['name'] for source in sources.values() for match in TYPE.finditer(blanked(source))
            if match['attribute']}
    faults = []
    for path, source in sources.items():
        for place, text, owner in declarations(source):
            if name := loses(text, owner, kept):
                line = source.count('\n', 0, place) + 1
                faults.append(f'{path.relative_to(root)}:{line}: {name}() is not [[nodiscard]]')
    return faults or ([] if sources else [f'{root}: no headers here'])


if __name__ == '__main__':
    found = check(pathlib.Path(sys.argv[1]))
    print(*found, sep='\n')
    sys.exit(bool(found))
