"""Tests that safemap reads changed files of torch.save as torch.load reads them, or refuses them.

Files are saved by torch. Then their pickle or their storages are changed at random: bytes, opcodes, keys, types and
members. If torch and safemap both read a file, every value, type, dtype, shape and bit has to be the same, except for
DIFFERENCES, which is the whole list of what docs/format.md allows.
"""
import collections
import io
import os
import pickletools
import warnings
import zipfile

import torch

import structure
from common import DTYPES, Case, safemap, tensor_of

# Values that safemap reads in another way than torch; docs/format.md lists them ("Where safemap and
# torch.load differ"). Everything else that differs is a failure.
DIFFERENCES = ('the last dimension of float4', 'bytes of bool above 1', 'the type of an empty storage')


def element(rng):
    """Returns a value that can be a key or a member of a set."""
    plain = [0, 1, -1, 255, 2**40, 2**70, True, False, None, '', 'a', 'b', 'x' * 200, 0.5, 1.0, 1e300, float('inf')]
    value = rng.choice(plain)
    return value if rng.random() < 0.8 else (value, rng.choice(plain))


def value(rng, depth, pool):
    kind = rng.randrange(10 if depth else 6)
    if kind < 3:
        if pool and rng.random() < 0.3:
            tensor = rng.choice(pool)
            return rng.choice([tensor, tensor.view(tensor.shape)])
        tensor = tensor_of(rng, rng.choice(DTYPES), (rng.randrange(1, 4), 4))
        if rng.random() < 0.1:
            tensor = torch.tensor([list(rng.randbytes(4))], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        if rng.random() < 0.1:
            tensor = torch.empty(0, dtype=rng.choice(DTYPES))
        pool.append(tensor)
        return tensor.t() if rng.random() < 0.2 and tensor.dtype != torch.float4_e2m1fn_x2 else tensor
    if kind < 5:
        return element(rng)
    if kind == 5:
        return {element(rng) for _ in range(rng.randrange(5))}
    if kind == 6:
        return [value(rng, depth - 1, pool) for _ in range(rng.randrange(4))]
    if kind == 7:
        return tuple(value(rng, depth - 1, pool) for _ in range(rng.randrange(4)))
    made = {} if kind == 8 else collections.OrderedDict()
    for _ in range(rng.randrange(6)):
        made[element(rng)] = value(rng, depth - 1, pool)
    return made


def opcodes(data):
    """Returns a pickle as a list of opcodes with their arguments, as bytes."""
    places = [place for _, _, place in pickletools.genops(data)] + [len(data)]
    return [data[begin:end] for begin, end in zip(places, places[1:])]


def changed_pickle(rng, data):
    """Changes an opcode or a few bytes. No changed pickle can call what torch's own unpickler does not allow."""
    parts = opcodes(data)
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(1, len(parts) - 1)
        how = rng.randrange(7)
        if how == 0:  # another opcode of the same kind: a number, text, name or place in the memo
            same = [part for part in parts if part[:1] == parts[at][:1]]
            parts[at] = rng.choice(same)
        elif how == 1:  # another plain value
            plain = [part for part in parts if part[:1] in b'NKMJG\x88\x89X' or part[:1] in (b'\x8a',)]
            places = [place for place, part in enumerate(parts) if part[:1] in b'NKMJG\x88\x89X']
            parts[rng.choice(places)] = rng.choice(plain)
        elif how == 2:  # another class of a storage
            names = [place for place, part in enumerate(parts) if part.startswith(b'ctorch\n') and b'Storage' in part]
            if names:
                parts[rng.choice(names)] = b'ctorch\n%sStorage\n' % rng.choice(
                    [b'Float', b'Int', b'Half', b'Byte', b'Bool', b'Long', b'BFloat16', b'Untyped'])
        elif how == 3:  # another storage key: texts of digits
            keys = [place for place, part in enumerate(parts) if part[:1] == b'X' and part[5:].isdigit()]
            if keys:
                parts[rng.choice(keys)] = parts[rng.choice(keys)]
        elif how == 4:  # a value twice
            parts.insert(at, parts[at])
        elif how == 5:
            parts[at:at] = [rng.choice([b'N', b'K\1', b'0', b'2', b'(', b')', b']', b'}', b'\x85', b'\x86'])]
        else:
            part = bytearray(parts[at])
            part[rng.randrange(len(part))] = rng.randrange(256)
            parts[at] = bytes(part)
    return b''.join(parts)


def changed_file(rng, saved):
    """Returns a file of torch.save with changes in its pickle or its storages, and right checksums."""
    source = zipfile.ZipFile(io.BytesIO(saved))
    records = {info.filename: source.read(info) for info in source.infolist()}
    pickle = next(name for name in records if name.endswith('/data.pkl'))
    storages = [name for name in records if '/data/' in name and records[name]]
    if storages and rng.random() < 0.2:
        name = rng.choice(storages)
        data = bytearray(records[name])
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        records[name] = bytes(data)
    else:
        records[pickle] = changed_pickle(rng, records[pickle])
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w') as made:
        for name, data in records.items():
            made.writestr(name, data)
    return out.getvalue()


def spelled(key):
    """Returns the text of a key. Classes and functions are objects here, and have no text."""
    return 'a class, function or object' if isinstance(key, structure.Object) or callable(key) else repr(key)


class Reader(structure.Reader):
    def read_g(self, parts, path):
        """Returns a class or function as an object with its name."""
        return structure.Object(parts[0])


class LikeTorchLoad(Case):
    def read_by_torch(self, path):
        """Returns what torch reads of a file, or None if it refuses it."""
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            try:
                return [torch.load(path, weights_only=True)]
            except Exception:  # any error: a file that torch refuses is not compared
                return None

    def read_by_safemap(self, path):
        out = self.folder / 'out.safetensors'
        try:
            safemap('convert', path, out, '--structure', 'keep', '--force')
        except AssertionError as refused:
            # 1: the file is refused. Any other exit is a failure.
            self.assertRegex(str(refused), r'exit 1\n')
            return None
        return [structure.read(out, Reader)]

    def same(self, ours, theirs, where, found):
        """Compares a value. Adds the names of allowed differences to `found`."""
        if isinstance(theirs, torch.Tensor):
            self.assertIsInstance(ours, torch.Tensor, where)
            return self.same_tensor(ours, theirs.detach(), where, found)
        if isinstance(theirs, (torch.storage.TypedStorage, torch.storage.UntypedStorage)):
            return self.assertIsInstance(ours, structure.Object, where)
        if isinstance(ours, structure.Object):
            # A class, or an object whose parts are kept: a dict with attributes, a size that has no numbers.
            return None
        self.assertIs(type(ours), type(theirs), where)
        if isinstance(theirs, dict):
            self.assertEqual(list(map(spelled, ours)), list(map(spelled, theirs)), where)
            for (key, value), other in zip(ours.items(), theirs.values()):
                self.same(value, other, f'{where}/{key!r}', found)
        elif isinstance(theirs, (list, tuple)):
            self.assertEqual(len(ours), len(theirs), where)
            for place, (value, other) in enumerate(zip(ours, theirs)):
                self.same(value, other, f'{where}/{place}', found)
        elif isinstance(theirs, (set, frozenset)):
            self.assertEqual(sorted(map(spelled, ours)), sorted(map(spelled, theirs)), where)
        else:
            self.assertEqual(repr(ours), repr(theirs), where)
        return None

    def same_tensor(self, ours, theirs, where, found):
        if theirs.dtype == torch.float4_e2m1fn_x2:
            # The package gives the shape of the file back in pairs; the shape in the header is compared here.
            found.add(DIFFERENCES[0])
        if theirs.numel() == 0 and ours.dtype != theirs.dtype:
            found.add(DIFFERENCES[2])
            return self.assertEqual(ours.shape, theirs.shape, where)
        self.assertEqual((ours.dtype, ours.shape), (theirs.dtype, theirs.shape), where)
        got, wanted = structure.plain(ours), structure.plain(theirs)
        if theirs.dtype == torch.bool:
            # The bytes of the storage, which torch keeps until it copies them.
            bits = theirs.view(torch.uint8).contiguous()
            if (bits > 1).any():
                found.add(DIFFERENCES[1])
            got, wanted = ours.view(torch.uint8), bits
        if theirs.dtype == torch.float4_e2m1fn_x2:
            got, wanted = got.view(torch.uint8), wanted.view(torch.uint8)
        return self.assert_same(got, wanted, where)

    def check(self, data):
        """Returns the allowed differences of a file, or None if torch or safemap refuses it."""
        path = self.folder / 'in.pt'
        path.write_bytes(data)
        theirs = self.read_by_torch(path)
        if theirs is None:
            return None
        ours = self.read_by_safemap(path)
        if ours is None:
            return None
        found = set()
        self.same(ours[0], theirs[0], '', found)
        return found

    def saved(self):
        tree = {'x': value(self.rng, 3, []), 'y': value(self.rng, 2, [])}
        file = io.BytesIO()
        torch.save(tree, file)
        return file.getvalue()

    def test_the_last_dimension_of_float4_counts_single_numbers(self):
        torch.save({'w': torch.zeros(2, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, self.folder / 'in.pt')
        (tensor,) = safemap('inspect', self.folder / 'in.pt')['tensors']
        self.assertEqual((tensor['dtype'], tensor['shape']), ('F4', [2, 6]))

    def test_changed_files_are_read_as_torch_reads_them_or_refused(self):
        compared = collections.Counter()
        for number in range(int(os.environ.get('SAFEMAP_CHANGED_FILES', 300))):
            saved = self.saved()
            data = changed_file(self.rng, saved) if number % 10 else saved
            with self.subTest(number=number):
                found = self.check(data)
                compared['both' if found is not None else 'refused'] += 1
                compared.update(found or ())
        self.assertLessEqual(set(compared) - {'both', 'refused'}, set(DIFFERENCES))
        self.assertGreater(compared['both'], 50, compared)
