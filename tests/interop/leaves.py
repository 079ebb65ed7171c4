"""Compares every leaf of every file of tests/data/pt/make.py, generated with a new seed: tensors, plain values,
containers, objects and shared values, as expected.json describes them, with `inspect --structure` and with the files
that `convert` writes."""
import base64
import hashlib
import json
import math
import pathlib
import struct
import subprocess
import sys

import numpy
import safetensors

from common import SEED, Case, safemap

MAKE = pathlib.Path(__file__).parent.parent / 'data/pt/make.py'
NUMPY_TIMES = ('datetime64', 'timedelta64')


def real(node):
    """Returns the bits of a float; all NaNs that Python prints count as one, because repr() does not distinguish them.
    """
    if isinstance(node, list):
        assert node[0] == 'f', node
        if node[1] == 'nan' or node[1].startswith('0x'):
            return 'nan'
        node = float(node[1])
    assert isinstance(node, float), node
    return struct.pack('>d', node)


def real_text(text):
    return 'nan' if math.isnan(float(text)) else struct.pack('>d', float(text))


class Leaves:
    """Walks a tree of expected.json and a structure document together."""

    def __init__(self, test, entry, document, stored):
        self.test, self.entry, self.stored = test, entry, stored
        self.paths = {}      # path of expected containers and tensors: path in the document
        self.groups = {}     # path in the document: paths of expected.json with this one tensor
        self.where = None
        self.root = document

    def fail(self, what):
        self.test.fail(f'{self.entry["file"]} at {self.where}: {what}')

    def equal(self, got, wanted):
        if got != wanted:
            self.fail(f'{got!r}, wanted {wanted!r}')

    def walk(self, node, doc, path, at=''):
        self.where = path
        if isinstance(node, str):
            return self.tensor(self.entry['tensors'][int(node[1:])], doc, at) if node[0] == 'T' \
                else self.scalar(self.entry['scalars'][int(node[1:])], doc)
        kind = node['is']
        if kind == 'same':
            return self.equal(doc, ['@', self.paths[json.dumps(node['path'])]])
        if kind != 'tensor':
            self.paths[json.dumps(path)] = at
        return getattr(self, 'of_' + kind.replace('.', '_'), self.of_parts)(node, doc, path, at)

    # ---- containers

    def items(self, node, path):
        return [(step, child) for step, child in node['of'] if not (isinstance(step, dict) and 'attr' in step)]

    def of_dict(self, node, doc, path, at, tags=('d',)):
        attributes = [(step['attr'], child) for step, child in node['of'] if isinstance(step, dict) and 'attr' in step]
        parts = [doc] if isinstance(doc, dict) else doc[1:]
        if isinstance(doc, list) and doc[0] not in tags:
            self.fail(f'{doc[0]!r} for {node["is"]}')
        last = parts[-1] if parts and isinstance(parts[-1], dict) and isinstance(doc, list) else {}
        held = last.get('@attrs', {}) if len(parts) > (1 if isinstance(parts[0], dict) else 0) else {}
        if held:
            parts = parts[:-1]
        if node['is'] in ('Counter', 'defaultdict'):
            self.equal(held['__class__'], ['g', f'collections.{node["is"]}'])
            held = {k: v for k, v in held.items() if k not in ('__class__', 'default_factory')}
        self.equal(list(held), [name for name, _ in attributes])
        for name, child in attributes:
            self.walk(child, held[name], [*path, {'attr': name}], self.below(at, '~attrs', name))
        pairs = list(parts[0].items()) if parts and isinstance(parts[0], dict) else [tuple(part) for part in parts]
        wanted = self.items(node, path)
        self.where = path
        self.equal(len(pairs), len(wanted))
        for place, ((key, value), (step, child)) in enumerate(zip(pairs, wanted)):
            self.where = [*path, step]
            self.key(key, step)
            self.walk(child, value, [*path, step], self.below(at, self.segment(step, place)))

    def of_OrderedDict(self, node, doc, path, at):
        self.equal(doc[0], 'od')
        self.of_dict(node, doc, path, at, ('od',))

    of_Counter = of_defaultdict = of_dict

    def key(self, key, step):
        if not isinstance(step, dict):
            if isinstance(key, list) and key[0] == 's':
                return  # a string with surrogates, whose step exists only in Python
            return self.equal(int(key[1]) if isinstance(key, list) and key[0] == 'i' else key, step)
        kinds = {'bool': lambda k: repr(k), 'NoneType': lambda k: repr(k), 'float': lambda k: repr(k),
                 'int': lambda k: k[1], 'bytes': lambda k: repr(base64.b64decode(k[1]))}
        if step['k'] in kinds:
            self.equal(kinds[step['k']](key), step['v'])

    def segment(self, step, place):
        if isinstance(step, dict):
            spelled = {'bool': lambda: '~' + step['v'].lower(), 'NoneType': lambda: '~none', 'int': lambda: step['v']}
            return spelled.get(step['k'], lambda: f'~k{place}')()
        if isinstance(step, int):
            return str(step)
        if '\0' in step or any(0xD800 <= ord(c) < 0xE000 for c in step):
            return f'~k{place}'
        return self.spelled(step)

    @staticmethod
    def spelled(key):
        escaped = key.replace('~', '~0').replace('/', '~1')
        integer = key.removeprefix('-').isdigit() and key.isascii()
        return '~s' + escaped if key in ('', '__metadata__') or integer else escaped

    @staticmethod
    def below(at, *segments):
        return '/'.join([*([at] if at else []), *segments])

    def sequence(self, tag, node, doc, path, at):
        self.equal(doc[0], tag)
        self.equal(len(doc) - 1, len(node['of']))
        for place, (child, part) in enumerate(zip(node['of'], doc[1:])):
            self.walk(child, part, [*path, place], self.below(at, str(place)))

    def of_list(self, *rest):
        self.sequence('l', *rest)

    def of_tuple(self, *rest):
        self.sequence('t', *rest)

    def of_size(self, *rest):
        self.sequence('size', *rest)

    def of_set(self, node, doc, path, at, tag='set'):
        """Sets have no order: plain members are compared by value, others only counted."""
        self.equal(doc[0], tag)
        self.equal(len(doc) - 1, len(node['of']))
        if len(node['of']) == 1:
            return self.walk(node['of'][0], doc[1], [*path, {'member': 0}], self.below(at, '~k0'))
        wanted = [self.entry['scalars'][int(child[1:])]['value'] for child in node['of']
                  if isinstance(child, str) and child[0] == 'S']
        if len(wanted) == len(node['of']):
            self.equal(sorted(map(repr, doc[1:])), sorted(map(repr, wanted)))

    def of_frozenset(self, *rest):
        self.of_set(*rest, tag='fset')

    def of_deque(self, node, doc, path, at):
        self.equal(doc[:2], ['o', 'collections.deque'])
        parts = doc[3] if doc[3] else dict(enumerate(doc[2][1][1:]))
        self.equal(len(parts), len(node['of']))
        for place, (child, part) in enumerate(zip(node['of'], parts.values())):
            self.walk(child, part, [*path, place], self.below(at, str(place)))

    # ---- objects

    def of_object(self, node, doc, path, at):
        self.equal(doc[:2], ['o', node['class']])
        self.parts(node, doc[2][1:], doc[3], path, at)

    def parts(self, node, arguments, named, path, at):
        for step, child in node['of']:
            self.where = [*path, step]
            if step == {'state': 0} and isinstance(child, dict) and child['is'] == 'tuple' and '0' in named and \
                    sum('state' in other for other, _ in node['of']) == 1:
                # The items of a tuple as state are parts.
                parts = [named[str(place)] for place in range(len(child['of']))]
                self.walk(child, ['t', *parts], [*path, step], at)
                continue
            name = step.get('attr', str(step.get('arg', step.get('state'))))
            if 'state' in step and name not in named and 'state' in named:
                name = 'state'
            part = arguments[step['arg']] if 'arg' in step else named[name]
            self.walk(child, part, [*path, step], self.below(at, name if 'attr' not in step else self.spelled(name)))
        attributes = [step['attr'] for step, _ in node['of'] if 'attr' in step]
        self.equal([name for name in named if name in attributes], attributes)

    def of_parts(self, node, doc, path, at):
        """Compares sparse and nested tensors."""
        self.equal(doc[0], 'nt' if node['is'] == 'nested' else 'sp')
        if doc[0] == 'sp':
            self.equal(doc[1]['layout'], ['layout', node['is']])
            self.equal(doc[1]['size'], ['size', *node['shape']])
        self.parts(node, [], doc[1], path, at)

    def of_numpy_ndarray(self, node, doc, path, at):
        self.equal(doc[:2], ['o', 'numpy.ndarray'])
        self.equal(len(doc[3]['data']) - 1, len(node['of']))
        for (place, child), part in zip(node['of'], doc[3]['data'][1:]):
            self.walk(child, part, [*path, place], self.below(at, 'data', str(place)))

    def of_tensor(self, node, doc, path, at):
        """Compares a tensor that has parts of its own."""
        leaf = self.entry['tensors'][int(node['at'][1:])]
        if doc[0] == 'T' or doc[0] == '@T':
            held = doc[-1]['attrs']
            self.parts(node, [], held, path, self.below(at, '~attrs'))
            return self.tensor(leaf, doc, at)
        self.tensor(leaf, doc, at)
        return self.parts(node, [], doc[1] if doc[0] == 'q' else doc[3], path, at)

    # ---- leaves

    def tensor(self, leaf, doc, at):
        if doc[0] == '@':
            return self.groups.setdefault(doc[1], []).append(leaf['path'])
        if leaf.get('meta'):
            self.equal(doc[0:2], ['o', 'torch.Tensor'])
            return self.equal(doc[3]['size'][1:], leaf['shape'])
        if leaf.get('storage'):
            return self.equal(doc[0], 'o')
        inner = doc
        if doc[0] == 'q':
            self.equal(doc[1]['scheme'], ['g', 'torch.' + leaf['quantized']['scheme'].removesuffix('_float_qparams')])
            if 'scale' in leaf['quantized']:
                self.equal(doc[1]['scale'], float(leaf['quantized']['scale']))
                self.equal(doc[1]['zero_point'], leaf['quantized']['zero_point'])
            else:
                self.equal(doc[1]['axis'], leaf['quantized']['axis'])
            if leaf['dtype'].startswith('quint4'):
                self.equal([doc[1]['size'], doc[1]['offset']], [['t', *leaf['shape']], 0])
                leaf = {**leaf, 'shape': [leaf['nbytes']]}
            inner = doc[1]['']
        elif doc[0] == 'o' and '' in doc[3]:
            inner = doc[3]['']
        elif doc[0] == 'o' and leaf.get('numpy'):
            return self.array(leaf, doc)
        if inner[0] == '@':
            return None
        self.groups.setdefault(inner[1] if inner[0] == '@T' else at or '~root', []).append(leaf['path'])
        if inner[0] == '@T':
            return None
        self.equal(inner[0], 'np' if leaf.get('numpy') else 'T')
        options = inner[1] if len(inner) > 1 else {}
        self.equal('rg' in options, bool(leaf.get('requires_grad')))
        self.equal('p' in options, leaf.get('class', '').endswith('.Parameter'))
        name = options.get('n', at or '~root')
        return self.bytes(leaf, name)

    def bytes(self, leaf, name):
        if name not in self.stored:
            return self.equal(name in self.stored.skipped, True)
        dtype, shape, data = self.stored[name]
        self.equal(dtype, leaf['dtype'])
        self.equal(shape, leaf.get('safetensors_shape', leaf['shape']))
        return self.equal(hashlib.sha256(data).hexdigest(), leaf['sha256'])

    def array(self, leaf, doc):
        """Compares NumPy texts, records and dates."""
        self.equal(doc[1], 'numpy.ndarray')
        parts = doc[3]
        self.equal([part for part in parts['shape'][1:]], leaf['shape'])
        self.equal(hashlib.sha256(base64.b64decode(parts['data'][1])).hexdigest(), leaf['sha256'])
        if parts['dtype'][0] == 'npdtype':
            self.equal(parts['dtype'][1], leaf['numpy']['dtype'])

    def scalar(self, scalar, doc):
        kind, value = scalar['type'], scalar['value']
        if 'int64_sha256' in scalar:
            self.equal(doc[0], {'list': 'l', 'tuple': 't', 'deque': 'l', 'size': 'size'}[kind])
            packed = numpy.array([int(n[1]) if isinstance(n, list) else n for n in doc[1:]], '<i8').tobytes()
            return self.equal(hashlib.sha256(packed).hexdigest(), scalar['int64_sha256'])
        if kind == 'int':
            return self.equal(doc[1] if isinstance(doc, list) else doc, value)
        if kind in ('bool', 'none', 'str'):
            self.equal(type(doc), type(value))
            return self.equal(doc, value)
        if kind == 'float':
            return self.equal(real(doc), real_text(value))
        if kind == 'complex':
            return self.equal([doc[0], *map(real, doc[1:])], ['c', *map(real_text, value)])
        if kind == 'str_wtf8':
            return self.equal([doc[0], base64.b64decode(doc[1]).hex()], ['s', value])
        if kind in ('bytes', 'bytearray'):
            return self.equal([doc[0], base64.b64decode(doc[1]).hex()], ['ba' if kind == 'bytearray' else 'b', value])
        if kind in ('dtype', 'device', 'layout'):
            return self.equal(doc, [kind, value])
        if kind in ('qscheme', 'memory_format'):
            return self.equal(doc, ['g', 'torch.' + value])
        if kind == 'global':
            return self.equal(doc, ['g', value])
        if kind == 'ellipsis':
            return self.equal(doc, ['g', 'builtins.Ellipsis'])
        if kind in ('range', 'slice'):
            self.equal(doc[:2], ['o', 'builtins.' + kind])
            return self.equal(f'{kind}({", ".join(map(str, doc[2][1:]))})'.replace('None', 'None'), value)
        if kind == 'numpy.dtype':
            return self.equal(doc, ['npdtype', value])
        if kind.startswith('numpy.'):
            return self.numpy_scalar(kind, value, doc)
        return self.fail(f'a leaf of type {kind}, which this test does not know')

    def numpy_scalar(self, kind, value, doc):
        self.equal(doc[:2], ['nps', kind.removeprefix('numpy.')])
        is_complex = isinstance(doc[2], list) and doc[2][0] == 'c'
        got = complex(*(float(part) for part in doc[2][1:])) if is_complex else doc[2]
        self.equal(repr(got), value)


