"""Tests safemap hash."""
import hashlib
import subprocess
import time

import case
from case import anonymous_bytes, Case, SMALL
from forged import write_sparse


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
        write_sparse(self.folder / 'big.safetensors', ['w'], size)
        for words in (('hash', 'big.safetensors'), ('diff', 'big.safetensors', 'big.safetensors')):
            process = subprocess.Popen([case.SAFEMAP, *words, '--quiet'], cwd=self.folder)
            peak = 0
            while process.poll() is None:
                peak = max(peak, anonymous_bytes(process.pid))
                time.sleep(0.001)
            self.assertEqual(process.returncode, 0)
            self.assertGreater(peak, 0)
            self.assertLess(peak, 64 << 20)
