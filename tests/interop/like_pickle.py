"""Tests that safemap reads every pickle as Python's unpicklers do, or refuses it: it names whatever they import."""
import _compat_pickle
import io
import pathlib
import pickle
import pickletools
import subprocess
import sys
import unittest

import torch

import common
import pickles
from common import Case, safemap


def dumped(pickler, value, protocol):
    file = io.BytesIO()
    pickler(file, protocol).dump(value)
    return file.getvalue()


class Pickles(Case):
    def verdicts(self, data):
        return pickles.verdicts(common.BUILD / 'tests/interop/pickle_verdict', data)

    def test_no_unpickler_imports_a_global_that_safemap_does_not_name(self):
        run = subprocess.run([sys.executable, pathlib.Path(pickles.__file__),
                              common.BUILD / 'tests/interop/pickle_verdict', '5000', str(common.SEED)],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=600)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_python_2_names_are_mapped_as_python_3_maps_them(self):
        names = list(_compat_pickle.NAME_MAPPING) + [(module, 'any') for module in _compat_pickle.IMPORT_MAPPING]
        names += [('exceptions', 'any'), ('urllib', 'any'), ('os', 'system'), ('__builtin__', 'eval')]
        for protocol in range(6):
            said = self.verdicts([b'\x80%cc%s\n%s\n.' % (protocol, module.encode(), name.encode())
                                  for module, name in names])
            for (module, name), verdict in zip(names, said, strict=True):
                wanted = (module, name)
                if protocol < 3:
                    wanted = _compat_pickle.NAME_MAPPING.get(
                        wanted, (_compat_pickle.IMPORT_MAPPING.get(module, module), name))
                self.assertEqual(verdict['names'], [list(wanted)], (protocol, module, name))

    def test_framed_pickles_are_read(self):
        large = ['x' * 70000, b'x' * 70000, bytearray(b'x' * 70000), list(range(40000)), {'a': b'y' * 200000, 'b': 1},
                 ['small', b'z' * 65536, 'small', bytearray(65535)], None, 'abc']
        written = []
        for value in large + [large]:
            for protocol in range(6):
                written += [dumped(pickler, value, protocol) for pickler in (pickle.Pickler, pickle._Pickler)]
                written.append(pickle.dumps(value, protocol))
                written.append(pickletools.optimize(written[-1]))
        for data, verdict in zip(written, self.verdicts(written), strict=True):
            self.assertIsNone(verdict['error'], (data[:40], verdict))
            self.assertEqual(verdict['consumed'], len(data))

    def test_memo_numbers_that_continue_after_an_earlier_dump_are_read(self):
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 2)
        for _ in range(20):
            begin = file.tell()
            pickler.dump([[] for _ in range(600)])
        (verdict,) = self.verdicts([file.getvalue()[begin:]])
        self.assertIsNone(verdict['error'])

    def test_files_of_torch_are_read_at_every_protocol(self):
        state = {'w': torch.arange(6.0), 'text': 'x' * 70000, 'bytes': b'x' * 70000}
        for protocol in range(2, 6):
            for zipped in (True, False):
                path = self.folder / f'{protocol}{zipped}.pt'
                torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
                told = safemap('inspect', path, '--strict-globals')
                self.assertEqual([tensor['name'] for tensor in told['tensors']], ['w'])


if __name__ == '__main__':
    unittest.main()
