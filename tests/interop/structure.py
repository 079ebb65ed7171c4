"""Tests that files of torch.save come back whole through a reader that implements docs/format.md without safemap."""
import base64
import collections
import json
import math
import pickle
import struct
import sys

import numpy
import safetensors
import safetensors.torch
import torch

from common import DTYPES, Case, safemap, shape_of, tensor_of
from from_torch import escaped

PROTOCOLS = [2, 3, 4, 5]


class Object:
    """An instance of an unknown class: the class of the document, or one of Python's own classes."""

    def __init__(self, name, arguments=(), parts=None):
        self.name, self.arguments, self.parts = name, list(arguments), parts if parts is not None else {}

    def __reduce_ex__(self, protocol):
        """Pickles as the class would."""
        module, _, name = self.name.rpartition('.')
        return getattr(sys.modules[module], name), tuple(self.arguments), self.parts


class Reader:
    """Reads a structure document and the tensors beside it as the objects that they represent."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.by_path = {}

    def keep(self, path, made):
        self.by_path.setdefault(path, made)
        return made

    def below(self, path, segment, node):
        return self.node(node, f'{path}/{segment}' if path else segment)

    @staticmethod
    def segment(key, place):
        spelled = key is None or isinstance(key, (bool, int)) or (
            isinstance(key, str) and '\0' not in key and not any(0xD800 <= ord(c) < 0xE000 for c in key))
        return escaped(key) if spelled else f'~k{place}'

    def node(self, node, path=''):
        if isinstance(node, dict):
            return self.members(self.keep(path, {}), node, path)
        if not isinstance(node, list):
            return node
        return getattr(self, 'read_' + node[0].replace('@', 'at_'))(node[1:], path)

    def members(self, made, node, path):
        for place, (key, value) in enumerate(node.items()):
            made[key] = self.below(path, self.segment(key, place), value)
        return made

    def entries(self, made, parts, path):
        self.keep(path, made)
        if parts and isinstance(parts[-1], dict) and len(parts) > (1 if isinstance(parts[0], dict) else 0):
            if '@attrs' in parts[-1] and (len(parts) > 1 or not isinstance(parts[0], dict)):
                parts = parts[:-1]  # plain Python has no place for attributes
        if parts and isinstance(parts[0], dict):
            return self.members(made, parts[0], path)
        for place, (key, value) in enumerate(parts):
            key = self.node(key, f'{path}/~k{place}/~key' if path else f'~k{place}/~key')
            made[key] = self.below(path, self.segment(key, place), value)
        return made

    def read_d(self, parts, path):
        return self.entries({}, parts, path)

    def read_od(self, parts, path):
        return self.entries(collections.OrderedDict(), parts, path)

    def read_l(self, parts, path):
        made = self.keep(path, [])
        made.extend(self.below(path, str(i), part) for i, part in enumerate(parts))
        return made

    def read_t(self, parts, path):
        return self.keep(path, tuple(self.below(path, str(i), part) for i, part in enumerate(parts)))

    def read_set(self, parts, path):
        return self.keep(path, {self.below(path, f'~k{i}', part) for i, part in enumerate(parts)})

    def read_fset(self, parts, path):
        return self.keep(path, frozenset(self.below(path, f'~k{i}', part) for i, part in enumerate(parts)))

    def read_size(self, parts, path):
        return torch.Size(parts)

    def stored(self, parts, path):
        """Returns a tensor as it is stored in the file, and the dtype that the document gives it."""
        options = parts[0] if parts else {}
        return self.tensors[options.get('n', path or '~root')], options.get('dtype')

    def tensor(self, parts, path):
        tensor, dtype = self.stored(parts, path)
        if dtype is None:
            return tensor
        # clone(): PyTorch crashes on complex128 at an address that is not a multiple of 16 bytes.
        if dtype.startswith('complex'):
            return torch.view_as_complex(tensor.clone())
        return tensor.view(getattr(torch, dtype))

    def read_q(self, parts, path):
        parts = {name: part if name == '' else self.below(path, name, part) for name, part in parts[0].items()}
        numbers, dtype = self.stored(parts[''][1:], path)
        if dtype in ('quint4x2', 'quint2x4'):
            storage = torch.storage.TypedStorage(wrap_storage=numbers.clone().untyped_storage(),
                                                 dtype=getattr(torch, dtype), _internal=True)
            made = torch._utils._rebuild_qtensor(storage, *(parts[name] for name in ('offset', 'size', 'stride')),
                                                 tuple(parts[name] for name in
                                                       ('scheme', 'scales', 'zero_points', 'axis')), False, {})
        elif 'scale' in parts:
            made = torch._make_per_tensor_quantized_tensor(numbers, parts['scale'], parts['zero_point'])
        else:
            made = torch._make_per_channel_quantized_tensor(numbers, *(parts[name] for name in
                                                                       ('scales', 'zero_points', 'axis')))
        assert made.dtype == getattr(torch, dtype)
        # PyTorch saves the scheme with float32 scales (`_float_qparams`) under the name of the other scheme.
        assert str(made.qscheme()).removesuffix('_float_qparams') == str(parts['scheme'])
        return self.keep(path, made)

    def read_g(self, parts, path):
        module, name = parts[0].split('.')
        assert module == 'torch'
        return getattr(torch, name)

    def read_T(self, parts, path):
        return self.keep(path, self.tensor(parts, path))

    def read_at_T(self, parts, path):
        return self.keep(path, self.by_path[parts[0]].view(self.by_path[parts[0]].shape))

    def read_at_(self, parts, path):
        return self.by_path[parts[0]]

    def read_i(self, parts, path):
        return int(parts[0])

    def read_f(self, parts, path):
        text = parts[0]
        return struct.unpack('>d', bytes.fromhex(text[2:]))[0] if text.startswith('0x') else float(text)

    def read_c(self, parts, path):
        return complex(self.node(parts[0]), self.node(parts[1]))

    def read_s(self, parts, path):
        return base64.b64decode(parts[0]).decode('utf-8', 'surrogatepass')

    def read_b(self, parts, path):
        return base64.b64decode(parts[0])

    def read_ba(self, parts, path):
        return self.keep(path, bytearray(base64.b64decode(parts[0])))

    def read_dtype(self, parts, path):
        return getattr(torch, parts[0])

    def read_device(self, parts, path):
        return torch.device(parts[0])

    def read_np(self, parts, path):
        return self.keep(path, self.tensor(parts, path).numpy())

    def read_nps(self, parts, path):
        return numpy.dtype(parts[0]).type(self.node(parts[1]))

    def read_npdtype(self, parts, path):
        return numpy.dtype(parts[0])

    def read_o(self, parts, path):
        arguments = [self.below(path, str(place), part) for place, part in enumerate(parts[1][1:])]
        made = self.keep(path, Object(parts[0], arguments))
        self.members(made.parts, parts[2], path)
        return made


def read(path, reader=Reader):
    """Reads a safetensors file with a structure document."""
    tensors = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, 'pt') as file:
        document = json.loads(file.metadata()['safemap.structure'])
    if 'tensor' in document:
        document = json.loads(bytes(tensors.pop(document['tensor']).tolist()))
    return reader(tensors).node(document['root'])


def random_tree(rng, depth, pool):
    """Returns plain values and containers of every kind, some of them shared, with cycles."""
    kind = rng.randrange(27)
    if depth == 0:
        kind %= 16
    if kind < 4:
        made = tensor_of(rng, rng.choice(DTYPES), shape_of(rng, 3))
        pool.append(made)
        return made
    values = {
        4: lambda: rng.choice([None, True, False]),
        5: lambda: rng.choice([0, -1, 2**53 - 1, 2**53, -2**63, 2**63, 2**200, -2**200, rng.randrange(10**6)]),
        6: lambda: rng.choice([0.0, -0.0, 1.0, math.inf, -math.inf, 5e-324, 1e308, rng.random(),
                               struct.unpack('>d', bytes.fromhex(rng.choice(
                                   ['7ff8000000000000', 'fff8000000000000', '7ff8000000000001'])))[0]]),
        7: lambda: rng.choice(['', 'a.b', 'a/b', '~', '0', '__metadata__', '\ud800x', 'é名', '@', '\n', 'n\0']),
        8: lambda: rng.randbytes(rng.randrange(5)),
        9: lambda: rng.choice([torch.Size((1, 2)), torch.Size(()), torch.float32, torch.bfloat16,
                               torch.device('cpu'), torch.device('cuda', 1)]),
        10: lambda: complex(rng.choice([0.0, -0.0, 2.5]), rng.choice([math.inf, 1.0])),
        11: lambda: bytearray(rng.randbytes(3)),
        12: lambda: rng.choice([set(), {1, 'x'}, frozenset((2.5, None))]),
        13: lambda: rng.choice(pool) if pool else None,
        14: lambda: numpy_value(rng, pool),
        15: lambda: rng.choice([numpy.dtype('>i2'), numpy.dtype('<M8[25us]'), numpy.dtype('S3')]),
    }
    if kind in values:
        return values[kind]()
    if kind == 16:
        made = Object('argparse.Namespace', parts={'lr': rng.random()})
        pool.append(made)
        made.parts['values'] = [random_tree(rng, depth - 1, pool)]
        return made
    if kind == 17:
        return Object('collections.deque', [[random_tree(rng, depth - 1, pool)], rng.randrange(9)])
    if kind < 20:
        made = [random_tree(rng, depth - 1, pool) for _ in range(rng.randrange(4))]
        if rng.random() < 0.2:
            made.append(made)
        pool.append(made)
        return made
    if kind < 22:
        return tuple(random_tree(rng, depth - 1, pool) for _ in range(rng.randrange(4)))
    made = {} if kind < 25 else collections.OrderedDict()
    keys = ['', 'a', 'b.c', 'b/c', 'b', '~', '~0', '~s0', '~k0', '~true', '~key', '0', '1', '-1', '00', '__metadata__',
            '~root', '\ud800', 'n\0', 0, 1, -1, 2, None, 2.5, (1, 'x'), b'k', 2**70]
    for _ in range(rng.randrange(6)):
        made[rng.choice(keys)] = random_tree(rng, depth - 1, pool)
    pool.append(made)
    return made


def numpy_value(rng, pool):
    """Returns an array or a scalar of random bits, in either byte order and order of dimensions."""
    code = rng.choice(['b1', 'i1', 'u2', 'i4', 'u8', 'f2', 'f4', 'f8', 'c8'])
    if code == 'b1' or rng.random() < 0.5:
        dtype = numpy.dtype(code)
        bits = rng.randbytes(dtype.itemsize) if code != 'b1' else rng.choice([b'\0', b'\1'])
        return numpy.frombuffer(bits, dtype)[0]
    shape = shape_of(rng, 3)
    dtype = numpy.dtype(rng.choice('<>') + code)
    made = numpy.frombuffer(rng.randbytes(dtype.itemsize * math.prod(shape)), dtype).reshape(shape)
    made = numpy.array(made, order=rng.choice('CF'))
    pool.append(made)
    return made


def plain(tensor):
    """Returns the numbers of a tensor in a dtype that PyTorch can compare."""
    if tensor.dtype in (torch.quint4x2, torch.quint2x4):
        return torch.tensor(list(bytes(tensor.untyped_storage())))
    if tensor.is_quantized:
        return tensor.int_repr()
    return tensor.view(torch.uint8) if str(tensor.dtype).startswith('torch.bits') else tensor


def parameters(tensor):
    """Returns the parameters of a quantized tensor, with its scheme: per tensor or per channel."""
    if not tensor.is_quantized:
        return None
    if tensor.qscheme() == torch.per_tensor_affine:
        return tensor.qscheme(), tensor.q_scale(), tensor.q_zero_point()
    return (tensor.qscheme(), tensor.q_per_channel_scales().tolist(), tensor.q_per_channel_zero_points().tolist(),
            tensor.q_per_channel_axis())


def bits_of(value):
    """Returns the bits of a NumPy value; Python makes a signalling NaN of less than 64 bits quiet."""
    value = numpy.asarray(value)
    value = numpy.ascontiguousarray(value.astype(value.dtype.newbyteorder('<')))
    return value.tobytes()


class Structure(Case):
    def assert_same_tree(self, found, wanted, seen=None):
        """Compares every value, type, order and bit, and which objects are shared."""
        seen = {} if seen is None else seen
        if isinstance(wanted, (dict, list, set, bytearray, torch.Tensor, numpy.ndarray, Object)):
            if id(wanted) in seen:
                self.assertEqual(seen[id(wanted)], id(found))
                return
            seen[id(wanted)] = id(found)
        if isinstance(wanted, torch.Tensor):
            self.assertEqual((found.dtype, found.shape), (wanted.dtype, wanted.shape))
            self.assertEqual(parameters(found), parameters(wanted))
            self.assert_same(plain(found), plain(wanted), 'a tensor')
            return
        self.assertIs(type(found), type(wanted))
        if isinstance(wanted, numpy.ndarray):
            self.assertEqual((found.dtype, found.shape), (wanted.dtype.newbyteorder('<'), wanted.shape))
            self.assertEqual(bits_of(found), bits_of(wanted))
        elif isinstance(wanted, numpy.generic):
            self.assertTrue(numpy.isnan(found).all() and numpy.isnan(wanted).all() or bits_of(found) == bits_of(wanted))
        elif isinstance(wanted, Object):
            self.assertEqual(found.name, wanted.name)
            self.assert_same_tree(found.arguments, wanted.arguments, {} | seen)
            self.assert_same_tree(found.parts, wanted.parts, {} | seen)
        elif isinstance(wanted, float):
            self.assertEqual(struct.pack('>d', found), struct.pack('>d', wanted))
        elif isinstance(wanted, complex):
            self.assert_same_tree(found.real, wanted.real, seen)
            self.assert_same_tree(found.imag, wanted.imag, seen)
        elif isinstance(wanted, dict):
            self.assertEqual(list(found), list(wanted))
            for (key, value), (other, wanted_value) in zip(found.items(), wanted.items()):
                self.assertIs(type(key), type(other))
                self.assert_same_tree(value, wanted_value, seen)
        elif isinstance(wanted, (list, tuple)) and not isinstance(wanted, torch.Size):
            self.assertEqual(len(found), len(wanted))
            for value, wanted_value in zip(found, wanted):
                self.assert_same_tree(value, wanted_value, seen)
        else:
            self.assertEqual(found, wanted)

    def round_trip(self, state, *options, protocol=2):
        torch.save(state, self.folder / 'in.pt', pickle_protocol=protocol)
        out = self.folder / 'out.safetensors'
        report = safemap('convert', self.folder / 'in.pt', out, '--structure', 'keep', '--force', *options)
        self.assertTrue(safemap('verify', out)['ok'])
        self.assert_same_tree(read(out), state)
        # The same again, from the safetensors file.
        again = self.folder / 'again.safetensors'
        safemap('convert', out, again, '--structure', 'keep', '--force')
        self.assert_same_tree(read(again), state)
        return report

    def test_random_trees(self):
        for number in range(60):
            protocol = PROTOCOLS[number % len(PROTOCOLS)]
            with self.subTest(number=number, protocol=protocol):
                self.round_trip(random_tree(self.rng, 4, []), protocol=protocol)

    def test_dtypes_that_safetensors_has_no_name_for(self):
        for protocol in PROTOCOLS:
            shapes = [shape_of(self.rng, 3) for _ in range(4)]
            complexes = [tensor_of(self.rng, dtype, shape) for shape in [(), (3,), (0, 2), *shapes]
                         for dtype in (torch.complex128, torch.complex32)]
            bits = [tensor_of(self.rng, getattr(torch, name), (5,))
                    for name in ('bits8', 'bits16', 'bits1x8', 'bits2x4', 'bits4x2')]
            matrix = tensor_of(self.rng, torch.complex128, (4, 3))
            state = {'complex': complexes, 'bits': bits, 'conj': matrix.conj(), 'columns': matrix.t()[1:],
                     'tied': [complexes[0], complexes[0].view(())], 'array': numpy.array([1j, self.rng.random()])}
            report = self.round_trip(state, '--checksums', protocol=protocol)
            self.assertEqual((report['skipped'], report['unsupported']), ([], []))

    def test_quantized_tensors(self):
        for protocol in PROTOCOLS:
            values = torch.randn(4, 6)
            scales, zeros = torch.rand(4).double() + 0.01, torch.randint(0, 9, (4,))
            state = {str(dtype): torch.quantize_per_tensor(values, self.rng.random(), 3, dtype)
                     for dtype in (torch.qint8, torch.quint8, torch.qint32)}
            state |= {f'channels.{dtype}': torch.quantize_per_channel(values, scales, zeros, 0, dtype)
                      for dtype in (torch.qint8, torch.quint8, torch.qint32)}
            state['floats'] = torch.quantize_per_channel(values, scales.float(), zeros.float(), 0, torch.quint8)
            state['axis'] = torch.quantize_per_channel(values.t(), scales, zeros, 1, torch.qint8)
            for dtype in (torch.quint4x2, torch.quint2x4):
                state[f'packed.{dtype}'] = torch.quantize_per_channel(values[:, :5], scales.float(), zeros.float(), 0,
                                                                      dtype)
            state['columns'] = state['torch.qint8'].t()
            state['again'] = state['torch.qint8']
            report = self.round_trip({'model': state, 'one': state['axis']}, '--checksums', protocol=protocol)
            self.assertEqual((report['skipped'], report['unsupported']), ([], []))

    def test_a_training_state(self):
        model = torch.nn.Sequential(torch.nn.Linear(9, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.rng.random())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for _ in range(3):
            model(torch.randn(4, 9)).square().sum().backward()
            optimizer.step()
            scheduler.step()
        state = {'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': 3, 'loss': [0.5, math.nan],
                 'scheduler': scheduler.state_dict(), 'rng': torch.get_rng_state(),
                 'args': {'name': 'x', 'betas': (0.9, 0.95), 'none': None}}
        del state['model']._metadata  # plain Python has no place for attributes
        for protocol in PROTOCOLS:
            with self.subTest(protocol=protocol):
                self.round_trip(state, protocol=protocol)
                self.round_trip(state, '--strip-prefix', 'optimizer/', '--rename', 's/weight/kernel/',
                                    '--checksums', protocol=protocol)

    def test_a_large_document_is_a_tensor(self):
        state = {'w': torch.randn(3), 'log': [self.rng.random() for _ in range(100_000)]}
        report = self.round_trip(state, '--checksums')
        self.assertEqual(report['tensors'], 2)
        out = self.folder / 'out.safetensors'
        self.assertIn('~structure', safetensors.torch.load_file(out))
        self.assertEqual([tensor['name'] for tensor in safemap('inspect', out)['tensors']], ['w'])
        self.assertEqual(list(safemap('hash', out)['tensors']), ['w'])

    def test_root_selects_the_same_part_before_and_after_conversion(self):
        parameter = torch.nn.Parameter(torch.randn(3), requires_grad=False)
        parameter.note, parameter.momentum = 'mine', torch.randn(5)
        tied = torch.randn(2)
        state = {'model': {'sub': {'w': torch.randn(2), 'n': numpy.arange(3)}, 'p': parameter, 'ties': [tied, tied],
                           'sparse': torch.eye(3).to_sparse(), 'epoch': 3},
                 'meta': torch.nn.Parameter(torch.empty(2, device='meta')), 'opt': {'lr': 1}}
        torch.save(state, self.folder / 'in.pt')
        whole, part, again = (self.folder / f'{name}.safetensors' for name in ('whole', 'part', 'again'))
        safemap('convert', self.folder / 'in.pt', whole)
        safemap('convert', self.folder / 'in.pt', part, '--root', 'model')
        safemap('convert', whole, again, '--root', 'model')
        documents = []
        for file in (part, again):
            with safetensors.safe_open(file, 'pt') as opened:
                documents.append(json.loads(opened.metadata()['safemap.structure']))
                self.assertIn('p/momentum', opened.keys())
        self.assertEqual(*documents)
        root = documents[0]['root']
        self.assertEqual(root['sub'], {'w': ['T'], 'n': ['np']})
        self.assertEqual(root['p'][:3], ['o', 'torch.nn.parameter.Parameter', ['t']])
        self.assertEqual(root['p'][3][''], ['T', {'p': 1}])
        self.assertEqual(root['ties'], ['l', ['T'], ['@', 'ties/0']])
        with safetensors.safe_open(whole, 'pt') as opened:
            meta = json.loads(opened.metadata()['safemap.structure'])['root']['meta']
        self.assertEqual((meta[3]['size'][1:], meta[3]['parameter'], meta[3]['requires_grad']), ([2], True, True))

    def test_values_of_shards_that_are_not_tensors_are_reported(self):
        folder = self.folder / 'shards'
        folder.mkdir()
        shard = 'pytorch_model-00001-of-00001.bin'
        torch.save({'w': torch.randn(3), 'epoch': 3, 'on_meta': torch.empty(2, device='meta')}, folder / shard)
        index = {'metadata': {}, 'weight_map': {'w': shard, 'on_meta': shard}}
        (folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))
        report = safemap('convert', folder, self.folder / 'out.safetensors')
        self.assertEqual([each['name'] for each in report['skipped']], ['on_meta'])
        self.assertTrue(any(shard in note and 'epoch' in note for note in report['notes']), report['notes'])
        index['weight_map']['other'] = shard
        (folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))
        self.assertFalse(safemap('verify', folder, status=1)['ok'])

    def test_a_jagged_tensor_keeps_its_parts(self):
        rows = [torch.randn(self.rng.randint(1, 5), 2) for _ in range(4)]
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
        torch.save({'x': jagged, 'of_model': torch.nn.Parameter(jagged)}, self.folder / 'in.pt')
        out = self.folder / 'jagged.safetensors'
        safemap('convert', self.folder / 'in.pt', out)
        stored = safetensors.torch.load_file(out)
        for name in ('x', 'of_model'):
            again = torch.nested.nested_tensor_from_jagged(stored.get(f'{name}/values', stored['x/values']),
                                                           stored.get(f'{name}/offsets', stored['x/offsets']))
            for row, wanted in zip(again.unbind(), rows, strict=True):
                self.assertTrue(torch.equal(row, wanted))

    def test_names_of_olmo(self):
        """Writes files as olmo/safetensors_util.py does: names are pickles in base64, and so are values that are not
        dicts."""
        state = {'state': {number: {'exp_avg': torch.randn(3), 'step': torch.tensor(1.0)} for number in range(3)},
                 'param_groups': [{'lr': 0.1, 'params': [0, 1, 2], 'betas': (0.9, 0.99)}], 'epoch': 7}
        for protocol in PROTOCOLS:
            flat = {}

            def put(keys, value):
                if isinstance(value, dict):
                    for key, each in value.items():
                        put((*keys, key), each)
                    return
                pickled = not isinstance(value, torch.Tensor)
                name = base64.urlsafe_b64encode(pickle.dumps((keys, pickled), protocol)).decode()
                flat[name] = torch.frombuffer(bytearray(pickle.dumps(value, protocol)), dtype=torch.uint8) \
                    if pickled else value

            put((), state)
            source, out = self.folder / 'olmo.safetensors', self.folder / 'readable.safetensors'
            safetensors.torch.save_file(flat, source)
            names = {tensor['name'] for tensor in safemap('inspect', source)['tensors']}
            self.assertEqual(names, {f'state/{n}/{part}' for n in range(3) for part in ('exp_avg', 'step')})
            safemap('convert', source, out, '--force')
            found = read(out)
            self.assertEqual(found['param_groups'], state['param_groups'])
            self.assertEqual(found['epoch'], 7)
            for number in range(3):
                self.assert_same_dict(found['state'][number], state['state'][number])

    def test_a_flat_state_dict_has_no_structure_document_unless_requested(self):
        torch.save({'a/b': torch.ones(2), '0': torch.zeros(1)}, self.folder / 'in.pt')
        out = self.folder / 'flat.safetensors'
        safemap('convert', self.folder / 'in.pt', out)
        with safetensors.safe_open(out, 'pt') as file:
            self.assertEqual(file.metadata(), {'format': 'pt'})
        self.round_trip({'a/b': torch.ones(2), '0': torch.zeros(1)})
