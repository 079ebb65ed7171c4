"""Makes the pictures of the docs from their tables: pictures.py ROOT [--write].

Without --write, fails if a picture in docs/pictures differs from what the tables give. Each picture is an SVG for light
and dark pages: layers of the code, lifetimes, the steps of a save, and bars of benchmarks.
"""
import html
import pathlib
import re
import sys
import textwrap

FOLDER = 'docs/pictures'
WIDTH = 760
STYLE = """<style>
text{font:14px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.page{fill:#fff;stroke:#d0d7de}.box{fill:#eef1f4;stroke:#8c959f}.safemap{fill:#2f6fd0}.other{fill:#a3abb4}
.old{fill:#d9b36c}.new{fill:#58a66c}.hidden{fill:#b3a1d8}.reads{fill:#dcebfb}.uses{fill:#ddf4e0}.line{stroke:#6e7781}
.arrow{fill:#6e7781}.bold{font-weight:600}.small{font-size:12px;fill:#59636e}
.end{text-anchor:end}.middle{text-anchor:middle}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117;stroke:#30363d}.box{fill:#21262d;stroke:#6e7681}
.safemap{fill:#4c8df0}.other{fill:#6e7681}.old{fill:#a37b2c}.new{fill:#2f8a48}.hidden{fill:#7a62b3}.reads{fill:#132f4c}
.uses{fill:#12361f}.small{fill:#9198a1}.line{stroke:#9198a1}.arrow{fill:#9198a1}}
</style>"""


class Tables:
    """The tables and numbered lists of one page, by the heading that they follow."""

    def __init__(self, path):
        self.path, self.sections = path, {}
        for section in re.split(r'^##+ ', path.read_text(encoding='utf-8'), flags=re.MULTILINE)[1:]:
            title, _, text = section.partition('\n')
            self.sections[title] = text

    def section(self, title):
        if title not in self.sections:
            sys.exit(f'{self.path}: has no heading "{title}"')
        return self.sections[title]

    def table(self, title, number=0):
        """Returns the rows of a table, without its head, each a list of cells."""
        found = re.findall(r'(?:^\|.*\n)+', self.section(title), re.MULTILINE)[number]
        return [[cell.strip() for cell in re.split(r'(?<!\\)\|', row)[1:-1]] for row in found.splitlines()[2:]]

    def steps(self, title):
        """Returns the first sentence of each item of a numbered list."""
        items = re.findall(r'^\d+\. (.*(?:\n   \S.*)*)', self.section(title), re.MULTILINE)
        return [re.split(r'(?<=[a-z])[.:](?: |$)', plain(' '.join(item.split())))[0] for item in items]

    def date(self, title):
        return re.search(r'Machine: (\d{4}-\d\d-\d\d), (?:a virtual machine with an )?([^,(]*[^,( ])',
                         self.section(title)).groups()


def plain(cell):
    """Returns the text of a cell without its markup."""
    return re.sub(r'[`*]', '', re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', cell))


def number(cell):
    """Returns the first number of a cell, as it is written."""
    return re.search(r'[\d.]+', cell)[0]


class Picture:
    def __init__(self, title, description):
        self.title, self.description, self.parts, self.height = title, description, [], 16

    def text(self, x, y, words, kind=''):
        named = f' class="{kind}"' if kind else ''
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{named}>{html.escape(words, quote=False)}</text>')

    def box(self, x, y, width, height, kind='box', corner=4):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{corner}" '
                          f'class="{kind}"/>')

    def arrow(self, x, y, to_x, to_y):
        bend = (x + to_x) / 2
        self.parts.append(f'<path d="M{x:g} {y:g}C{bend:g} {y:g} {bend:g} {to_y:g} {to_x - 6:g} {to_y:g}" fill="none" '
                          f'class="line"/>')
        self.parts.append(f'<path d="M{to_x:g} {to_y:g}l-8-4v8z" class="arrow"/>')

    def svg(self):
        title, description = html.escape(self.title), html.escape(self.description)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}" width="{WIDTH}" '
                f'height="{self.height:g}" role="img" aria-labelledby="t d">\n<title id="t">{title}</title>\n'
                f'<desc id="d">{description}</desc>\n{STYLE}\n'
                f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{self.height - 1:g}" rx="8" class="page"/>\n'
                + '\n'.join(self.parts) + '\n</svg>\n')


