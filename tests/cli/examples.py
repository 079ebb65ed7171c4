"""Runs the shell examples of all pages, in folders with the files that they name: examples.py SAFEMAP DATA [--update].

- A block of `sh` whose lines all call safemap is run line by line, any other block as one script; each must succeed.
- A block of `console` shows what its commands (after `$ `) print, and this must be printed. A line `...` in it stands
  for any lines. Numbers that a clock gives may differ.
- In tables and texts, whole calls of safemap in backticks are run.

Each block begins with new copies of the files that it names. An OUT that exists is removed, unless the call has
--force. --update writes what is printed into the pages.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import case
import example_files
from example_files import ROOT

BLOCK = re.compile(r'^```(sh|console)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
INLINE = re.compile(r'`(safemap \w+ [^`\n]*)`')
# A line that begins so needs what a test does not have: a network, other users' rights, a launcher, a git checkout.
NOT_RUN = re.compile(r'\s*(sudo|\./dev|git|meson|g\+\+|mpirun|srun|tr|stat|ls)\s')
# Readers fill in PATH, IN, OUT, FILE, [options]. `convert *.safetensors` is there as an error. Files of benchmarks are
# not made.
PLACEHOLDER = re.compile(r'(?<![\w-])(?:[A-Z]{2,}|[AB])\b|\[options\]|convert (?:part-)?\*|'
                         r'\| source|\b(?:big|transposed|in)\.(?:pt|safetensors)\b')
CLOCK = [(r'\d+\.\d+ s\b', 'TIME'), (r'TIME, [\d.]+ .?B/s', 'TIME, RATE'), (r'[\d.]+ .?B of memory', 'MEMORY')]


def normal(line):
    for pattern, word in CLOCK:
        line = re.sub(pattern, word, line)
    return line.rstrip()


def shown(wanted, printed):
    """Returns whether the printed lines are the wanted ones, in which `...` stands for any lines."""
    pattern = ''.join(r'(?:.*\n)*' if line == '...' else re.escape(normal(line)) + r'\n' for line in wanted)
    return re.fullmatch(pattern, ''.join(normal(line) + '\n' for line in printed)) is not None


def joined_lines(text):
    """Yields the lines of a script; a line that ends in a backslash has the next one in it."""
    yield from text.replace('\\\n', ' ').splitlines()


def output_of(words):
    """Returns the path that a call writes, or None."""
    if words[:2] not in (['safemap', 'convert'], ['safemap', 'repair']):
        return None
    if '-o' in words:
        return words[words.index('-o') + 1]
    paths = words[2:next((i for i, word in enumerate(words) if word.startswith('-')), len(words))]
    return paths[-1] if len(paths) > 1 else None


class Sandbox:
    """A folder in which one block runs."""

    def __init__(self, files, page, path):
        self.templates = [files.more[page]] if page in files.more else []
        self.templates.append(files.folder)
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=files.folder.parent))
        self.environment = case.environment(PATH=f'{path}:{os.environ["PATH"]}', LC_ALL='C.UTF-8')

    def take(self, name):
        """Copies the files or folders that a word of a command names, if they are templates."""
        top = pathlib.PurePosixPath(name).parts[:1]
        for template in self.templates if top and top[0] not in ('/', '.', '..') else ():
            for source in template.glob(top[0]):
                target = self.folder / source.name
                if not target.exists():
                    copy = shutil.copytree if source.is_dir() else shutil.copy
                    copy(source, target)

    def prepare(self, command):
        """Copies what a command reads, and removes what it writes."""
        words = shlex.split(command, comments=True)
        out = output_of(words)
        for word in words[:]:
            if word != out or words.count(out) > 1:
                self.take(word)
        if out and not {'--force', '-f'} & set(words):
            path = self.folder / out
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def run(self, script):
        done = subprocess.run(['bash', '-e', '-c', script], cwd=self.folder, env=self.environment, timeout=120,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout.decode()


class Pages:
    def __init__(self, files, path, update):
        self.files, self.path, self.update = files, path, update
        self.faults, self.count = [], 0

    def sandbox(self, page):
        return Sandbox(self.files, page, self.path)

    def run(self, place, sandbox, script):
        """Runs a command that must succeed."""
        self.count += 1
        code, output = sandbox.run(script)
        if code != 0:
            self.faults.append(f'{place}: exit code {code}: {script.strip()}\n{output}')

    def script(self, page, number, text):
        """Runs a block of `sh`."""
        lines = [line for line in joined_lines(text) if line.strip() and not NOT_RUN.match(line)]
        if not any('safemap' in line for line in lines):
            return
        sandbox = self.sandbox(page)
        if all(line.startswith('safemap ') for line in lines):
            for line in lines:
                sandbox.prepare(line)
                self.run(f'{page}:{number}', sandbox, line)
            return
        for word in re.findall(r'[\w.-]+', text):
            if not re.search(rf'\b{re.escape(word)}\b', 'out safe'):
                sandbox.take(word)
        self.run(f'{page}:{number}', sandbox, '\n'.join(lines))

    def transcript(self, page, number, text):
        """Runs a block of `console`, and returns it with what is printed now."""
        sandbox, now = self.sandbox(page), ''
        for found in re.finditer(r'^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)', text, re.MULTILINE):
            self.count += 1
            sandbox.prepare(found[1].replace('\\\n', ' '))
            _, output = sandbox.run(found[1])
            wanted, printed = found[2].splitlines(), [line.rstrip() for line in output.splitlines()]
            same = shown(wanted, printed)
            if not same and (not self.update or '...' in wanted):
                self.faults.append(f'{page}:{number}: {found[1]}\n--- shown\n{found[2]}--- printed\n{output}')
            kept = same or '...' in wanted or not printed
            now += f'$ {found[1]}\n' + (found[2] if kept else '\n'.join(printed) + '\n')
        return now

    def page(self, path):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding='utf-8')

        def run_block(found):
            number = 1 + text.count('\n', 0, found.start())
            if found[1] == 'console':
                return f'```console\n{self.transcript(name, number, found[2])}```'
            self.script(name, number, found[2])
            return found[0]

        updated = BLOCK.sub(run_block, text)
        if self.update and updated != text:
            path.write_text(updated, encoding='utf-8')
        sandbox = self.sandbox(name)
        for found in INLINE.finditer(re.sub(r'^```.*?^```$', lambda block: '\n' * block[0].count('\n'), text,
                                            flags=re.MULTILINE | re.DOTALL)):
            command = found[1].replace('\\|', '|')
            words = command.split()[1:3]
            if words[0] in case.COMMANDS and not words[-1].startswith('-') and not PLACEHOLDER.search(command):
                sandbox.prepare(command)
                self.run(f'{name}: in the text', sandbox, command)


def main(safemap, data, *options):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / 'bin').mkdir()
        (folder / 'bin/safemap').symlink_to(os.path.abspath(safemap))
        files = example_files.Files(folder / 'files', os.path.abspath(safemap), pathlib.Path(data).absolute())
        pages = Pages(files, folder / 'bin', '--update' in options)
        for path in [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]:
            pages.page(path)
        print('\n'.join(pages.faults))
        print(f'{pages.count} examples, {len(pages.faults)} faults')
        return bool(pages.faults) or pages.count < 80


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
