"""Tests the command line as people use it: people.py SAFEMAP DATA [WRITE_TEXTS] [unittest's own arguments].

Covers suggestions for typing errors, terminals of any width, several shards without an index, completions, and the man
page, which WRITE_TEXTS prints.
"""
import fcntl
import io
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest
import zipfile

import case
from case import COMMANDS, SMALL, Case, environment
from forged import floats, safetensors, write_sparse

WRITE_TEXTS = None


def options_of(help_text):
    """Returns the forms of all options, as lists: ["-q", "--quiet"]."""
    listed = help_text.partition('\nArguments:\n')[2].partition('\nExamples:\n')[0]
    return [found.split(', ') for found in re.findall(r'^  (-\w, --[a-z-]+|-\w|--[a-z-]+)', listed, re.MULTILINE)]


class TypingErrors(Case):
    def refusal(self, *words):
        error = self.refused('invalid_argument', 2, *words)
        return error['message'], error.get('hint')

    def test_a_mistyped_command_suggests_the_nearest_one(self):
        for word, meant in [('convret', 'convert'), ('inspct', 'inspect'), ('verfy', 'verify'), ('hsah', 'hash')]:
            self.assertEqual(self.refusal(word, 'small.safetensors'),
                             (f"'{word}' is not a command", f'did you mean {meant}?'))
        self.assertEqual(self.refusal('frobnicate')[1], 'safemap --help lists the commands')
        self.assertEqual(self.refusal('small.safetensors'),
                         ("'small.safetensors' is not a command",
                          'safemap inspect small.safetensors lists what is in it'))
        self.assertEqual(self.refusal('help', 'convret'), ("'convret' is not a command", 'did you mean convert?'))

    def test_words_of_other_programs_suggest_the_command(self):
        for words, meant in [('ls list info show cat', 'inspect'), ('merge consolidate cp save export', 'convert'),
                             ('check validate test', 'verify'), ('fix', 'repair'), ('compare cmp', 'diff'),
                             ('sum checksum digest sha256', 'hash'), ('man', 'help')]:
            for word in words.split():
                self.assertEqual(self.refusal(word, 'small.safetensors')[1], f'did you mean {meant}?')
        # A command of a later version is not suggested, nor is a part of a word.
        for word in ('find', 'is', 'ls cp', ''):
            meant = 'did you mean scan?' if word == 'find' and 'scan' in COMMANDS else None
            self.assertIn(self.refusal(word)[1], (meant, 'safemap --help lists the commands'))

    def test_options_of_other_programs_suggest_ours(self):
        for option, meant in [('--output', '-o OUT'), ('--out=x', '-o OUT'), ('--overwrite', '--force'),
                              ('-y', '--force'), ('--fp16', '--dtype f16'), ('--bf16', '--dtype bf16'),
                              ('--half', '--dtype f16'), ('--shard-size', '--max-shard-size'),
                              ('--only', '--include'), ('--jobs', '--threads'), ('-k', '--keep-name or --keep-dtype'),
                              ('-R', '--root, --rename or --resume')]:
            message, hint = self.refusal('convert', 'small.safetensors', 'out', option)
            self.assertEqual((message, hint), (f"convert has no option '{option.partition('=')[0]}'",
                                               f'did you mean {meant}?'))
        self.assertEqual(self.refusal('inspect', 'small.safetensors', '--dtype', 'bf16')[1],
                         '--dtype is an option of convert')
        self.assertEqual(self.refusal('verify', 'small.safetensors', '-f')[1], '-f is an option of convert, repair')
        self.assertEqual(self.refusal('inspect', 'small.safetensors', '--overwrite')[1],
                         'safemap inspect --help lists the options')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_short_options(self):
        self.assertEqual(self.safemap('convert', 'small.safetensors', 'out', '-q').out, '')
        planned = self.safemap('convert', '-fn', 'small.safetensors', 'out')
        self.assertIn('would write', planned.out)
        self.assertEqual(self.safemap('convert', 'small.safetensors', 'out', '-fq').code, 0)
        self.done('convert', '-o', 'two.safetensors', 'small.safetensors')
        self.done('convert', 'small.safetensors', '-othree.safetensors')
        self.done('repair', 'small.safetensors', '-o', 'four.safetensors')
        for out in ('two', 'three', 'four'):
            self.assertTrue(self.done('diff', 'small.safetensors', out + '.safetensors')['equal'])
        for words, message in [
                (('convert', '-o', 'new', 'small.safetensors', 'other'),
                 'there are two OUT: -o new and other, which does not exist'),
                (('repair', 'small.safetensors', 'other', '-o', 'new'), 'there are two OUT: -o new and other'),
                (('convert', 'small.safetensors', '-o', 'a', '-o', 'b'), '-o is given more than once'),
                (('repair', 'small.safetensors'), 'OUT is missing'),
                (('convert', 'small.safetensors', 'new', '-q=false'), "a flag takes no value: '=false'"),
                (('convert', 'small.safetensors', 'new', '-fx'), "convert has no option '-x'"),
                (('convert', 'small.safetensors', 'new', '-qv'), '--quiet and --verbose contradict each other'),
                (('-q', 'inspect', 'small.safetensors'), "expected a command before '-q'")]:
            self.assertEqual(self.refusal(*words)[0], message)
        self.assertFalse((self.folder / 'new').exists())

    def test_only_the_wrong_option_is_reported(self):
        for words, option, meant in [
                (('inspect', 'small.safetensors', '--treee'), '--treee', '--tree'),
                (('inspect', '--treee'), '--treee', '--tree'),
                (('convert', 'small.safetensors', 'out', '--dtyp', 'bf16'), '--dtyp', '--dtype'),
                (('convert', '--forec', 'small.safetensors', 'out'), '--forec', '--force'),
                (('load', 'small.safetensors', '--devcie=host'), '--devcie', '--device')]:
            self.assertEqual(self.refusal(*words), (f"{words[0]} has no option '{option}'", f'did you mean {meant}?'))
        self.assertEqual(self.refusal('inspect', 'small.safetensors', '--frobnicate'),
                         ("inspect has no option '--frobnicate'", 'safemap inspect --help lists the options'))
        self.assertEqual(self.refusal('--vresion'), ("unknown option '--vresion'", 'did you mean --version?'))
        self.assertEqual(self.refusal('--tree', 'inspect', 'small.safetensors'),
                         ("expected a command before '--tree'", 'safemap --help lists the commands'))
        self.assertEqual(self.refusal('inspect', 'small.safetensors', 'b'),
                         ("'b' is one argument too many", 'safemap inspect PATH [options]'))
        without = self.safemap('convert', 'small.safetensors', 'out', '--dtype')
        self.assertIn('error: --dtype needs a value\n', without.err)
        self.assertEqual(self.refusal('inspect', 'small.safetensors', '--tree=yes')[0], '--tree takes no value')
        self.assertEqual(self.refusal('convert', 'small.safetensors'),
                         ('OUT is missing', 'safemap convert IN... OUT [options]'))

    def test_every_spelling_of_help_works(self):
        usage = self.safemap('--help').out
        for words in ((), ('help',), ('-h',), ('help', 'help'), ('help', '--help')):
            result = self.safemap(*words)
            self.assertEqual((result.code, result.out, result.err), (0, usage, ''))
        for command in COMMANDS:
            told = self.safemap(command, '--help').out
            self.assertEqual(self.safemap('help', command).out, told)
            self.assertTrue(told.startswith(f'safemap {command} '), told)
        self.assertTrue(self.safemap('help', 'convert').out.startswith('safemap convert model.pt out/\n'))
        self.assertEqual(self.safemap('-V').out, self.safemap('--version').out)

    def test_an_output_in_another_format_is_refused(self):
        for ending in ('.pt', '.pth', '.bin', '.ckpt', '.gguf', '.PT'):
            for command in ('convert', 'repair'):
                error = self.refused('invalid_argument', 2, command, 'small.safetensors', 'out' + ending)
                self.assertIn('ends in ' + ending.lower(), error['message'])
        self.refused('invalid_argument', 2, 'repair', 'small.safetensors', '-')
        self.assertEqual(self.leftovers(), ['small.safetensors'])
        self.done('convert', 'small.safetensors', 'out.pt/')
        self.assertTrue((self.folder / 'out.pt' / 'model.safetensors').is_file())

    def test_shard_options_are_refused_for_a_single_file(self):
        for option, value in [('--max-shard-size', '5GB'), ('--strategy', 'balanced'), ('--index-style', 'hub')]:
            for out in ('out.safetensors', 'out.sft'):
                message, _ = self.refusal('convert', 'small.safetensors', out, option, value)
                self.assertIn(option + ' is for shards', message)
        self.done('convert', 'small.safetensors', 'out.safetensors/', '--strategy', 'balanced')

    def test_an_output_that_ends_in_sft_is_one_file(self):
        self.done('convert', 'small.safetensors', 'out.sft')
        self.assertTrue((self.folder / 'out.sft').is_file())
        self.assertTrue(self.done('diff', 'small.safetensors', 'out.sft')['equal'])
        self.done('edit', 'out.sft', '--set', 'a=b')
        self.assertEqual(self.done('inspect', 'out.sft')['metadata']['a'], 'b')

    def test_an_error_names_its_path_once(self):
        (self.folder / 'out').mkdir()
        (self.folder / 'out' / 'model.safetensors').write_bytes(b'mine')
        for out in ('out', 'out/'):
            self.assertEqual(self.safemap('convert', 'small.safetensors', out).err,
                             'safemap: error: save out/: already exists and is not overwritten\n'
                             'hint: --force (SaveOptions::overwrite) replaces it\n')

    def test_a_folder_without_a_checkpoint_counts_as_new(self):
        (self.folder / 'out').mkdir()
        (self.folder / 'out' / 'README.md').write_text('mine')
        self.done('convert', 'small.safetensors', 'out')
        self.assertTrue(self.done('diff', 'small.safetensors', 'out')['equal'])
        self.assertEqual((self.folder / 'out' / 'README.md').read_text(), 'mine')
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'out')

    def test_sizes_and_dtypes_as_people_write_them(self):
        bf16 = self.done('convert', 'small.safetensors', 'x', '--dry-run', '--dtype', 'bf16', '--max-shard-size', '5GB')
        for dtype in ('BF16', 'bfloat16', 'BFloat16'):
            told = self.done('convert', 'small.safetensors', 'x', '--dry-run', '--dtype', dtype,
                             '--max-shard-size', '5G')
            self.assertEqual(told['cast'], bf16['cast'])
        for dtype in ('fp16', 'float16', 'half', 'F16', 'FP16'):
            told = self.done('convert', 'small.safetensors', 'x', '--dry-run', '--dtype', dtype)
            self.assertEqual(list(told['cast']), ['F32->F16'])
        for dtype in ('fp8_e4m3', 'fp8_e4m3fn', 'float8_e4m3', 'float8_e4m3fn', 'F8_E4M3'):
            told = self.done('convert', 'small.safetensors', 'x', '--dry-run', '--dtype', dtype)
            self.assertEqual(list(told['cast']), ['F32->F8_E4M3'])
        for dtype in ('fp8', 'float8', 'F8'):
            message, _ = self.refusal('convert', 'small.safetensors', 'x', '--dtype', dtype)
            self.assertIn('F8_E4M3', message)
            self.assertIn('F8_E5M2', message)

    def test_a_zip_that_torch_did_not_write_is_reported_as_one(self):
        for name, member in [('a.whl', 'pkg/__init__.py'), ('a.jar', 'META-INF/MANIFEST.MF')]:
            data = io.BytesIO()
            with zipfile.ZipFile(data, 'w', zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(member, 'text ' * 100)
                archive.writestr('other/x', 'more')
            (self.folder / name).write_bytes(data.getvalue())
            error = self.refused('zip_missing_record', 1, 'inspect', name)
            self.assertIn('a zip that torch did not write', error['message'])


class LiteralPaths(Case):
    def test_a_path_in_brackets_is_one_path(self):
        (self.folder / 'small.safetensors').rename(self.folder / '[small,x]')
        self.done('convert', '[small,x]', '[v1]')
        self.assertEqual(self.leftovers(), ['[small,x]', '[v1]'])
        self.done('convert', '[small,x]', '[v1]', '--force')
        self.assertEqual(self.leftovers(), ['[small,x]', '[v1]'])
        self.refused('invalid_argument', 2, 'convert', '[small,x]', '--dry-run')
        self.refused('path_not_found', 2, 'convert', '[small]', 'out')
        self.assertEqual(self.safemap('convert', '[small,x]', '--quiet', '--', '-out').code, 0)
        self.assertIn('-out', self.leftovers())


class SeveralShards(Case):
    def setUp(self):
        super().setUp()
        for name, tensors in (('a', SMALL[:2]), ('b', SMALL[2:])):
            (self.folder / f'{name}.safetensors').write_bytes(safetensors(tensors, {'format': 'pt'}))
        self.before = self.leftovers()

    def test_several_shards_are_read_as_one_checkpoint(self):
        whole = self.done('hash', 'small.safetensors')
        for out in ('out', 'out.safetensors'):
            told = self.done('convert', 'a.safetensors', '--dtype', 'f32', 'b.safetensors', out)
            self.assertEqual(told['tensors'], 5)
            self.assertEqual(self.done('hash', out), whole)
        self.done('convert', 'b.safetensors', 'a.safetensors', 'out', '--force')
        self.assertEqual(self.done('hash', 'out'), whole)
        self.done('convert', 'a.safetensors', '-o', 'out', 'b.safetensors', '--force')
        self.assertEqual(self.done('hash', 'out'), whole)

    def test_root_is_refused_for_several_paths(self):
        error = self.refused('invalid_argument', 2, 'convert', 'a.safetensors', 'b.safetensors', 'out', '--root', 'a')
        self.assertIn('2 paths', error['message'])

    def test_the_error_for_a_folder_of_shards_has_a_hint(self):
        self.assertIn('all of them together', self.refused('several_models', 2, 'inspect', '.')['hint'])

    def test_a_tensor_in_two_shards_is_refused(self):
        error = self.refused('duplicate_name', 1, 'convert', 'a.safetensors', 'small.safetensors', 'out')
        self.assertEqual(error['tensor'], 'layers.0.w')
        self.assertEqual(self.leftovers(), self.before)

    def test_an_input_shard_is_never_replaced(self):
        content = (self.folder / 'b.safetensors').read_bytes()
        for more in ((), ('--force',)):
            error = self.refused('already_exists', 2, 'convert', 'a.safetensors', 'small.safetensors', 'b.safetensors',
                                 *more)
            self.assertEqual(error['path'], 'b.safetensors')
        for out in ('.', './', str(self.folder)):
            self.refused('already_exists', 2, 'convert', 'a.safetensors', './b.safetensors', out, '--force')
            self.refused('already_exists', 2, 'convert', 'a.safetensors', 'b.safetensors', out)
        self.assertEqual((self.folder / 'b.safetensors').read_bytes(), content)
        (self.folder / 'deep' / 'er').mkdir(parents=True)
        self.done('convert', 'small.safetensors', 'deep')
        (self.folder / 'b.safetensors').rename(self.folder / 'deep' / 'er' / 'b.safetensors')
        self.refused('already_exists', 2, 'convert', 'a.safetensors', 'deep/er/b.safetensors', 'deep', '--force')
        (self.folder / 'deep' / 'er' / 'b.safetensors').rename(self.folder / 'b.safetensors')
        self.done('convert', 'a.safetensors', 'b.safetensors', 'deep', '--force')
        self.before = sorted([*self.before, 'deep'])
        self.assertEqual(self.leftovers(), self.before)


class Terminal:
    """A run of the program on a terminal of its own, which it can be controlled by."""

    def __init__(self, test, columns, *words, **more):
        try:
            self.ours, theirs = pty.openpty()
        except OSError as error:
            test.skipTest(f'no terminal to be had here: {error}')
        test.addCleanup(os.close, self.ours)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('4H', 25, columns, 0, 0))
        self.process = subprocess.Popen([case.SAFEMAP, *words], cwd=test.folder, stdin=theirs, stdout=theirs,
                                        stderr=theirs, env=environment(**more), start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0))
        os.close(theirs)

    def type(self, keys):
        os.write(self.ours, keys)

    def end(self):
        """Waits for the end. Returns the exit code and all that was written."""
        text = b''
        while True:
            try:
                block = os.read(self.ours, 4096)
            except OSError:  # the other end of the terminal is closed
                break
            if not block:
                break
            text += block
        return self.process.wait(), text.decode().replace('\r\n', '\n')