# ---- Layers

READ = {'safetensors', 'names', 'pickle', 'torch', 'distributed', 'open'}
USE = {'checkpoint', 'check', 'write', 'device', 'drivers', 'cli', 'python'}


def included(cell, rows_above):
    """Returns the layers that a layer may include, from the third column of the table."""
    if cell.startswith('public headers'):
        return set(rows_above)
    words = cell.replace('all above but', 'all above').replace(' and ', ', ')
    if words.startswith('all above'):
        return set(rows_above) - set(re.findall(r'\w+', words.partition('all above')[2]))
    return set(re.findall(r'\w+', words)) - {'nothing'}


def caption(job, most):
    """Returns the beginning of what a layer does: as many whole phrases as fit, and no list that is cut short."""
    phrases = re.split(r'(?<=[,;:]) ', re.sub(r' \([^)]*\)', '', plain(job)))
    words = phrases[0]
    for phrase in phrases[1:]:
        if len(words) + len(phrase) + 1 > most:
            return re.sub(r'; [^;]*[^;]$|:[^;]*$', '', words).rstrip(',;:')
        words += ' ' + phrase
    return words


def layers(docs):
    """Draws each layer above all that it includes."""
    picture = Picture('Layers of safemap', 'Each folder of lib/ is a layer; it includes only layers below it.')
    levels, above = {}, {}
    for name, job, may_include, *_ in docs['architecture'].table('Layers'):
        name = re.sub(r'\W', '', name)
        level = 1 + max((above[other][0] for other in included(may_include, above)), default=-1)
        above[name] = level, job
        levels.setdefault(level, []).append(name)
    y = 16
    for level in sorted(levels, reverse=True):
        names = levels[level]
        width = (WIDTH - 32 - 8 * (len(names) - 1)) / len(names)
        lines = {name: textwrap.wrap(caption(above[name][1], min(int(width / 3.4), 110)), int(width / 6.6))
                 for name in names}
        height = 26 + 15 * max(map(len, lines.values()))
        for i, name in enumerate(names):
            x = 16 + i * (width + 8)
            picture.box(x, y, width, height, 'box' + (' reads' if name in READ else ' uses' if name in USE else ''))
            picture.text(x + width / 2, y + 18, name, 'bold middle')
            for n, line in enumerate(lines[name]):
                picture.text(x + width / 2, y + 34 + 15 * n, line, 'small middle')
        y += height + 8
    for x, kind, words in ((16, 'reads', 'reads formats'), (140, 'uses', 'uses tensors'), (260, '', 'both need it')):
        picture.box(x, y + 3, 14, 14, 'box ' + kind, 2)
        picture.text(x + 20, y + 15, words, 'small')
    picture.text(WIDTH - 16, y + 15, 'A layer includes only layers below it: the table says which.', 'small end')
    picture.height = y + 30
    return picture


# ---- Lifetimes

def lifetimes(docs):
    """Draws an arrow from each object to what it keeps alive: the bold words of the table."""
    rows = [(plain(held), re.findall(r'\*\*(.*?)\*\*', keeps))
            for held, keeps, _ in docs['lifetimes'].table('What an object keeps alive')]
    kept = list(dict.fromkeys(thing for _, things in rows for thing in things))
    picture = Picture('What keeps what alive', '; '.join(
        f'{held} keeps {" and ".join(things) or "nothing"}' for held, things in rows) + '.')
    step, top = 36, 48
    picture.text(16, 30, 'You hold', 'bold')
    picture.text(460, 30, 'It keeps alive', 'bold')
    places = {thing: top + (i + .5) * len(rows) / len(kept) * step for i, thing in enumerate(kept)}
    for thing, y in places.items():
        picture.box(460, y - 15, WIDTH - 476, 30, 'box uses')
        picture.text(472, y + 5, thing)
    for i, (held, things) in enumerate(rows):
        y = top + (i + .5) * step
        picture.box(16, y - 14, 300, 28, 'box reads')
        picture.text(28, y + 5, held)
        if not things:
            picture.text(326, y + 5, 'keeps nothing', 'small')
        for thing in things:
            picture.arrow(316, y, 460, places[thing])
    picture.height = top + len(rows) * step + 12
    return picture


