"""Shared by the tests of the command line: a folder for each test, runs of the program, and checks of its output."""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'forge'))
from forged import floats, safetensors

HERE = pathlib.Path(__file__).resolve().parent
SAFEMAP = DATA = None
UPDATE = False
# The build option b_sanitize, which meson passes.
SANITIZED = os.environ.get('SAFEMAP_SANITIZE', 'none') != 'none'

COMMANDS = ('inspect', 'scan', 'convert', 'verify', 'diff', 'hash', 'plan', 'load', 'edit', 'repair', 'completions')

SMALL = [
    ('layers.0.w', 'F32', [2, 3], floats(1, 2, 3, 4, 5, 6)),
    ('layers.1.w', 'F32', [2, 3], floats(-1, -2, -3, -4, -5, 3.4e38)),
    ('ids', 'I64', [2], struct.pack('<2q', 7, -7)),
    ('norm', 'F32', [2], floats(float('nan'), 0.5)),
    ('none', 'U8', [0], b''),
]


def use(safemap, data):
    """Sets the program, and the folder of files that torch wrote."""
    global SAFEMAP, DATA
    SAFEMAP, DATA = os.path.abspath(safemap), pathlib.Path(data).absolute()


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()

    def json(self):
        """Returns the only object on stdout; other output before or after it is an error."""
        assert self.out.endswith('\n') and self.out.count('\n') == 1, repr(self.out)
        return json.loads(self.out)


def anonymous_bytes(process):
    """Returns the anonymous memory of a process, or 0 if it has ended."""
    try:
        status = pathlib.Path('/proc', str(process), 'status').read_text(encoding='utf-8')
    except OSError:
        return 0
    found = re.search(r'RssAnon:\s+(\d+) kB', status)
    return int(found.group(1)) * 1024 if found else 0


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in ('NO_COLOR', 'TERM')}
    return {**kept, 'TERM': 'xterm', **more}


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / 'small.safetensors').write_bytes(safetensors(SMALL, {'format': 'pt', 'who': 'a "b"'}))

    def safemap(self, *words, env=None, **more):
        return Result(subprocess.run([SAFEMAP, *words], cwd=self.folder, capture_output=True, stdin=subprocess.DEVNULL,
                                     env=environment() if env is None else env, timeout=120, **more))

    def done(self, *words):
        """Returns the JSON object of a run that must succeed."""
        result = self.safemap(*words, '--json')
        self.assertEqual((result.code, result.err), (0, ''), result.out)
        return result.json()

    def refused(self, code, exit_code, *words):
        """Returns the JSON error of a run that must fail; the same run without --json must fail in the same way."""
        result = self.safemap(*words, '--json')
        found = result.json()
        self.assertEqual(list(found), ['error'])
        error = found['error']
        self.assertEqual((error['code'], result.code, result.err), (code, exit_code, ''), error)
        self.assertTrue(error['message'])
        self.assertLessEqual(set(error), {'code', 'message', 'path', 'tensor', 'hint'})
        self.assertTrue(all(error.values()), 'a key that does not apply is absent')

        text = self.safemap(*words)
        self.assertEqual((text.code, text.out), (exit_code, ''))
        self.assertTrue(text.err.startswith('safemap: error: '), text.err)
        self.assertIn(error['message'], text.err)
        if 'hint' in error:
            self.assertIn('\nhint: ' + error['hint'] + '\n', text.err)
        return error

    def expect(self, name, text):
        """Compares with a file of expected/, except for times and measured memory."""
        text = text.replace(str(DATA), 'DATA')
        text = re.sub(r'(in|waited +) ?\d+\.\d\d s', r'\1 TIME', text)
        text = re.sub(r'TIME, [\d.]+ .?B/s', 'TIME, RATE', text)
        text = re.sub(r'[\d.]+ .?B of memory', 'MEMORY', text)
        path = HERE / 'expected' / (name + '.txt')
        if UPDATE:
            path.write_text(text, encoding='utf-8')
        self.assertEqual(text, path.read_text(encoding='utf-8'))

    def leftovers(self):
        return sorted(p.name for p in self.folder.iterdir())
