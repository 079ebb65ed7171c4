"""Tests the folders of public bug reports, from outside: reports.py SAFEMAP DATA [unittest's arguments].

DATA/reports has a small copy of each. A folder that is not there is an error, and not a skipped test.
"""
import json
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'forge'))
import forged

SAFEMAP = REPORTS = None


def run(*args, code=0):
    """Runs a command with --json, expects this exit code, and returns the object that it prints."""
    done = subprocess.run([SAFEMAP, *map(str, args), '--json'], capture_output=True, text=True, check=False)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


def tensors_of(file):
    return forged.tensors_of(file)[0]


def names_in(folder):
    return sorted(path.name for path in pathlib.Path(folder).iterdir())


class Reports(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.dir / 'out'

    def test_pipeline_folder(self):
        folder = REPORTS / 'pipeline_folder'
        components = {'text_encoder': 'model', 'unet': 'diffusion_pytorch_model', 'vae': 'diffusion_pytorch_model'}
        for command in ('inspect', 'verify', 'hash'):
            error = run(command, folder, code=2)['error']
            self.assertEqual(error['code'], 'several_models')
            for component in components:
                self.assertIn(str(folder / component), error['message'])
        run('convert', folder, self.out, code=2)
        self.assertFalse(self.out.exists())
        self.out.mkdir()
        for component, stem in components.items():
            run('convert', folder / component, self.out / component)
            self.assertEqual(names_in(self.out / component), ['config.json', f'{stem}.safetensors'])
            self.assertEqual(tensors_of(self.out / component / f'{stem}.safetensors'),
                             tensors_of(folder / component / f'{stem}.safetensors'))

    def test_adapter_folder(self):
        run('convert', REPORTS / 'adapter_folder', self.out)
        self.assertEqual(names_in(self.out), ['README.md', 'adapter_config.json', 'adapter_model.safetensors'])
        self.assertEqual(len(tensors_of(self.out / 'adapter_model.safetensors')), 8)
        # Converted again, it is the same.
        run('convert', self.out, self.dir / 'again')
        self.assertEqual(names_in(self.dir / 'again'), names_in(self.out))

    def test_variant_index(self):
        folder = self.dir / 'in'
        shutil.copytree(REPORTS / 'variant_index', folder)
        self.assertEqual(len(run('inspect', folder)['tensors']), 4)
        run('convert', folder, self.out)
        self.assertEqual(names_in(self.out), ['config.json', 'diffusion_pytorch_model.safetensors'])
        # Beside the plain model, the variant is named.
        shutil.copy(self.out / 'diffusion_pytorch_model.safetensors', folder)
        notes = run('inspect', folder)['notes']
        self.assertIn('read diffusion_pytorch_model.safetensors; not read: ', notes[0])
        self.assertIn('diffusion_pytorch_model.fp16-00001-of-00002.safetensors', notes[0])

    def test_shard_of_three_missing(self):
        folder = REPORTS / 'shard_of_three_missing'
        files = sorted(folder.glob('*.safetensors'))
        for given in ([folder], [f'{folder}/*.safetensors'], files):
            error = run('convert', *given, self.out, code=1)['error']
            self.assertEqual(error['code'], 'shard_missing')
            self.assertIn('model-00002-of-00003.safetensors', error['message'])
        self.assertFalse(self.out.exists())
        self.assertIn('this is one of 3 shards', run('inspect', files[0])['notes'][0])

    def test_index_lacks_tensor(self):
        folder = REPORTS / 'index_lacks_tensor'
        lost = 'model.layers.1.norm'
        report = run('verify', folder, code=1)
        self.assertEqual([(fault['code'], fault['tensor']) for fault in report['faults']],
                         [('index_lacks_tensor', lost)])
        self.assertEqual([entry['name'] for entry in run('convert', folder, self.out)['skipped']], [lost])
        self.assertEqual(len(tensors_of(self.out / 'model.safetensors')), 3)
        run('repair', folder, self.dir / 'repaired')
        self.assertIn(lost, [entry['name'] for entry in run('inspect', self.dir / 'repaired')['tensors']])
        self.assertIn('\x1b[33m  skipped  ' + lost, self.on_terminal('convert', folder, self.dir / 'colours'))

    def test_index_lacks_shard(self):
        folder = self.dir / 'three'
        shutil.copytree(REPORTS / 'index_lacks_tensor', folder)
        names = sorted(path.name for path in folder.glob('*.safetensors'))
        lost = sorted(tensors_of(folder / names[1]))
        first = sorted(tensors_of(folder / names[0]))
        index = {'metadata': {}, 'weight_map': dict.fromkeys(first, names[0])}
        (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
        report = run('verify', folder, code=1)
        self.assertEqual(sorted((fault['code'], fault['tensor'], fault['path']) for fault in report['faults']),
                         [('index_lacks_tensor', name, str(folder / names[1])) for name in lost])
        done = run('convert', folder, self.out)
        self.assertEqual(sorted(entry['name'] for entry in done['skipped']), lost)
        self.assertTrue(any('safemap repair' in note for note in done['notes']), done['notes'])
        run('repair', folder, self.dir / 'repaired')
        self.assertEqual(sorted(entry['name'] for entry in run('inspect', self.dir / 'repaired')['tensors']),
                         sorted(first + lost))
        self.assertIn('\x1b[33m  skipped  ' + lost[0], self.on_terminal('convert', folder, self.dir / 'colours'))

    def test_shards_of_other_spellings(self):
        data = (REPORTS / 'shard_of_three_missing' / 'model-00001-of-00003.safetensors').read_bytes()
        for name, lacks in (('model-00001-of-00002.sft', 'model-00002-of-00002.sft'),
                            ('model_00001_of_00002.safetensors', 'model_00002_of_00002.safetensors'),
                            ('X-00001-OF-00002.safetensors', 'X-00002-OF-00002.safetensors')):
            folder = self.dir / name
            folder.mkdir()
            (folder / name).write_bytes(data)
            for given in (folder, f'{folder}/*'):
                error = run('convert', given, self.out, code=1)['error']
                self.assertEqual(error['code'], 'shard_missing')
                self.assertIn(lacks, error['message'])
        folder = self.dir / 'one'
        folder.mkdir()
        (folder / 'model.sft').write_bytes(data)
        self.assertEqual(run('inspect', folder)['files'], ['model.sft'])

    def on_terminal(self, *args):
        """Returns what a command prints to a terminal. Skips the rest of the test where none can be opened."""
        try:
            here, there = pty.openpty()
        except OSError as error:
            self.skipTest(str(error))
        with subprocess.Popen([SAFEMAP, *map(str, args)], stdout=there, stderr=there,
                              env={**os.environ, 'TERM': 'xterm', 'NO_COLOR': ''}) as running:
            os.close(there)
            text = b''
            try:
                while part := os.read(here, 65536):
                    text += part
            except OSError:  # the other end is closed
                pass
            os.close(here)
        self.assertEqual(running.returncode, 0, text)
        return text.decode()


if __name__ == '__main__':
    SAFEMAP = os.path.abspath(sys.argv[1])
    REPORTS = pathlib.Path(sys.argv[2]).resolve() / 'reports'
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