# ---- A save

def commit(docs):
    """Draws the steps of a save beside what is on the disk at that time."""
    steps = docs['commit'].steps('The steps of a save')
    made, committed = 2, next(i for i, step in enumerate(steps) if step.startswith('Commit'))
    picture = Picture('The steps of a save', 'OUT is the old checkpoint until the commit, then the new one: ' +
                      '; '.join(steps) + '.')
    lines = [textwrap.wrap(step, 58) for step in steps]
    tops, y = [], 52
    for each in lines:
        tops.append(y)
        y += 18 + 17 * len(each)
    tops.append(y)
    picture.text(66, 34, 'OUT', 'bold middle')
    picture.text(200, 34, '.OUT.safemap-tmp', 'bold middle')
    middle = (tops[committed] + tops[committed + 1]) / 2
    states = (('old', 66, 46, tops[0], middle - 4, ('old', 'checkpoint,', 'or none')),
              ('new', 66, 46, middle + 4, y, ('new', 'checkpoint')),
              ('hidden', 200, 74, tops[made], middle - 4, ('new files',)),
              ('hidden', 200, 74, middle + 4, y, ('old files,', 'until they', 'are removed')))
    for kind, x, half, begin, end, words in states:
        picture.box(x - half, begin, 2 * half, end - begin - 6, kind)
        for n, line in enumerate(words):
            picture.text(x, (begin + end) / 2 + 2 + 17 * (n - len(words) / 2 + .5), line, 'middle')
    for i, each in enumerate(lines):
        if i == committed:
            picture.box(288, tops[i] - 4, WIDTH - 304, tops[i + 1] - tops[i] - 4)
        for n, line in enumerate(each):
            place = tops[i] + 16 + 17 * n
            if n == 0:
                picture.text(308, place, f'{i + 1}', 'bold end')
            picture.text(318, place, line, 'bold' if i == committed else '')
    picture.text(16, y + 14, 'A save that is killed leaves OUT old or new, never half; the next save clears the hidden '
                 'folder away.', 'small')
    picture.height = y + 30
    return picture


# ---- Benchmarks

# Each panel: heading in performance.md, table there, column of the numbers, what was done, and the rows: how the first
# cell begins, and the label.
SECONDS = [
    ('Converting and loading', 0, 1, '.pt of 3.81 GB to safetensors', [
        ('`safemap convert big.pt out/` ', 'safemap'),
        ('`cp big.pt x && sync x`', 'cp, sync'),
        ('`torch.load(mmap=True)`', 'torch.load, save_file')]),
    ('Saving', 0, 1, 'safetensors of 3.81 GB into shards of 1 GB', [
        ('`convert model.safetensors out/', 'safemap'),
        ('`cp model.safetensors', 'cp, sync'),
        ('`load_file` and', 'load_file, save_torch_state_dict')]),
    ('Folders of DeepSpeed', 0, 1, 'DeepSpeed ZeRO 3 of 8 ranks, 4.23 GB, to safetensors', [
        ('**stage 3, 8 ranks**', 'safemap'), ('DeepSpeed', 'zero_to_fp32 of DeepSpeed')]),
    ('Folders of torch.distributed.checkpoint', 1, 1, 'DCP folder of 4 ranks, 4.23 GB, to safetensors', [
        ('**4.23 GB in 156', 'safemap'), ('torch', 'dcp_to_torch_save, save_file')]),
    ('Hugging Face shards', 0, 1, 'Hugging Face shards of 4 ranks, 4 GiB, to whole tensors', [
        ('`convert ranks/ out/`', 'safemap'), ('`consolidate_safetensors_files`', 'consolidate_safetensors_files')]),
]
LOADERS = [('first load of a process', 1), ('later loads', 2)]


