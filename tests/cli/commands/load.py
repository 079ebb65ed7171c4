"""Tests safemap load."""
import math
import re
from random import Random

from case import Case, SMALL
from forged import safetensors


class Load(Case):
    KEYS = ['tensors', 'bytes', 'seconds', 'bytes_per_second', 'peak_device_bytes', 'peak_staging_bytes',
            'peak_anon_bytes', 'uploaded_bytes', 'stall_seconds', 'paths']
    NOTHING = '99aa06d3014798d86001c324468d497f'  # XXH3-128 of no bytes, from xxHash's own test vectors

    def test_json(self):
        told = self.done('load', 'small.safetensors', '--device', 'host')
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['tensors'], told['bytes'], told['uploaded_bytes']), (5, 72, 72))
        self.assertEqual(list(told['paths']), ['pread', 'direct'])
        self.assertEqual(sum(told['paths'].values()), 72)
        self.assertEqual(told['peak_device_bytes'], 4096)  # one block for small bundles

    def test_digests_only_when_asked(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--digest')
        self.assertEqual(list(told), self.KEYS + ['digests'])
        self.assertEqual(list(told['digests']), [name for name, *_ in SMALL])
        self.assertEqual(told['digests']['none'], self.NOTHING)
        self.assertTrue(all(re.fullmatch('[0-9a-f]{32}', d) for d in told['digests'].values()))
        self.assertEqual(len(set(told['digests'].values())), 5)

    def test_text(self):
        result = self.safemap('load', 'small.safetensors', '--device', 'host', '--digest', '--budget', '1MB')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('load', result.out)

    def test_the_budget_holds(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--budget', '24', '--digest')
        free = self.done('load', 'small.safetensors', '--device', 'host', '--digest')
        self.assertEqual(told['digests'], free['digests'])
        self.assertEqual(told['peak_device_bytes'], 24)
        self.refused('budget_exceeded', 2, 'load', 'small.safetensors', '--device', 'host', '--budget', '23')

    def test_tensors_in_flight_stay_within_the_budget(self):
        mib = 1 << 20
        large = [(f'w.{i}', 'U8', [mib], bytes([i]) * mib) for i in range(12)]
        (self.folder / 'large.safetensors').write_bytes(safetensors(large))
        free = self.done('load', 'large.safetensors', '--device', 'host', '--digest')
        told = self.done('load', 'large.safetensors', '--device', 'host', '--digest', '--budget', '5MiB')
        self.assertEqual(told['digests'], free['digests'])
        self.assertLessEqual(told['peak_device_bytes'], 5 * mib)
        self.assertEqual((told['bytes'], told['uploaded_bytes'] >= 12 * mib), (12 * mib, True))

    def test_another_pass_uploads_nothing_if_everything_fits(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--repeat', '3')
        self.assertEqual((told['tensors'], told['bytes'], told['uploaded_bytes']), (5, 72, 72))
        tight = self.done('load', 'small.safetensors', '--device', 'host', '--repeat', '3', '--budget', '24')
        self.assertGreater(tight['uploaded_bytes'], 72)
        self.assertLessEqual(tight['uploaded_bytes'], 3 * 72)

    def test_a_pass_uploads_what_does_not_stay_and_the_last_one_nothing_ahead(self):
        mib = 1 << 20
        (self.folder / 'equal.safetensors').write_bytes(
            safetensors([(f'w.{i}', 'U8', [mib], bytes(mib)) for i in range(8)]))
        for tensors in range(2, 7):  # that the budget has room for
            told = self.done('load', 'equal.safetensors', '--device', 'host', '--repeat', '4', '--budget',
                             str(tensors * mib))
            self.assertEqual((told['bytes'], told['uploaded_bytes']), (8 * mib, (8 + 3 * (10 - tensors)) * mib))
            self.assertGreaterEqual(told['peak_anon_bytes'], told['peak_device_bytes'])

    def test_an_error_of_a_tensor_names_the_file(self):
        error = self.refused('budget_exceeded', 2, 'load', 'small.safetensors', '--device', 'host', '--budget', '23')
        self.assertEqual((error['path'], error['tensor']), ('small.safetensors', 'layers.0.w'))
        (self.folder / 'f4.safetensors').write_bytes(safetensors([('y', 'F4', [2, 1], b'\0')]))
        error = self.refused('partial_byte_slice', 2, 'load', 'f4.safetensors', '--device', 'host', '--rank', '0/2')
        self.assertEqual((error['path'], error['tensor']), ('f4.safetensors', 'y'))

    def test_a_number_of_passes_is_whole(self):
        error = self.refused('invalid_argument', 2, 'load', 'small.safetensors', '--device', 'host', '--repeat', '1.5')
        self.assertEqual(error['message'], "--repeat: '1.5' is not a whole number from 1 to 1000000")

    def test_every_pass_under_half_of_the_size_has_the_right_digests(self):
        random = Random(19)
        sizes = [random.randrange(1, 1 << random.randrange(1, 21)) for _ in range(60)]
        tensors = [(f'w.{i}', 'U8', [size], random.randbytes(size)) for i, size in enumerate(sizes)]
        (self.folder / 'many.safetensors').write_bytes(safetensors(tensors))
        budget = max(sum(sizes) // 2, max(sizes))
        right = self.done('hash', 'many.safetensors')['tensors']
        for passes in range(1, 4):
            told = self.done('load', 'many.safetensors', '--device', 'host', '--digest', '--budget', str(budget),
                             '--repeat', str(passes))
            self.assertEqual(told['digests'], right)
            self.assertLessEqual(told['peak_device_bytes'], budget)
            self.assertEqual(told['bytes'], sum(sizes))
            # Each pass has to bring at least what cannot have stayed.
            self.assertGreaterEqual(told['uploaded_bytes'], sum(sizes) + (passes - 1) * (sum(sizes) - budget))

    def test_tensors_larger_than_a_third_of_the_budget(self):
        # Each is a bundle of its own, and two of them do not always fit.
        sizes = [400_000, 100, 700_000, 500_001, 350_000, 100, 100, 999_999]
        tensors = [(f'w.{i}', 'U8', [size], Random(i).randbytes(size)) for i, size in enumerate(sizes)]
        (self.folder / 'large.safetensors').write_bytes(safetensors(tensors))
        right = self.done('hash', 'large.safetensors')['tensors']
        for passes in '1', '3':
            told = self.done('load', 'large.safetensors', '--device', 'host', '--digest', '--budget', '999999',
                             '--repeat', passes)
            self.assertEqual(told['digests'], right)
            self.assertEqual(told['peak_device_bytes'], 999_999)
        self.refused('budget_exceeded', 2, 'load', 'large.safetensors', '--device', 'host', '--budget', '999998')

    def test_ranks_share_the_rows(self):
        told = [self.done('load', 'small.safetensors', '--device', 'host', '--rank', f'{r}/2', '--digest')
                for r in range(2)]
        self.assertEqual([t['bytes'] for t in told], [12 + 12 + 8 + 4] * 2)
        # The same bytes in a file of their own.
        parts = [(name, dtype, [shape[0] // 2, *shape[1:]], data[len(data) // 2:])
                 for name, dtype, shape, data in SMALL]
        (self.folder / 'second.safetensors').write_bytes(safetensors(parts))
        whole = self.done('load', 'second.safetensors', '--device', 'host', '--digest')
        self.assertEqual(told[1]['digests'], whole['digests'])

    def test_a_rank_has_the_digests_of_its_rows(self):
        shapes = [[7, 3], [10], [4, 5, 6], [1, 9], [64, 1000], []]  # seven rows for three ranks: 3, 3, 1
        tensors = [(f'w.{i}', 'U8', shape, Random(i).randbytes(math.prod(shape))) for i, shape in enumerate(shapes)]
        (self.folder / 'whole.safetensors').write_bytes(safetensors(tensors))
        for ranks in (3, 4):
            for rank in range(ranks):
                parts = []
                for name, dtype, shape, data in tensors:
                    rows = -(-shape[0] // ranks) if shape else 1
                    row = math.prod(shape[1:])
                    part = data[rank * rows * row:(rank + 1) * rows * row] if shape else data
                    parts.append((name, dtype, [len(part) // row, *shape[1:]] if shape else [], part))
                (self.folder / 'part.safetensors').write_bytes(safetensors(parts))
                told = self.done('load', 'whole.safetensors', '--device', 'host', '--rank', f'{rank}/{ranks}',
                                 '--digest', '--budget', '64000')
                self.assertEqual(told['digests'], self.done('hash', 'part.safetensors')['tensors'])
                self.assertEqual(told['bytes'], sum(len(data) for *_, data in parts))

    def test_a_rank_after_the_last_chunk_has_nothing(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--rank', '3/4', '--digest')
        self.assertEqual((told['tensors'], told['bytes']), (5, 0))
        self.assertEqual(set(told['digests'].values()), {self.NOTHING})

    def test_a_missing_device_is_refused(self):
        for device in ('cuda:99', 'opencl:99', 'abacus', ''):
            self.refused('no_such_device', 2, 'load', 'small.safetensors', '--device', device)

    def test_selected_tensors_only(self):
        told = self.done('load', 'small.safetensors', '--device', 'host', '--include', 'layers.1*', '--digest')
        self.assertEqual((told['tensors'], told['bytes']), (1, 24))
        self.assertEqual(list(told['digests']), ['layers.1.w'])
