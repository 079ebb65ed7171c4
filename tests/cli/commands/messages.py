"""Tests that errors, hints and notes say what a file is, what is wrong with it, and what to type next."""
import gzip
import io
import json
import os
import socket
import struct
import unittest
import zipfile

import case
from case import Case
from forged import header_bytes, torch_file

# A line of text, such as a private file has, and the numbers of its first eight bytes.
SECRET = b'hunter2:x:0:0:a secret of somebody\n'


def entry(dtype, shape, begin, end):
    return {'dtype': dtype, 'shape': shape, 'data_offsets': [begin, end]}


def expanded_file(size):
    """Returns a file of torch.save with one tensor of `size` elements, which are all the same stored one."""
    plain = zipfile.ZipFile(io.BytesIO(torch_file({'w': 'FloatStorage'})))
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w') as archive:
        for name in plain.namelist():
            content = plain.read(name)
            if name.endswith('.pkl'):
                shape = b'(\x8a\x08' + struct.pack('<Q', size) + b't'
                content = content.replace(b'K\x00(K\x02t(K\x01t', b'K\x00' + shape + b'(K\x00t')
            archive.writestr(name, content)
    return out.getvalue()


class Messages(Case):
    def file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return name

    def header(self, name, header, data=b''):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return self.file(name, header_bytes(text) + data)

    def assert_told(self, error, *words):
        for word in words:
            self.assertIn(word, error['message'] + ' # ' + error.get('hint', ''))

    # ---- folders

    def test_what_is_no_file_is_named_with_what_it_is(self):
        loop = self.folder / 'loop'
        loop.mkdir()
        (loop / 'model.safetensors').symlink_to('model.safetensors')
        gone = self.folder / 'gone'
        gone.mkdir()
        (gone / 'model.safetensors').symlink_to('nowhere')
        (self.folder / 'pipe').mkdir()
        os.mkfifo(self.folder / 'pipe' / 'model.safetensors.index.json')
        (self.folder / 'folder' / 'model.safetensors').mkdir(parents=True)
        (self.folder / 's').mkdir()
        here = os.getcwd()
        os.chdir(self.folder / 's')  # a path of a socket is short
        self.addCleanup(os.chdir, here)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind('pytorch_model.bin')
        os.chdir(here)
        for folder, words in [('loop', 'model.safetensors (a link that leads back to itself)'),
                              ('gone', 'model.safetensors (a broken link)'),
                              ('pipe', 'model.safetensors.index.json (a pipe)'),
                              ('s', 'pytorch_model.bin (a socket)'),
                              ('folder', 'model.safetensors (a folder, not a file)')]:
            for command, *more in [('inspect',), ('convert', 'out')]:
                error = self.refused('not_a_checkpoint', 1, command, folder, *more)
                self.assert_told(error, words)
            self.assertIn(words, self.safemap('verify', folder).out)
        # Beside a file that opens, it is a note; beside shards, it says why the index is not read.
        self.file('gone/pytorch_model.bin', (self.folder / 'small.safetensors').read_bytes())
        self.assertEqual(self.done('inspect', 'gone')['notes'][-1],
                         'read pytorch_model.bin; not read: model.safetensors (a broken link)')
        self.file('pipe/model-00001-of-00002.safetensors', b'')
        self.assert_told(self.refused('shard_missing', 1, 'inspect', 'pipe'), 'index.json (a pipe)')

    def test_all_missing_shards_are_named(self):
        shards = {f't{i}': f'model-{i:05}-of-00020.safetensors' for i in range(1, 21)}
        self.file('in/model.safetensors.index.json', json.dumps({'weight_map': shards}).encode())
        self.header('in/model-00003-of-00020.safetensors', {'t3': entry('U8', [1], 0, 1)}, b'x')
        (self.folder / 'in' / shards['t2']).symlink_to('nowhere')
        for command, *more in [('inspect',), ('convert', 'out'), ('repair', 'out')]:
            error = self.refused('shard_missing', 1, command, 'in', *more)
            self.assert_told(error, '19', shards['t1'], shards['t2'], 'and 11 more', 'fetch what is missing')
        told = self.safemap('verify', 'in', '--json').json()
        self.assertEqual([fault['code'] for fault in told['faults']], ['shard_missing'] * 19)
        self.assertIn('19 of 20 shards are missing', told['faults'][0]['message'])
        self.assertEqual(told['faults'][1]['message'], 'the index places 1 tensor in it, but it is a broken link')
        (self.folder / 'in' / 'model.safetensors.index.json').unlink()
        self.assert_told(self.refused('shard_missing', 1, 'inspect', 'in'), '1 of 20 shards', 'and 11 more')

    # ---- files of other kinds

    def test_a_file_is_named_and_its_content_is_not_shown(self):
        with zipfile.ZipFile(self.folder / 'x.npz', 'w') as archive:
            archive.writestr('a.npy', SECRET)
        rows = [('web page', b'<!DOCTYPE html><html>' + SECRET, True),
                ('git-lfs pointer', b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n', True),
                ('a text file', SECRET, True), ('a text file', b'\xc3\xa9' * 400, True),
                ('XML text', b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', True),
                ('JSON text', b'{"error": "hunter2"}', True), ('gzip', gzip.compress(SECRET), True),
                ('GGUF', b'GGUF' + SECRET, False), ('(PNG)', b'\x89PNG\r\n\x1a\n' + SECRET, False),
                ('(JPEG)', b'\xff\xd8\xff\xe0' + SECRET, False), ('(ELF)', b'\x7fELF\2\1\1' + SECRET, False),
                ('PDF', b'%PDF-1.7\n' + SECRET, False), ('.npz', (self.folder / 'x.npz').read_bytes(), False),
                ('empty file', b'', True), ('zeros', bytes(1000), True),
                ('no known format', bytes([0x93, 0x12, 0xfe, 0x88]) + SECRET, False),
                ('no known format', struct.pack('<Q', 1000) + SECRET, False)]
        for what, content, hint in rows:
            for name in ('x.safetensors', 'x.bin'):
                with self.subTest(what=what, name=name):
                    self.file(name, content)
                    for command, *more in [('inspect',), ('convert', 'out'), ('repair', 'out.safetensors')]:
                        result = self.safemap(command, name, *more, '--json')
                        error = result.json()['error']
                        if command != 'repair':
                            self.assert_told(error, 'this is ', what)
                        if command != 'repair' and hint:
                            self.assertIn('hint', error)
                        self.assertNotIn('hunter2', result.out)
                        self.assertNotIn(str(int.from_bytes(content[:8], 'little')) if content[:1] > b'\t' else '#',
                                         result.out)
                    self.assertIn(what, self.safemap('verify', name).out)

    def test_an_index_that_is_none_is_named(self):
        for what, content in [('git-lfs pointer', b'version https://git-lfs.github.com/spec/v1\noid sha256:0\n'),
                              ('web page', b'<html>' + SECRET), ('a text file', SECRET), ('empty file', b''),
                              ('a safetensors file', (self.folder / 'small.safetensors').read_bytes())]:
            self.file('in/model.safetensors.index.json', content)
            error = self.refused('index_not_json', 1, 'inspect', 'in')
            self.assert_told(error, what, 'expected an index')
            self.assertNotIn('hunter2', str(error))
        self.file('in/model.safetensors.index.json', b'{"weight_map": {')
        self.assert_told(self.refused('index_not_json', 1, 'inspect', 'in'), 'not JSON')

    def test_a_file_of_a_training_folder_that_is_none_is_named(self):
        for kind, names in [('rank', ['model_world_size_2_rank_0.pt', 'model_world_size_2_rank_1.pt']),
                            ('dcp', ['.metadata', '__0_0.distcp']),
                            ('zero', ['mp_rank_00_model_states.pt', 'zero_pp_rank_0_mp_rank_00_optim_states.pt'])]:
            for what, content in [('web page', b'<html>' + SECRET), ('a text file', SECRET),
                                  ('no known format', bytes(range(200, 256)) + SECRET)]:
                for name in names:
                    self.file(f'{kind}/{name}', content)
                for command, *more in [('inspect',), ('convert', 'out')]:
                    result = self.safemap(command, kind, *more, '--json')
                    self.assertEqual(result.code, 1)
                    if what != 'no known format':
                        self.assert_told(result.json()['error'], what)
                    self.assertNotIn('hunter2', result.out)
                    self.assertNotIn('unknown opcode', result.out)
        self.file('part/model_world_size_2_rank_1.pt', b'')
        self.assert_told(self.refused('rank_missing', 1, 'inspect', 'part'), 'copy the files of all ranks')
        self.file('states/optimizer.pt', b'')
        self.file('states/scheduler.pt', b'')
        self.assert_told(self.refused('not_a_checkpoint', 1, 'inspect', 'states'), 'states/optimizer.pt')

    def test_a_zip_of_another_program_has_a_hint(self):
        with zipfile.ZipFile(self.folder / 'x.zip', 'w') as archive:
            archive.writestr('run/model.safetensors', SECRET)
        self.assert_told(self.refused('zip_missing_record', 1, 'inspect', 'x.zip'), 'unzip it')

    def test_what_a_model_expects_is_json_or_a_checkpoint(self):
        error = self.refused('unknown_format', 1, 'plan', 'small.safetensors', '--expect', self.file('x.json', SECRET))
        self.assert_told(error, 'a text file', 'expected JSON such as')

    def test_a_folder_of_what_is_not_read_has_a_hint(self):
        for name, hint in [('model.gguf', 'no other framework'), ('tf_model.h5', 'no other framework'),
                           ('model.safetensors.incomplete', 'a download has not finished')]:
            self.file(f'of-{name}/{name}', b'x')
            self.assert_told(self.refused('not_a_checkpoint', 1, 'inspect', f'of-{name}'), name, hint)

    def test_a_file_that_ends_too_early_has_a_hint(self):
        torch_file = (case.DATA / 'pt' / 'flat.pt').read_bytes()
        self.file('cut.pt', torch_file[:len(torch_file) // 2])
        self.file('cut.safetensors', (self.folder / 'small.safetensors').read_bytes()[:-3])
        self.file('head.safetensors', (self.folder / 'small.safetensors').read_bytes()[:40])
        for name in ('cut.pt', 'cut.safetensors', 'head.safetensors'):
            result = self.safemap('inspect', name)
            self.assertEqual(result.code, 1)
            self.assertIn('hint: a download or a copy may not have finished', result.err)
            self.assertIn('hint: a download or a copy may not have finished', self.safemap('verify', name).out)

    def test_a_marker_that_is_a_link_to_another_folder_does_not_show_its_text(self):
        self.file('secret', b'hunter2')
        self.file('run/global_step1/mp_rank_00_model_states.pt', b'x')
        (self.folder / 'run' / 'latest').symlink_to(self.folder / 'secret')
        for words in (('inspect', 'run'), ('verify', 'run')):
            result = self.safemap(*words)
            self.assertEqual(result.code, 1)
            self.assertNotIn('hunter2', result.out + result.err)

    # ---- headers

    def test_a_duplicate_name_is_named(self):
        one = b'"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
        two = b'"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}'
        middle = b'"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}'
        last = b'"a":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}'
        for name, members in [('gap', (one, two)), ('end', (two, one)), ('between', (one, middle, last))]:
            file = self.header(f'{name}.safetensors', b'{' + b','.join(members) + b'}', bytes(4 * len(members)))
            error = self.refused('duplicate_name', 1, 'inspect', file)
            self.assertEqual(error['tensor'], 'a')
            self.assert_told(error, 'duplicate name', '4 bytes of the first one', 'safemap repair IN OUT')
            told = self.safemap('verify', file, '--json').json()
            self.assertEqual([fault['code'] for fault in told['faults']], ['duplicate_name'])
            self.done('repair', file, f'{name}-out.safetensors')
        for name, header, code, words in [
                ('metadata', b'{"__metadata__":{"x":"y"},"__metadata__":{"x":"z"}}', 'header_bad_metadata',
                 "'__metadata__' twice"),
                ('field', b'{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}', 'header_bad_field',
                 "'dtype' twice")]:
            self.assert_told(self.refused(code, 1, 'inspect', self.header(f'{name}.safetensors', header)),
                             'duplicate name', words)
        file = self.header('key.safetensors', b'{"__metadata__":{"x":"y","x":"z"}}')
        self.assertIn("'x'", self.done('verify', file)['notes'][0])

    def test_what_repair_can_rewrite_has_its_name_as_hint(self):
        hint = 'safemap repair IN OUT writes a copy without this fault'
        a, b = entry('U8', [4], 0, 4), entry('U8', [4], 8, 12)
        for name, header, size, code in [('gap', {'a': a, 'b': b}, 12, 'offsets_leave_gap'),
                                         ('shared', {'a': a, 'b': entry('U8', [4], 2, 6)}, 6, 'offsets_overlap'),
                                         ('behind', {'a': a}, 7, 'trailing_bytes')]:
            file = self.header(f'{name}.safetensors', header, bytes(size))
            for words in (('inspect', file), ('convert', file, 'out')):
                self.assertEqual(self.refused(code, 1, *words)['hint'], hint)
            self.assertIn(f'hint: {hint}\n', self.safemap('verify', file).out)
            self.done('repair', file, f'{name}-out.safetensors')
        # repair refuses these, so that nothing may say that it helps.
        for name, header, size in [('short', {'a': a, 'b': b}, 11), ('nul', {'a\0': b}, 12),
                                   ('size', {'a': entry('F32', [4], 0, 4), 'b': b}, 12),
                                   ('dtype', {'a': entry('Q9', [4], 0, 4), 'b': entry('U8', [4], 2, 6)}, 6),
                                   ('reversed', {'a': entry('U8', [4], 4, 0), 'b': b}, 12),
                                   ('later', {'a': b, 'z': entry('F32', [4], 12, 16)}, 16)]:
            file = self.header(f'{name}.safetensors', header, bytes(size))
            told = self.safemap('verify', file, '--json').json()
            self.assertFalse(told['ok'])
            self.assertNotIn('repair IN OUT', json.dumps(told['faults']))
            self.assertNotEqual(self.safemap('repair', file, 'out.safetensors').code, 0)

    def test_a_tensor_without_bytes_of_an_unknown_dtype_is_left_out_by_repair(self):
        for dtype in ('', 'Q99'):
            file = self.header('none.safetensors', {'a': entry('U8', [4], 0, 4), 'b': entry(dtype, [0], 4, 4)}, b'abcd')
            error = self.refused('unknown_dtype', 1, 'inspect', file)
            self.assert_told(error, f"unknown dtype '{dtype}'", 'safemap repair IN OUT leaves out this tensor')
            told = self.done('repair', file, 'out.safetensors', '--force')
            self.assertIn(f"tensor 'b': it has no bytes, and is left out: unknown dtype '{dtype}'", told['repairs'][0])
            self.assertEqual([t['name'] for t in self.done('inspect', 'out.safetensors')['tensors']], ['a'])
        file = self.header('some.safetensors', {'a': entry('Q99', [1], 0, 1)}, b'a')
        self.assertNotIn('hint', self.refused('unknown_dtype', 1, 'repair', file, 'no.safetensors'))

    def test_names_that_convert_refuses_are_noted(self):
        file = self.header('nul.safetensors', {'a\0b': entry('U8', [1], 0, 1)}, b'x')
        note = "convert refuses 1 name, the first is 'a\\x00b': it has a NUL byte; --rename 's/RE/TEXT/' changes it"
        self.assertIn(note, self.done('verify', file)['notes'])
        self.assert_told(self.refused('bad_name', 1, 'convert', file, 'out'), '--rename')
        self.done('convert', file, 'out', '--rename', 's/a.b/ab/')
        self.assertEqual(self.done('verify', 'out')['notes'], [])

        tied = self.file('tied.pt', torch_file({'w': 'FloatStorage', 'format': 'FloatStorage'}))
        self.refused('name_collision', 2, 'convert', tied, 'tied')
        self.assertIn("convert refuses 1 name, the first is 'format': it is the name of a tied tensor",
                      self.done('verify', tied)['notes'][0])

    # ---- values and calls

    def test_a_small_file_with_many_values_has_a_note_with_both_sizes(self):
        file = self.file('wide.pt', expanded_file(1 << 40))
        size = os.path.getsize(self.folder / file)
        self.assertEqual(self.done('inspect', self.file('less.pt', expanded_file(1 << 20)))['notes'], [])
        for command, *more in [('inspect',), ('verify',), ('convert', 'out', '--dry-run')]:
            notes = self.done(command, file, *more)['notes']
            found = [note for note in notes if f'the file has only {size} bytes' in note]
            self.assertEqual(len(found), 1, notes)
            self.assertIn('the values take 4398046511104 bytes', found[0])

    def test_a_path_that_cannot_be_used_has_a_hint(self):
        for words in (('inspect', '-'), ('verify', '-'), ('convert', '-', 'out'), ('diff', '-', 'small.safetensors')):
            self.assert_told(self.refused('path_not_found', 2, *words), 'stdin is not supported')
        self.assert_told(self.refused('invalid_argument', 2, 'convert', 'small.safetensors', '-'), 'stdout')
        for path, hint in [('hf://gpt2', 'download it first'), ('meta-llama/Llama-3', 'hf download meta-llama/Llama-3'),
                           ('~/model', "'~'"), ('', 'the path is empty')]:
            self.assert_told(self.refused('path_not_found', 2, 'inspect', path), hint)
        error = self.refused('path_not_found', 2, 'convert', 'small.safetensors', 's3://bucket/out')
        self.assert_told(error, 'folders of this machine')
        os.mkfifo(self.folder / 'pipe')
        error = self.refused('already_exists', 2, 'convert', 'small.safetensors', 'pipe')
        self.assert_told(error, 'neither a file nor a folder')
        error = self.refused('header_past_end', 1, 'repair', self.file('t.bin', struct.pack('<Q', 99) + b'xx'), 'out')
        self.assert_told(error, 'safemap inspect says what the file is')
        for out in ('no/such folder/out', 'no/such folder/out.safetensors'):
            error = self.refused('path_not_found', 2, 'convert', 'small.safetensors', out)
            self.assertEqual(error['hint'], "mkdir -p 'no/such folder'")
        error = self.refused('path_not_found', 2, 'convert', 'small.safetensors', 'small.safetensors/out')
        self.assert_told(error, 'it is a file')

    @unittest.skipIf(os.geteuid() == 0, 'root may write everywhere')
    def test_a_read_only_folder_has_a_hint(self):
        (self.folder / 'closed').mkdir(mode=0o500)
        error = self.refused('permission_denied', 3, 'convert', 'small.safetensors', 'closed/out')
        self.assert_told(error, 'not writable')

    def test_a_dtype_without_casts_names_those_that_have_some(self):
        for words in (('--dtype', 'int8'), ('--dtype-of', 'norm=i64'), ('--dtype', 'q4_k_m'), ('--dtype', 'fp4')):
            result = self.safemap('convert', 'small.safetensors', 'out', *words, '--json')
            self.assertEqual(result.code, 2)
            for name in ('F64', 'F32', 'F16', 'BF16', 'F8_E4M3', 'F8_E5M2'):
                self.assertIn(name, result.json()['error']['hint'])
            self.assertNotIn('F8_E8M0', result.json()['error']['hint'])

    def test_keep_dtype_needs_a_cast(self):
        words = ('convert', 'small.safetensors', 'out', '--keep-dtype', 'norm')
        self.assert_told(self.refused('invalid_argument', 2, *words), '--keep-dtype', '--dtype-of', '--apply-scales')
        self.done(*words, '--dtype', 'f16')

    def test_a_size_may_have_decimals(self):
        for size, shards in [('0.00000003GB', 3), ('30', 3), ('0.0293KiB', 3), ('1.5GiB', 1)]:
            told = self.done('convert', 'small.safetensors', 'out', '--dry-run', '--max-shard-size', size)
            self.assertEqual(len(told['plan']) - (shards > 1), shards, size)

    def test_an_output_without_anything_in_it_is_asked_for(self):
        self.header('none.safetensors', {})
        error = self.refused('no_tensors', 1, 'convert', 'none.safetensors', 'out')
        self.assert_told(error, '--allow-empty')
        self.refused('no_tensors', 1, 'convert', 'none.safetensors', 'out.safetensors', '--dry-run')
        self.assertEqual(self.done('convert', 'none.safetensors', 'out', '--allow-empty')['tensors'], 0)
        # A structure document is something.
        self.assertEqual(self.done('convert', 'none.safetensors', 'kept', '--structure', 'keep')['tensors'], 0)