def screen(text):
    """Returns the lines that stay visible, without colours."""
    lines = ['']
    column = 0
    for c in re.sub(r'\x1b\[[\d;]*m', '', text):
        if c == '\n':
            lines.append('')
        elif c != '\r':
            lines[-1] = lines[-1][:column] + c + lines[-1][column + 1:]
        column = 0 if c in '\r\n' else column + 1
    return [line.rstrip() for line in lines]


class Terminals(Case):
    def seen(self, columns, *words, **more):
        """Returns the output on a terminal with so many columns."""
        code, text = Terminal(self, columns, *words, **more).end()
        self.assertIn(code, (0, 1))
        return text

    def held(self, *words):
        """Returns a conversion of big.safetensors to the folder `out` that was stopped while it wrote, and whose first
        second is over."""
        for size in (1 << 27, 1 << 29, 1 << 31):
            write_sparse(self.folder / 'big.safetensors', ['w'], size)
            before = self.leftovers()
            run = Terminal(self, 70, 'convert', 'big.safetensors', 'out', *words)
            while run.process.poll() is None and self.leftovers() == before:
                time.sleep(0.001)
            run.process.send_signal(signal.SIGSTOP)
            if run.process.poll() is None and not (self.folder / 'out').exists():
                time.sleep(1.1)
                return run
            run.process.send_signal(signal.SIGCONT)
            run.end()
            shutil.rmtree(self.folder / 'out')
        self.skipTest('this machine writes 2 GiB before it can be stopped')

    def test_long_work_shows_its_plan_and_a_bar(self):
        run = self.held('--rename', 's/no/x/')
        run.process.send_signal(signal.SIGCONT)
        code, text = run.end()
        self.assertEqual(code, 0, text)
        drawn = [line for line in re.split('[\r\n]', text) if line.startswith('converting ')]
        self.assertTrue(drawn, text)
        self.assertLess(max(map(len, drawn)), 70)
        self.assertIn("\x1b[33m  note     --rename 's/no/x/': it changes no name\x1b[0m\n", text)
        lines = screen(text)
        self.assertEqual([line.partition(',')[0] for line in lines],
                         ['big.safetensors → out: will write 1 tensor', lines[1], '  copied   1 tensor',
                          "  note     --rename 's/no/x/': it changes no name", lines[4].partition(',')[0],
                          'big.safetensors → out: 1 tensor', ''])
        self.assertRegex(lines[1], '^  file     model.safetensors')
        self.assertRegex(lines[4], '^  takes ')

    def test_ctrl_c_in_long_work_leaves_nothing(self):
        for words in ((), ('--quiet',)):
            run = self.held(*words)
            run.type(b'\x03')
            run.process.send_signal(signal.SIGCONT)
            code, text = run.end()
            self.assertEqual(code, 130, text)
            self.assertEqual(self.leftovers(), ['big.safetensors', 'small.safetensors'])
            lines = screen(text)
            self.assertEqual('  file' in text, not words, text)
            self.assertNotIn('converting', ' '.join(lines))
            self.assertIn(lines[-3].strip(), ('', '^C'))  # the bar may overwrite it
            self.assertEqual(lines[-2:], ['safemap: error: save out/: cancelled on request', ''])

    def test_short_work_prints_a_line_and_coloured_notes(self):
        words = ('convert', 'small.safetensors', 'out', '--force', '--rename', 's/no such/x/')
        text = self.seen(80, *words)
        self.assertEqual([line[:40] for line in screen(text)],
                         ['small.safetensors → out: 5 tensors, 1 fi', "  note     --rename 's/no such/x/': it c", ''])
        self.assertIn('\x1b[33m  note ', text)
        for more in ({'NO_COLOR': '1'}, {'TERM': 'dumb'}):
            self.assertNotIn('\x1b', self.seen(80, *words, **more))
        self.assertNotIn('\x1b', self.safemap(*words).out)
        self.assertIn('will write 5 tensors', self.seen(80, *words, '--verbose'))

    @staticmethod
    def widest_row(text):
        return max(len(line) for line in text.split('\n') if line.startswith('  '))

    def test_tables_fit_the_terminal(self):
        names = [f'model.layers.{i * i}.self_attention.query_key_value.weight' for i in range(40)]
        (self.folder / 'odd.safetensors').write_bytes(safetensors([(name, 'U8', [1], b'x') for name in names]))
        (self.folder / 'none.safetensors').write_bytes(safetensors([]))
        for words in (('inspect', 'odd.safetensors'), ('inspect', 'odd.safetensors', '--tree'),
                      ('diff', 'odd.safetensors', 'none.safetensors')):
            for columns in (60, 100):
                self.assertLessEqual(self.widest_row(self.seen(columns, *words)), columns)
            self.assertLessEqual(self.widest_row(self.seen(100, *words, COLUMNS='70')), 70)
        # Other programs read a list of digests, so names are never shortened there.
        self.assertIn(names[-1], self.seen(60, 'load', 'odd.safetensors', '--device', 'host', '--digest'))
        whole = self.safemap('inspect', 'odd.safetensors', env=environment(COLUMNS='60')).out
        self.assertIn('model.layers.{0..1,4,9,16,', whole)
        self.assertEqual(whole, self.safemap('inspect', 'odd.safetensors').out)

    def test_help_fits_the_terminal(self):
        for words in (('--help',), *[(command, '--help') for command in COMMANDS]):
            for columns in (50, 72, 200):
                # Examples of calls stay on one line, so that they can be copied.
                text = self.seen(columns, *words).partition('\nExamples:\n')[0]
                self.assertLessEqual(self.widest_row(text), min(columns, 100), text)

    def test_columns_line_up_behind_wide_names(self):
        names = ['\u5c42.0.\u6743\u91cd', 'layer.weight', '\u30ec\u30a4\u30e4\u30fc']
        (self.folder / 'wide.safetensors').write_bytes(safetensors([(name, 'F32', [1], floats(1)) for name in names]))
        text = self.safemap('inspect', 'wide.safetensors').out
        wide = {name: sum(2 if c > '\u2e80' else 1 for c in name) for name in names}
        for name in names:
            self.assertIn('\n  ' + name + ' ' * (max(wide.values()) - wide[name]) + '    F32 [1]', text)


