"""Tests the command line from outside: run.py SAFEMAP DATA [--update] [unittest's own arguments].

Output is compared with the files of expected/, to the byte; --update rewrites them. Each test runs in a new folder with
small files made here, and with the files of DATA that torch wrote.
"""
import hashlib
import io
import json
import math
import os
import pathlib
import pty
import re
import resource
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
import zlib
from random import Random

HERE = pathlib.Path(__file__).resolve().parent
SAFEMAP = DATA = None
UPDATE = False
# The build option b_sanitize, which meson passes.
SANITIZED = os.environ.get('SAFEMAP_SANITIZE', 'none') != 'none'

COMMANDS = ('inspect', 'convert', 'verify', 'diff', 'hash', 'plan', 'load', 'edit', 'repair')


def safetensors(tensors, metadata=None):
    """Returns a file with tensors (name, dtype, shape, data) in this order."""
    header, place = {}, 0
    if metadata is not None:
        header['__metadata__'] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [place, place + len(data)]}
        place += len(data)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    return struct.pack('<Q', len(text)) + text + b''.join(data for *_, data in tensors)


def header_of(file):
    with open(file, 'rb') as opened:
        return json.loads(opened.read(struct.unpack('<Q', opened.read(8))[0]))


def floats(*values):
    return struct.pack(f'<{len(values)}f', *values)


SMALL = [
    ('layers.0.w', 'F32', [2, 3], floats(1, 2, 3, 4, 5, 6)),
    ('layers.1.w', 'F32', [2, 3], floats(-1, -2, -3, -4, -5, 3.4e38)),
    ('ids', 'I64', [2], struct.pack('<2q', 7, -7)),
    ('norm', 'F32', [2], floats(float('nan'), 0.5)),
    ('none', 'U8', [0], b''),
]


def torch_file(tensors):
    """Returns a file of torch.save: a dict of tensors of two elements (name: storage type), with one storage per type.
    """
    def text(value):
        return b'X' + struct.pack('<I', len(value)) + value.encode()

    out = io.BytesIO()
    types = list(dict.fromkeys(tensors.values()))
    pickled = b'\x80\x02}('
    for name, type in tensors.items():
        pickled += (text(name) + b'ctorch._utils\n_rebuild_tensor_v2\n((' + text('storage') +
                    f'ctorch\n{type}\n'.encode() + text(str(types.index(type))) + text('cpu') +
                    b'K\x02tQK\x00(K\x02t(K\x01t\x89ccollections\nOrderedDict\n)RtR')
    with zipfile.ZipFile(out, 'w') as archive:
        archive.writestr('a/data.pkl', pickled + b'u.')
        archive.writestr('a/byteorder', 'little')
        for i, type in enumerate(types):
            archive.writestr(f'a/data/{i}', b'c' * {'ComplexDoubleStorage': 32, 'FloatStorage': 8}[type])
    return out.getvalue()


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
        text = re.sub(r'took .*', 'took     TIME', text)
        text = re.sub(r'(in|waited +) ?\d+\.\d\d s', r'\1 TIME', text)
        text = re.sub(r'TIME, [\d.]+ .?B/s', 'TIME, RATE', text)
        text = re.sub(r'[\d.]+ .?B of memory', 'MEMORY', text)
        path = HERE / 'expected' / (name + '.txt')
        if UPDATE:
            path.write_text(text, encoding='utf-8')
        self.assertEqual(text, path.read_text(encoding='utf-8'))

    def leftovers(self):
        return sorted(p.name for p in self.folder.iterdir())


