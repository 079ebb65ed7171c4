"""Tests that casts match torch bit for bit: every value of the narrow formats, every boundary between them, random
bits."""
import safetensors.torch
import torch

import common
from common import Case, safemap

WIDE = [torch.float64, torch.float32]
NARROW = [torch.float16, torch.bfloat16,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
FLOATS = WIDE + NARROW
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Casts whose NaN bits in torch depend on the processor, or on the position in the tensor.
NAN_VARIES = ({(source, torch.bfloat16) for source in WIDE} |
              {(source, torch.float16) for source in FLOATS if source != torch.float32} |
              {(torch.float16, torch.float32), (torch.float16, torch.float64)})


def words(tensor):
    return tensor.view(WORDS[tensor.itemsize])


def every_value(dtype):
    bits = 8 * dtype.itemsize
    return torch.arange(2**bits).to(torch.int32).to(WORDS[dtype.itemsize]).view(dtype)


def boundaries(dtype):
    """Returns each value of a narrow dtype, each midpoint between two values, and the neighbours of these."""
    values = every_value(dtype).double()
    values = values[values.isfinite()].sort().values
    steps = values[1:] - values[:-1]
    beyond = torch.stack([values[-1] + steps[-1] / 2, values[0] - steps[0] / 2])
    exact = torch.cat([values, values[:-1] + steps / 2, beyond])
    near = [x.nextafter(x.new_tensor(way)).double() for x in (exact, exact.float()) for way in (torch.inf, -torch.inf)]
    return torch.cat([exact, *near])


class Casts(Case):
    def inputs(self, dtype):
        if dtype in NARROW:
            return every_value(dtype)
        # Random bits, including NaNs with payloads; exponents of the narrow formats; their boundaries.
        bits = torch.frombuffer(bytearray(self.rng.randbytes(100_001 * dtype.itemsize)), dtype=dtype).clone()
        moderate = torch.ldexp(bits.double().frexp().mantissa, torch.arange(len(bits)) % 44 - 26).to(dtype)
        return torch.cat([bits, moderate, *(boundaries(narrow).to(dtype) for narrow in NARROW)])

    def test_every_pair(self):
        state = {common.NAMES[dtype]: self.inputs(dtype) for dtype in FLOATS}
        torch.save(state, self.folder / 'in.pt')
        for target in FLOATS:
            out = self.folder / f'{common.NAMES[target]}.safetensors'
            report = safemap('convert', self.folder / 'in.pt', out, '--dtype', common.NAMES[target])
            loaded = safetensors.torch.load_file(out)
            for source, values in ((dtype, state[common.NAMES[dtype]]) for dtype in FLOATS if dtype != target):
                pair = f'{common.NAMES[source]}->{common.NAMES[target]}'
                with self.subTest(pair=pair):
                    wanted = values.to(target)
                    got = loaded[common.NAMES[source]]
                    self.assertEqual(got.dtype, target)
                    self.assert_same_bits(got, wanted, values, (source, target) in NAN_VARIES)
                    self.assert_counts(report['cast'][pair], values, target)

    def assert_same_bits(self, got, wanted, values, nan_varies):
        equal = words(got) == words(wanted)
        if nan_varies:
            equal |= values.double().isnan() & got.double().isnan() & wanted.double().isnan()
        first = (~equal).nonzero()[:1].flatten().tolist()
        self.assertFalse(first, [(values[i].item(), got[i].item(), wanted[i].item()) for i in first])

    def assert_counts(self, counts, values, target):
        values = values.double()
        narrow = values.float()
        if target == torch.float8_e4m3fn:  # saturates: 464 is the midpoint between the largest value and the next one
            fits = narrow.abs() <= 464
        else:
            fits = narrow.to(target).double().isfinite()
        overflowed = values.isfinite() & ~fits
        self.assertEqual(counts, {'tensors': 1, 'values': len(values), 'overflowed': int(overflowed.sum()),
                                  'non_finite': int((~values.isfinite()).sum())})

    def test_only_floats_are_cast(self):
        state = {name: torch.tensor([0, 1, 1]).to(dtype) for dtype, name in common.NAMES.items() if dtype not in FLOATS}
        torch.save(state, self.folder / 'in.pt')
        report = safemap('convert', self.folder / 'in.pt', self.folder / 'out.safetensors', '--dtype', 'f8_e4m3')
        self.assertEqual(report['cast'], {})
        self.assert_same_dict(safetensors.torch.load_file(self.folder / 'out.safetensors'), state)
