"""Helpers of the interoperability tests: the tool, random tensors, and an equality that handles NaN."""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import torch

# The build folder of the tool and the test programs; set by run.py.
BUILD = None
# SAFEMAP_SEED=... repeats a run that failed.
SEED = int(os.environ.get('SAFEMAP_SEED') or random.SystemRandom().randrange(2**32))

# Every torch dtype that safetensors has a name for, with elements of whole bytes.
NAMES = {
    torch.float64: 'F64', torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16',
    torch.int64: 'I64', torch.int32: 'I32', torch.int16: 'I16', torch.int8: 'I8',
    torch.uint64: 'U64', torch.uint32: 'U32', torch.uint16: 'U16', torch.uint8: 'U8',
    torch.bool: 'BOOL', torch.complex64: 'C64',
    torch.float8_e4m3fn: 'F8_E4M3', torch.float8_e5m2: 'F8_E5M2', torch.float8_e8m0fnu: 'F8_E8M0',
    torch.float8_e4m3fnuz: 'F8_E4M3FNUZ', torch.float8_e5m2fnuz: 'F8_E5M2FNUZ',
}
DTYPES = list(NAMES)


def safemap(*arguments, status=0):
    """Runs the tool with --json, and returns its object."""
    # Random state dicts may have no tensors.
    empty = ['--allow-empty'] if arguments[0] == 'convert' else []
    command = [BUILD / 'cli/safemap', *map(str, arguments), *empty, '--json']
    run = subprocess.run(command, capture_output=True, check=False, timeout=300)
    if run.returncode != status:
        raise AssertionError(f'safemap {" ".join(map(str, arguments))}: exit {run.returncode}\n'
                             f'{run.stdout.decode()}{run.stderr.decode()}')
    return json.loads(run.stdout)


def raw(tensor):
    """Returns the row-major bytes of a tensor's value."""
    # clone() resolves a lazy conjugation or sign to bytes.
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_of(rng, dtype, shape):
    """Returns a tensor of random bits, and therefore with every kind of NaN, zero and subnormal."""
    count = 1
    for n in shape:
        count *= n
    if dtype == torch.bool:
        return torch.tensor([rng.random() < 0.5 for _ in range(count)], dtype=torch.bool).reshape(shape)
    data = bytearray(rng.randbytes(count * dtype.itemsize))
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).clone().view(dtype).reshape(shape)


def shape_of(rng, most=5):
    """Returns a shape of any rank, often with a dimension of one, sometimes with a dimension of zero."""
    return tuple(rng.choice([0, 1, 1, 2, 3, 4, 7] if rng.random() < 0.2 else [1, 2, 3, 5, 8])
                 for _ in range(rng.randrange(most + 1)))


def strided(rng, tensor):
    """Returns a random view: transposed, cut, stepped, expanded, overlapping."""
    for _ in range(rng.randrange(4)):
        kind = rng.randrange(5)
        dims = tensor.dim()
        if kind == 0 and dims > 1:
            tensor = tensor.permute(rng.sample(range(dims), dims))
        elif kind == 1 and dims:
            d = rng.randrange(dims)
            start = rng.randrange(tensor.shape[d] + 1)
            tensor = tensor.narrow(d, start, rng.randrange(tensor.shape[d] - start + 1))
        elif kind == 2 and dims:
            d = rng.randrange(dims)
            tensor = tensor[(slice(None),) * d + (slice(rng.randrange(2), None, rng.choice([2, 3])),)]
        elif kind == 3:
            tensor = tensor.unsqueeze(0).expand(rng.choice([1, 3]), *tensor.shape)
        elif kind == 4 and dims and tensor.shape[-1] > 2:
            tensor = tensor.unfold(dims - 1, 2, 1)
    return tensor


class Case(unittest.TestCase):
    """A test with a folder of its own, and a new random generator in each run."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='safemap-interop-')
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.rng = random.Random(f'{SEED} {self.id()}')

    def assert_same(self, got, wanted, name):
        self.assertEqual(got.dtype, wanted.dtype, name)
        self.assertEqual(tuple(got.shape), tuple(wanted.shape), name)
        self.assertEqual(raw(got), raw(wanted), f'{name}: other bytes')

    def assert_same_dict(self, got, wanted):
        self.assertEqual(sorted(got), sorted(wanted))
        for name, tensor in wanted.items():
            self.assert_same(got[name], tensor, name)


def main(build, modules):
    """Runs the modules' tests; the last line on stdout states how many passed and failed."""
    global BUILD
    BUILD = pathlib.Path(build).absolute()
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromName, modules))
    print(f'SAFEMAP_SEED={SEED}, torch {torch.__version__}', file=sys.stderr)
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(suite)
    failed = len({test.id().split()[0] for test, _ in result.failures + result.errors})
    print(f'{result.testsRun - len(result.skipped) - failed} passed, {failed} failed')
    return 1 if failed else 0