class Stored(dict):
    """The tensors of a safetensors file, as dtype, shape and bytes; and the names of tensors whose dtype
    safetensors does not have."""

    def __init__(self, file, report):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], 'little')
        for name, tensor in json.loads(data[8:8 + size]).items():
            if name != '__metadata__':
                begin, end = tensor['data_offsets']
                self[name] = tensor['dtype'], tensor['shape'], data[8 + size + begin:8 + size + end]
        self.skipped = {each['name'] for each in report['skipped']}


class EveryLeaf(Case):
    def test_every_leaf_of_new_fixtures(self):
        made = self.folder / 'made'
        subprocess.run([sys.executable, str(MAKE), str(made), '--seed', str(SEED % 1000)], check=True,
                       capture_output=True)
        entries = json.loads((made / 'expected.json').read_text())['files']
        self.assertGreater(len(entries), 140)
        for entry in entries:
            if entry['file'].startswith('broken/') or entry['tree'] is None:
                continue
            with self.subTest(entry['file']):
                self.check(made / entry['file'], entry)

    def check(self, file, entry):
        # A file of a world of one rank gives whole tensors otherwise.
        document = safemap('inspect', file, '--structure', '--as-parts', '--root', '')['structure']['root']
        out = self.folder / 'out.safetensors'
        out.unlink(missing_ok=True)
        report = safemap('convert', file, out, '--structure', 'drop', '--as-parts', '--root', '')
        leaves = Leaves(self, entry, document, Stored(out, report))
        if entry['error'] != 'torchscript':
            leaves.walk(entry['tree'], document, [])
        wanted = sorted(sorted(map(json.dumps, group)) for group in entry['aliases'])
        arrays = {json.dumps(tensor['path']) for tensor in entry['tensors'] if tensor.get('numpy')}
        found = sorted(sorted(map(json.dumps, group)) for group in leaves.groups.values() if len(group) > 1)
        empty = {json.dumps(tensor['path']) for tensor in entry['tensors'] if 0 in tensor['shape']}
        found = [group for group in found if not set(group) <= arrays and not set(group) <= empty]
        if entry['error'] != 'torchscript':
            self.assertEqual(found, wanted)
