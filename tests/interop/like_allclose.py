"""Tests that diff with a tolerance agrees with numpy.allclose, tensor by tensor."""
import math

import numpy
import safetensors.numpy

from common import Case, safemap

FLOATS = [numpy.float16, numpy.float32, numpy.float64]
INTEGERS = [numpy.int8, numpy.uint8, numpy.int16, numpy.uint16, numpy.int32, numpy.uint32, numpy.int64, numpy.uint64]
SPECIAL = [0.0, -0.0, 1.0, math.inf, -math.inf, math.nan]


class LikeAllclose(Case):
    def pair(self, dtype):
        """Returns two similar arrays."""
        rng = self.rng
        size = rng.randrange(1, 50)
        if dtype in INTEGERS:
            # Small values, because numpy's integer differences wrap.
            a = numpy.array([rng.randrange(0, 60) for _ in range(size)], dtype)
            return a, (a + numpy.array([rng.choice([0, 0, 0, 1, 2]) for _ in range(size)], dtype)).astype(dtype)
        values = [rng.choice(SPECIAL) if rng.random() < 0.1 else rng.uniform(-8, 8) for _ in range(size)]
        other = [v if rng.random() < 0.7 or not math.isfinite(v) else v + rng.uniform(-0.1, 0.1) for v in values]
        if rng.random() < 0.2:
            other[rng.randrange(size)] = rng.choice(SPECIAL)
        return numpy.array(values, dtype), numpy.array(other, dtype)

    def test_equal_within_a_tolerance(self):
        for _ in range(20):
            a, b = {}, {}
            for i in range(40):
                a[f't{i}'], b[f't{i}'] = self.pair(self.rng.choice(FLOATS + INTEGERS))
                if b[f't{i}'].dtype in FLOATS and self.rng.random() < 0.3:
                    b[f't{i}'] = b[f't{i}'].astype(self.rng.choice(FLOATS))
            safetensors.numpy.save_file(a, self.folder / 'a.safetensors')
            safetensors.numpy.save_file(b, self.folder / 'b.safetensors')
            atol, rtol = self.rng.choice([0, 0.01, 0.05, 1]), self.rng.choice([0, 0.001, 0.02])
            wide = {name: numpy.longdouble if one.dtype in INTEGERS else numpy.float64 for name, one in a.items()}
            pairs = {name: (a[name].astype(wide[name]), b[name].astype(wide[name])) for name in a}
            equal = {name: numpy.allclose(x, y, rtol, atol, equal_nan=True) for name, (x, y) in pairs.items()}
            told = safemap('diff', self.folder / 'a.safetensors', self.folder / 'b.safetensors', '--cast',
                           '--atol', atol, '--rtol', rtol, status=0 if all(equal.values()) else 1)
            found = {d['name']: d['max_abs'] for d in told['different']}
            self.assertEqual(sorted(found), sorted(name for name in a if not equal[name]))
            found |= {c['name']: c['max_abs'] for c in told['close']}
            for name, (x, y) in pairs.items():
                with numpy.errstate(invalid='ignore'):
                    most = float(numpy.max(numpy.where((x == y) | (numpy.isnan(x) & numpy.isnan(y)), 0, abs(x - y))))
                self.assertEqual(found.get(name, 0), most if math.isfinite(most) else None, name)
