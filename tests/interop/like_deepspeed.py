"""Compares DeepSpeed's own script, zero_to_fp32, with --deepspeed-compat, on the same folders: random ones that a forge
writes, and real ones. Also compares a running engine with the checkpoint that it saves. Skipped if DeepSpeed is not
installed.
"""
import contextlib
import os
import pathlib
import subprocess
import sys
import unittest

import safetensors
from safetensors.torch import load_file

import common

FIXTURES = pathlib.Path(os.environ.get('SAFEMAP_FIXTURES') or
                        pathlib.Path(__file__).resolve().parents[3] / 'shared/fixtures')

os.environ.setdefault('DS_ACCELERATOR', 'cpu')
try:
    # DeepSpeed prints to stdout, which has the result of all tests.
    with contextlib.redirect_stdout(sys.stderr):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as zero_to_fp32
except Exception as error:  # pylint: disable=broad-except
    zero_to_fp32 = None
    WHY = f'DeepSpeed cannot be imported: {error}'
else:
    WHY = ''


def by_deepspeed(folder):
    """Returns what the script gives, or None if it refuses the folder."""
    try:
        with open(os.devnull, 'w', encoding='utf-8') as nothing, contextlib.redirect_stdout(nothing), \
                contextlib.redirect_stderr(nothing):
            return dict(zero_to_fp32(str(folder)))
    except Exception:  # pylint: disable=broad-except
        return None


@unittest.skipIf(zero_to_fp32 is None, WHY)
class LikeDeepSpeed(common.Case):
    def by_safemap(self, folder):
        out = self.folder / 'out.safetensors'
        common.safemap('convert', folder, out, '--deepspeed-compat', '--force')
        tensors = load_file(out)
        with safetensors.safe_open(out, 'pt') as file:
            for alias, stored in (file.metadata() or {}).items():
                if stored in tensors:
                    tensors[alias] = tensors[stored]
        return tensors

    def compare(self, folder):
        """Compares one folder. Returns true if the script reads it."""
        wanted = by_deepspeed(folder)
        if wanted is None:
            common.safemap('convert', folder, self.folder / 'none', '--deepspeed-compat', status=2)
            return False
        self.assert_same_dict(self.by_safemap(folder), wanted)
        return True

    def test_random_folders(self):
        subprocess.run([common.BUILD / 'tests/interop/forge_zero', str(self.rng.randrange(2**31)), '24',
                        self.folder / 'forged'], check=True)
        read = 0
        for folder in sorted((self.folder / 'forged').iterdir()):
            with self.subTest(folder=folder.name):
                read += self.compare(folder)
        self.assertGreater(read, 6)

    @unittest.skipUnless((FIXTURES / 'zero').is_dir(), 'no folders of DeepSpeed beside the checkout')
    def test_real_folders(self):
        read = 0
        for latest in sorted((FIXTURES / 'zero').glob('z*/latest')):
            with self.subTest(folder=latest.parent.name):
                read += self.compare(latest.parent)
        self.assertGreater(read, 10)

    def test_fresh_checkpoints(self):
        for stage in (1, 2, 3):
            world = self.rng.choice([1, 2, 3])
            with self.subTest(stage=stage, world=world):
                self.trained(stage, world)

    def trained(self, stage, world):
        """Trains and saves with DeepSpeed, and compares with what the running engine held."""
        out = self.folder / f'stage{stage}'
        script = pathlib.Path(__file__).with_name('train_zero.py')
        run = subprocess.run([sys.executable, script, str(stage), str(world), out], capture_output=True, check=False,
                             timeout=600)
        if run.returncode != 0:  # it compiles operators, and needs a network of its own
            self.skipTest(run.stderr.decode()[-300:])
        common.safemap('convert', out / 'checkpoint', out / 'out', '--optimizer')
        got = load_file(out / 'out/model.safetensors') | load_file(out / 'out/optimizer/model.safetensors')
        for name, tensor in load_file(out / 'live.safetensors').items():
            self.assert_same(got[name], tensor, name)
        self.assertIn('seen', got)
        self.check_second_names(stage, common.safemap('inspect', out / 'checkpoint'))

    def check_second_names(self, stage, told):
        """A module with two names is saved under the first one; only without stage 3 do files hold the second."""
        said = 'the values of body.2.weight, body.2.bias are those of body.0.weight, body.0.bias'
        self.assertEqual([note.startswith(said) for note in told['notes']].count(True), int(stage == 3), told['notes'])
        second = {tensor['name']: tensor['alias_of'] for tensor in told['tensors'] if 'alias_of' in tensor}
        names = () if stage == 3 else ('weight', 'bias')
        self.assertEqual(second, {f'body.2.{name}': f'body.0.{name}' for name in names})
