"""Tests what all commands have in common: calls, exit codes, output, and formats that are refused."""
import json
import os
import pty
import select
import shutil
import subprocess

import case
from case import Case, COMMANDS, environment
from forged import floats, header_bytes, safetensors, torch_file


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

    def test_an_empty_value_after_an_equals_sign(self):
        report = self.done('convert', 'small.safetensors', 'x.safetensors', '--strip-prefix=', '-n')
        self.assertIn('plan', report)
        self.assertFalse((self.folder / 'x.safetensors').exists())

    def test_the_examples_of_every_help_work_as_pasted(self):
        # The files that the examples name.
        model = torch_file({'layers.0.w': 'FloatStorage', 'layers.1.w': 'FloatStorage'})
        given = self.folder / 'given'
        given.mkdir()
        (given / 'model.pt').write_bytes(model)
        shutil.copy(case.DATA / 'pt' / 'train_gpt.pt', given / 'train.pt')
        shutil.copy(self.folder / 'small.safetensors', given / 'part-1.safetensors')
        (given / 'part-2.safetensors').write_bytes(safetensors([('x', 'F32', [2], floats(1, 2))]))
        (given / 'model.safetensors').write_bytes(safetensors([('layers.0.w', 'F32', [2], floats(1, 2))]))
        (given / 'broken.safetensors').write_bytes((given / 'model.safetensors').read_bytes() + b'more')
        for folder in ('run', 'out', 'models', 'downloads'):
            self.done('convert', 'given/model.pt', f'given/{folder}/')
        expected = {t['name']: {'dtype': t['dtype'], 'shape': t['shape']}
                    for t in self.done('inspect', 'given/model.pt')['tensors']}
        (given / 'model.json').write_text(json.dumps(expected))
        path = os.path.dirname(case.SAFEMAP) + ':' + os.environ['PATH']
        for command in COMMANDS:
            told = self.safemap(command, '--help').out
            examples = [told.split('\n')[0], *told.split('Examples:\n')[1].splitlines()]
            self.assertGreater(len(examples), 1, command)
            for number, example in enumerate(examples):
                self.assertIn(f'safemap {command} ', example)
                place = self.folder / f'{command}{number}'
                shutil.copytree(given, place)
                if command == 'convert':
                    shutil.rmtree(place / 'out')
                    (place / 'model.safetensors').unlink()
                done = subprocess.run(['bash', '-e'], input=example.encode(), capture_output=True, cwd=place,
                                      env=environment(PATH=path))
                self.assertEqual((done.returncode, done.stderr), (0, b''), example)

    def test_policies_differ_in_the_files_they_accept(self):
        text = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}'
        head = header_bytes(text)
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
        told = self.done('convert', 'none.safetensors', 'out', '--include', 'a', '--allow-empty')
        self.assertEqual(told['tensors'], 0)
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
        for words in [('inspect', 'small.safetensors'), ('inspect', str(case.DATA / 'pt' / 'train_gpt.pt')),
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
        done = subprocess.run([case.SAFEMAP, 'inspect', 'many.safetensors', '--json'], cwd=self.folder, stdout=write,
                              stderr=subprocess.PIPE)
        os.close(write)
        self.assertEqual((done.returncode, done.stderr), (3, b''))

    def test_a_stdout_that_cannot_be_written_exits_with_3(self):
        with open('/dev/full', 'wb') as full:
            for more in ((), ('--json',)):
                done = subprocess.run([case.SAFEMAP, 'inspect', 'small.safetensors', *more], cwd=self.folder,
                                      stdout=full, stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, done.stderr),
                                 (3, b'safemap: error: writing to stdout: No space left on device\n'))
            # The same for the report of an error.
            done = subprocess.run([case.SAFEMAP, 'inspect', 'nowhere', '--json'], cwd=self.folder, stdout=full,
                                  stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr),
                             (3, b'safemap: error: writing to stdout: No space left on device\n'))
        for more in ('', '--json'):
            done = subprocess.run(['sh', '-c', f'"$0" inspect small.safetensors {more} >&-', case.SAFEMAP],
                                  cwd=self.folder, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr),
                             (3, b'safemap: error: writing to stdout: Bad file descriptor\n'))

    def test_no_second_object_is_written_after_stdout_fails(self):
        # A non-blocking pipe that is not read takes only a part of the report.
        many = [(f'block.{i}.weight.{i * 7}', 'U8', [0], b'') for i in range(2000)]
        (self.folder / 'many.safetensors').write_bytes(safetensors(many))
        read, write = os.pipe()
        os.set_blocking(write, False)
        done = subprocess.run([case.SAFEMAP, 'inspect', 'many.safetensors', '--json'], cwd=self.folder, stdout=write,
                              stderr=subprocess.PIPE)
        os.close(write)
        with open(read, encoding='utf-8') as pipe:
            self.assertNotIn('"error"', pipe.read())
        self.assertEqual(done.returncode, 3)
        self.assertIn(b'Resource temporarily unavailable', done.stderr)

    def test_a_closed_stdout_never_becomes_the_output_file(self):
        done = subprocess.run(['sh', '-c', '"$0" convert small.safetensors out.safetensors >&-', case.SAFEMAP],
                              cwd=self.folder, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(self.safemap('verify', 'out.safetensors').code, 0)

    def on_terminal(self, *words, **more):
        """Returns what a run writes to stderr when that is a terminal."""
        try:
            ours, theirs = pty.openpty()
        except OSError as error:
            self.skipTest(f'no terminal to be had here: {error}')
        process = subprocess.Popen([case.SAFEMAP, *words], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=theirs,
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
