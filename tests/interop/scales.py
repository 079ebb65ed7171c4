"""Tests --apply-scales against torch, bit for bit: every convention, dtype and shape of scales, and blocks with
remainders."""
import json

import safetensors.torch
import torch

import common
from casts import words
from common import Case, safemap

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
TARGETS = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64]
SCALES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# Each convention: the names of numbers, scales and of a tensor that goes with the scales.
CONVENTIONS = [('weight', 'scale_weight', 'scale_input'), ('weight', 'weight_scale', 'input_scale'),
               ('weight', 'weight_scale_inv', None), ('gate_up_proj', 'gate_up_proj_scale', None),
               ('gate_up_proj', 'gate_up_proj_scale_inv', None), ('weight', 'qscale_weight', 'qscale_act'),
               ('weight', 'weight_scales', None)]


def expanded(scales, shape, block):
    """Returns a scale for each number, by the plain rule: index i of a dimension has the scale i // block."""
    for dim, (length, size) in enumerate(zip(shape, block)):
        scales = scales.repeat_interleave(size, dim).narrow(dim, 0, length)
    return scales


class Scales(Case):
    def numbers(self, shape):
        return common.tensor_of(self.rng, self.rng.choice(FP8), shape)

    def scales_of(self, shape, dtype):
        if dtype == torch.float8_e8m0fnu:
            return torch.tensor([self.rng.randrange(90, 160) for _ in range(torch.Size(shape).numel())],
                                dtype=torch.uint8).view(dtype).reshape(shape)
        count = torch.Size(shape).numel()
        values = [self.rng.choice([-1, 1, 1, 1]) * 2 ** self.rng.uniform(-12, 9) for _ in range(count)]
        return torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)

    def quantized(self):
        """Returns numbers, scales, and a scale for each number."""
        dtype = self.rng.choice(SCALES)
        rows, columns = self.rng.randrange(2, 400), self.rng.randrange(2, 400)
        numbers = self.numbers((rows, columns))
        kind = self.rng.randrange(7)
        if kind == 0:  # one scale
            scales = self.scales_of(self.rng.choice([(), (1,), (1, 1)]), dtype)
            return numbers, scales, scales.to(torch.float32).reshape(1, 1)
        if kind == 1:  # one for each row
            scales = self.scales_of(self.rng.choice([(rows,), (rows, 1)]), dtype)
            return numbers, scales, scales.to(torch.float32).reshape(rows, 1)
        if kind == 2:  # MX
            scales = self.scales_of((rows, -(-columns // 32)), torch.float8_e8m0fnu)
            return numbers, scales, expanded(scales.to(torch.float32), (rows, columns), (1, 32))
        if kind == 3:  # experts
            numbers = self.numbers((3, rows, columns))
            scales = self.scales_of((3, -(-rows // 128), -(-columns // 128)), dtype)
            return numbers, scales, expanded(scales.to(torch.float32), numbers.shape, (1, 128, 128))
        if kind == 4:  # experts, one scale for each row
            numbers = self.numbers((3, rows, columns))
            scales = self.scales_of((3, rows, 1), dtype)
            return numbers, scales, scales.to(torch.float32)
        if kind == 5:  # groups of one row
            columns = 64 * self.rng.randrange(2, 6)
            numbers = self.numbers((rows, columns))
            scales = self.scales_of((rows, columns // 64), dtype)
            return numbers, scales, expanded(scales.to(torch.float32), (rows, columns), (1, 64))
        scales = self.scales_of((-(-rows // 128), -(-columns // 128)), dtype)
        return numbers, scales, expanded(scales.to(torch.float32), (rows, columns), (128, 128))

    def assert_product(self, got, numbers, each, target):
        wanted = (numbers.to(torch.float32) * each).to(target)
        self.assertEqual(got.dtype, target)
        equal = words(got) == words(wanted)
        equal |= got.double().isnan() & wanted.double().isnan()  # the bits of a NaN vary: see casts.py
        first = (~equal).nonzero()[:1].tolist()
        self.assertFalse(first, first and [t[tuple(first[0])].item() for t in (numbers, got, wanted)])

    def test_random_tensors(self):
        for target in [None, *TARGETS]:
            state, products = {}, {}
            for number, (name, scale, beside) in enumerate(CONVENTIONS * 3):
                numbers, scales, each = self.quantized()
                state[f'model.{number}.{name}'] = numbers
                state[f'model.{number}.{scale}'] = scales
                if beside:
                    state[f'model.{number}.{beside}'] = torch.tensor([1.5])
                products[f'model.{number}.{name}'] = numbers, each
            plain = torch.randn(5, dtype=torch.bfloat16)
            source, out = self.folder / 'in.safetensors', self.folder / f'{target}.safetensors'
            safetensors.torch.save_file({**state, 'model.norm.weight': plain}, source)
            more = [] if target is None else ['--dtype', common.NAMES[target]]
            report = safemap('convert', source, out, '--apply-scales', *more)
            loaded = safetensors.torch.load_file(out)
            self.assertEqual(set(loaded), {*products, 'model.norm.weight'})
            self.assertEqual({object['name'] for object in report['skipped']}, set(state) - set(products))
            self.assertEqual(report['scaled']['tensors'], len(products))
            for name, (numbers, each) in products.items():
                with self.subTest(name=name, target=target, scales=tuple(each.shape)):
                    self.assert_product(loaded[name], numbers, each, target or torch.bfloat16)
            wanted = torch.bfloat16 if target is None else target
            self.assertTrue(torch.equal(loaded['model.norm.weight'].float(), plain.to(wanted).float()))

    def test_stated_block_and_config(self):
        """The block size of config.json counts, also where it leaves a remainder; the config loses the quantisation."""
        folder = self.folder / 'model'
        folder.mkdir()
        numbers = self.numbers((100, 70))
        scales = self.scales_of((2, 2), torch.float32)
        safetensors.torch.save_file({'l.weight': numbers, 'l.weight_scale_inv': scales}, folder / 'model.safetensors')
        config = {'hidden_size': 70, 'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [60, 50]},
                  'torch_dtype': 'bfloat16'}
        (folder / 'config.json').write_text(json.dumps(config, indent=2))
        safemap('convert', folder, self.folder / 'out', '--apply-scales')
        got = safetensors.torch.load_file(self.folder / 'out/model.safetensors')
        self.assertEqual(set(got), {'l.weight'})
        self.assert_product(got['l.weight'], numbers, expanded(scales, (100, 70), (60, 50)), torch.bfloat16)
        del config['quantization_config']
        self.assertEqual((self.folder / 'out/config.json').read_text(), json.dumps(config, indent=2))
        # Without it, blocks of 50 and of 60 rows are equally likely.
        (folder / 'config.json').unlink()
        error = safemap('convert', folder, self.folder / 'other', '--apply-scales', status=2)['error']
        self.assertEqual(error['code'], 'quantized_cast')

    def test_torch_file(self):
        """A nested .pt with transposed numbers: the structure document names what is left."""
        numbers = self.numbers((30, 200)).t()
        state = {'model': {'l.weight': numbers, 'l.weight_scale': torch.tensor(0.25), 'b': torch.ones(2)}, 'step': 3}
        torch.save(state, self.folder / 'in.pt')
        safemap('convert', self.folder / 'in.pt', self.folder / 'out.safetensors', '--apply-scales')
        got = safetensors.torch.load_file(self.folder / 'out.safetensors')
        self.assert_product(got['l.weight'], numbers, torch.tensor(0.25), torch.bfloat16)
        self.assertEqual(set(got), {'l.weight', 'b'})
        safemap('verify', self.folder / 'out.safetensors')