class EveryCommand(Case):
    def test_version(self):
        result = self.safemap('--version')
        self.assertRegex(result.out, r'^safemap \d+\.\d+\.\d+\n$')
        self.assertEqual((result.code, result.err), (0, ''))

    def test_usage_and_help_are_as_expected(self):
        for words in [('--help',), *[(c, '--help') for c in COMMANDS]]:
            result = self.safemap(*words)
            self.assertEqual((result.code, result.err), (0, ''))
            self.expect('help' if len(words) == 1 else f'help_{words[0]}', result.out)

    def test_the_example_of_every_help_works_as_pasted(self):
        for command in COMMANDS:
            example = self.safemap(command, '--help').out.split('Example:\n')[1]
            path = os.path.dirname(SAFEMAP) + ':' + os.environ['PATH']
            done = subprocess.run(['sh', '-e'], input=example.encode(), capture_output=True,
                                  env=environment(PATH=path, TMPDIR=str(self.folder)))
            self.assertEqual((done.returncode, done.stderr), (0, b''), example)
            self.assertTrue(done.stdout)

    def test_policies_differ_in_the_files_they_accept(self):
        text = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}'
        head = len(text).to_bytes(8, 'little') + text
        (self.folder / 'odd.safetensors').write_bytes(head + b'd')
        (self.folder / 'long.safetensors').write_bytes(head + b'd and more')
        note = "allowed: tensor 'a': unknown field 'x'"
        self.assertEqual(self.done('inspect', 'odd.safetensors')['notes'], [note])
        self.assertEqual(self.done('verify', 'odd.safetensors')['notes'], [note])
        self.refused('header_not_canonical', 1, 'inspect', 'odd.safetensors', '--policy', 'strict')
        strict = self.safemap('verify', 'odd.safetensors', '--policy', 'strict', '--json')
        self.assertEqual(strict.code, 1)
        self.assertEqual([fault['code'] for fault in strict.json()['faults']], ['header_not_canonical'])
        self.refused('trailing_bytes', 1, 'inspect', 'long.safetensors')
        self.assertEqual(self.done('inspect', 'long.safetensors', '--policy', 'lenient')['notes'],
                         [note, 'allowed: 9 bytes after the last tensor'])

    def test_a_wrong_call_exits_with_2(self):
        for words in [('insect',), ('--insect',), ('inspect',), ('inspect', 'a', 'b'), ('convert', 'a'),
                      ('inspect', 'small.safetensors', '--insect'), ('load', 'small.safetensors'), ('hash',),
                      ('diff', 'small.safetensors'), ('diff', 'small.safetensors', 'b', 'c'),
                      ('inspect', 'small.safetensors', '--threads', '0'),
                      ('inspect', 'small.safetensors', '--threads', 'many'),
                      ('inspect', 'small.safetensors', '--policy', 'lax'),
                      ('inspect', 'small.safetensors', '--access', 'telepathic'),
                      ('verify', 'small.safetensors', '--include', '*'),
                      ('convert', 'small.safetensors', 'out', '--dtype', 'bf17'),
                      ('convert', 'small.safetensors', 'out', '--max-shard-size', '5XB'),
                      ('convert', 'small.safetensors', 'out', '--max-shard-size', '0'),
                      ('convert', 'small.safetensors', 'out', '--align', '7'),
                      ('convert', 'small.safetensors', 'out', '--strategy', 'best'),
                      ('convert', 'small.safetensors', 'out', '--index-style', 'mine'),
                      ('load', 'small.safetensors', '--device', 'host', '--rank', '2/2'),
                      ('load', 'small.safetensors', '--device', 'host', '--budget', '-1'),
                      ('load', 'small.safetensors', '--device', 'host', '--repeat', '0')]:
            with self.subTest(words=words):
                self.refused('invalid_argument', 2, *words)
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_an_invalid_size_is_reported_with_its_option(self):
        for option, *words in [('--max-shard-size', 'convert', 'small.safetensors', 'out'),
                               ('--budget', 'load', 'small.safetensors', '--device', 'host')]:
            for size in ('5XB', '0', '', 'GB', '99999999999999999999GB'):
                error = self.refused('invalid_argument', 2, *words, option, size)
                self.assertTrue(error['message'].startswith(f"{option}: '{size}' is not a size"), error)

    def test_an_empty_selection_exits_with_2(self):
        for command, *more in [('convert', 'out'), ('convert', 'out', '--dry-run'), ('load', '--device', 'host'),
                               ('hash',)]:
            words = (command, 'small.safetensors', *more)
            error = self.refused('tensor_not_found', 2, *words, '--include', 'no.*', '--include', 'layers')
            self.assertEqual(error['message'], "--include 'no.*' --include 'layers' matches none of 5 tensors")
            error = self.refused('tensor_not_found', 2, *words, '--include', 'layers.*', '--exclude', '*.w')
            self.assertEqual(error['message'], "--exclude '*.w' leaves none of 5 tensors")
            self.refused('tensor_not_found', 2, *words, '--exclude', '*')
        self.assertEqual(self.leftovers(), ['small.safetensors'])
        error = self.refused('tensor_not_found', 2, 'diff', 'small.safetensors', 'small.safetensors', '--include', 'no')
        self.assertEqual(error['message'], "--include 'no' matches none of 10 tensors")
        told = self.done('inspect', 'small.safetensors', '--include', 'no.*')
        self.assertEqual((told['tensors'], told['total_bytes']), ([], 0))
        self.assertEqual(told['notes'], ["--include 'no.*' matches none of 5 tensors"])
        self.assertIn(told['notes'][0], self.safemap('inspect', 'small.safetensors', '--include', 'no.*').out)

    def test_a_checkpoint_without_tensors_allows_every_selection(self):
        (self.folder / 'none.safetensors').write_bytes(safetensors([], {'format': 'pt'}))
        self.assertEqual(self.done('inspect', 'none.safetensors', '--include', '*')['notes'], [])
        self.assertEqual(self.done('convert', 'none.safetensors', 'out', '--include', 'a')['tensors'], 0)
        self.assertEqual(self.done('load', 'none.safetensors', '--device', 'host', '--exclude', '*')['tensors'], 0)
        self.assertEqual(self.done('hash', 'none.safetensors')['tensors'], {})
        self.assertEqual(self.done('hash', 'none.safetensors', '--include', 'a')['tensors'], {})
        self.assertTrue(self.done('diff', 'none.safetensors', 'none.safetensors')['equal'])
        self.assertTrue(self.done('diff', 'none.safetensors', 'none.safetensors', '--include', 'a')['equal'])
        # A tensor that is selected in only one of the two is a difference.
        for words in (('none.safetensors', 'small.safetensors'), ('small.safetensors', 'none.safetensors')):
            told = self.safemap('diff', *words, '--include', 'ids', '--json')
            self.assertEqual((told.code, told.json()['equal']), (1, False))
            self.refused('tensor_not_found', 2, 'diff', *words, '--include', 'a')

    def test_an_index_is_recognised_by_its_content(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        index = self.folder / 'out' / 'model.safetensors.index.json'
        for name in ('weights.json', 'weights'):
            other = self.folder / 'out' / name
            other.write_bytes(index.read_bytes())
            self.assertEqual(len(self.done('inspect', f'out/{name}')['tensors']), 5)
            other.unlink()
        (self.folder / 'config.json').write_text('{"model_type": "gpt2"}')
        self.refused('unknown_format', 1, 'inspect', 'config.json')

    def test_a_duplicate_name_in_an_index_is_noted(self):
        (self.folder / 'model.safetensors.index.json').write_text(
            '{"weight_map": {"ids": "gone.safetensors", "ids": "small.safetensors"}}')
        note = "the weight_map names 'ids' more than once; the last shard named counts"
        self.assertIn(note, self.done('inspect', 'model.safetensors.index.json')['notes'])
        told = self.safemap('verify', 'model.safetensors.index.json', '--json')
        self.assertEqual(told.code, 1)  # the shard has tensors that the index does not name
        self.assertIn(note, told.json()['notes'])
        self.assertEqual({fault['code'] for fault in told.json()['faults']}, {'index_lacks_tensor'})
        error = self.refused('duplicate_name', 1, 'inspect', 'model.safetensors.index.json', '--policy', 'strict')
        self.assertEqual(error['tensor'], 'ids')

    def test_a_shard_that_is_not_a_regular_file_is_refused(self):
        (self.folder / 'model.safetensors.index.json').write_text('{"weight_map": {"a": "pipe", "b": "folder"}}')
        os.mkfifo(self.folder / 'pipe')
        (self.folder / 'folder').mkdir()
        for command, *more in [('inspect',), ('convert', 'out'), ('load', '--device', 'host')]:
            error = self.refused('shard_missing', 1, command, 'model.safetensors.index.json', *more)
            self.assertIn('expected a regular file, found a folder', error['message'])
        result = self.safemap('verify', 'model.safetensors.index.json', '--json')
        self.assertEqual(result.code, 1)
        self.assertEqual([(f['code'], f['message'], f['path']) for f in result.json()['faults']],
                         [('shard_missing', 'expected a regular file, found a folder', './folder'),
                          ('shard_missing', 'expected a regular file, found a pipe', './pipe')])

    def test_training_files_beside_a_model_are_not_read(self):
        model = self.folder / 'model'
        model.mkdir()
        (model / 'adapter_model.safetensors').write_bytes((self.folder / 'small.safetensors').read_bytes())
        left = ['optimizer.pt', 'rng_state_0.pth', 'scheduler.pt', 'training_args.bin']
        for name in left:
            (model / name).write_bytes(b'not read')
        told = self.done('inspect', 'model')
        self.assertEqual(told['files'], ['adapter_model.safetensors'])
        self.assertEqual(told['notes'], ['read adapter_model.safetensors; not read: ' + ', '.join(left)])

    def test_json_is_accepted_at_any_position(self):
        for words in [('--json',), ('--json', 'inspect', 'small.safetensors'), ('inspect', '--json', '--insect')]:
            result = self.safemap(*words)
            self.assertEqual(result.json()['error']['code'], 'invalid_argument')
            self.assertEqual((result.code, result.err), (2, ''))

    def test_a_flag_takes_no_value(self):
        for words in [('inspect', 'small.safetensors', '--quiet=false'), ('inspect', 'small.safetensors', '--tree=0'),
                      ('convert', 'small.safetensors', 'out', '--dry-run=no'),
                      ('verify', 'small.safetensors', '--quiet=3'),
                      ('load', 'small.safetensors', '--device', 'host', '--digest=2')]:
            with self.subTest(words=words):
                self.refused('invalid_argument', 2, *words)
        for flag in ('--json=false', '--json=1'):
            result = self.safemap('inspect', 'small.safetensors', flag)
            self.assertEqual((result.code, result.err), (2, ''))
            self.assertEqual(result.json()['error']['code'], 'invalid_argument')
        # Has the same meaning as the flag.
        self.assertEqual(len(self.safemap('inspect', 'small.safetensors', '--json=true').json()['tensors']), 5)
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_a_missing_path_exits_with_2(self):
        for command, *more in [('inspect',), ('verify',), ('convert', 'out'), ('hash',), ('diff', 'small.safetensors'),
                               ('load', '--device', 'host')]:
            error = self.refused('path_not_found', 2, command, 'nowhere.safetensors', *more)
            self.assertIn('nowhere.safetensors', error['path'])
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_a_path_without_a_checkpoint_exits_with_1(self):
        (self.folder / 'x.bin').write_bytes(b'GGUF and so on, at some length')
        (self.folder / 'empty').mkdir()
        for command, *more in [('inspect',), ('convert', 'out'), ('hash',), ('diff', 'small.safetensors'),
                               ('load', '--device', 'host')]:
            self.refused('unknown_format', 1, command, 'x.bin', *more)
            self.refused('not_a_checkpoint', 1, command, 'empty', *more)

    def test_a_training_layout_is_refused_by_its_name(self):
        plain = (self.folder / 'small.safetensors').read_bytes()
        for name in ('dcp/__0_0.distcp', 'nano/checkpoint_metadata.json', 'nano/model/x', 'accelerate/scheduler.bin',
                     'accelerate/model_0/metadata.pkl', 'accelerate/model_0/model_rank_0.pt', 'verl/data.pt',
                     'verl/actor/model_world_size_1_rank_0.pt', 'zero/latest',
                     'zero/global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt', 'one/final/model.safetensors'):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b'global_step1' if name == 'zero/latest' else plain)
        layouts = [('accelerate', 'torch_checkpointing'), ('nano', 'nanotron'), ('dcp/__0_0.distcp', 'dcp')]
        for folder, layout in layouts:
            self.assertEqual(self.safemap('verify', folder, '--json').json()['faults'][0]['code'], 'unsupported_layout')
            for command, *more in [('inspect',), ('convert', 'out'), ('hash',)]:
                error = self.refused('unsupported_layout', 1, command, folder, *more)
                self.assertIn(f"layout '{layout}'", error['message'])
                self.assertIn('hint', error)
        told = self.safemap('inspect', 'accelerate')
        self.assertEqual((told.code, told.out), (1, ''))
        self.assertEqual(told.err.splitlines()[0],
                         'safemap: error: accelerate/model_0: this is a checkpoint of torch_checkpointing, layout '
                         "'torch_checkpointing', recognised by metadata.pkl; safemap does not read it yet")
        self.assertTrue(told.err.splitlines()[1].startswith('hint: '), told.err)
        # The file of one rank is opened as a part of the model.
        for rank in '01':
            (self.folder / 'verl' / f'a_rank{rank}.bin').write_bytes(plain)
        note = self.done('inspect', 'verl/a_rank1.bin')['notes'][0]
        self.assertEqual(note, 'this is rank 1 of 2; the whole checkpoint is in the files a_rank*.bin')
        for file, part in (('zero_pp_rank_3_mp_rank_00_optim_states.pt', 'the part of rank 3'),
                           ('mp_rank_00_model_states.pt', 'one file')):
            (self.folder / 'verl' / file).write_bytes(plain)
            note = self.done('inspect', f'verl/{file}')['notes'][0]
            self.assertTrue(note.startswith(f'this is {part} of a DeepSpeed checkpoint; open its folder'), note)
        # The only subfolder with a model is read as the model; saving beside it overwrites nothing.
        one = self.done('inspect', 'one')
        self.assertEqual((len(one['tensors']), one['notes']), (5, ['read the checkpoint in final']))
        self.done('convert', 'small.safetensors', 'one')
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'zero')
        (self.folder / 'one' / 'model.safetensors').unlink()
        (self.folder / 'one' / 'other').mkdir()
        (self.folder / 'one' / 'other' / 'model.safetensors').write_bytes(plain)
        self.assertIn('one/final, one/other', self.refused('several_models', 2, 'inspect', 'one')['message'])

    def test_options_for_deepspeed_folders_do_nothing_elsewhere(self):
        more = ('--weights', 'fp32', '--deepspeed-compat')
        for words in [('inspect', 'small.safetensors'), ('inspect', str(DATA / 'pt' / 'train_gpt.pt')),
                      ('verify', 'small.safetensors'), ('hash', 'small.safetensors'),
                      ('diff', 'small.safetensors', 'small.safetensors'),
                      ('plan', 'small.safetensors', '--expect', 'small.safetensors')]:
            self.assertEqual(self.done(*words, *more), self.done(*words))
        self.done('load', 'small.safetensors', '--device', 'host', *more)
        self.done('convert', 'small.safetensors', 'a.safetensors', '--weights', 'module')
        self.done('convert', 'small.safetensors', 'b.safetensors')
        self.assertEqual(*[(self.folder / name).read_bytes() for name in ('a.safetensors', 'b.safetensors')])

    def test_invalid_options_for_deepspeed_folders_are_refused(self):
        for word in ('bf16', 'FP32', 'auto', ''):
            error = self.refused('invalid_argument', 2, 'inspect', 'small.safetensors', '--weights', word)
            self.assertEqual(error['message'], f"--weights: '{word}' is not a kind of weights: fp32 or module")
        for words in [('edit', 'small.safetensors', '--set', 'a=b'), ('repair', 'small.safetensors', 'out')]:
            for option in (('--weights', 'fp32'), ('--deepspeed-compat',)):
                error = self.refused('invalid_argument', 2, *words, *option)
                self.assertEqual(error['message'], f"{words[0]} has no option '{option[0]}'")
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_quiet_prints_only_errors(self):
        for words in [('inspect', 'small.safetensors'), ('verify', 'small.safetensors'),
                      ('convert', 'small.safetensors', 'out'), ('hash', 'small.safetensors'),
                      ('diff', 'small.safetensors', 'out'), ('load', 'small.safetensors', '--device', 'host')]:
            result = self.safemap(*words, '--quiet')
            self.assertEqual((result.code, result.out, result.err), (0, '', ''), words)
        result = self.safemap('inspect', 'nowhere', '--quiet')
        self.assertEqual((result.code, result.out), (2, ''))
        self.assertTrue(result.err.startswith('safemap: error: '))

    def test_every_access_mode_reads_the_same_values(self):
        told = [self.done('load', 'small.safetensors', '--device', 'host', '--digest', '--access', a, '--threads', '2',
                          '--policy', 'compatible')['digests'] for a in ('auto', 'mapped', 'copied')]
        self.assertEqual(told[0], told[1])
        self.assertEqual(told[0], told[2])

    def test_a_closed_pipe_is_not_a_crash(self):
        many = [(f'block.{i}.weight.{i * 7}', 'U8', [0], b'') for i in range(20000)]
        (self.folder / 'many.safetensors').write_bytes(safetensors(many))
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([SAFEMAP, 'inspect', 'many.safetensors', '--json'], cwd=self.folder, stdout=write,
                              stderr=subprocess.PIPE)
        os.close(write)
        self.assertEqual((done.returncode, done.stderr), (3, b''))

    def test_a_stdout_that_cannot_be_written_exits_with_3(self):
        with open('/dev/full', 'wb') as full:
            for more in ((), ('--json',)):
                done = subprocess.run([SAFEMAP, 'inspect', 'small.safetensors', *more], cwd=self.folder, stdout=full,
                                      stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, done.stderr),
                                 (3, b'safemap: error: writing to stdout: No space left on device\n'))
            # The same for the report of an error.
            done = subprocess.run([SAFEMAP, 'inspect', 'nowhere', '--json'], cwd=self.folder, stdout=full,
                                  stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr),
                             (3, b'safemap: error: writing to stdout: No space left on device\n'))
        for more in ('', '--json'):
            done = subprocess.run(['sh', '-c', f'"$0" inspect small.safetensors {more} >&-', SAFEMAP],
                                  cwd=self.folder, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr),
                             (3, b'safemap: error: writing to stdout: Bad file descriptor\n'))

    def test_no_second_object_is_written_after_stdout_fails(self):
        # A non-blocking pipe that is not read takes only a part of the report.
        many = [(f'block.{i}.weight.{i * 7}', 'U8', [0], b'') for i in range(2000)]
        (self.folder / 'many.safetensors').write_bytes(safetensors(many))
        read, write = os.pipe()
        os.set_blocking(write, False)
        done = subprocess.run([SAFEMAP, 'inspect', 'many.safetensors', '--json'], cwd=self.folder, stdout=write,
                              stderr=subprocess.PIPE)
        os.close(write)
        with open(read, encoding='utf-8') as pipe:
            self.assertNotIn('"error"', pipe.read())
        self.assertEqual(done.returncode, 3)
        self.assertIn(b'Resource temporarily unavailable', done.stderr)

    def test_a_closed_stdout_never_becomes_the_output_file(self):
        done = subprocess.run(['sh', '-c', '"$0" convert small.safetensors out.safetensors >&-', SAFEMAP],
                              cwd=self.folder, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(self.safemap('verify', 'out.safetensors').code, 0)

    def on_terminal(self, *words, **more):
        """Returns what a run writes to stderr when that is a terminal."""
        try:
            ours, theirs = pty.openpty()
        except OSError as error:
            self.skipTest(f'no terminal to be had here: {error}')
        process = subprocess.Popen([SAFEMAP, *words], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=theirs,
                                   env=environment(**more))
        os.close(theirs)
        text = b''
        while select.select([ours], [], [], 60)[0]:
            try:
                text += os.read(ours, 4096)
            except OSError:  # the other end of the terminal is closed
                break
        os.close(ours)
        return process.wait(), text.decode()

    def test_colours_are_used_only_on_a_terminal_that_supports_them(self):
        self.assertNotIn('\x1b', self.safemap('inspect', 'nowhere').err)
        self.assertIn('\x1b[', self.on_terminal('inspect', 'nowhere')[1])
        self.assertNotIn('\x1b', self.on_terminal('inspect', 'nowhere', NO_COLOR='1')[1])
        self.assertNotIn('\x1b', self.on_terminal('inspect', 'nowhere', TERM='dumb')[1])

    def test_a_short_run_shows_no_progress(self):
        code, text = self.on_terminal('convert', 'small.safetensors', 'out')
        self.assertEqual((code, text), (0, ''))

    def test_names_cannot_move_the_cursor(self):
        evil = 'a\x1b[2J\n\u202egpj\u200b'
        (self.folder / 'evil.safetensors').write_bytes(safetensors([(evil, 'U8', [1], b'x')]))
        for words in (('inspect',), ('inspect', '--tree'), ('hash',), ('load', '--device', 'host', '--digest')):
            text = self.safemap(words[0], 'evil.safetensors', *words[1:]).out
            self.assertIn(r'a\x1b[2J\x0a\xe2\x80\xaegpj\xe2\x80\x8b', text)
            self.assertFalse(set(text) & set('\x1b\u202e\u200b'), words)
        self.assertEqual(self.done('inspect', 'evil.safetensors')['tensors'][0]['name'], evil)

    def test_text_is_never_much_longer_than_the_file(self):
        names = [f'{i:x}' for i in range(2000)]
        long = 'x' * 1_000_000
        for file, value in (('a', b'a'), ('b', b'b')):
            (self.folder / f'{file}.safetensors').write_bytes(
                safetensors([(name, 'U8', [1], value) for name in [*names, long]]))
        (self.folder / 'none.safetensors').write_bytes(safetensors([]))
        size = (self.folder / 'a.safetensors').stat().st_size
        for words in (('inspect', 'a.safetensors'), ('inspect', 'a.safetensors', '--tree'),
                      ('diff', 'a.safetensors', 'b.safetensors'), ('diff', 'a.safetensors', 'none.safetensors')):
            text = self.safemap(*words).out
            self.assertEqual(text.count(long), 1, words)
            self.assertLess(len(text), 2 * size, words)
            lines = text.splitlines()
            self.assertLess(max(len(line) for line in lines if long not in line), 100, words)


class Inspect(Case):
    def test_text(self):
        self.expect('inspect', self.safemap('inspect', 'small.safetensors').out)
        self.expect('inspect_tree', self.safemap('inspect', 'small.safetensors', '--tree').out)

    def test_eighty_layers_fold(self):
        layers = [(f'model.layers.{i}.{part}', 'BF16', [2, 2], bytes(8))
                  for i in range(80) for part in ('attn.q.weight', 'mlp.weight')]
        (self.folder / 'deep.safetensors').write_bytes(safetensors(layers + [('model.norm', 'F32', [1], bytes(4))]))
        self.expect('inspect_deep', self.safemap('inspect', 'deep.safetensors').out)
        self.expect('inspect_deep_tree', self.safemap('inspect', 'deep.safetensors', '--tree').out)

    def test_json(self):
        told = self.done('inspect', 'small.safetensors')
        self.assertEqual(list(told), ['format', 'files', 'metadata', 'total_bytes', 'tensors', 'objects', 'notes'])
        self.assertEqual(told['format'], 'safetensors')
        self.assertEqual(told['files'], ['small.safetensors'])
        self.assertEqual(told['metadata'], {'format': 'pt', 'who': 'a "b"'})
        self.assertEqual(told['total_bytes'], sum(len(data) for *_, data in SMALL))
        self.assertEqual(told['objects'], [])
        file = (self.folder / 'small.safetensors').read_bytes()
        self.assertEqual([t['name'] for t in told['tensors']], [name for name, *_ in SMALL])
        for tensor, (name, dtype, shape, data) in zip(told['tensors'], SMALL):
            self.assertEqual((tensor['dtype'], tensor['shape'], tensor['nbytes']), (dtype, shape, len(data)))
            self.assertNotIn('alias_of', tensor)
            if not data:
                continue
            self.assertEqual((tensor['file'], tensor['pieces']), ('small.safetensors', 1))
            self.assertEqual(file[tensor['offset']:tensor['offset'] + len(data)], data)

    def test_selected_tensors_only(self):
        told = self.done('inspect', 'small.safetensors', '--include', 'layers.*', '--include', 'n*',
                         '--exclude', '*.1.*')
        self.assertEqual([t['name'] for t in told['tensors']], ['layers.0.w', 'norm', 'none'])
        self.assertEqual(told['total_bytes'], 32)
        bracket = self.done('inspect', '--include', '[li]*', 'small.safetensors')
        self.assertEqual([t['name'] for t in bracket['tensors']], ['layers.0.w', 'layers.1.w', 'ids'])

    def test_shards_are_named_as_the_index_names_them(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        told = self.done('inspect', 'out')
        self.assertEqual({t['file'] for t in told['tensors'] if t['nbytes']}, set(told['files']) - {
            'model.safetensors.index.json'})
        for tensor in told['tensors']:
            if tensor['nbytes']:
                data = dict((name, data) for name, _, _, data in SMALL)[tensor['name']]
                file = (self.folder / 'out' / tensor['file']).read_bytes()
                self.assertEqual(file[tensor['offset']:tensor['offset'] + len(data)], data)

    def test_files_of_the_same_name_in_different_folders_are_distinguished(self):
        # If `sub` is opened, the path of its m.safetensors ends in sub/m.safetensors, the name of another of its files.
        sub = self.folder / 'sub'
        (sub / 'sub' / 'sub').mkdir(parents=True)
        shards = {'m.safetensors': 'a', 'sub/m.safetensors': 'b', 'sub/sub/m.safetensors': 'c'}
        for file, name in shards.items():
            (sub / file).write_bytes(safetensors([(name, 'U8', [1], name.encode())]))
        weight_map = {name: file for file, name in shards.items()}
        (sub / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': weight_map}))
        (sub / 'weights').write_text(json.dumps({'weight_map': weight_map}))
        absolute = str(sub)
        for path in ('sub', 'sub/', './sub', absolute, 'sub/model.safetensors.index.json', 'sub/weights'):
            told = self.done('inspect', path)
            self.assertEqual({t['name']: t['file'] for t in told['tensors']}, weight_map, path)
            text = self.safemap('inspect', path).out
            for number, file in enumerate(sorted(shards), 1):
                self.assertRegex(text, rf'\n  {number}  {re.escape(file)} +1 tensor  1 B\n')
                self.assertRegex(text, rf'\n  {shards[file]}  +U8 \[1\]  1 B  in {number}\n')
        for path in ('.', 'model.safetensors.index.json', 'weights'):
            done = subprocess.run([SAFEMAP, 'inspect', path, '--json'], cwd=sub, stdout=subprocess.PIPE, check=True)
            self.assertEqual({t['name']: t['file'] for t in json.loads(done.stdout)['tensors']}, weight_map, path)
        for path in ('m.safetensors', './m.safetensors', 'sub/m.safetensors'):
            done = subprocess.run([SAFEMAP, 'inspect', path, '--json'], cwd=sub, stdout=subprocess.PIPE, check=True)
            self.assertEqual(json.loads(done.stdout)['tensors'][0]['file'], 'm.safetensors')

    def test_shards_and_prefixes_have_totals(self):
        layers = [(f'model.layers.{i}.{part}', 'BF16', [2, 2], bytes(8))
                  for i in range(8) for part in ('attn.q.weight', 'mlp.weight')]
        (self.folder / 'deep.safetensors').write_bytes(safetensors(layers + [('lm_head', 'F32', [1], bytes(4))]))
        self.done('convert', 'deep.safetensors', 'out', '--max-shard-size', '40')
        self.expect('inspect_shards', self.safemap('inspect', 'out').out)
        self.expect('inspect_shards_tree', self.safemap('inspect', 'out', '--tree').out)

    def test_names_of_a_tied_tensor_are_on_one_line(self):
        tied = safetensors([('wte', 'U8', [1], b'x')], {'head': 'wte', 'other': 'wte', 'format': 'pt'})
        (self.folder / 'tied.safetensors').write_bytes(tied)
        line = 'head = other = wte\n'
        self.assertIn('\ntied\n  ' + line, self.safemap('inspect', 'tied.safetensors').out)
        self.assertIn('\n  tied     ' + line, self.safemap('convert', 'tied.safetensors', 'out').out)
        told = self.safemap('inspect', 'tied.safetensors', '--include', 'head').out
        self.assertIn('\ntied\n  head = wte\n', told)

    def test_a_damaged_header_exits_with_1(self):
        (self.folder / 'cut.safetensors').write_bytes(safetensors(SMALL)[:100])
        self.refused('header_past_end', 1, 'inspect', 'cut.safetensors')


class Convert(Case):
    KEYS = ['tensors', 'files', 'bytes_read', 'bytes_written', 'seconds', 'peak_anon_bytes', 'cast', 'aliases',
            'skipped', 'notes', 'unaligned_tensors', 'resumed', 'copied', 'copied_tensors', 'scaled', 'gathered',
            'views', 'unreferenced_bytes', 'unsupported']
    LAYERS = [(name, 'U8', [6], name.encode()[:6].ljust(6)) for name in
              ('wte', 'h.0.a', 'h.1.a', 'h.0.b', 'h.1.b', 'head')]

    def test_json(self):
        told = self.done('convert', 'small.safetensors', 'out.safetensors')
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['tensors'], told['files']), (5, ['out.safetensors']))
        self.assertEqual(told['bytes_written'], (self.folder / 'out.safetensors').stat().st_size)
        self.assertEqual(told['bytes_read'], 72)
        self.assertEqual((told['cast'], told['aliases'], told['skipped']), ({}, [], []))
        self.assertGreater(told['seconds'], 0)
        self.assertGreater(told['peak_anon_bytes'], 100_000)
        self.assertLess(told['peak_anon_bytes'], 64 << 20)
        inspected = self.done('inspect', 'out.safetensors')
        self.assertEqual(inspected['metadata'], {'format': 'pt', 'who': 'a "b"'})

    def test_values_do_not_change(self):
        digests = self.done('load', 'small.safetensors', '--device', 'host', '--digest')['digests']
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        self.assertEqual(self.done('load', 'out', '--device', 'host', '--digest')['digests'], digests)
        self.assertGreater(len(list((self.folder / 'out').glob('model-0000?-of-0000?.safetensors'))), 1)

    def test_casts_are_counted_by_dtype(self):
        told = self.done('convert', 'small.safetensors', 'out', '--dtype', 'bfloat16')
        self.assertEqual(told['cast'], {'F32->BF16': {'tensors': 3, 'values': 14, 'overflowed': 1, 'non_finite': 1}})
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out')['tensors']}
        self.assertEqual(dtypes, {'layers.0.w': 'BF16', 'layers.1.w': 'BF16', 'ids': 'I64', 'norm': 'BF16',
                                  'none': 'U8'})

    def test_keep_dtype_exempts_tensors_from_the_cast(self):
        self.done('convert', 'small.safetensors', 'out', '--dtype', 'BF16', '--keep-dtype', 'norm',
                  '--keep-dtype', '*.0.*')
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out')['tensors']}
        self.assertEqual((dtypes['norm'], dtypes['layers.0.w'], dtypes['layers.1.w']), ('F32', 'F32', 'BF16'))

    def test_dtype_of_casts_some_tensors(self):
        self.done('convert', 'small.safetensors', 'out', '--dtype', 'bf16', '--dtype-of', 'layers.*=f16',
                  '--dtype-of', '*.1.*=F64', '--rename', 's/norm/n=m/')
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out')['tensors']}
        self.assertEqual(dtypes, {'layers.0.w': 'F16', 'layers.1.w': 'F64', 'ids': 'I64', 'n=m': 'BF16', 'none': 'U8'})
        self.done('convert', 'out', 'again', '--dtype-of', 'n=m=f32')
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'again')['tensors']}
        self.assertEqual((dtypes['n=m'], dtypes['layers.0.w']), ('F32', 'F16'))
        for rule in ('norm', '=f32', 'norm=', 'norm=fp8', 'norm=x'):
            self.refused('invalid_argument', 2, 'convert', 'small.safetensors', 'no', '--dtype-of', rule)
        for rule in ('nothing=f32', 'nothing=i64', 'ids=f32'):
            self.refused('tensor_not_found', 2, 'convert', 'small.safetensors', 'no', '--dtype-of', rule)
        error = self.refused('unsupported_cast', 2, 'convert', 'small.safetensors', 'no', '--dtype-of', 'norm=i64')
        self.assertEqual(error['message'], '--dtype-of norm=i64: casts to I64 are not supported')

    def test_quantised_tensors(self):
        numbers = ('l.weight', 'F8_E4M3', [1, 2], b'\x38\xb8')  # 1, -1
        scale = ('l.weight_scale', 'F32', [1], floats(3))
        (self.folder / 'fp8.safetensors').write_bytes(safetensors([scale, numbers, ('norm', 'F32', [1], floats(5))]))
        error = self.refused('quantized_cast', 2, 'convert', 'fp8.safetensors', 'out', '--dtype', 'bf16')
        self.assertEqual(error['hint'], 'multiply the numbers by their scales with --apply-scales, or copy them as '
                         "they are: --keep-dtype '*.weight' --keep-dtype '*.weight_scale'")
        self.refused('quantized_cast', 2, 'convert', 'fp8.safetensors', 'out', '--dtype', 'f32', '--include',
                     '*.weight')
        self.done('convert', 'fp8.safetensors', 'kept', '--dtype', 'bf16', '--keep-dtype', '*.weight', '--keep-dtype',
                  '*.weight_scale')
        for words in (('--strip-prefix', 'l.'), ('--rename', 's/weight/x/'),
                      ('--include', '*_scale', '--rename', 's/_scale/x/'),
                      ('--rename', 's/^/a./', '--dtype-of', 'l.*=f16')):
            words = ('convert', 'fp8.safetensors', 'new', '--dtype', 'bf16', *words)
            error = self.refused('quantized_cast', 2, *words)
            self.assertTrue(error['tensor'].startswith('l.weight'), error)
            typed = shlex.split(error['hint'].partition('are: ')[2])
            self.assertIn('*.weight_scale', typed)
            cast = self.done(*words, *typed, '--dry-run')['cast']
            self.assertEqual(list(cast), [] if '--include' in words else ['F32->BF16'])
        told = self.done('convert', 'fp8.safetensors', 'out', '--apply-scales')
        self.assertEqual(told['scaled'], {'tensors': 1, 'bytes': 2})
        self.assertEqual([object['name'] for object in told['skipped']], ['l.weight_scale'])
        self.assertEqual(told['cast'], {'F8_E4M3->BF16': {'tensors': 1, 'values': 2, 'overflowed': 0, 'non_finite': 0}})
        written = (self.folder / 'out/model.safetensors').read_bytes()
        self.assertTrue(written.endswith(floats(5) + b'\x40\x40\x40\xc0'), written)  # 3, -3
        layers = [(f'l.{i}.{name}', *rest) for i in range(3) for name, *rest in (
            ('weight', 'F8_E4M3', [1, 2], b'\x38\xb8'), ('weight_scale', 'F32', [1], floats(3)))]
        (self.folder / 'layers.safetensors').write_bytes(safetensors(layers))
        text = self.safemap('convert', 'layers.safetensors', 'folded', '--apply-scales').out
        self.assertEqual([line for line in text.splitlines() if 'skipped' in line],
                         ['  skipped  l.{0..2}.weight_scale x 3: describes quantised tensors, which are written as '
                          'their values (apply_scales)'])

    def test_text(self):
        result = self.safemap('convert', 'small.safetensors', 'out', '--dtype', 'bf16')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('convert', result.out)

    def test_a_dry_run_writes_nothing_and_prints_the_plan(self):
        result = self.safemap('convert', 'small.safetensors', 'out', '--max-shard-size', '30', '--dry-run')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('convert_dry_run', result.out)
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_a_dry_run_predicts_the_files_of_the_run(self):
        words = ('convert', 'small.safetensors', 'out', '--max-shard-size', '30', '--dtype', 'bf16')
        plan, text = self.done(*words, '--dry-run'), self.safemap(*words, '--dry-run')
        self.assertEqual(list(plan), self.KEYS + ['predicted_anon_bytes', 'plan'])
        self.expect('convert_dry_run_cast', text.out)
        done = self.done(*words)
        self.assertEqual([file['file'] for file in plan['plan']], done['files'])
        for file in plan['plan']:
            path = self.folder / 'out' / file['file']
            self.assertEqual(file['bytes'], path.stat().st_size)
            held = 0 if path.suffix == '.json' else len(self.done('inspect', str(path))['tensors'])
            self.assertEqual(file['tensors'], held)

    def test_memory_is_predicted(self):
        size = 1 << 26
        header = json.dumps({f'w.{i}': {'dtype': 'F32', 'shape': [size // 16], 'data_offsets': [i * size // 4,
                                                                                           (i + 1) * size // 4]}
                             for i in range(4)}).encode()
        with open(self.folder / 'big.safetensors', 'wb') as big:
            big.write(struct.pack('<Q', len(header)) + header)
            big.truncate(8 + len(header) + size)
        for more in ((), ('--dtype', 'bf16'), ('--threads', '4')):
            words = ('convert', 'big.safetensors', 'out.safetensors', *more, '--json')
            # With MALLOC_PERTURB_, buffers would be filled at allocation, and all of their pages would count.
            env = environment(MALLOC_PERTURB_='0')
            predicted = self.safemap(*words, '--dry-run', env=env).json()['predicted_anon_bytes']
            self.assertLess(predicted, 32 << 20)
            measured = self.safemap(*words, env=env).json()['peak_anon_bytes']
            self.assertGreater(measured, 0)
            if not SANITIZED:  # sanitizers use memory of their own
                self.assertLess(measured, predicted + (4 << 20))
                self.assertLess(predicted, measured + (12 << 20))
            (self.folder / 'out.safetensors').unlink()

    def by_file(self, folder):
        """Returns the names in each shard, in the order of the index."""
        index = json.loads((self.folder / folder / 'model.safetensors.index.json').read_text(encoding='utf-8'))
        files = {}
        for name, file in index['weight_map'].items():
            files.setdefault(file, []).append(name)
        return [files[file] for file in sorted(files)]

    def test_strategies(self):
        (self.folder / 'layers.safetensors').write_bytes(safetensors(self.LAYERS))
        split = {}
        for strategy in ('greedy', 'balanced', 'by_prefix'):
            self.done('convert', 'layers.safetensors', strategy, '--max-shard-size', '24', '--strategy', strategy)
            self.assertTrue(self.done('diff', 'layers.safetensors', strategy)['equal'])
            split[strategy] = self.by_file(strategy)
        self.assertEqual(split['greedy'], [['wte', 'h.0.a', 'h.1.a', 'h.0.b'], ['h.1.b', 'head']])
        self.assertEqual(split['balanced'], [['wte', 'h.0.a', 'h.1.a'], ['h.0.b', 'h.1.b', 'head']])
        self.assertEqual(split['by_prefix'], [['wte', 'h.0.a', 'h.0.b'], ['h.1.a', 'h.1.b', 'head']])
        told = self.done('convert', 'layers.safetensors', 'small', '--max-shard-size', '11', '--strategy', 'by_prefix')
        self.assertEqual(self.by_file('small'), [['h.0.a', 'h.0.b'], ['h.1.a', 'h.1.b'], ['wte'], ['head']])
        self.assertEqual(told['notes'][0], "the layer of 'h.0' takes 12 bytes, more than 11 bytes; it is stored whole "
                                           'in model-00001-of-00004.safetensors')
        self.assertEqual(len(told['notes']), 2)

    def test_an_index_of_transformers(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30', '--index-style', 'transformers')
        text = (self.folder / 'out' / 'model.safetensors.index.json').read_text(encoding='utf-8')
        index = json.loads(text)
        self.assertEqual(text, json.dumps(index, indent=2, sort_keys=True) + '\n')
        self.assertEqual(index['metadata'], {'total_parameters': 16, 'total_size': 72, 'who': 'a "b"'})
        self.assertTrue(self.done('diff', 'small.safetensors', 'out')['equal'])

    def test_tensors_are_aligned_as_asked(self):
        tensors = [('a', 'F32', [3], bytes(12)), ('b', 'U8', [64], bytes(64)), ('c', 'F16', [32], bytes(64))]
        (self.folder / 'odd.safetensors').write_bytes(safetensors(tensors))
        for more, unaligned in (((), 2), (('--align-tensors',), 0)):
            told = self.done('convert', 'odd.safetensors', f'{unaligned}.safetensors', '--align', '64', *more)
            self.assertEqual(told['unaligned_tensors'], unaligned)
            offsets = [t['offset'] % 64 for t in self.done('inspect', f'{unaligned}.safetensors')['tensors']]
            self.assertEqual(len([offset for offset in offsets if offset]), unaligned)
        text = self.safemap('convert', 'odd.safetensors', 'out', '--align', '4096', '--align-tensors').out
        self.assertIn('\n  aligned  all but 2 tensors\n', text)

    def names(self, path):
        return [t['name'] for t in self.done('inspect', path)['tensors']]

    def test_names_are_changed_by_prefixes_and_then_by_rules(self):
        told = self.done('convert', 'small.safetensors', 'out.safetensors', '--strip-prefix', 'layers.',
                         '--rename', r's/^(\d+)\.w$/h.$1.weight/', '--rename', 's/n/N/g', '--rename', 's/none/x/',
                         '--dtype', 'bf16', '--keep-dtype', 'layers.1.*')
        self.assertEqual(sorted(self.names('out.safetensors')), ['NoNe', 'Norm', 'h.0.weight', 'h.1.weight', 'ids'])
        self.assertEqual(told['notes'], ["--rename 's/none/x/': it changes no name"])
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out.safetensors')['tensors']}
        self.assertEqual((dtypes['h.0.weight'], dtypes['h.1.weight']), ('BF16', 'F32'))
        self.assertEqual(self.done('inspect', 'out.safetensors')['metadata'], {'format': 'pt', 'who': 'a "b"'})

    def test_tensors_are_selected_by_their_names_before_renaming(self):
        self.done('convert', 'small.safetensors', 'out.safetensors', '--include', 'layers.*', '--rename', 's/layers/h/')
        self.assertEqual(self.names('out.safetensors'), ['h.0.w', 'h.1.w'])
        self.refused('tensor_not_found', 2, 'convert', 'small.safetensors', 'more', '--include', 'h.*',
                     '--rename', 's/layers/h/')

    def test_colliding_names_are_refused_before_anything_is_written(self):
        for more in ((), ('--dry-run',)):
            error = self.refused('name_collision', 2, 'convert', 'small.safetensors', 'out',
                                 '--rename', r's/\.[01]\./.N./', *more)
            self.assertEqual(error['message'], "'layers.0.w' and 'layers.1.w' would both become 'layers.N.w'")
        self.refused('name_collision', 2, 'convert', 'small.safetensors', 'out', '--rename', 's/ids/__metadata__/')
        self.refused('invalid_argument', 2, 'convert', 'small.safetensors', 'out', '--rename', 's/.*ids.*//')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_an_invalid_rule_is_refused_before_the_path_is_opened(self):
        for rule in ('', 's/(/x/', 's/a/$1/', 'a/b/', 's/a/b', 's/a/b/i'):
            error = self.refused('invalid_argument', 2, 'convert', 'nowhere', 'out', '--rename', rule)
            self.assertTrue(error['message'].startswith(f"--rename: '{rule}' "), error)
            self.assertIn('s/RE/TEXT/', error['hint'])

    def test_a_name_too_long_for_a_rule_is_refused(self):
        (self.folder / 'long.safetensors').write_bytes(safetensors([('x' * 1_000_000, 'U8', [1], b'x')]))
        error = self.refused('invalid_argument', 2, 'convert', 'long.safetensors', 'out', '--rename', 's/(x|y)*/z/')
        self.assertIn('a name has 1000000 bytes', error['message'])
        self.assertLess(len(error['message']), 300)

    def test_names_of_tied_tensors_are_changed_too(self):
        tied = safetensors([('wte', 'U8', [1], b'x'), ('b', 'U8', [1], b'y')], {'head': 'wte', 'by': 'me'})
        (self.folder / 'tied.safetensors').write_bytes(tied)
        told = self.done('convert', 'tied.safetensors', 'out.safetensors', '--rename', 's/^/model./')
        self.assertEqual(told['aliases'], [['model.wte', 'model.head']])
        inspected = self.done('inspect', 'out.safetensors')
        self.assertEqual(inspected['metadata'], {'format': 'pt', 'by': 'me', 'model.head': 'model.wte'})
        self.assertEqual([t.get('alias_of') for t in inspected['tensors'] if t['name'] == 'model.head'], ['model.wte'])
        # Checks the tied name when it is the only selected name, when both names would become one, and when it collides
        # with metadata.
        self.done('convert', 'tied.safetensors', 'one.safetensors', '--include', 'head', '--rename', 's/head/h/')
        self.assertEqual(self.names('one.safetensors'), ['h'])
        self.assertEqual(self.done('inspect', 'one.safetensors')['metadata'], {'format': 'pt', 'by': 'me'})
        self.refused('name_collision', 2, 'convert', 'tied.safetensors', 'two', '--rename', 's/head|wte/w/')
        error = self.refused('name_collision', 2, 'convert', 'tied.safetensors', 'two', '--rename', 's/head/by/')
        self.assertEqual(error['message'], "'head' would become 'by', which is already a metadata key")

    def test_the_selected_names_of_a_tied_tensor_stay_tied(self):
        tied = safetensors([('wte', 'U8', [1], b'x'), ('b', 'U8', [1], b'y')],
                           {'head': 'wte', 'other': 'wte', 'by': 'me'})
        (self.folder / 'tied.safetensors').write_bytes(tied)
        told = self.done('convert', 'tied.safetensors', 'two.safetensors', '--exclude', 'wte')
        self.assertEqual(told['aliases'], [['head', 'other']])
        self.assertEqual(self.done('inspect', 'two.safetensors')['metadata'],
                         {'format': 'pt', 'by': 'me', 'other': 'head'})
        self.assertEqual(self.names('two.safetensors'), ['b', 'head', 'other'])
        # With none of its names selected, and with one.
        self.done('convert', 'tied.safetensors', 'none.safetensors', '--include', 'b')
        self.assertEqual(self.done('inspect', 'none.safetensors')['metadata'], {'format': 'pt', 'by': 'me'})
        self.done('convert', 'tied.safetensors', 'one.safetensors', '--include', 'other')
        self.assertEqual(self.done('inspect', 'one.safetensors')['metadata'], {'format': 'pt', 'by': 'me'})

    def test_every_name_of_a_skipped_tied_tensor_is_reported(self):
        (self.folder / 'tied.pt').write_bytes(torch_file({'t': 'ComplexDoubleStorage', 'u': 'ComplexDoubleStorage',
                                                          'x': 'ComplexDoubleStorage', 'w': 'FloatStorage'}))
        for options, wanted in (([], ['t', 'u', 'x']), (['--exclude', 't'], ['u', 'x']),
                                (['--rename', 's/^/a./'], ['a.t', 'a.u', 'a.x']),
                                (['--rename', 's/^/a./', '--exclude', 't'], ['a.u', 'a.x'])):
            for form in ('out.safetensors', 'out'):
                with self.subTest(options=options, form=form):
                    told = self.done('convert', 'tied.pt', form, '--force', *options)
                    self.assertEqual([object['name'] for object in told['skipped']], wanted)
                    self.assertEqual(len({object['why'] for object in told['skipped']}), 1)
                    self.assertEqual(told['aliases'], [])
                    metadata = self.done('inspect', form)['metadata']
                    self.assertEqual(metadata, {'format': 'pt'})

    def test_the_output_must_be_new(self):
        (self.folder / 'out').mkdir()
        (self.folder / 'out' / 'pytorch_model.bin').write_bytes(b'mine')
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'out')
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'small.safetensors')
        self.assertEqual(self.done('inspect', 'small.safetensors')['total_bytes'], 72)

    def test_force_replaces_the_model_and_leaves_the_rest(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        (self.folder / 'out' / 'config.json').write_text('mine')
        (self.folder / 'out' / 'logs').mkdir()
        told = self.done('convert', 'out', 'out', '--force')
        self.assertEqual(told['files'], ['model.safetensors'])
        self.assertEqual(sorted(p.name for p in (self.folder / 'out').iterdir()),
                         ['config.json', 'logs', 'model.safetensors'])
        self.assertTrue(self.done('diff', 'small.safetensors', 'out')['equal'])
        self.done('convert', 'small.safetensors', 'small.safetensors', '--force', '--dtype', 'bf16')
        self.assertEqual(self.done('inspect', 'small.safetensors')['total_bytes'], 44)
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'out/config.json', '--force')
        self.assertEqual(self.leftovers(), ['out', 'small.safetensors'])

    def test_evicting_the_sources_changes_no_byte(self):
        self.done('convert', 'small.safetensors', 'kept.safetensors')
        self.done('convert', 'small.safetensors', 'out.safetensors', '--drop-cache')
        self.assertEqual(*((self.folder / name).read_bytes() for name in ('out.safetensors', 'kept.safetensors')))

    def test_a_killed_conversion_is_resumed(self):
        # The input is sparse, so that it is made quickly; the output is not.
        count, size = 12, 1 << 24
        header, place = {}, 0
        for i in range(count):
            header[f't{i:02}'] = {'dtype': 'U8', 'shape': [size], 'data_offsets': [place, place + size]}
            place += size
        text = json.dumps(header).encode()
        with open(self.folder / 'big.safetensors', 'wb') as big:
            big.write(struct.pack('<Q', len(text)) + text)
            big.truncate(8 + len(text) + place)
        words = ['convert', 'big.safetensors', 'out', '--max-shard-size', str(size), '--checksums']
        journal = self.folder / '.out.safemap-tmp' / 'journal'
        process = subprocess.Popen([SAFEMAP, *words, '--quiet'], cwd=self.folder)
        while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b'\n') > 3):
            time.sleep(0.001)
        process.kill()
        if process.wait() == 0:
            self.skipTest('this machine writes 192 MiB before it can be killed')
        self.assertEqual(self.leftovers(), ['.out.safemap-tmp', 'big.safetensors', 'small.safetensors'])
        told = self.done(*words, '--resume')
        self.assertGreaterEqual(len(told['resumed']), 3)
        self.assertLess(told['bytes_read'], count * size)
        self.assertEqual(self.leftovers(), ['big.safetensors', 'out', 'small.safetensors'])
        self.assertEqual(self.done('verify', 'out')['checked_bytes'], count * size)
        self.assertTrue(self.done('diff', 'big.safetensors', 'out')['equal'])

    def test_the_optimizer_of_other_checkpoints_is_not_separate(self):
        for out in ('out.safetensors', 'out.sft'):
            message = self.refused('invalid_argument', 2, 'convert', 'nothing', out, '--optimizer')['message']
            self.assertEqual(message, '--optimizer writes a folder, but OUT is one file: ' + out)
        for path in ('small.safetensors', str(DATA / 'pt' / 'train_gpt.pt')):
            error = self.refused('invalid_argument', 2, 'convert', path, 'out', '--optimizer')
            self.assertEqual((error['message'], error['path']),
                             ('--optimizer is for folders of DeepSpeed, and for models with the state of their '
                              'optimizer beside them; this is neither', path))
        self.refused('path_not_found', 2, 'convert', 'nothing', 'out', '--optimizer')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_stdout_is_refused_as_output(self):
        error = self.refused('invalid_argument', 2, 'convert', 'small.safetensors', '-')
        self.assertIn("'-'", error['message'])
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_a_slash_after_the_output_makes_it_a_folder(self):
        told = self.done('convert', 'small.safetensors', 'out.safetensors/')
        self.assertEqual(told['files'], ['model.safetensors'])
        self.assertTrue((self.folder / 'out.safetensors' / 'model.safetensors').is_file())
        self.assertEqual(len(self.done('inspect', 'out.safetensors')['tensors']), 5)

    def test_a_foreign_folder_with_the_name_of_the_temporary_folder_is_kept(self):
        mine = self.folder / '.out.safemap-tmp'
        mine.mkdir()
        (mine / 'thesis.tex').write_text('mine')
        error = self.refused('already_exists', 2, 'convert', 'small.safetensors', 'out')
        self.assertIn("'.out.safemap-tmp'", error['message'])
        self.assertEqual((mine / 'thesis.tex').read_text(), 'mine')

    def test_a_file_that_does_not_fit_is_reported_with_path_and_bytes(self):
        def limited():  # the process also gets SIGXFSZ
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        for out, file in [('out', 'out/model.safetensors'), ('out.safetensors', 'out.safetensors')]:
            result = self.safemap('convert', 'small.safetensors', out, '--json', preexec_fn=limited)
            error = result.json()['error']
            self.assertEqual((error['code'], result.code, error['path']), ('no_space', 3, file))
            self.assertRegex(error['message'], r'^cannot allocate \d{3} bytes: .*at most 100 bytes \(ulimit -f\)')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_data_is_aligned_as_asked(self):
        for align in (64, 256, 4096):
            self.done('convert', 'small.safetensors', f'{align}.safetensors', '--align', str(align))
            begin = (self.folder / f'{align}.safetensors').read_bytes()[:8]
            self.assertEqual((struct.unpack('<Q', begin)[0] + 8) % align, 0)

    def test_checksums_are_written_where_verify_and_hash_find_them(self):
        for out, words in [('out.safetensors', ()), ('out', ('--max-shard-size', '30')), ('half', ('--dtype', 'bf16'))]:
            told = self.done('convert', 'small.safetensors', out, '--checksums', *words)
            self.assertEqual(list(told), self.KEYS)
            hashed = self.done('hash', out)
            metadata = self.done('inspect', out)['metadata']
            self.assertEqual(metadata['safemap.checkpoint_xxh3_128'], hashed['checkpoint'])
            self.assertEqual(metadata['who'], 'a "b"')
            found = {}
            files = [self.folder / out] if out.endswith('s') else (self.folder / out).glob('*.safetensors')
            for file in files:
                found.update(json.loads(header_of(file)['__metadata__']['safemap.xxh3_128']))
            self.assertEqual(found, hashed['tensors'])
            checked = self.done('verify', out)
            self.assertEqual((checked['ok'], checked['checked_bytes']), (True, checked['bytes']))
        # Digests of a whole say nothing about a part of it, nor about a file saved without checksums.
        self.done('convert', 'out.safetensors', 'part.safetensors', '--include', 'layers.*')
        self.assertEqual(self.done('inspect', 'part.safetensors')['metadata'], {'format': 'pt', 'who': 'a "b"'})
        self.done('convert', 'out.safetensors', 'again.safetensors', '--include', 'layers.*', '--checksums')
        self.assertEqual(self.done('verify', 'again.safetensors')['checked_bytes'], 48)

    def test_a_dry_run_counts_the_bytes_of_checksums(self):
        words = ('small.safetensors', 'out', '--max-shard-size', '30', '--checksums')
        planned = self.done('convert', *words, '--dry-run')
        written = self.done('convert', *words)
        self.assertEqual((planned['files'], planned['bytes_written']), (written['files'], written['bytes_written']))

    def test_a_selection_keeps_the_metadata(self):
        self.done('convert', 'small.safetensors', 'out.safetensors', '--include', 'layers.*')
        told = self.done('inspect', 'out.safetensors')
        self.assertEqual([t['name'] for t in told['tensors']], ['layers.0.w', 'layers.1.w'])
        self.assertEqual(told['metadata'], {'format': 'pt', 'who': 'a "b"'})

    def test_the_longest_header_is_an_option_of_every_command(self):
        size = str(struct.unpack('<Q', (self.folder / 'small.safetensors').read_bytes()[:8])[0])
        small = 'small.safetensors'
        for words in (['inspect', small], ['convert', small, 'out'], ['verify', small], ['hash', small],
                      ['diff', small, small], ['plan', small, '--expect', small], ['load', small, '--device', 'host'],
                      ['repair', small, 'repaired'], ['edit', small, '--set', 'a=b']):
            with self.subTest(command=words[0]):
                refused = self.safemap(*words, '--json', '--max-header-size', '100')
                self.assertEqual(refused.code, 1, refused.out)
                found = json.loads(refused.out)
                found = found['faults'][0] if words[0] == 'verify' else found['error']
                self.assertEqual(found['code'], 'header_too_large')
                self.assertIn(f'--max-header-size {size}', found['hint'])
                allowed = self.safemap(*words, '--max-header-size', '1kB')
                self.assertEqual(allowed.code, 0, allowed.err)

    def test_headers_are_kept_short_by_more_shards(self):
        told = self.done('convert', 'small.safetensors', 'out', '--max-header-size', '420')
        self.assertGreater(len(told['files']), 2)
        self.assertTrue(self.done('diff', 'small.safetensors', 'out')['equal'])
        size = struct.unpack('<Q', (self.folder / 'small.safetensors').read_bytes()[:8])[0]
        refused = self.safemap('convert', 'small.safetensors', 'one.safetensors', '--checksums', '--json',
                               '--max-header-size', str(size))
        self.assertEqual(refused.code, 1)
        error = json.loads(refused.out)['error']
        self.assertEqual(error['code'], 'header_too_large')
        self.assertIn('--max-shard-size', error['hint'])
        self.assertIn('--max-header-size', error['hint'])

    def test_ctrl_c_leaves_nothing(self):
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # The input has no blocks on disk; the run that is stopped would write all of them.
            for size in (1 << 28, 1 << 30, 1 << 32):
                if self.cancelled(size, signal_number):
                    break
            else:
                self.skipTest('this machine writes 4 GiB before a signal arrives')

    def test_a_signal_keeps_finished_shards_for_resume_and_says_how_to_continue(self):
        # Odd names, because the command of the hint is for a shell.
        source, out = "it's\ta model.safetensors", '$out *'
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for size in (1 << 22, 1 << 24, 1 << 27):
                if self.continued(source, out, size, signal_number):
                    break
            else:
                self.skipTest('this machine writes 1 GiB before a signal arrives')

    def continued(self, source, out, size, signal_number):
        count = 8
        header = json.dumps({f't{i}': {'dtype': 'U8', 'shape': [size], 'data_offsets': [i * size, (i + 1) * size]}
                             for i in range(count)}).encode()
        with open(self.folder / source, 'wb') as file:
            file.write(struct.pack('<Q', len(header)) + header)
            for i in range(count):
                file.seek(8 + len(header) + i * size)
                file.write(bytes([i + 1]))  # the rest has no blocks on disk
            file.truncate(8 + len(header) + count * size)
        before = self.leftovers()
        hidden = self.folder / f'.{out}.safemap-tmp'
        call = ['convert', source, out, '--max-shard-size', str(size), '--resume']
        json_wanted = signal_number != signal.SIGINT
        process = subprocess.Popen([SAFEMAP, *call, *['--json'] * json_wanted], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        while process.poll() is None and self.lines_of(hidden / 'journal') < 3:
            time.sleep(0.0005)
        for _ in range(3):  # the second and the third change nothing
            process.send_signal(signal_number)
        told, err = process.communicate(timeout=120)
        if process.returncode == 0:
            subprocess.run(['rm', '-rf', self.folder / out], check=True)
            return False
        self.assertEqual(process.returncode, 130, (told, err))
        self.assertEqual(sorted(os.listdir(hidden)), ['content', 'journal', 'safemap.lock'])
        kept = {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (hidden / 'content').iterdir()}
        self.assertGreaterEqual(len(kept), 2)
        if json_wanted:
            self.assertEqual(err, b'')
            error = json.loads(told)['error']
            self.assertEqual((error['code'], error['message']), ('cancelled', 'cancelled on request'))
            hint = error['hint']
        else:
            self.assertEqual(err.decode().count('hint: '), 1, err)
            hint = err.decode().split('hint: ')[1]
        self.assertTrue(hint.startswith(f'{len(kept)} of {count + 1} files are finished'), hint)
        command = hint.split('; to continue: ')[1]
        done = subprocess.run(['bash', '-c', command], cwd=self.folder, capture_output=True, check=False, timeout=120)
        self.assertEqual(done.returncode, 0, (command, done.stderr))
        if json_wanted:
            report = json.loads(done.stdout)
            self.assertEqual(sorted(report['resumed']), sorted(kept))
            self.assertEqual(report['bytes_read'], size * (count - len([n for n in kept if n.endswith('s')])))
        for name, stamp in kept.items():
            now = (self.folder / out / name).stat()
            self.assertEqual((now.st_ino, now.st_mtime_ns), stamp)
        self.done('convert', source, 'whole', '--max-shard-size', str(size))
        subprocess.run(['diff', '-r', out, 'whole'], cwd=self.folder, check=True)
        subprocess.run(['rm', '-rf', self.folder / out, self.folder / 'whole'], check=True)
        self.assertEqual(self.leftovers(), before)
        return True

    @staticmethod
    def lines_of(path):
        try:
            return path.read_bytes().count(b'\n')
        except FileNotFoundError:
            return 0

    def cancelled(self, size, signal_number):
        header = json.dumps({'w': {'dtype': 'U8', 'shape': [size], 'data_offsets': [0, size]}}).encode()
        with open(self.folder / 'big.safetensors', 'wb') as big:
            big.write(struct.pack('<Q', len(header)) + header)
            big.truncate(8 + len(header) + size)
        before = self.leftovers()
        process = subprocess.Popen([SAFEMAP, 'convert', 'big.safetensors', 'out', '--json'], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        while process.poll() is None and self.leftovers() == before:
            time.sleep(0.001)
        process.send_signal(signal_number)
        out, err = process.communicate(timeout=120)
        if process.returncode == 0:
            subprocess.run(['rm', '-rf', self.folder / 'out'], check=True)
            return False
        self.assertEqual((process.returncode, err), (130, b''), out)
        self.assertEqual(json.loads(out)['error']['code'], 'cancelled')
        self.assertEqual(self.leftovers(), before)
        return True


class Extras(Case):
    EXTRAS = ['LICENSE', 'README.md', 'config.json', 'merges.txt', 'spiece.model', 'template.jinja', 'tokenizer.json']

    def setUp(self):
        super().setUp()
        self.done('convert', 'small.safetensors', 'in', '--max-shard-size', '30')
        for name in (*self.EXTRAS, 'tokenizer.py', 'optimizer.pt', 'notes.md', '.hidden.json'):
            (self.folder / 'in' / name).write_text(name)

    def files(self, folder):
        return {p.name: p.read_bytes() for p in (self.folder / folder).iterdir() if p.is_file()}

    def test_the_small_files_of_a_model_folder_are_copied(self):
        told = self.done('convert', 'in', 'out', '--dtype', 'bf16')
        self.assertEqual(told['copied'], self.EXTRAS)
        self.assertEqual(sorted(self.files('out')), sorted(self.EXTRAS + told['files']))
        self.assertEqual(told['bytes_written'], sum(len(self.files('out')[name]) for name in told['files']))
        for name in self.EXTRAS:
            self.assertEqual(self.files('out')[name], name.encode())
        self.assertEqual(self.leftovers(), ['in', 'out', 'small.safetensors'])

    def test_every_conversion_of_a_folder_to_a_folder_copies_them(self):
        for words in (['--rename', 's/norm/x/'], ['--include', 'norm'], ['--max-shard-size', '1GB'], ['--resume']):
            self.assertEqual(self.done('convert', 'in', 'out', *words)['copied'], self.EXTRAS)
            self.assertEqual(self.files('out')['config.json'], b'config.json')
            for file in (self.folder / 'out').iterdir():
                file.unlink()
            (self.folder / 'out').rmdir()

    def test_other_conversions_copy_none(self):
        self.assertEqual(self.done('convert', 'in', 'plain', '--no-extras')['copied'], [])
        self.assertEqual(self.done('convert', 'in', 'out.safetensors')['copied'], [])
        for source in ('small.safetensors', 'in/model.safetensors.index.json'):
            told = self.done('convert', source, 'out')
            self.assertEqual((told['copied'], sorted(self.files('out'))), ([], sorted(told['files'])))
            for file in (self.folder / 'out').iterdir():
                file.unlink()
            (self.folder / 'out').rmdir()
        # A single file of weights in a folder may have any name.
        (self.folder / 'some').mkdir()
        (self.folder / 'small.safetensors').rename(self.folder / 'some' / 'weights.safetensors')
        (self.folder / 'some' / 'config.json').write_text('{}')
        self.assertEqual(self.done('convert', 'some', 'out')['copied'], [])

    def test_a_dry_run_lists_them(self):
        self.assertEqual(self.done('convert', 'in', 'out', '--dry-run')['copied'], self.EXTRAS)
        text = self.safemap('convert', 'in', 'out', '--dry-run').out
        self.assertIn('  extras   ' + ', '.join(self.EXTRAS) + '\n', text)
        self.assertEqual(self.leftovers(), ['in', 'small.safetensors'])

    def test_force_replaces_them_and_leaves_the_rest(self):
        self.done('convert', 'small.safetensors', 'out')
        (self.folder / 'out' / 'config.json').write_text('old')
        (self.folder / 'out' / 'mine.json').write_text('mine')
        (self.folder / 'out' / 'merges.txt').mkdir()
        told = self.done('convert', 'in', 'out', '--force')
        self.assertEqual(told['copied'], [name for name in self.EXTRAS if name != 'merges.txt'])
        self.assertEqual([note for note in told['notes'] if 'merges.txt' in note],
                         ["'merges.txt' is not copied: the output folder has that name, but not as a regular file"])
        self.assertEqual(self.files('out')['config.json'], b'config.json')
        self.assertEqual(self.files('out')['mine.json'], b'mine')

    def test_a_model_converted_in_place_keeps_its_own(self):
        before = (self.folder / 'in' / 'config.json').stat().st_ino
        told = self.done('convert', 'in', 'in', '--force')
        self.assertEqual(told['copied'], [])
        self.assertEqual((self.folder / 'in' / 'config.json').stat().st_ino, before)
        self.assertEqual(self.files('in')['tokenizer.py'], b'tokenizer.py')

    def test_links_of_a_hub_cache_are_followed(self):
        (self.folder / 'in').rename(self.folder / 'blobs')
        (self.folder / 'snapshots' / '0a1b').mkdir(parents=True)
        for file in (self.folder / 'blobs').iterdir():
            (self.folder / 'snapshots' / '0a1b' / file.name).symlink_to('../../blobs/' + file.name)
        self.assertEqual(self.done('convert', 'snapshots/0a1b', 'out')['copied'], self.EXTRAS)
        self.assertFalse((self.folder / 'out' / 'config.json').is_symlink())
        self.assertEqual(self.files('out')['config.json'], b'config.json')

    def test_a_link_out_of_the_folder_is_noted_and_not_copied(self):
        secret = self.folder / 'secret'
        secret.write_bytes(b'mine')
        (self.folder / 'in' / 'config.json').unlink()
        (self.folder / 'in' / 'config.json').symlink_to('../secret')
        told = self.done('convert', 'in', 'out')
        self.assertNotIn('config.json', told['copied'])
        self.assertIn(f"'config.json' is not copied: it is a link out of the folder, to {secret.resolve()}",
                      told['notes'])
        self.assertFalse((self.folder / 'out' / 'config.json').exists())

    def test_a_file_that_is_too_large_is_noted(self):
        with open(self.folder / 'in' / 'vocab.json', 'wb') as large:
            large.truncate((64 << 20) + 1)
        told = self.done('convert', 'in', 'out')
        self.assertEqual(told['copied'], self.EXTRAS)
        self.assertIn("'vocab.json' is not copied: it has 67108865 bytes, more than 67108864 bytes", told['notes'])
        self.assertNotIn('vocab', ' '.join(self.done('convert', 'in', 'out.safetensors')['notes']))


class Edit(Case):
    def test_metadata_and_names(self):
        told = self.done('edit', 'small.safetensors', '--set', 'license=mit', '--set', 'note=a=b', '--rename',
                         's/^layers/model.layers/')
        self.assertEqual(list(told), ['changed', 'renamed', 'metadata', 'notes'])
        self.assertEqual((told['changed'], told['renamed'], told['notes']), (True, 2, []))
        self.assertEqual(told['metadata'], {'format': 'pt', 'license': 'mit', 'note': 'a=b', 'who': 'a "b"'})
        shown = self.done('inspect', 'small.safetensors')
        self.assertEqual(shown['metadata'], told['metadata'])
        self.assertIn('model.layers.0.w', [t['name'] for t in shown['tensors']])
        told = self.done('edit', 'small.safetensors', '--unset', 'license', '--unset', 'note')
        self.assertEqual(told['metadata'], {'format': 'pt', 'who': 'a "b"'})
        told = self.done('edit', 'small.safetensors', '--rename', 's/nothing/something/')
        self.assertEqual((told['changed'], len(told['notes'])), (False, 1))
        self.expect('edit', self.safemap('edit', 'small.safetensors', '--set', 'a=b').out)
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_invalid_edits_are_refused(self):
        before = self.done('inspect', 'small.safetensors')['metadata']
        for words in [(), ('--set', 'novalue'), ('--set', '=x'), ('--unset', 'missing'), ('--rename', 's/x'),
                      ('--set', 'a=b', '--include', '*')]:
            self.refused('invalid_argument', 2, 'edit', 'small.safetensors', *words)
        self.refused('name_collision', 2, 'edit', 'small.safetensors', '--rename', 's/layers.[01]/x/')
        self.refused('path_not_found', 2, 'edit', 'none.safetensors', '--set', 'a=b')
        self.refused('invalid_argument', 2, 'edit', '.', '--set', 'a=b')
        self.assertEqual(self.done('inspect', 'small.safetensors')['metadata'], before)


class Repair(Case):
    def test_faults_are_repaired_and_reported(self):
        whole = (self.folder / 'small.safetensors').read_bytes()
        (self.folder / 'long.safetensors').write_bytes(whole + b'xyz')
        self.refused('trailing_bytes', 1, 'inspect', 'long.safetensors')
        told = self.done('repair', 'long.safetensors', 'out.safetensors')
        self.assertEqual(list(told), ['repairs', 'tensors', 'files', 'bytes_written'])
        self.assertIn('3 bytes after the last tensor', told['repairs'][0])
        self.assertTrue(self.done('diff', 'small.safetensors', 'out.safetensors')['equal'])
        self.assertEqual(self.done('repair', 'out.safetensors', 'again.safetensors')['repairs'], [])
        self.refused('already_exists', 2, 'repair', 'long.safetensors', 'out.safetensors')
        self.expect('repair', self.safemap('repair', 'long.safetensors', 'out.safetensors', '--force').out)

    def test_a_file_that_cannot_be_repaired_is_refused(self):
        whole = (self.folder / 'small.safetensors').read_bytes()
        (self.folder / 'short.safetensors').write_bytes(whole[:-1])
        self.refused('file_truncated', 1, 'repair', 'short.safetensors', 'out.safetensors')
        self.refused('path_not_found', 2, 'repair', 'none.safetensors', 'out.safetensors')
        self.assertEqual(self.leftovers(), ['short.safetensors', 'small.safetensors'])


class Verify(Case):
    KEYS = ['ok', 'tensors', 'bytes', 'checked_bytes', 'asks_for_code', 'faults', 'notes']

    def test_a_valid_file_is_ok(self):
        told = self.done('verify', 'small.safetensors')
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['ok'], told['tensors'], told['bytes'], told['faults']), (True, 5, 72, []))
        self.expect('verify', self.safemap('verify', 'small.safetensors').out)

    def test_help_has_no_options_that_are_refused(self):
        help_text = self.safemap('verify', '--help').out
        self.assertNotIn('clude', help_text)
        for option in ('--include', '--exclude'):
            error = self.refused('invalid_argument', 2, 'verify', 'small.safetensors', option, '*')
            self.assertIn(option, error['message'])

    def test_every_fault_is_reported(self):
        header = {'a': {'dtype': 'F32', 'shape': [3], 'data_offsets': [0, 8]},
                  'b': {'dtype': 'F32', 'shape': [2, 2], 'data_offsets': [8, 16]}}
        text = json.dumps(header).encode()
        (self.folder / 'bad.safetensors').write_bytes(struct.pack('<Q', len(text)) + text + bytes(16))
        result = self.safemap('verify', 'bad.safetensors', '--json')
        self.assertEqual((result.code, result.err), (1, ''))
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertFalse(told['ok'])
        self.assertEqual([(f['code'], f['tensor']) for f in told['faults']],
                         [('size_mismatch', 'a'), ('size_mismatch', 'b')])
        for fault in told['faults']:
            self.assertIn('bad.safetensors', fault['path'])
            self.assertTrue(fault['message'])

        text = self.safemap('verify', 'bad.safetensors')
        self.assertEqual((text.code, text.err), (1, ''))
        self.expect('verify_faults', text.out)
        quiet = self.safemap('verify', 'bad.safetensors', '--quiet')
        self.assertEqual((quiet.code, quiet.out), (1, ''))
        self.assertEqual(quiet.err.count('safemap: error: '), 2)

    def test_changed_data_is_reported_with_the_tensor(self):
        self.done('convert', 'small.safetensors', 'out.safetensors', '--checksums')
        file = self.folder / 'out.safetensors'
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        result = self.safemap('verify', 'out.safetensors', '--json')
        self.assertEqual((result.code, result.err), (1, ''))
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['ok'], told['checked_bytes']), (False, 72))
        [fault] = told['faults']
        self.assertEqual((fault['code'], fault['path'], fault['tensor']),
                         ('checksum_mismatch', 'out.safetensors', 'norm'))
        self.assertIn(self.done('hash', 'small.safetensors')['tensors']['norm'], fault['message'])
        self.assertIn(self.done('hash', 'out.safetensors')['tensors']['norm'], fault['message'])
        text = self.safemap('verify', 'out.safetensors').out
        self.assertIn("tensor 'norm'", text)
        self.assertIn('72 B compared with checksums', text)

    def test_an_unknown_format_is_a_fault(self):
        (self.folder / 'x.bin').write_bytes(b'GGUF and so on, at some length')
        result = self.safemap('verify', 'x.bin', '--json')
        self.assertEqual(result.code, 1)
        self.assertEqual(result.json()['faults'][0]['code'], 'unknown_format')

    def test_a_truncated_file_is_a_fault(self):
        (self.folder / 'cut.safetensors').write_bytes(safetensors(SMALL)[:-1])
        result = self.safemap('verify', 'cut.safetensors', '--json')
        self.assertEqual(result.code, 1)
        self.assertFalse(result.json()['ok'])


