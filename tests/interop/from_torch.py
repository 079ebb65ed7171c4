"""Tests that the safetensors package loads converted files of torch.save with the same content."""
import collections
import pickle

import safetensors
import safetensors.torch
import torch

import common
from common import Case, safemap, shape_of, strided, tensor_of

PROTOCOLS = [2, 3, 4, 5]


def escaped(key):
    """Returns a dictionary key as a segment of a tensor's name, as docs/format.md defines it."""
    if isinstance(key, bool):
        return '~true' if key else '~false'
    if key is None:
        return '~none'
    if isinstance(key, int):
        return str(key)
    digits = key[1:] if key.startswith('-') else key
    mark = '~s' if key in ('', '__metadata__') or (digits.isascii() and digits.isdigit()) else ''
    return mark + key.replace('~', '~0').replace('/', '~1')


def names_of(tree, path=()):
    """Returns {name: tensor} of a nested state dict."""
    if isinstance(tree, torch.Tensor):
        return {'/'.join(path): tree}
    found = {}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    for key, value in items:
        found.update(names_of(value, (*path, escaped(key))))
    return found


class FromTorch(Case):
    def convert(self, state, *options, protocol=2, save=torch.save):
        """Saves `state` with torch and converts it to one file. Returns what the package loads, and the tool's report.
        """
        save(state, self.folder / 'in.pt', pickle_protocol=protocol)
        out = self.folder / 'out.safetensors'
        out.unlink(missing_ok=True)
        report = safemap('convert', self.folder / 'in.pt', out, *options)
        self.assertTrue(safemap('verify', out)['ok'])
        return safetensors.torch.load_file(out), report

    def metadata(self):
        with safetensors.safe_open(self.folder / 'out.safetensors', 'pt') as file:
            return file.metadata()

    def test_every_dtype_and_protocol(self):
        for protocol in PROTOCOLS:
            with self.subTest(protocol=protocol):
                state = {f'{name}.{i}': tensor_of(self.rng, dtype, shape_of(self.rng))
                         for dtype, name in common.NAMES.items() for i in range(4)}
                loaded, report = self.convert(state, protocol=protocol)
                self.assert_same_dict(loaded, state)
                self.assertEqual(report['tensors'], len(state))
                self.assertEqual(report['skipped'], [])

    def test_the_format_before_zips(self):
        def save(state, file, **options):
            torch.save(state, file, _use_new_zipfile_serialization=False, **options)

        base = tensor_of(self.rng, torch.float32, (64, 33))
        for protocol in [1, *PROTOCOLS]:
            with self.subTest(protocol=protocol):
                state = {f'{name}.{i}': strided(self.rng, tensor_of(self.rng, dtype, shape_of(self.rng)))
                         for dtype, name in common.NAMES.items() for i in range(4)}
                state |= {f'part.{i}': base[i:, i:] for i in range(3)}
                loaded, report = self.convert(state, protocol=protocol, save=save)
                self.assert_same_dict(loaded, state)
                self.assertEqual(report['skipped'], [])

    def test_plain_pickles(self):
        def save(state, file, pickle_protocol):
            file.write_bytes(pickle.dumps(state, pickle_protocol))

        for protocol in [0, 1, *PROTOCOLS]:
            with self.subTest(protocol=protocol):
                state = {f'{name}.{i}': strided(self.rng, tensor_of(self.rng, dtype, shape_of(self.rng)))
                         for dtype, name in common.NAMES.items() for i in range(2)}
                loaded, _ = self.convert({'in': state, 'epoch': 3}, protocol=protocol, save=save)
                self.assert_same_dict(loaded, state)  # the only part with tensors

    def test_plain_pickles_of_quantized_tensors(self):
        values = torch.arange(8.).reshape(2, 4)
        for dtype in (torch.qint8, torch.quint4x2):
            tensor = torch.quantize_per_channel(values, torch.tensor([.1, .2]), torch.zeros(2), 0, dtype)
            listed = []
            for save in (torch.save, lambda state, file: file.write_bytes(pickle.dumps(state))):
                file = self.folder / 'quantized.pt'
                save({'a': torch.ones(2), 'q': tensor}, file)
                listed.append([(each['name'], each['shape']) for each in safemap('inspect', file)['tensors']])
            self.assertEqual(*listed)

    def test_script_modules(self):
        def save(module, file, **_):
            torch.jit.script(module).save(str(file))

        model = torch.nn.Sequential(torch.nn.Linear(9, 5), torch.nn.BatchNorm1d(5),
                                    torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.ReLU()))
        loaded, report = self.convert(model, save=save)
        self.assert_same_dict(loaded, model.state_dict())
        self.assertEqual(report['skipped'], [])

    def test_any_strides(self):
        rng = self.rng
        state = {f'{i}.w': strided(rng, tensor_of(rng, rng.choice(common.DTYPES), shape_of(rng))) for i in range(200)}
        loaded, _ = self.convert(state)
        self.assert_same_dict(loaded, state)

    def test_views_of_one_storage(self):
        base = tensor_of(self.rng, torch.float32, (64, 33))
        state = {f'part.{i}': strided(self.rng, base[i:40 + i, i:]) for i in range(12)}
        loaded, _ = self.convert(state)
        # Views that happen to be equal are ties.
        self.assert_same_dict({**loaded, **{alias: loaded[stored] for alias, stored in self.metadata().items()
                                            if alias != 'format'}}, state)

    def test_lazy_conjugate_and_negative(self):
        numbers = torch.complex(torch.randn(5, 7), torch.randn(5, 7))
        state = {'plain': numbers.clone(), 'conj': numbers.clone().conj(), 'negative': numbers.clone().conj().imag,
                 'conj of a view': numbers.clone().t()[1:].conj()}
        self.assertTrue(state['conj'].is_conj() and state['negative'].is_neg())
        loaded, _ = self.convert(state)
        self.assert_same_dict(loaded, state)

    def test_tied_tensors_are_stored_once(self):
        weight = tensor_of(self.rng, torch.bfloat16, (16, 8))
        state = collections.OrderedDict(wte=weight, h=tensor_of(self.rng, torch.float16, (3,)), lm_head=weight,
                                        again=weight.view(16, 8))
        loaded, report = self.convert(state)
        self.assert_same_dict(loaded, {'wte': weight, 'h': state['h']})
        self.assertEqual(report['aliases'], [['wte', 'lm_head', 'again']])
        self.assertEqual(self.metadata(), {'format': 'pt', 'lm_head': 'wte', 'again': 'wte'})

    def test_nested_training_state(self):
        model = torch.nn.Sequential(torch.nn.Linear(9, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.rng.random())
        for _ in range(3):
            model(torch.randn(4, 9)).square().sum().backward()
            optimizer.step()
        state = {'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': 3, 'loss': [0.5, 0.25],
                 'rng': torch.get_rng_state(), 'args': {'name': 'x', 'betas': (0.9, 0.95), 'none': None}}
        for protocol in PROTOCOLS:
            with self.subTest(protocol=protocol):
                loaded, _ = self.convert(state, protocol=protocol)
                self.assert_same_dict(loaded, names_of(state))
                self.assertIn('optimizer/state/0/exp_avg', loaded)

    def test_names_of_awkward_keys(self):
        keys = ['a/b', 'a~b', '~', '~s0', '', '0', '-7', '__metadata__', 'a.b', 'é', '名', 'x y', '"',
                0, 7, -7, None, True]
        inner = {key: tensor_of(self.rng, torch.uint8, (i,)) for i, key in enumerate(keys)}
        state = {'in': inner, 'list': [inner['a/b'].clone(), (tensor_of(self.rng, torch.int16, (2, 2)),)]}
        loaded, _ = self.convert(state)
        self.assert_same_dict(loaded, names_of(state))

    def test_parameters_and_buffers_are_tensors(self):
        state = {'p': torch.nn.Parameter(torch.randn(3, 4)), 'b': torch.nn.Buffer(torch.randn(2)),
                 'v': torch.nn.Parameter(torch.randn(6, 4)).t()}
        loaded, _ = self.convert(state)
        self.assert_same_dict(loaded, state)

    def cast_state(self):
        """Returns tensors of every floating dtype, with values that are hard to round, and some tensors that are never
        cast."""
        state = {}
        for i, dtype in enumerate([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
                                   torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]):
            # torch rounds F64 to F32 first and then again. A value that is already F32 is rounded only once.
            source = torch.float32 if dtype == torch.float64 else dtype
            state[f'bits.{i}'] = tensor_of(self.rng, source, (257, 3)).to(dtype)
            state[f'small.{i}'] = strided(self.rng, torch.randn(31, 8).to(dtype))
        halfway = torch.arange(2**16, dtype=torch.int32) * 0x8000 + 0x3F000000
        state['halfway'] = halfway.view(torch.float32).clone()
        state['count'] = tensor_of(self.rng, torch.int64, (5,))
        state['mask'] = tensor_of(self.rng, torch.bool, (5, 2))
        return state

    def test_casts_round_as_torch_does(self):
        for option, dtype in (('bf16', torch.bfloat16), ('f16', torch.float16), ('F32', torch.float32)):
            with self.subTest(dtype=option):
                state = self.cast_state()
                loaded, _ = self.convert(state, '--dtype', option)
                self.assertEqual(sorted(loaded), sorted(state))
                for name, tensor in state.items():
                    wanted = tensor.to(dtype) if tensor.is_floating_point() else tensor
                    if tensor.is_floating_point():
                        # The bits of a cast NaN depend on torch's instruction set; that it stays a NaN does not.
                        nan = tensor.to(torch.float32).isnan()
                        self.assertTrue(torch.equal(loaded[name].to(torch.float32).isnan(), nan), name)
                        wanted, loaded[name] = wanted.masked_fill(nan, 0), loaded[name].masked_fill(nan, 0)
                    self.assert_same(loaded[name], wanted, name)

    def test_zips_followed_by_other_bytes_are_read_as_torch_does_or_refused(self):
        one, two = ({'w': tensor_of(self.rng, torch.uint8, [64])} for _ in range(2))
        saved = []
        for state in (one, two):
            torch.save(state, self.folder / 'in.pt')
            saved.append((self.folder / 'in.pt').read_bytes())
        # The files are small, because miniz fails to find the end record in some small zips followed by thousands of
        # bytes.
        more = self.rng.randbytes(self.rng.randrange(1, 2000)).replace(b'PK', b'..')
        for name, data in (('more.pt', saved[0] + more), ('both.pt', saved[0] + saved[1])):
            (self.folder / name).write_bytes(data)
            self.assert_same_dict(torch.load(self.folder / name, weights_only=True), one)
        safemap('convert', self.folder / 'more.pt', self.folder / 'out.safetensors')
        self.assert_same_dict(safetensors.torch.load_file(self.folder / 'out.safetensors'), one)
        # zipfile would read the second one.
        refused = safemap('hash', self.folder / 'both.pt', status=1)
        self.assertEqual(refused['error']['code'], 'zip_bad_directory')

    def test_shards_hold_the_same_tensors_as_one_file(self):
        state = {f'h.{i}.{name}': tensor_of(self.rng, self.rng.choice(common.DTYPES), shape_of(self.rng))
                 for i in range(12) for name in ('w', 'b', 'g')}
        torch.save(state, self.folder / 'in.pt')
        out = self.folder / 'out'
        report = safemap('convert', self.folder / 'in.pt', out, '--max-shard-size', '300')
        shards = [name for name in report['files'] if name.endswith('.safetensors')]
        self.assertGreater(len(shards), 1)
        loaded = {}
        for name in shards:
            loaded.update(safetensors.torch.load_file(out / name))
        self.assert_same_dict(loaded, state)
        self.assertTrue(safemap('verify', out)['ok'])
