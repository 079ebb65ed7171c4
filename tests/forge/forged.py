"""Files that tests forge in Python: safetensors, also sparse ones of any size, and files of torch.save.

Checks nothing, so that tests can forge invalid files.
"""
import collections
import io
import json
import pathlib
import pickle
import struct
import sys
import types
import zipfile


def header_bytes(header):
    """Returns the beginning of a safetensors file: the length of the header, and the header, a dict or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text


def safetensors(tensors, metadata=None):
    """Returns a file with tensors (name, dtype, shape, data) in this order."""
    header, place = {}, 0
    if metadata is not None:
        header['__metadata__'] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [place, place + len(data)]}
        place += len(data)
    text = json.dumps(header).encode()
    return header_bytes(text + b' ' * (-len(text) % 8)) + b''.join(data for *_, data in tensors)


def write_sparse(path, names, size, first=lambda number: b''):
    """Writes U8 tensors of `size` bytes each, without blocks on disk but for the first bytes of tensor `number`."""
    head = header_bytes({name: {'dtype': 'U8', 'shape': [size], 'data_offsets': [i * size, (i + 1) * size]}
                         for i, name in enumerate(names)})
    with open(path, 'wb') as file:
        file.write(head)
        for i in range(len(names)):
            file.seek(len(head) + i * size)
            file.write(first(i))
        file.truncate(len(head) + len(names) * size)


def header_of(file):
    with open(file, 'rb') as opened:
        return json.loads(opened.read(struct.unpack('<Q', opened.read(8))[0]))


def tensors_of(file):
    """Returns the tensors of a safetensors file as (dtype, shape, bytes), and its metadata."""
    header = header_of(file)
    metadata = header.pop('__metadata__', {})
    data = pathlib.Path(file).read_bytes()
    data = data[8 + struct.unpack('<Q', data[:8])[0]:]
    return {name: (about['dtype'], about['shape'], data[slice(*about['data_offsets'])])
            for name, about in header.items()}, metadata


def floats(*values):
    return struct.pack(f'<{len(values)}f', *values)


def torch_file(tensors):
    """Returns a file of torch.save: a dict of tensors of two elements (name: storage type), with one storage per type.
    """
    def text(value):
        return b'X' + struct.pack('<I', len(value)) + value.encode()

    out = io.BytesIO()
    types = list(dict.fromkeys(tensors.values()))
    pickled = b'\x80\x02}('
    for name, type in tensors.items():
        pickled += (text(name) + b'ctorch._utils\n_rebuild_tensor_v2\n((' + text('storage') +
                    f'ctorch\n{type}\n'.encode() + text(str(types.index(type))) + text('cpu') +
                    b'K\x02tQK\x00(K\x02t(K\x01t\x89ccollections\nOrderedDict\n)RtR')
    with zipfile.ZipFile(out, 'w') as archive:
        archive.writestr('a/data.pkl', pickled + b'u.')
        archive.writestr('a/byteorder', 'little')
        for i, type in enumerate(types):
            archive.writestr(f'a/data/{i}', b'c' * {'ComplexDoubleStorage': 32, 'FloatStorage': 8}[type])
    return out.getvalue()


def value_file(value):
    """Returns a file of torch.save of a value without tensors."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w') as archive:
        archive.writestr('archive/data.pkl', pickle.dumps(value, protocol=2))
        archive.writestr('archive/version', '3\n')
    return out.getvalue()


class Tensor:
    """An F32 tensor for nested_file(). It is tied to the tensor `of`, if that is given."""

    def __init__(self, *numbers, shape=None, of=None):
        self.storage = of.storage if of else list(numbers)
        self.shape = tuple(of.shape if of else shape or (len(numbers),))


def nested_file(value):
    """Returns a file of torch.save of any value with tensors in it. Needs no torch: the pickle only names it."""
    storages, keys = [], {}
    torch, utils = types.ModuleType('torch'), types.ModuleType('torch._utils')
    torch.FloatStorage = type('FloatStorage', (), {'__module__': 'torch'})
    utils._rebuild_tensor_v2 = type('_rebuild_tensor_v2', (), {'__module__': 'torch._utils'})

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if not isinstance(value, tuple) or not value or value[0] != 'storage of':
                return None
            numbers = value[1]
            key = keys.setdefault(id(numbers), len(storages))
            if key == len(storages):
                storages.append(numbers)
            return 'storage', torch.FloatStorage, str(key), 'cpu', len(numbers)

        def reducer_override(self, value):
            if not isinstance(value, Tensor):
                return NotImplemented
            strides = [1]
            for size in value.shape[:0:-1]:
                strides.insert(0, strides[0] * size)
            return utils._rebuild_tensor_v2, (('storage of', value.storage), 0, value.shape,
                                              tuple(strides[:len(value.shape)]), False, collections.OrderedDict())

    pickled, out = io.BytesIO(), io.BytesIO()
    known = {name: sys.modules.get(name) for name in ('torch', 'torch._utils')}
    sys.modules.update({'torch': torch, 'torch._utils': utils})
    try:
        Pickler(pickled, protocol=2).dump(value)
    finally:
        for name, module in known.items():
            sys.modules.pop(name)
            if module:
                sys.modules[name] = module
    with zipfile.ZipFile(out, 'w') as archive:
        archive.writestr('archive/data.pkl', pickled.getvalue())
        archive.writestr('archive/byteorder', 'little')
        archive.writestr('archive/version', '3\n')
        for i, numbers in enumerate(storages):
            archive.writestr(f'archive/data/{i}', floats(*numbers))
    return out.getvalue()