class Deflated(Case):
    """A file of torch.save that was repacked with deflate: every command that reads all of it finds a wrong bit."""

    def repack(self, name, spoil=None):
        """Writes the file `name`. If `spoil` names a record, one bit of its deflated bytes is flipped so that the data
        changes."""
        file = self.folder / name
        with zipfile.ZipFile(pathlib.Path(DATA, 'pt', 'aligned_1.pt')) as source:
            records = {info.filename: source.read(info) for info in source.infolist()}
        with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as packed:
            for record, data in records.items():
                packed.writestr(record, data)
            places = {info.filename: info for info in packed.infolist()}
        if spoil is None:
            return
        place = next(info for record, info in places.items() if record.endswith(spoil))
        sound = file.read_bytes()
        begin = place.header_offset + 30 + len(place.filename)
        for bit in range(place.compress_size * 8 - 1, -1, -1):
            data = bytearray(sound)
            data[begin + bit // 8] ^= 1 << bit % 8
            try:
                stream = zlib.decompressobj(-15)
                changed = stream.decompress(bytes(data[begin:begin + place.compress_size]))
            except zlib.error:
                continue
            if stream.eof and len(changed) == place.file_size and changed != records[place.filename]:
                file.write_bytes(data)
                return
        self.fail('no bit changes the data alone')

    def test_all_bytes_count_as_checked(self):
        self.repack('model.pt')
        with zipfile.ZipFile(self.folder / 'model.pt') as packed:
            total = sum(info.file_size for info in packed.infolist())
        told = self.done('verify', 'model.pt')
        self.assertEqual((told['ok'], told['checked_bytes']), (True, total))

    def test_a_wrong_bit_is_found_by_every_command(self):
        self.repack('model.pt')
        for record in ('data/0', 'data.pkl'):
            self.repack('bad.pt', record)
            result = self.safemap('verify', 'bad.pt', '--json')
            [fault] = result.json()['faults']
            self.assertEqual((result.code, fault['code'], fault['path']), (1, 'checksum_mismatch', 'bad.pt'))
            self.assertIn(record, fault['message'])
            for words in (('convert', 'bad.pt', 'out.safetensors'), ('convert', 'bad.pt', 'out', '--threads', '3'),
                          ('hash', 'bad.pt'), ('diff', 'model.pt', 'bad.pt'), ('load', 'bad.pt', '--device', 'host')):
                with self.subTest(words=words, record=record):
                    result = self.safemap(*words, '--json')
                    error = result.json()['error']
                    self.assertEqual((result.code, error['code'], error['path']), (1, 'checksum_mismatch', 'bad.pt'))
                    self.assertIn(record, error['message'])
            self.assertEqual(sorted(os.listdir(self.folder)), ['bad.pt', 'model.pt', 'small.safetensors'])


class Diff(Case):
    KEYS = ['equal', 'only_in_a', 'only_in_b', 'different', 'close', 'notes']

    def setUp(self):
        super().setUp()
        other = [('layers.1.w', 'F32', [2, 3], floats(-1, -2, -3, -4, 5, 3.4e38)),
                 ('layers.0.w', 'BF16', [2, 3], bytes(12)),
                 ('ids', 'I64', [1, 2], struct.pack('<2q', 7, -7)),
                 ('norm', 'F32', [2], struct.pack('<If', 0x7fc00001, 0.5)),
                 ('more.0', 'U8', [1], b'x'), ('more.1', 'U8', [1], b'x')]
        (self.folder / 'other.safetensors').write_bytes(safetensors(other))

    def test_every_kind_of_difference(self):
        result = self.safemap('diff', 'small.safetensors', 'other.safetensors', '--json')
        self.assertEqual((result.code, result.err), (1, ''))
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['equal'], told['only_in_a'], told['only_in_b']), (False, ['none'], ['more.0', 'more.1']))
        self.assertEqual(told['different'], [
            {'name': 'layers.0.w', 'what': 'dtype', 'a': 'F32', 'b': 'BF16'},
            {'name': 'layers.1.w', 'what': 'value', 'a': '-5', 'b': '5', 'index': [1, 1]},
            {'name': 'ids', 'what': 'shape', 'a': [2], 'b': [1, 2]},
            {'name': 'norm', 'what': 'value', 'a': 'nan (0x7fc00000)', 'b': 'nan (0x7fc00001)', 'index': [0]}])

    def test_text(self):
        result = self.safemap('diff', 'small.safetensors', 'other.safetensors')
        self.assertEqual((result.code, result.err), (1, ''))
        self.expect('diff', result.out)
        quiet = self.safemap('diff', 'small.safetensors', 'other.safetensors', '--quiet')
        self.assertEqual((quiet.code, quiet.out, quiet.err), (1, '', ''))

    def test_shards_equal_the_file_they_came_from(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        told = self.done('diff', 'small.safetensors', 'out')
        self.assertEqual(told, {'equal': True, 'only_in_a': [], 'only_in_b': [], 'different': [], 'close': [],
                                'notes': []})
        self.expect('diff_equal', self.safemap('diff', 'small.safetensors', 'out', '--threads', '3').out)

    def test_selected_tensors_only(self):
        words = ('diff', 'small.safetensors', 'other.safetensors', '--include', 'layers.1.*', '--include', 'n*')
        told = self.safemap(*words, '--exclude', 'no*', '--json').json()
        self.assertEqual([d['name'] for d in told['different']], ['layers.1.w'])
        told = self.safemap('diff', 'small.safetensors', 'other.safetensors', '--include', 'none', '--json')
        self.assertEqual((told.code, told.json()['only_in_a']), (1, ['none']))

    def test_a_damaged_file_is_an_error_and_not_a_difference(self):
        (self.folder / 'cut.safetensors').write_bytes(safetensors(SMALL)[:100])
        for words in (('cut.safetensors', 'small.safetensors'), ('small.safetensors', 'cut.safetensors')):
            error = self.refused('header_past_end', 1, 'diff', *words)
            self.assertIn('cut.safetensors', error['path'])

    def test_diff_of_a_sparse_tebibyte_stops_at_the_first_difference(self):
        size = 1 << 40
        header = json.dumps({'w': {'dtype': 'U8', 'shape': [size], 'data_offsets': [0, size]}}).encode()
        for name, first in (('a', b'a'), ('b', b'b')):
            with open(self.folder / f'{name}.safetensors', 'wb') as big:
                big.write(struct.pack('<Q', len(header)) + header + first)
                big.truncate(8 + len(header) + size)
        told = self.safemap('diff', 'a.safetensors', 'b.safetensors', '--json', '--threads', '1').json()
        self.assertEqual(told['different'], [{'name': 'w', 'what': 'value', 'a': '97', 'b': '98', 'index': [0]}])


class DiffTolerance(Case):
    def write(self, name, *tensors, metadata=None):
        (self.folder / f'{name}.safetensors').write_bytes(safetensors(tensors, metadata))

    def told(self, code, *words):
        result = self.safemap('diff', 'a.safetensors', 'b.safetensors', *words, '--json')
        self.assertEqual((result.code, result.err), (code, ''), result.out)
        return result.json()

    def setUp(self):
        super().setUp()
        self.write('a', ('w', 'F32', [3], floats(1, 2, 100)), ('ids', 'I64', [1], struct.pack('<q', 7)),
                   ('x', 'F32', [2], floats(1, -0.5)))
        self.write('b', ('w', 'F32', [3], floats(1, 2.25, 101)), ('ids', 'I64', [1], struct.pack('<q', 7)),
                   ('x', 'BF16', [2], floats(1, -0.5)[2:4] + floats(1, -0.5)[6:8]))

    def test_values_may_differ(self):
        told = self.told(1, '--atol', '0.5', '--cast')
        self.assertEqual(told['different'], [{'name': 'w', 'what': 'value', 'a': '100', 'b': '101', 'index': [2],
                                              'max_abs': 1}])
        self.assertEqual(told['close'], [{'name': 'x', 'max_abs': 0}])
        told = self.told(0, '--rtol', '0.01', '--atol=0.23', '--cast')
        self.assertEqual((told['equal'], told['different']), (True, []))
        self.assertEqual(told['close'], [{'name': 'w', 'max_abs': 1}, {'name': 'x', 'max_abs': 0}])

    def test_dtypes_differ_without_cast(self):
        self.assertEqual([(d['name'], d['what']) for d in self.told(1, '--atol', '1')['different']], [('x', 'dtype')])
        told = self.told(1, '--cast')
        self.assertEqual([d['name'] for d in told['different']], ['w'])
        self.assertNotIn('max_abs', told['different'][0])

    def test_an_infinite_difference_is_null(self):
        self.write('a', ('w', 'F32', [1], floats(float('inf'))))
        self.write('b', ('w', 'F32', [1], floats(1)))
        self.assertIsNone(self.told(1, '--atol', '1e30')['different'][0]['max_abs'])

    def test_text(self):
        words = ('diff', 'a.safetensors', 'b.safetensors', '--cast')
        self.expect('diff_tolerance', self.safemap(*words, '--atol', '0.5').out)
        self.expect('diff_close', self.safemap(*words, '--atol', '1').out)

    def test_an_invalid_tolerance_is_refused(self):
        for bound in ('-1', 'x', 'inf', 'nan', '1e-5x'):
            error = self.refused('invalid_argument', 2, 'diff', 'a.safetensors', 'b.safetensors', '--rtol=' + bound)
            self.assertIn('--rtol', error['message'])

    def test_rename_options_change_the_names_of_the_first_checkpoint(self):
        self.write('a', ('module.h.0.w', 'U8', [1], b'x'), ('module.ids', 'U8', [1], b'y'), ('more', 'U8', [1], b'z'))
        self.write('b', ('layers.0.w', 'U8', [1], b'x'), ('ids', 'U8', [1], b'y'))
        words = ('--strip-prefix', 'module.', '--rename', 's/^h\\./layers./', '--rename', 's/never/x/')
        told = self.told(1, *words)
        self.assertEqual((told['only_in_a'], told['only_in_b'], told['different']), (['more'], [], []))
        self.assertEqual(told['notes'], ["--rename 's/never/x/': it changes no name"])
        self.assertTrue(self.told(0, *words, '--include', 'layers.*')['equal'])
        self.assertTrue(self.told(0, *words, '--exclude', 'more')['equal'])
        self.refused('tensor_not_found', 2, 'diff', 'a.safetensors', 'b.safetensors', *words, '--include', 'module.*')
        self.refused('name_collision', 2, 'diff', 'a.safetensors', 'b.safetensors', '--rename', 's/.*/one/')
        text = self.safemap('diff', 'a.safetensors', 'b.safetensors', '--rename', 's/ids/x.ids/').out
        self.assertIn('module.x.ids', text)

    def test_prefixes_and_ties_are_noted(self):
        self.write('a', ('model.w', 'U8', [1], b'x'), ('model.v', 'U8', [1], b'y'))
        self.write('b', ('w', 'U8', [1], b'x'), ('v', 'U8', [1], b'y'))
        self.assertEqual(self.told(1)['notes'], ["names of A begin with 'model.'; without it, they are the names of B"])
        self.assertTrue(self.told(0, '--strip-prefix', 'model.')['equal'])
        self.write('a', ('w', 'U8', [1], b'x'), ('v', 'U8', [1], b'y'), metadata={'head': 'w'})
        self.assertEqual(self.told(1)['notes'], ["'head' is tied to 'w' in A, but not in B"])
        self.assertIn("note: 'head' is tied", self.safemap('diff', 'a.safetensors', 'b.safetensors').out)


class Hash(Case):
    def test_hash_and_load_give_the_same_digests(self):
        told = self.done('hash', 'small.safetensors')
        self.assertEqual(list(told), ['algorithm', 'checkpoint', 'tensors'])
        self.assertEqual(told['algorithm'], 'xxh3-128')
        self.assertEqual(told, self.done('hash', 'small.safetensors', '--algorithm', 'xxh3-128'))
        loaded = self.done('load', 'small.safetensors', '--device', 'host', '--digest')
        self.assertEqual(told['tensors'], loaded['digests'])
        self.assertEqual(list(told['tensors']), [name for name, *_ in SMALL])
        self.assertRegex(told['checkpoint'], '^[0-9a-f]{32}$')

    def test_text(self):
        self.expect('hash', self.safemap('hash', 'small.safetensors').out)

    def test_sha256_agrees_with_hashlib(self):
        tried = self.safemap('hash', 'small.safetensors', '--algorithm', 'sha256', '--json')
        if tried.code == 2:  # a build without libcrypto
            error = tried.json()['error']
            self.assertEqual(error['code'], 'invalid_argument')
            self.assertIn('-Dsha256=enabled', error['hint'])
            return
        told = tried.json()
        self.assertEqual(told['algorithm'], 'sha256')
        self.assertEqual(told['tensors'], {name: hashlib.sha256(data).hexdigest() for name, _, _, data in SMALL})
        lines = sorted(b'\0'.join([name.encode(), dtype.encode(), ','.join(map(str, shape)).encode(),
                                   told['tensors'][name].encode()]) + b'\n' for name, dtype, shape, _ in SMALL)
        self.assertEqual(told['checkpoint'], hashlib.sha256(b''.join(lines)).hexdigest())
        text = self.safemap('hash', 'small.safetensors', '--algorithm', 'sha256').out
        self.assertTrue(text.startswith(told['checkpoint'] + '  small.safetensors: '), text)
        error = self.refused('invalid_argument', 2, 'hash', 'small.safetensors', '--algorithm', 'md5')
        self.assertEqual(error['message'].split(':')[0], '--algorithm')

    def test_digests_do_not_depend_on_the_container(self):
        whole = self.done('hash', 'small.safetensors')
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        for words in (('out',), ('out', '--threads', '1'), ('out', '--access', 'copied')):
            told = self.done('hash', *words)
            self.assertEqual((told['checkpoint'], told['tensors']), (whole['checkpoint'], whole['tensors']))

    def test_selected_tensors_only(self):
        told = self.done('hash', 'small.safetensors', '--include', 'n*', '--exclude', 'none')
        self.assertEqual(list(told['tensors']), ['norm'])
        self.assertNotEqual(told['checkpoint'], self.done('hash', 'small.safetensors')['checkpoint'])

    def test_memory_does_not_grow_with_the_size_of_a_tensor(self):
        # Without blocks on disk, and larger than all the memory that the run may use.
        size = 1 << 28
        header = json.dumps({'w': {'dtype': 'U8', 'shape': [size], 'data_offsets': [0, size]}}).encode()
        with open(self.folder / 'big.safetensors', 'wb') as big:
            big.write(struct.pack('<Q', len(header)) + header)
            big.truncate(8 + len(header) + size)
        for words in (('hash', 'big.safetensors'), ('diff', 'big.safetensors', 'big.safetensors')):
            process = subprocess.Popen([SAFEMAP, *words, '--quiet'], cwd=self.folder)
            peak = 0
            while process.poll() is None:
                peak = max(peak, anonymous_bytes(process.pid))
                time.sleep(0.001)
            self.assertEqual(process.returncode, 0)
            self.assertGreater(peak, 0)
            self.assertLess(peak, 64 << 20)


class Plan(Case):
    KEYS = ['ok', 'missing', 'unexpected', 'shape', 'dtype', 'tied', 'notes']
    FITS = {name: {'dtype': dtype, 'shape': shape} for name, dtype, shape, _ in SMALL}

    def expects(self, expected, file='model.json'):
        (self.folder / file).write_text(expected if isinstance(expected, str) else json.dumps(expected))
        return ('plan', 'small.safetensors', '--expect', file)

    def told(self, code, *words):
        result = self.safemap(*words, '--json')
        self.assertEqual((result.code, result.err), (code, ''), result.out)
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual(told['ok'], code == 0)
        return told

    def differs(self):
        """Returns an expectation that differs in every way."""
        return {'gone.0': {'dtype': 'F32', 'shape': [7]}, 'gone.1': {'dtype': 'F32', 'shape': [7]},
                'norm': {'dtype': 'bf16', 'shape': [1, 2]}, 'layers.0.w': {'dtype': 'F32', 'shape': [3, 2]},
                'layers.1.w': {'dtype': 'F32', 'shape': [3, 2]}, 'ids': {'dtype': 'torch.int32', 'shape': [2]}}

    def test_a_checkpoint_that_matches(self):
        words = self.expects(self.FITS)
        self.assertEqual(self.told(0, *words), {'ok': True, **{key: [] for key in self.KEYS[1:]}})
        self.assertEqual(self.safemap(*words).out,
                         'small.safetensors matches model.json: 5 tensors\n')
        self.assertEqual(self.told(0, *words, '--non-strict')['missing'], [])

    def test_every_kind_of_mismatch(self):
        words = self.expects(self.differs())
        told = self.told(1, *words)
        self.assertEqual((told['missing'], told['unexpected']), (['gone.0', 'gone.1'], ['none']))
        self.assertEqual(told['shape'], [{'name': 'norm', 'expected': [1, 2], 'found': [2]},
                                         {'name': 'layers.0.w', 'expected': [3, 2], 'found': [2, 3]},
                                         {'name': 'layers.1.w', 'expected': [3, 2], 'found': [2, 3]}])
        self.assertEqual(told['dtype'], [{'name': 'norm', 'expected': 'BF16', 'found': 'F32'},
                                         {'name': 'ids', 'expected': 'I32', 'found': 'I64'}])
        self.assertEqual(self.told(1, *words, '--non-strict'), told)

    def test_each_mismatch_alone(self):
        lacks = {name: tensor for name, tensor in self.FITS.items() if name != 'norm'}
        more = {**self.FITS, 'more': {'dtype': 'F32', 'shape': []}}
        for expected, key in ((lacks, 'unexpected'), (more, 'missing')):
            words = self.expects(expected)
            told = self.told(1, *words)
            self.assertEqual({k: v for k, v in told.items() if v}, {key: ['norm' if key == 'unexpected' else 'more']})
            self.assertEqual(self.told(0, *words, '--non-strict'), {**told, 'ok': True})
        for change in ({'dtype': 'F16', 'shape': [2]}, {'dtype': 'F32', 'shape': [2, 1]}):
            words = self.expects({**self.FITS, 'norm': change})
            self.assertEqual(self.told(1, *words), self.told(1, *words, '--non-strict'))

    def test_text(self):
        result = self.safemap(*self.expects(self.differs()))
        self.assertEqual((result.code, result.err), (1, ''))
        self.expect('plan', result.out)
        quiet = self.safemap(*self.expects(self.differs()), '--quiet')
        self.assertEqual((quiet.code, quiet.out, quiet.err), (1, '', ''))

    def test_text_with_non_strict(self):
        tied = {'norm': self.FITS['norm'], 'scale': {**self.FITS['norm'], 'alias_of': 'norm'},
                **{f'h.{i}.bias': {'dtype': 'F32', 'shape': [4]} for i in range(12)}}
        result = self.safemap(*self.expects(tied), '--non-strict')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('plan_non_strict', result.out)

    def test_another_checkpoint_can_be_the_expectation(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        for path, expected in (('out', 'small.safetensors'), ('small.safetensors', 'out'),
                               ('out', 'out/model.safetensors.index.json')):
            self.assertTrue(self.told(0, 'plan', path, '--expect', expected)['ok'])
        self.done('convert', 'small.safetensors', 'half.safetensors', '--dtype', 'bf16')
        told = self.told(1, 'plan', 'half.safetensors', '--expect', 'small.safetensors')
        self.assertEqual([d['name'] for d in told['dtype']], ['layers.0.w', 'layers.1.w', 'norm'])

    def test_a_header_can_be_the_expectation(self):
        header = header_of(self.folder / 'small.safetensors')
        self.assertIn('__metadata__', header)
        self.assertTrue(self.told(0, *self.expects(header))['ok'])

    def test_ties(self):
        tied = [('wte', 'F32', [2], floats(1, 2))]
        (self.folder / 'tied.safetensors').write_bytes(safetensors(tied, {'head': 'wte'}))
        both = {name: {'dtype': 'F32', 'shape': [2]} for name in ('head', 'wte')}
        for expected in (both, {'head': both['head']}, {'wte': both['wte']},
                         {**both, 'out': {**both['wte'], 'alias_of': 'head'}}):
            self.expects(expected)
            told = self.told(0, 'plan', 'tied.safetensors', '--expect', 'model.json')
            self.assertEqual(told['tied'], [['wte', 'head'] + (['out'] if 'out' in expected else [])])

    def test_a_tensor_that_exists_but_cannot_be_loaded_is_noted(self):
        self.expects({'weight': {'dtype': 'F32', 'shape': [2, 2]}, 'real': {'dtype': 'F32', 'shape': [2, 2]}})
        told = self.told(1, 'plan', str(DATA / 'pt' / 'meta.pt'), '--expect', 'model.json')
        self.assertEqual(told['missing'], ['weight'])
        self.assertEqual(told['notes'], [
            "'weight' exists, but cannot be loaded: a tensor on the meta device, which has no data"])

    def test_a_common_prefix_is_noted(self):
        told = self.told(1, *self.expects({'model.' + name: tensor for name, tensor in self.FITS.items()}))
        self.assertEqual(told['notes'], [
            "names of the model begin with 'model.'; without it, they are the names of the checkpoint"])
        self.assertEqual(len(told['missing']), 5)

    def test_selected_tensors_only(self):
        words = self.expects(self.differs())
        told = self.told(1, *words, '--include', 'gone.*', '--include', 'none')
        self.assertEqual((told['missing'], told['unexpected'], told['shape']), (['gone.0', 'gone.1'], ['none'], []))
        self.refused('tensor_not_found', 2, *words, '--include', 'nothing')
        self.told(0, *words, '--include', 'none', '--non-strict')

    def test_an_invalid_expectation_is_refused(self):
        for text, code in (('[]', 'expectation_not_json'), ('{"w":', 'expectation_not_json'),
                           ('{"w":' * 1000 + '1' + '}' * 1000, 'expectation_not_json'),
                           ('{"w":{"dtype":"F32"}}', 'expectation_bad_field'),
                           ('{"w":{"dtype":"F32","shape":[-1]}}', 'expectation_bad_field'),
                           ('{"w":{"dtype":"F32","shape":[]},"w":{"dtype":"F32","shape":[]}}', 'expectation_bad_field'),
                           ('{"w":{"dtype":"F33","shape":[]}}', 'unknown_dtype'),
                           ('{"w":{"dtype":"F32","shape":[4294967296,4294967296]}}', 'shape_overflow'),
                           ('no json', 'unknown_format'), ('', 'unknown_format')):
            error = self.refused(code, 1, *self.expects(text))
            self.assertEqual(error['path'], 'model.json')
        self.refused('path_not_found', 2, 'plan', 'small.safetensors', '--expect', 'nowhere.json')
        self.refused('path_not_found', 2, 'plan', 'nowhere', '--expect', 'small.safetensors')
        self.refused('invalid_argument', 2, 'plan', 'small.safetensors')


class Load(Case):
    KEYS = ['tensors', 'bytes', 'seconds', 'bytes_per_second', 'peak_device_bytes', 'peak_staging_bytes',
            'peak_anon_bytes', 'uploaded_bytes', 'stall_seconds', 'paths']
    NOTHING = '99aa06d3014798d86001c324468d497f'  # XXH3-128 of no bytes, from xxHash's own test vectors

    def test_json(self):
        told = self.done('load', 'small.safetensors', '--device', 'host')
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['tensors'], told['bytes'], told['uploaded_bytes']), (5, 72, 72))
        self.assertEqual(list(told['paths']), ['pread', 'direct'])
        self.assertEqual(sum(told['paths'].values()), 72)
        self.assertEqual(told['peak_device_bytes'], 4096)  # one block for small bundles

    def test_digests_only_when_asked(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--digest')
        self.assertEqual(list(told), self.KEYS + ['digests'])
        self.assertEqual(list(told['digests']), [name for name, *_ in SMALL])
        self.assertEqual(told['digests']['none'], self.NOTHING)
        self.assertTrue(all(re.fullmatch('[0-9a-f]{32}', d) for d in told['digests'].values()))
        self.assertEqual(len(set(told['digests'].values())), 5)

    def test_text(self):
        result = self.safemap('load', 'small.safetensors', '--device', 'host', '--digest', '--budget', '1MB')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('load', result.out)

    def test_the_budget_holds(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--budget', '24', '--digest')
        free = self.done('load', 'small.safetensors', '--device', 'host', '--digest')
        self.assertEqual(told['digests'], free['digests'])
        self.assertEqual(told['peak_device_bytes'], 24)
        self.refused('budget_exceeded', 2, 'load', 'small.safetensors', '--device', 'host', '--budget', '23')

    def test_tensors_in_flight_stay_within_the_budget(self):
        mib = 1 << 20
        large = [(f'w.{i}', 'U8', [mib], bytes([i]) * mib) for i in range(12)]
        (self.folder / 'large.safetensors').write_bytes(safetensors(large))
        free = self.done('load', 'large.safetensors', '--device', 'host', '--digest')
        told = self.done('load', 'large.safetensors', '--device', 'host', '--digest', '--budget', '5MiB')
        self.assertEqual(told['digests'], free['digests'])
        self.assertLessEqual(told['peak_device_bytes'], 5 * mib)
        self.assertEqual((told['bytes'], told['uploaded_bytes'] >= 12 * mib), (12 * mib, True))

    def test_another_pass_uploads_nothing_if_everything_fits(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--repeat', '3')
        self.assertEqual((told['tensors'], told['bytes'], told['uploaded_bytes']), (5, 72, 72))
        tight = self.done('load', 'small.safetensors', '--device', 'host', '--repeat', '3', '--budget', '24')
        self.assertGreater(tight['uploaded_bytes'], 72)
        self.assertLessEqual(tight['uploaded_bytes'], 3 * 72)

    def test_a_pass_uploads_what_does_not_stay_and_the_last_one_nothing_ahead(self):
        mib = 1 << 20
        (self.folder / 'equal.safetensors').write_bytes(
            safetensors([(f'w.{i}', 'U8', [mib], bytes(mib)) for i in range(8)]))
        for tensors in range(2, 7):  # that the budget has room for
            told = self.done('load', 'equal.safetensors', '--device', 'host', '--repeat', '4', '--budget',
                             str(tensors * mib))
            self.assertEqual((told['bytes'], told['uploaded_bytes']), (8 * mib, (8 + 3 * (10 - tensors)) * mib))
            self.assertGreaterEqual(told['peak_anon_bytes'], told['peak_device_bytes'])

    def test_an_error_of_a_tensor_names_the_file(self):
        error = self.refused('budget_exceeded', 2, 'load', 'small.safetensors', '--device', 'host', '--budget', '23')
        self.assertEqual((error['path'], error['tensor']), ('small.safetensors', 'layers.0.w'))
        (self.folder / 'f4.safetensors').write_bytes(safetensors([('y', 'F4', [2, 1], b'\0')]))
        error = self.refused('partial_byte_slice', 2, 'load', 'f4.safetensors', '--device', 'host', '--rank', '0/2')
        self.assertEqual((error['path'], error['tensor']), ('f4.safetensors', 'y'))

    def test_a_number_of_passes_is_whole(self):
        error = self.refused('invalid_argument', 2, 'load', 'small.safetensors', '--device', 'host', '--repeat', '1.5')
        self.assertEqual(error['message'], "--repeat: '1.5' is not a whole number from 1 to 1000000")

    def test_every_pass_under_half_of_the_size_has_the_right_digests(self):
        random = Random(19)
        sizes = [random.randrange(1, 1 << random.randrange(1, 21)) for _ in range(60)]
        tensors = [(f'w.{i}', 'U8', [size], random.randbytes(size)) for i, size in enumerate(sizes)]
        (self.folder / 'many.safetensors').write_bytes(safetensors(tensors))
        budget = max(sum(sizes) // 2, max(sizes))
        right = self.done('hash', 'many.safetensors')['tensors']
        for passes in range(1, 4):
            told = self.done('load', 'many.safetensors', '--device', 'host', '--digest', '--budget', str(budget),
                             '--repeat', str(passes))
            self.assertEqual(told['digests'], right)
            self.assertLessEqual(told['peak_device_bytes'], budget)
            self.assertEqual(told['bytes'], sum(sizes))
            # Each pass has to bring at least what cannot have stayed.
            self.assertGreaterEqual(told['uploaded_bytes'], sum(sizes) + (passes - 1) * (sum(sizes) - budget))

    def test_tensors_larger_than_a_third_of_the_budget(self):
        # Each is a bundle of its own, and two of them do not always fit.
        sizes = [400_000, 100, 700_000, 500_001, 350_000, 100, 100, 999_999]
        tensors = [(f'w.{i}', 'U8', [size], Random(i).randbytes(size)) for i, size in enumerate(sizes)]
        (self.folder / 'large.safetensors').write_bytes(safetensors(tensors))
        right = self.done('hash', 'large.safetensors')['tensors']
        for passes in '1', '3':
            told = self.done('load', 'large.safetensors', '--device', 'host', '--digest', '--budget', '999999',
                             '--repeat', passes)
            self.assertEqual(told['digests'], right)
            self.assertEqual(told['peak_device_bytes'], 999_999)
        self.refused('budget_exceeded', 2, 'load', 'large.safetensors', '--device', 'host', '--budget', '999998')

    def test_ranks_share_the_rows(self):
        told = [self.done('load', 'small.safetensors', '--device', 'host', '--rank', f'{r}/2', '--digest')
                for r in range(2)]
        self.assertEqual([t['bytes'] for t in told], [12 + 12 + 8 + 4] * 2)
        # The same bytes in a file of their own.
        parts = [(name, dtype, [shape[0] // 2, *shape[1:]], data[len(data) // 2:])
                 for name, dtype, shape, data in SMALL]
        (self.folder / 'second.safetensors').write_bytes(safetensors(parts))
        whole = self.done('load', 'second.safetensors', '--device', 'host', '--digest')
        self.assertEqual(told[1]['digests'], whole['digests'])

    def test_a_rank_has_the_digests_of_its_rows(self):
        shapes = [[7, 3], [10], [4, 5, 6], [1, 9], [64, 1000], []]  # seven rows for three ranks: 3, 3, 1
        tensors = [(f'w.{i}', 'U8', shape, Random(i).randbytes(math.prod(shape))) for i, shape in enumerate(shapes)]
        (self.folder / 'whole.safetensors').write_bytes(safetensors(tensors))
        for ranks in (3, 4):
            for rank in range(ranks):
                parts = []
                for name, dtype, shape, data in tensors:
                    rows = -(-shape[0] // ranks) if shape else 1
                    row = math.prod(shape[1:])
                    part = data[rank * rows * row:(rank + 1) * rows * row] if shape else data
                    parts.append((name, dtype, [len(part) // row, *shape[1:]] if shape else [], part))
                (self.folder / 'part.safetensors').write_bytes(safetensors(parts))
                told = self.done('load', 'whole.safetensors', '--device', 'host', '--rank', f'{rank}/{ranks}',
                                 '--digest', '--budget', '64000')
                self.assertEqual(told['digests'], self.done('hash', 'part.safetensors')['tensors'])
                self.assertEqual(told['bytes'], sum(len(data) for *_, data in parts))

    def test_a_rank_after_the_last_chunk_has_nothing(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--rank', '3/4', '--digest')
        self.assertEqual((told['tensors'], told['bytes']), (5, 0))
        self.assertEqual(set(told['digests'].values()), {self.NOTHING})

    def test_a_missing_device_is_refused(self):
        for device in ('cuda:99', 'opencl:99', 'abacus', ''):
            self.refused('no_such_device', 2, 'load', 'small.safetensors', '--device', device)

    def test_selected_tensors_only(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--include', 'layers.1*', '--digest')
        self.assertEqual((told['tensors'], told['bytes']), (1, 24))
        self.assertEqual(list(told['digests']), ['layers.1.w'])


class Torch(Case):
    """Files that torch wrote."""

    def pt(self, name):
        return str(DATA / 'pt' / name)

    def test_a_tied_name_that_is_a_metadata_key_is_refused(self):
        for name in ('format', 'safemap.source'):
            for structure in ('keep', 'drop'):
                self.refused('name_collision', 2, 'convert', self.pt('tied.pt'), 'out', '--structure', structure,
                             '--rename', f's/^head.weight$/{name}/')

    def test_ties(self):
        tied = self.done('inspect', self.pt('tied.pt'))
        aliases = {t['name']: t['alias_of'] for t in tied['tensors'] if 'alias_of' in t}
        self.assertTrue(aliases)
        names = [t['name'] for t in tied['tensors']]
        for alias, stored in aliases.items():
            self.assertLess(names.index(stored), names.index(alias))
        told = self.done('convert', self.pt('tied.pt'), 'out.safetensors')
        self.assertEqual({name: group[0] for group in told['aliases'] for name in group[1:]}, aliases)
        digests = self.done('load', self.pt('tied.pt'), '--device', 'host', '--digest')['digests']
        self.assertEqual(set(digests), set(names))
        self.assertEqual(self.done('hash', self.pt('tied.pt'))['tensors'], digests)
        self.assertTrue(self.done('diff', self.pt('tied.pt'), 'out.safetensors')['equal'])
        for alias, stored in aliases.items():
            self.assertEqual(digests[alias], digests[stored])
        # If only the other name is requested, the tensor has that name.
        alias, stored = next(iter(aliases.items()))
        self.done('convert', self.pt('tied.pt'), 'one.safetensors', '--include', alias)
        one = self.done('load', 'one.safetensors', '--device', 'host', '--digest')
        self.assertEqual(one['digests'], {alias: digests[stored]})

    def test_metadata_takes_precedence_over_ties(self):
        tied = self.done('inspect', self.pt('tied.pt'))
        alias = next(t['name'] for t in tied['tensors'] if 'alias_of' in t)
        (self.folder / 'tied.bin').write_bytes((DATA / 'pt' / 'tied.pt').read_bytes())
        index = {'metadata': {alias: 'mine'}, 'weight_map': {t['name']: 'tied.bin' for t in tied['tensors']}}
        (self.folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))
        self.done('convert', 'pytorch_model.bin.index.json', 'whole.safetensors')
        self.done('convert', 'pytorch_model.bin.index.json', 'part.safetensors', '--include', '*')
        self.done('convert', 'pytorch_model.bin.index.json', 'same.safetensors', '--rename', 's/nothing//')
        whole, part = (self.folder / f'{name}.safetensors' for name in ('whole', 'part'))
        self.assertEqual(whole.read_bytes(), (self.folder / 'same.safetensors').read_bytes())
        self.assertEqual(self.done('inspect', str(whole))['metadata'][alias], 'mine')
        self.assertEqual(whole.read_bytes(), part.read_bytes())

    def test_offsets_are_places_in_the_file(self):
        told = self.done('inspect', self.pt('flat.pt'))
        self.assertEqual(told['format'], 'torch')
        file = (DATA / 'pt' / 'flat.pt').read_bytes()
        skipped = self.done('convert', self.pt('flat.pt'), 'out.safetensors')['skipped']
        out = (self.folder / 'out.safetensors').read_bytes()
        written = {t['name']: t for t in self.done('inspect', 'out.safetensors')['tensors']}
        self.assertEqual({t['name'] for t in told['tensors'] if t['dtype'].islower()}, {s['name'] for s in skipped})
        placed = [t for t in told['tensors'] if 'offset' in t and t['nbytes'] and t['name'] in written]
        self.assertTrue(placed)
        for tensor in placed:
            self.assertEqual(tensor['file'], 'flat.pt')
            place, other = tensor['offset'], written[tensor['name']]['offset']
            self.assertEqual(file[place:place + tensor['nbytes']], out[other:other + tensor['nbytes']])

    def test_a_training_checkpoint(self):
        self.expect('inspect_train', self.safemap('inspect', self.pt('train_gpt.pt'), '--tree').out.replace(
            str(DATA), 'DATA'))

    def test_the_structure_of_a_training_checkpoint_is_kept(self):
        train = self.pt('train_gpt.pt')
        wanted = self.done('inspect', train, '--structure')['structure']
        self.assertEqual(wanted['v'], 1)
        groups = wanted['root']['optimizer']['param_groups']
        self.assertEqual(groups[0], 'l')
        self.assertEqual(groups[1]['betas'][0], 't')
        self.assertNotIn('structure', self.done('inspect', train))
        text = self.safemap('inspect', train, '--structure').out
        tree = text[text.index('\nstructure\n'):]
        self.assertRegex(tree, r'\n  optimizer\n(.*\n)*    param_groups\n(.*\n)*        betas  \(0.9, 0.95\)')
        self.assertIn('{0..27}', tree)
        report = self.done('convert', train, 'out.safetensors')
        self.assertFalse([note for note in report['notes'] if 'only a structure document' in note])
        self.done('convert', 'out.safetensors', 'shards', '--max-shard-size', '100kB')
        for path in ('out.safetensors', 'shards'):
            self.assertEqual(self.done('inspect', path, '--structure')['structure'], wanted)
        report = self.done('convert', train, 'out.safetensors', '--structure', 'drop', '--force')
        self.assertTrue([note for note in report['notes'] if 'only a structure document' in note])
        self.assertEqual(self.done('inspect', 'out.safetensors')['metadata'],
                         {'format': 'pt', 'model/head.weight': 'model/tokens.weight'})
        self.done('convert', train, 'out.safetensors', '--include', 'model/*', '--rename', 's/model/m/', '--force')
        kept = self.done('inspect', 'out.safetensors', '--structure')['structure']['root']
        self.assertEqual(kept['model'][1]['positions'], ['T', {'n': 'm/positions'}])
        self.assertEqual(kept['optimizer']['state'][1][1]['exp_avg'][:2], ['o', 'torch.Tensor'])
        self.assertEqual(kept['optimizer']['param_groups'], groups)
        self.refused('invalid_argument', 2, 'convert', train, 'x', '--structure', 'maybe')

    def test_root_converts_a_part_of_a_training_checkpoint(self):
        train = self.pt('train_gpt.pt')
        whole = self.done('convert', train, 'whole.safetensors')
        self.assertTrue([note for note in whole['notes'] if '--root PART converts one of them' in note])
        part = self.done('convert', train, 'model.safetensors', '--root', 'model')
        self.assertFalse([note for note in part['notes'] if '--root' in note])
        self.assertEqual(part['aliases'], [['tokens.weight', 'head.weight']])
        named = {tensor['name'] for tensor in self.done('inspect', 'model.safetensors')['tensors']}
        self.assertEqual({'model/' + name for name in named},
                         {tensor['name'] for tensor in self.done('inspect', train, '--include', 'model/*')['tensors']})
        self.done('convert', 'whole.safetensors', 'again.safetensors', '--root', 'model')
        self.assertEqual(self.done('hash', 'again.safetensors'), self.done('hash', 'model.safetensors'))
        self.done('convert', train, 'group.safetensors', '--root', 'optimizer/state/0')
        error = self.refused('invalid_argument', 2, 'convert', train, 'x', '--root', 'nodel')
        self.assertIn("'model', 'optimizer'", error['hint'])
        self.refused('invalid_argument', 2, 'convert', 'model.safetensors', 'x', '--root', 'model')

    def test_the_same_tensors_in_any_container(self):
        for first, *others in [('train_protocol4.pt', 'train_legacy_protocol4.pt', 'train_protocol3.pt'),
                               ('plain_pickle2.pkl', 'plain_pickle4.pkl'), ('old_address_keys.pt', 'tar_0_1.pt')]:
            whole = self.done('hash', self.pt(first))
            for other in others:
                with self.subTest(file=other):
                    self.assertEqual(self.done('hash', self.pt(other)), whole)
                    self.assertTrue(self.done('verify', self.pt(other))['ok'])
                    self.done('convert', self.pt(other), other + '.safetensors')
                    self.assertEqual(self.done('hash', other + '.safetensors'), whole)

    def test_offsets_in_formats_before_zip_are_places_in_the_file(self):
        for name in ('train_legacy_protocol4.pt', 'plain_pickle4.pkl', 'tar_0_1.pt'):
            file = (DATA / 'pt' / name).read_bytes()
            self.done('convert', self.pt(name), 'out.safetensors', '--force')
            out = (self.folder / 'out.safetensors').read_bytes()
            written = {t['name']: t for t in self.done('inspect', 'out.safetensors')['tensors']}
            placed = [t for t in self.done('inspect', self.pt(name))['tensors'] if 'offset' in t]
            self.assertTrue(placed)
            for tensor in placed:
                self.assertEqual(tensor['file'], name)
                place, other = tensor['offset'], written[tensor['name']]['offset']
                self.assertEqual(file[place:place + tensor['nbytes']], out[other:other + tensor['nbytes']])

    def test_a_script_archive_is_read_as_its_state_dict(self):
        told = self.done('inspect', self.pt('torchscript.pt'))
        self.assertEqual([t['name'] for t in told['tensors']], ['weight', 'shift', 'inner.scale'])
        self.assertTrue(any('TorchScript' in note for note in told['notes']))

    def test_a_plan_says_how_tensors_are_read(self):
        for name in ('strided.pt', 'storages.pt', 'odd_dtypes.pt', 'tied_legacy.pt', 'deflated.pt'):
            plan = self.done('convert', self.pt(name), 'out.safetensors', '--dry-run')
            told = self.done('convert', self.pt(name), 'out.safetensors', '--force')
            for key in ('copied_tensors', 'gathered', 'views', 'unreferenced_bytes', 'unsupported'):
                self.assertEqual(told[key], plan[key])
            self.assertEqual(told['copied_tensors']['tensors'] + told['gathered']['tensors'], told['tensors'])
            self.assertEqual(told['copied_tensors']['bytes'] + told['gathered']['bytes'], told['bytes_read'])
            dtypes = sum(dtype['tensors'] for dtype in told['unsupported'])
            self.assertEqual(dtypes, sum('no name for this dtype' in object['why'] for object in told['skipped']))
        self.assertEqual([self.done('convert', self.pt('strided.pt'), 'x', '--dry-run')[key]['tensors'] > 0
                          for key in ('gathered', 'views')], [True, True])
        self.assertEqual(self.done('convert', self.pt('deflated.pt'), 'x', '--dry-run')['unreferenced_bytes'], 0)

    def test_a_skipped_quantized_tensor_is_listed_once_with_the_reason(self):
        skipped = self.done('convert', self.pt('quantized.pt'), 'out.safetensors', '--structure', 'drop')['skipped']
        names = [object['name'] for object in skipped]
        self.assertIn('qint8', names)
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(all('quantized tensor' in object['why'] for object in skipped))

    def test_dtypes_that_safetensors_lacks_are_kept_with_the_structure_document(self):
        for name in ('quantized.pt', 'odd_dtypes.pt', 'conj_neg.pt', 'strided.pt'):
            source = self.pt(name)
            told = self.done('convert', source, 'out.safetensors', '--structure', 'keep', '--checksums', '--force')
            self.assertEqual(told['unsupported'], [])
            self.assertEqual(told['skipped'], [])
            self.assertEqual(told['tensors'], sum('alias_of' not in tensor
                                                  for tensor in self.done('inspect', source)['tensors']))
            self.assertTrue(self.done('diff', source, 'out.safetensors')['equal'])
            self.assertEqual(*(self.done('hash', file)['checkpoint'] for file in (source, 'out.safetensors')))
            self.assertTrue(self.done('verify', 'out.safetensors')['ok'])
            documents = [self.done('inspect', file, '--structure')['structure'] for file in (source, 'out.safetensors')]
            self.assertEqual(*documents)
            self.assertEqual(documents[0]['v'], 2)
            self.done('convert', 'out.safetensors', 'again.safetensors', '--checksums', '--force')
            self.assertEqual((self.folder / 'again.safetensors').read_bytes(),
                             (self.folder / 'out.safetensors').read_bytes())
        left = self.done('convert', self.pt('quantized.pt'), 'out.safetensors', '--include', 'qint8', '--force')
        self.assertIn('quint8', {object['name'] for object in left['skipped']})
        self.assertNotIn('qint8', {object['name'] for object in left['skipped']})

    def test_a_tied_tensor_keeps_its_names_with_a_structure_document(self):
        tied = [['part.0', 'part.1']]  # unusual; made from a document, because no file of torch here has such a tie
        document = '{"v":2,"root":["l",["T",{"n":"part.0","dtype":"bits8"}],["@","0"]]}'
        header = json.dumps({'__metadata__': {'safemap.structure': document, 'part.1': 'part.0'},
                             'part.0': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 2]}}).encode()
        (self.folder / 'in.safetensors').write_bytes(len(header).to_bytes(8, 'little') + header + b'ab')
        for how, aliases in (('keep', tied), ('auto', tied), ('drop', [])):
            told = self.done('convert', 'in.safetensors', 'out.safetensors', '--structure', how, '--force')
            self.assertEqual(told['aliases'], aliases)

    def test_storages_of_tensors_that_are_not_written_are_unreferenced(self):
        for name in ('state_dict.pt', 'tied_legacy.pt', 'tar_0_1.pt', 'deflated.pt'):
            tensors = [t for t in self.done('inspect', self.pt(name))['tensors'] if 'alias_of' not in t]
            whole = self.done('convert', self.pt(name), 'x', '--dry-run')
            one = self.done('convert', self.pt(name), 'x', '--dry-run', '--include', tensors[0]['name'])
            left = whole['unreferenced_bytes'] + whole['bytes_read'] - one['bytes_read']
            if whole['views']['tensors'] == 0:
                self.assertEqual(one['unreferenced_bytes'], left, name)
        train = self.pt('train_gpt.pt')
        self.assertEqual(self.done('convert', train, 'x', '--dry-run')['unreferenced_bytes'], 0)
        part = self.done('convert', train, 'x', '--dry-run', '--root', 'model')
        whole = self.done('convert', train, 'x', '--dry-run')
        self.assertEqual(part['unreferenced_bytes'], whole['bytes_read'] - part['bytes_read'])

    def test_the_text_of_a_plan(self):
        self.expect('convert_strided', self.safemap('convert', self.pt('strided.pt'), 'out.safetensors').out)
        result = self.safemap('convert', self.pt('odd_dtypes.pt'), 'out2.safetensors', '--dtype', 'bf16')
        self.expect('convert_odd_dtypes', result.out)
        self.assertEqual(self.safemap('convert', self.pt('tied.pt'), 'quiet', '--quiet').out, '')

    def test_unknown_globals_are_opaque_or_refused(self):
        attack = self.pt('broken/os_system.pt')
        told = self.done('inspect', attack)
        self.assertEqual(told['objects'], [{'name': 'attack', 'type': 'posix.system'}])
        self.assertTrue(any('asks to call posix.system, which was not called' in note for note in told['notes']))
        skipped = self.done('convert', attack, 'out.safetensors')['skipped']
        self.assertEqual([object['name'] for object in skipped], ['attack'])
        for words in [('inspect', attack), ('convert', attack, 'x'), ('hash', attack), ('diff', attack, attack),
                      ('load', attack, '--device', 'host'), ('plan', attack, '--expect', 'small.safetensors')]:
            error = self.refused('unknown_global', 1, *words, '--strict-globals')
            wanted = ('globals that run code: posix.system (os.system)', attack)
            self.assertEqual((error['message'], error['path']), wanted)
        result = self.safemap('verify', attack, '--strict-globals', '--json')
        self.assertEqual(result.code, 1)
        self.assertEqual([fault['code'] for fault in result.json()['faults']], ['unknown_global'])
        error = self.refused('unknown_global', 1, 'inspect', self.pt('lightning.ckpt'), '--strict-globals')
        self.assertEqual(error['message'], 'unknown globals: my_model.EarlyStopping, argparse.Namespace')
        self.refused('unknown_global', 1, 'inspect', self.pt('module_legacy.pt'), '--strict-globals')
        for name in ('train_gpt.pt', 'tied_legacy.pt', 'plain_pickle2.pkl', 'tar_0_1.pt', 'torchscript.pt'):
            self.done('inspect', self.pt(name), '--strict-globals')

    def test_names_in_pickles_are_listed(self):
        attack = self.pt('broken/os_system.pt')
        self.assertNotIn('globals', self.done('inspect', attack))
        told = self.done('inspect', attack, '--globals')
        self.assertIn({'module': 'posix', 'name': 'system', 'known': False, 'called': True,
                       'record': 'archive/data.pkl'}, told['globals'])
        text = self.safemap('inspect', attack, '--globals').out
        self.assertIn('posix.system', text.split('\nglobals\n')[1].splitlines()[0])
        self.assertEqual(self.done('inspect', 'small.safetensors', '--globals')['globals'], [])
        known = self.done('inspect', self.pt('train_gpt.pt'), '--globals')
        self.assertTrue(known['globals'])
        self.assertTrue(all(each['known'] for each in known['globals']))
        self.assertFalse([note for note in known['notes'] if 'would call' in note])

    def test_a_file_that_calls_unknown_functions_is_readable_and_not_ok(self):
        for name, first in (('broken/os_system.pt', 'posix.system'), ('lightning.ckpt', 'argparse.Namespace'),
                            ('broken/legacy_os_system.pt', 'posix.system')):
            path = self.pt(name)
            for words in [('inspect', path), ('convert', path, 'x', '--dry-run'), ('verify', path)]:
                notes = [note for note in self.done(*words)['notes'] if 'would call' in note]
                self.assertEqual(len(notes), 1, words)
                self.assertIn(first, notes[0])
                self.assertIn('--globals', notes[0])
                self.assertIn('--strict-globals', notes[0])
            self.assertTrue(self.done('verify', path)['ok'])
            self.assertIn(': readable; ', self.safemap('verify', path).out)
        self.assertIn(': ok; ', self.safemap('verify', self.pt('train_gpt.pt')).out)

    def test_shards_that_name_unknown_globals_are_refused(self):
        for name in ('tied', 'module'):
            (self.folder / f'{name}.bin').write_bytes((DATA / 'pt' / f'{name}.pt').read_bytes())
        names = {name: [t['name'] for t in self.done('inspect', f'{name}.bin')['tensors']]
                 for name in ('tied', 'module')}
        index = {'weight_map': {tensor: f'{name}.bin' for name in names for tensor in names[name]}}
        (self.folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))
        self.done('inspect', 'pytorch_model.bin.index.json')
        error = self.refused('unknown_global', 1, 'inspect', 'pytorch_model.bin.index.json', '--strict-globals')
        self.assertTrue(error['path'].endswith('module.bin'))

    def test_a_truncated_file_is_reported_with_the_expected_size(self):
        error = self.refused('file_truncated', 1, 'inspect', self.pt('broken/legacy_truncated.pt'))
        self.assertIn('expected 160 bytes, found 140 bytes', error['message'])
        self.refused('zip_missing_record', 1, 'inspect', self.pt('broken/zip_without_entries.pt'))

    def test_a_damaged_record_is_a_fault(self):
        result = self.safemap('verify', self.pt('broken/bad_crc.pt'), '--json')
        self.assertEqual(result.code, 1)
        self.assertIn('checksum_mismatch', [f['code'] for f in result.json()['faults']])



class WholeModules(Case):
    """Files of torch.save(model), instead of model.state_dict()."""
    NAMES = ['conv.weight', 'conv.bias', 'norm.weight', 'norm.bias', 'norm.running_mean', 'norm.running_var',
             'norm.num_batches_tracked', 'linear.weight', 'linear.bias']

    def pt(self, name):
        return DATA / 'pt' / name

    def test_every_command_uses_the_names_of_the_state_dict(self):
        for name in ('module.pt', 'module_legacy.pt'):
            found = self.done('inspect', self.pt(name))
            self.assertEqual([tensor['name'] for tensor in found['tensors']], self.NAMES)
            self.assertEqual(found['objects'], [{'name': '~root', 'type': 'my_model.SmallNet'}])
            report = self.done('convert', self.pt(name), name + '.safetensors')
            self.assertEqual([each['name'] for each in report['skipped']], ['~root'])
            self.assertEqual(set(header_of(self.folder / (name + '.safetensors'))) - {'__metadata__'}, set(self.NAMES))
            self.assertTrue(self.done('diff', self.pt(name), name + '.safetensors')['equal'])
            self.assertEqual(sorted(self.done('hash', self.pt(name))['tensors']), sorted(self.NAMES))
            loaded = self.done('load', self.pt(name), '--device', 'host', '--digest', '--include', 'norm.*')
            self.assertEqual(sorted(loaded['digests']), sorted(self.NAMES[2:7]))
        self.assertTrue(self.done('plan', self.pt('module.pt'), '--expect', self.pt('module_legacy.pt'))['ok'])

    def test_the_classes_of_a_module_are_listed_as_called(self):
        for name in ('module.pt', 'module_legacy.pt'):
            self.assertIn(f'{name}: readable; ', self.safemap('verify', self.pt(name)).out)
            listed = self.done('inspect', self.pt(name), '--globals')['globals']
            self.assertTrue(next(each for each in listed if each['name'] == 'SmallNet')['called'])

    def test_root_selects_a_part_of_a_module(self):
        source = self.pt('module_main.pt')
        self.assertEqual(list(self.done('hash', source)['tensors']), ['net/weight', 'net/mean'])
        self.done('convert', source, 'whole.safetensors')
        for each in (source, 'whole.safetensors'):
            self.done('convert', each, 'net.safetensors', '--root', 'net', '--force')
            self.assertEqual(set(header_of(self.folder / 'net.safetensors')), {'__metadata__', 'weight', 'mean'})
        self.done('convert', self.pt('module.pt'), 'linear.safetensors', '--root', 'linear')
        self.assertEqual(set(header_of(self.folder / 'linear.safetensors')), {'__metadata__', 'weight', 'bias'})
        error = self.refused('invalid_argument', 2, 'convert', source, 'x', '--root', 'model')
        self.assertIn("'net'", error['hint'])

    def test_the_names_of_a_module_can_be_changed(self):
        report = self.done('convert', self.pt('module.pt'), 'o.safetensors', '--rename', r's/^conv\./stem./',
                           '--structure', 'keep', '--checksums')
        self.assertEqual(report['tensors'], 9)
        self.assertIn('stem.weight', header_of(self.folder / 'o.safetensors'))
        self.assertTrue(self.done('verify', 'o.safetensors')['ok'])
        document = self.done('inspect', 'o.safetensors', '--structure')['structure']['root']
        conv = document[3]['_modules']['conv']
        self.assertEqual(conv[3]['_parameters']['weight'], ['T', {'n': 'stem.weight', 'p': 1, 'rg': 1}])
        self.refused('name_collision', 2, 'convert', self.pt('module.pt'), 'x', '--rename', 's/^linear/norm/')

if __name__ == '__main__':
    words = sys.argv[1:]
    if '--update' in words:
        UPDATE = True
        words.remove('--update')
    SAFEMAP, DATA = os.path.abspath(words[0]), pathlib.Path(words[1])
    unittest.main(argv=[sys.argv[0], *words[2:]])
