"""Files that tests forge in Python: safetensors, also sparse ones of any size, and files of torch.save.

Checks nothing, so that tests can forge invalid files.
"""
import io
import json
import pathlib
import pickle
import struct
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