def begins(rows, start, after=0):
    """Returns the number of the first row, from row `after` on, whose first cell begins so."""
    for i in range(after, len(rows)):
        if (rows[i][0] + ' ').startswith(start):
            return i
    sys.exit(f'docs/performance.md: no row begins with {start}')


def bars(picture, panels, unit, start, note):
    """Draws panels: a title each, and a bar for each label and its number. The bars of safemap are blue."""
    most, y = max(float(value) for _, values in panels for _, value in values), 12
    for title, values in panels:
        picture.text(16, y + 18, title, 'bold')
        y += 30
        for label, value in values:
            length = (WIDTH - start - 92) * float(value) / most
            picture.text(start - 10, y + 13, label, 'end')
            picture.box(start, y, length, 17, 'safemap' if label.startswith('safemap') else 'other', 2)
            picture.text(start + 8 + length, y + 13, f'{value} {unit}')
            y += 24
    picture.text(16, y + 14, note, 'small')
    picture.height = y + 28
    return picture


def described(panels, unit):
    return ' '.join(f'{title}: {", ".join(f"{label} {value} {unit}" for label, value in values)}.'
                    for title, values in panels)


def converting(docs):
    page, panels = docs['performance'], []
    for heading, table, column, title, rows in SECONDS:
        cells, at, values = page.table(heading, table), -1, []
        for start, label in rows:
            at = begins(cells, start, at + 1 if label != 'safemap' and 'Folders' in heading else 0)
            values.append((label, number(cells[at][column])))
        panels.append((f'{title} ({", ".join(page.date(heading))})', values))
    return bars(Picture('Seconds to convert; less is better', described(panels, 's')), panels, 's', 260,
                'Seconds, less is better. Medians of the tables in docs/performance.md, which has the commands.')


def gpu(docs):
    page, heading = docs['performance'], 'Bringing tensors to a GPU'
    rows = page.table(heading, 1)
    panels = [(f'4.3 GB in tmpfs to a GPU, {title} ({", ".join(page.date(heading))})',
               [(plain(row[0]), number(row[column])) for row in rows]) for title, column in LOADERS]
    return bars(Picture('Loading to a GPU; more is better', described(panels, 'GB/s')), panels, 'GB/s', 330,
                'GB/s, more is better. Each loader in a process of its own.')


PICTURES = {'layers': layers, 'lifetimes': lifetimes, 'commit': commit, 'converting': converting, 'gpu': gpu}


def main(root, *options):
    docs = {name: Tables(root / f'docs/{name}.md') for name in ('architecture', 'commit', 'lifetimes', 'performance')}
    folder, faults = root / FOLDER, []
    for name, make in PICTURES.items():
        file, svg = folder / f'{name}.svg', make(docs).svg()
        if len(svg) > 12_000:
            faults.append(f'{file}: {len(svg)} bytes, and 12,000 are the most')
        if '--write' in options:
            folder.mkdir(exist_ok=True)
            file.write_text(svg, encoding='utf-8')
        elif not file.is_file() or file.read_text(encoding='utf-8') != svg:
            faults.append(f'{file}: differs from the tables; tests/tools/pictures.py . --write makes it anew')
    pages = ''.join(path.read_text(encoding='utf-8') for path in [root / 'README.md', *(root / 'docs').glob('*.md')])
    faults += [f'{folder}/{name}.svg: no page shows it' for name in PICTURES if f'pictures/{name}.svg' not in pages]
    print('\n'.join(faults), end='\n' if faults else '')
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main(pathlib.Path(sys.argv[1]), *sys.argv[2:]))
