"""Compares the names that --strict-globals accepts with those of torch.load(weights_only=True), as docs/untrusted.md
says."""
import json
import pickle
import subprocess
import zipfile

from torch._weights_only_unpickler import _get_allowed_globals

import common
from common import Case

# Allowed by torch, but opaque in safemap.
OPAQUE = {'torch.storage.TypedStorage'}
# Data in safemap, but not allowed by torch.
DATA = {
    'builtins.bool', 'builtins.bytes', 'builtins.dict', 'builtins.float', 'builtins.frozenset', 'builtins.int',
    'builtins.list', 'builtins.str', 'builtins.tuple', 'collections.defaultdict', 'numpy.dtype', 'numpy.ndarray',
    'numpy._core.multiarray._reconstruct', 'numpy._core.multiarray.scalar', 'numpy._core.numeric._frombuffer',
    'torch._tensor._rebuild_from_type', 'torch._utils._rebuild_sparse_csr_tensor', 'torch._utils._rebuild_xla_tensor',
    'torch.autograd.variable.Variable', 'torch.nn.parameter.Buffer',
}
UNKNOWN = {'builtins.eval', 'builtins.object', 'builtins.slice', 'collections.deque', 'copyreg._reconstructor',
           'os.system', 'torch.load', 'torch.nn.Linear', 'torch._utils._rebuild_nothing'}


def is_small_integer(name):
    return name.startswith(('torch.int', 'torch.uint')) and 0 < int(name.lstrip('torch.uin')) < 8


class Globals(Case):
    def takes(self, name):
        module, _, last = name.rpartition('.')
        path = self.folder / 'global.pt'
        with zipfile.ZipFile(path, 'w') as file:
            file.writestr('a/data.pkl', pickle.PROTO + b'\2}X\1\0\0\0xc' + f'{module}\n{last}\n'.encode() + b's.')
        command = [common.BUILD / 'cli/safemap', 'inspect', path, '--strict-globals', '--json']
        told = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
        self.assertIn(told.get('error', {}).get('code'), (None, 'unknown_global'), told)
        return 'error' not in told

    def test_names(self):
        for name in _get_allowed_globals():
            opaque = name in OPAQUE or '.sparse.' in name or is_small_integer(name)
            self.assertEqual(self.takes(name), not opaque, name)
        for name in DATA:
            self.assertNotIn(name, _get_allowed_globals())
            self.assertTrue(self.takes(name), name)
        for name in UNKNOWN:
            self.assertFalse(self.takes(name), name)