class CompletionsAndManPage(Case):
    def setUp(self):
        super().setUp()
        if WRITE_TEXTS is None:
            self.skipTest('the program that writes them was not named')
        self.texts = {which: self.text(which) for which in ('bash', 'zsh', 'fish', 'man')}

    def text(self, which):
        return subprocess.run([WRITE_TEXTS, which], check=True, stdout=subprocess.PIPE).stdout.decode()

    def test_the_program_prints_the_completions_that_are_installed(self):
        for shell in ('bash', 'zsh', 'fish'):
            self.assertEqual(self.safemap('completions', shell).out, self.texts[shell])
            self.assertEqual(self.done('completions', shell), {'shell': shell, 'script': self.texts[shell]})
        self.refused('invalid_argument', 2, 'completions', 'tcsh')

    def test_texts_are_the_same_each_time(self):
        for which, text in self.texts.items():
            self.assertEqual(self.text(which), text)

    def test_texts_have_every_command_and_option(self):
        listed = re.findall(r'^  ([a-z]+) ', self.safemap('--help').out, re.MULTILINE)
        self.assertEqual(sorted(listed), sorted(COMMANDS))
        for command in COMMANDS:
            options = options_of(self.safemap(command, '--help').out)
            self.assertGreater(len(options), 2)
            flat = [form for forms in options for form in forms]
            bash = re.search(rf"^        {command}\) words='(.*?)'", self.texts['bash'], re.MULTILINE).group(1).split()
            self.assertEqual(bash, flat)
            zsh = re.search(rf'^        {command}\)\n(.*?);;', self.texts['zsh'], re.DOTALL | re.MULTILINE).group(1)
            self.assertEqual(re.findall(r"'\*(--?[a-z-]+)\[", zsh), flat)
            fish = re.findall(rf"_from {command}'((?: -[sl] [a-z-]+)+)", self.texts['fish'])
            forms = [re.sub('-[sl] (?=. |.$)', '-', re.sub('-l ', '--', f)).split() for f in fish]
            self.assertEqual(forms, options)
            page = re.search(rf'^\.SS {command} .*?(?=^\.S)', self.texts['man'], re.DOTALL | re.MULTILINE).group()
            self.assertEqual(re.findall(r'\\fB(--?[a-z-]+)', page.replace('\\-', '-')), flat)

    def test_bash_completes(self):
        if shutil.which('bash') is None:
            self.skipTest('bash is not here')
        (self.folder / 'safemap').write_text(self.texts['bash'])

        def completed(*words):
            script = ('. ./safemap; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _safemap safemap; '
                      'printf "%s\\n" "${COMPREPLY[@]}"')
            done = subprocess.run(['bash', '--norc', '-c', script, 'bash', 'safemap', *words], cwd=self.folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.stdout.decode().split()

        self.assertEqual(completed('conv'), ['convert'])
        self.assertEqual(set(COMMANDS) - set(completed('')), set())
        self.assertEqual(completed('convert', 'a.pt', '--dr'), ['--dry-run', '--drop-cache'])
        self.assertEqual(completed('inspect', '--policy', 'le'), ['lenient'])
        self.assertEqual(completed('hash', '--weights', ''), ['fp32', 'module'])
        self.assertEqual(completed('help', 'ver'), ['verify'])
        self.assertEqual(completed('completions', ''), ['bash', 'zsh', 'fish'])
        self.assertEqual(completed('convert', 'a'), [])  # file names are left to readline

    def test_each_shell_accepts_the_syntax_of_its_completions(self):
        for shell, which in (('zsh', 'zsh'), ('fish', 'fish'), ('bash', 'bash')):
            if shutil.which(shell) is None:
                continue
            (self.folder / which).write_text(self.texts[which])
            done = subprocess.run([shell, '-n', which], cwd=self.folder, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr), (0, b''))

    def test_the_man_page_has_no_warnings(self):
        (self.folder / 'safemap.1').write_text(self.texts['man'])
        if shutil.which('man') is not None:
            done = subprocess.run(['man', '--warnings', '-P', 'cat', '-l', 'safemap.1'], cwd=self.folder,
                                  capture_output=True, env=environment(LC_ALL='C.UTF-8', MANWIDTH='80'))
            if b'minimized' not in done.stdout:
                self.assertEqual((done.returncode, done.stderr), (0, b''))
                self.assertIn(b'safemap convert', done.stdout)
        if shutil.which('mandoc') is not None:
            done = subprocess.run(['mandoc', '-T', 'lint', '-W', 'warning', 'safemap.1'], cwd=self.folder,
                                  capture_output=True)
            self.assertEqual((done.returncode, done.stdout), (0, b''))


if __name__ == '__main__':
    words = sys.argv[1:]
    case.use(*words[:2])
    words = words[2:]
    if words and not words[0].startswith('-') and os.path.exists(words[0]):
        WRITE_TEXTS = os.path.abspath(words.pop(0))
    unittest.main(argv=[sys.argv[0], *words])
