#!/usr/bin/env python3
"""Compares safemap with Python's unpicklers on thousands of pickles.

    pickles.py PICKLE_VERDICT [COUNT] [SEED]

PICKLE_VERDICT is the program built from pickle_verdict.cpp. Pickles are random sequences of all opcodes, in valid and
invalid frames, with other pickles hidden in their texts, and mutations of them. Nothing in them is run. The unpicklers
are the C one (reading from files that look ahead, and from files that do not), the Python one and torch's own. Each
gets inert objects for the classes and functions that it imports.

If an unpickler imports an unknown global, --strict-globals refuses the pickle. For each pickle that safemap reads:
- safemap names every global that an unpickler imports;
- safemap lists every global that an unpickler calls as called;
- all unpicklers end at the same byte as safemap, because in old files of torch.save another pickle begins there.
"""

import _compat_pickle
import io
import json
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import warnings

from torch import _weights_only_unpickler as weights_only

# A mutation can turn one _rebuild_tensor into another; safemap knows all three.
KNOWN = [('collections', 'OrderedDict'), ('torch._utils', '_rebuild_tensor_v2'), ('torch', 'FloatStorage'),
         ('torch._utils', '_rebuild_tensor'), ('torch._utils', '_rebuild_tensor_v3'),
         ('__builtin__', 'set'), ('builtins', 'set'), ('__builtin__', 'long'), ('_codecs', 'encode'),
         ('collections', 'defaultdict'), ('numpy.core.multiarray', 'scalar'), ('UserDict', 'OrderedDict')]
UNKNOWN = [('os', 'system'), ('posix', 'system'), ('my', 'Thing'), ('builtins', 'eval'), ('cPickle', 'loads'),
           ('commands', 'getoutput'), ('torch', 'load'), ('__builtin__', 'set.x'), ('torch.tensor', 'Other'),
           ('builtins', 'getattr'), ('__builtin__', 'getattr')]
GETATTR = {('builtins', 'getattr'), ('__builtin__', 'getattr')}
MOVED = {'torch.tensor': 'torch._tensor', 'numpy.core.multiarray': 'numpy._core.multiarray'}


# Random pickles: lists of opcodes, each with its argument.

def little(number, size):
    return number.to_bytes(size, 'little')


class Generator:
    def __init__(self, rng):
        self.rng = rng
        self.unknown = rng.random() < 0.15
        self.memo = {}  # the index of each entry, and whether it can be a key

    def pickle(self):
        rng = self.rng
        opcodes = []
        if rng.random() < 0.9:
            opcodes.append(b'\x80' + bytes([rng.choice([0, 1, 2, 2, 2, 3, 4, 4, 5])]))
        for _ in range(rng.randrange(3)):
            opcodes += self.value(2) + [b'0']
        opcodes += self.value(3)
        if rng.random() < 0.05:
            opcodes += [b'(']
            opcodes += self.value(1)
        opcodes.append(b'.')
        data = self.framed(opcodes)
        if rng.random() < 0.3:
            data = self.mutated(data)
        return data + rng.choice([b''] * 5 + [b'.', b'junk', self.payload()])

    def framed(self, opcodes):
        rng = self.rng
        how = rng.choice(['none', 'none', 'right', 'right', 'wrong'])
        if how == 'none':
            return b''.join(opcodes)
        data = b''
        at = 0
        while at < len(opcodes):
            count = rng.randrange(1, 8)
            part = b''.join(opcodes[at:at + count])
            at += count
            if rng.random() < 0.3:
                data += part  # between frames, as for large texts
                continue
            size = len(part)
            if how == 'wrong' and rng.random() < 0.5:
                rest = size + len(b''.join(opcodes[at:]))
                size = rng.choice([rng.randrange(size + 1), size + rng.randrange(-2, 12), rng.randrange(rest + 2)])
            data += b'\x95' + little(max(size, 0), 8) + part
        return data

    def mutated(self, data):
        rng = self.rng
        data = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(data) + 1)
            how = rng.randrange(4)
            if how == 0:
                data[at:at + 1] = bytes([rng.randrange(256)])
            elif how == 1:
                del data[at:at + rng.randrange(1, 4)]
            elif how == 2:
                data[at:at] = rng.choice([bytes([rng.randrange(256)]), b'\n', b'\r', b'\0', b'.', b'(', b'0', b'2'])
            elif at < len(data):
                data[at] = (data[at] + rng.choice([1, -1, 8, 128])) % 256
        return bytes(data)

    def payload(self):
        """Returns a pickle that imports an unknown name, after opcodes that lead into it from many places."""
        rng = self.rng
        module, name = rng.choice(UNKNOWN)
        line = b'c%s\n%s\n' % (module.encode(), name.encode())
        stack = b'\x8c%c%s\x8c%c%s\x93' % (len(module), module.encode(), len(name), name.encode())
        return b'N' * rng.randrange(6) + rng.choice([line, stack]) + rng.choice([b'.', b')R.', b'0', b''])

    def value(self, depth):
        """Returns the opcodes that push one value."""
        rng = self.rng
        choices = [self.number, self.text, self.text, self.data, self.simple, self.recall, self.global_]
        if depth > 0:
            choices += [self.tuple, self.list, self.dict, self.set, self.call, self.call, self.object, self.noisy,
                        self.persistent]
        opcodes = rng.choice(choices)(depth - 1)
        return opcodes + self.remember(False)

    def key(self):
        opcodes = self.rng.choice([self.number, self.text, self.simple])(0)
        return opcodes + self.remember(True)

    def values(self, depth, most=3):
        return [opcode for _ in range(self.rng.randrange(most)) for opcode in self.value(depth)]

    def remember(self, hashable):
        rng = self.rng
        if rng.random() < 0.7:
            return []
        index = rng.choice([len(self.memo), rng.randrange(12), rng.randrange(300), rng.choice([2000, 70000])])
        how = rng.randrange(4)
        if how == 0:
            opcode = b'\x94'
            index = len(self.memo)
        elif how == 1 and index < 256:
            opcode = b'q' + little(index, 1)
        elif how == 2:
            opcode = b'r' + little(index, 4)
        else:
            opcode = b'p%d\n' % index
        self.memo[index] = hashable
        return [opcode]

    def recall(self, _):
        rng = self.rng
        if not self.memo:
            return [b'N']
        index = rng.choice(list(self.memo))
        choices = [b'j' + little(index, 4), b'g%d\n' % index]
        if index < 256:
            choices.append(b'h' + little(index, 1))
        return [rng.choice(choices)]

    def number(self, _):
        rng = self.rng
        n = rng.choice([0, 1, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**40, 2**70])
        choices = [b'I%d\n' % n, b'L%dL\n' % n, b'L%d\n' % n, b'F%d\n' % n, b'G' + struct.pack('>d', n)]
        if n < 2**31:
            choices.append(b'J' + little(n, 4))
        if n < 2**16:
            choices.append(b'M' + little(n, 2))
        if n < 2**8:
            choices.append(b'K' + little(n, 1))
        size = rng.randrange(9, 12)
        choices += [b'\x8a' + little(size, 1) + little(n, size), b'\x8b' + little(size, 4) + little(n, size)]
        choices += [b'\x8a\0', b'\x8b\0\0\0\0', b'I-5\n', b'I00\n', b'I01\n']
        if rng.random() < 0.05:
            choices = [b'I010\n', b'I0x1F\n', b'I1_0\n', b'I 1\n', b'I1\0N\n', b'L0L\n', b'L00L\n', b'I+1\n', b'I\n',
                       b'F1_0\n', b'Fnan\n', b'F 1\n', b'F1\0N\n', b'I1 \n', b'I0\r\n', b'I01\r\n']
        return [rng.choice(choices)]

    def simple(self, _):
        return [self.rng.choice([b'N', b'\x88', b'\x89', b')'])]

    def text(self, _):
        rng = self.rng
        text = rng.choice([b'', b'a', b'os', b'system', 'é'.encode(), b'x' * 30, self.payload(), self.payload()])
        size = len(text)
        choices = [b'X' + little(size, 4) + text, b'\x8d' + little(size, 8) + text, b'T' + little(size, 4) + text,
                   b"S'%s'\n" % text.replace(b'\n', b'\\n'), b'V%s\n' % text.replace(b'\n', b'\\u000a')]
        if size < 256:
            choices += [b'\x8c' + little(size, 1) + text, b'U' + little(size, 1) + text]
        if rng.random() < 0.05:
            choices = [b"S'a\\x4'\n", b"S'\\501'\n", b"S'a' \n", b"S'a'\r\n", b"S'a\"\n", b'S"a\\"\n', b'V\\ud800\n',
                       b'V\\\n', b'V\\\\u0041\n', b'Va\r\n', b'V\xe9\n', b"S''\n", b'S\n', b'V\n', b"S'\\'\n"]
        return [rng.choice(choices)]

    def data(self, _):
        data = self.rng.choice([b'', b'data', self.payload(), self.payload() + b'x' * 40, b'N' * 300])
        choices = [b'B' + little(len(data), 4) + data, b'\x8e' + little(len(data), 8) + data,
                   b'\x96' + little(len(data), 8) + data]
        if len(data) < 256:
            choices.append(b'C' + little(len(data), 1) + data)
        return [self.rng.choice(choices)]

    def tuple(self, depth):
        rng = self.rng
        size = rng.randrange(4)
        inside = [opcode for _ in range(size) for opcode in self.value(depth)]
        if size and rng.random() < 0.5:
            return inside + [bytes([0x84 + size])]
        return [b'('] + inside + [b't']

    def list(self, depth):
        how = self.rng.randrange(3)
        if how == 0:
            return [b'('] + self.values(depth) + [b'l']
        if how == 1:
            return [b']'] + self.value(depth) + [b'a']
        return [b']', b'('] + self.values(depth) + [b'e']

    def dict(self, depth):
        rng = self.rng
        items = [opcode for _ in range(rng.randrange(3)) for opcode in self.key() + self.value(depth)]
        how = rng.randrange(3)
        if how == 0:
            return [b'('] + items + [b'd']
        if how == 1:
            return [b'}'] + self.key() + self.value(depth) + [b's']
        return [b'}', b'('] + items + [b'u']

    def set(self, _):
        keys = [opcode for _ in range(self.rng.randrange(3)) for opcode in self.key()]
        return self.rng.choice([[b'\x8f', b'('] + keys + [b'\x90'], [b'('] + keys + [b'\x91']])

    def names(self):
        module, name = self.rng.choice(UNKNOWN if self.unknown and self.rng.random() < 0.4 else KNOWN)
        return module.encode(), name.encode()

    def global_(self, _):
        rng = self.rng
        module, name = self.names()
        if rng.random() < 0.6:
            return [b'c%s\n%s\n' % (module, name)]
        texts = []
        for text in (module, name):
            texts.append(rng.choice([b'\x8c%c%s' % (len(text), text), b'X' + little(len(text), 4) + text,
                                     b'U%c%s' % (len(text), text), b'V%s\n' % text, b"S'%s'\n" % text,
                                     b"S'\\x%02x%s'\n" % (text[0], text[1:]), b'V\\u%04x%s\n' % (text[0], text[1:])]))
            texts += self.remember(True)
        return texts + [b'\x93']

    def call(self, depth):
        rng = self.rng
        arguments = self.tuple(depth)
        if rng.random() < 0.1:
            inner = rng.choice([b'Inner', b'os.system', b'__init__', b'x'])
            getattr_ = rng.choice([b'c__builtin__\ngetattr\n', b'cbuiltins\ngetattr\n'])
            return ([getattr_] + self.remember(True) + self.global_(0) +
                    [b'X' + little(len(inner), 4) + inner, b'\x86', b'R'])
        how = rng.randrange(5)
        if how == 0:
            module, name = self.names()
            return [b'('] + self.values(depth) + [b'i%s\n%s\n' % (module, name)]
        if how == 1:
            return [b'('] + self.callee(depth) + self.values(depth) + [b'o']
        if how == 2:
            return self.callee(depth) + arguments + [b'\x81']
        if how == 3:
            return self.callee(depth) + arguments + [b'}', b'\x92']
        return self.callee(depth) + arguments + [b'R']

    def object(self, depth):
        """Returns a call whose result is modified."""
        rng = self.rng
        made = self.call(depth) + self.remember(False)
        how = rng.randrange(4)
        if how == 0:
            return made + self.value(depth) + [b'b']
        if how == 1:
            return made + self.key() + self.value(depth) + [b's']
        if how == 2:
            return made + [b'('] + self.values(depth) + [b'e']
        return made + self.tuple(depth) + [b'R']

    def persistent(self, depth):
        if self.rng.random() < 0.3:
            return self.module(depth)
        if self.rng.random() < 0.02:
            return [self.rng.choice([b'Pid\n', b'\x82\1', b'\x83\1\0', b'\x97', b'\x98', b'N\x98'])]
        return self.value(depth) + [b'Q']

    def module(self, depth):
        """Returns a persistent id that stands for a class, or for another such id."""
        rng = self.rng
        inner = self.module(depth - 1) if depth > 0 and rng.random() < 0.3 else self.global_(0)
        word = rng.choice([b'X\6\0\0\0module', b'C\6module'])
        return [b'(', word] + inner + rng.choice([[], [b'N'], [b'N', b'N']]) + [b't', b'Q']

    def callee(self, depth):
        return self.module(depth) if self.rng.random() < 0.2 else self.global_(depth)

    def noisy(self, depth):
        """Returns a value, and other values that are dropped."""
        value = self.value(depth)
        other = self.value(depth)
        return self.rng.choice([other + [b'0'] + value, value + [b'2', b'0'], value + [b'('] + other + [b'1'],
                                value + [b'('] + other + [b'0', b'0'], [b'\x80\x04'] + value, value + [b'\x80\x02']])


# Unpicklers that record their imports.

class Inert:
    """Replaces every class, function and object."""
    asked = None
    recorder = None

    def __new__(cls, *args, **kwargs):
        if cls.asked:
            cls.recorder.called.add(cls.asked)
        if cls.asked in GETATTR and len(args) == 2 and isinstance(args[1], str):
            outer = args[0].asked if isinstance(args[0], type) else None
            # Attributes of objects that are not classes, and special attributes, are not imports; the call is recorded.
            if outer and not args[1].startswith('__'):
                return cls.recorder(*outer, args[1])
        return object.__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Inert()

    def nothing(*args, **kwargs):
        pass

    __setstate__ = __setitem__ = append = extend = add = nothing


class Recorder:
    def __init__(self):
        self.asked = set()
        self.called = set()

    def __call__(self, *names):
        """Records a module and a name, and the names of attributes of that."""
        self.asked.add(names)
        return type('Stand', (Inert,), {'asked': names, 'recorder': staticmethod(self)})


def recording(base):
    class Recording(base):
        def __init__(self, file, recorder):
            super().__init__(file, encoding='utf-8')
            self.recorder = recorder

        def find_class(self, module, name):
            return self.recorder(module, name)

        def persistent_load(self, pid):
            """Handles persistent ids as torch does in old files."""
            if isinstance(pid, tuple) and len(pid) > 1 and pid[0] in ('module', b'module'):
                return pid[1]
            return Inert()
    return Recording


class Everything:
    """A table in which everything is allowed."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __contains__(self, _):
        return True

    def __getitem__(self, _):
        return self.recorder(*self.last)

    def read(self, readline):
        self.last = read_names(readline)
        return self.last

    def values(self):
        return self


class Whole(io.BytesIO):
    """Looks ahead as far as possible, as if all bytes were in memory."""

    def peek(self, _):
        return self.getvalue()[self.tell():]


CUnpickler = recording(pickle.Unpickler)
PythonUnpickler = recording(pickle._Unpickler)
TorchUnpickler = recording(weights_only.Unpickler)


read_names = weights_only._read_global_instruction


def read_torch(data, recorder):
    everything = Everything(recorder)
    weights_only._get_allowed_globals = lambda: everything
    weights_only._read_global_instruction = everything.read
    file = io.BytesIO(data)
    return file, TorchUnpickler(file, recorder)


READERS = {
    'C': lambda data, recorder: (file := io.BytesIO(data), CUnpickler(file, recorder)),
    'C that looks ahead': lambda data, recorder: (file := io.BufferedReader(io.BytesIO(data)),
                                                  CUnpickler(file, recorder)),
    'C in memory': lambda data, recorder: (file := Whole(data), CUnpickler(file, recorder)),
    'Python': lambda data, recorder: (file := io.BytesIO(data), PythonUnpickler(file, recorder)),
    'torch': read_torch,
}


def seen(reader, data):
    """Returns what a reader imports and calls, and where it ends (None if it fails)."""
    recorder = Recorder()
    end = None
    try:
        file, unpickler = READERS[reader](data, recorder)
        unpickler.load()
        end = file.tell()
    except Exception:  # any error: imports until then count
        pass
    return recorder, end


# The verdicts of safemap.

def verdicts(program, pickles):
    data = b''.join(struct.pack('<Q', len(each)) + each for each in pickles)
    run = subprocess.run([program], input=data, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def spellings(module, name, *attributes):
    """Yields the names that safemap may use: unchanged, and as Python 3 and later releases map them."""
    new = _compat_pickle.NAME_MAPPING.get((module, name),
                                          (_compat_pickle.IMPORT_MAPPING.get(module, module), name))
    for outer, inner in (module, name), new, (MOVED.get(module, module), name):
        yield outer, '.'.join([inner, *attributes])


ALL_KNOWN = {spelling for known in KNOWN for spelling in spellings(*known)}


def fault(data, verdict):
    """Returns the fault of a verdict, or None."""
    for reader in READERS:
        recorder, end = seen(reader, data)
        asked = recorder.asked
        if asked - ALL_KNOWN - GETATTR and verdict['strict'] is None:
            return f'{reader} asks for {asked}, and --strict-globals is silent'
        if verdict['error'] is not None:
            continue
        if end is not None and end != verdict['consumed']:
            return f'{reader} ends at byte {end}'
        named = {spelling for module, name in verdict['names'] for spelling in spellings(module, *name.split('.'))}
        # From protocol 3 on, the getattr of a module __builtin__ can be anything.
        if ('__builtin__', 'getattr') in named and verdict['strict']:
            continue
        called = {spelling for module, name in verdict['called'] for spelling in spellings(module, *name.split('.'))}

        # A getattr that is listed as called may return any attribute.
        def covered(names):
            return len(names) > 2 and verdict['strict'] and called & GETATTR

        for names in asked:
            if named.isdisjoint(spellings(*names)) and not covered(names):
                return f'{reader} asks for {".".join(names)}'
        for names in recorder.called - GETATTR:
            if called.isdisjoint(spellings(*names)) and not covered(names):
                return f'{reader} calls {".".join(names)}'
    return None


def main(program, count, seed):
    warnings.simplefilter('ignore')
    weights_only._blocklisted_modules = []
    # A memo index of four bytes may allocate gigabytes.
    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29),) * 2)
    rng = random.Random(seed)
    pickles = [Generator(rng).pickle() for _ in range(count)]
    read = strict = 0
    for data, verdict in zip(pickles, verdicts(program, pickles), strict=True):
        wrong = fault(data, verdict)
        if wrong:
            print(f'SAFEMAP_SEED={seed}: {data!r}: safemap says {verdict}, but {wrong}')
            return 1
        read += verdict['error'] is None
        strict += verdict['strict'] == 'unknown_global'
    print(f'{count} pickles with seed {seed}: {read} read, {strict} refused for what they name')
    # Otherwise too few pickles were compared.
    return 0 if read > count / 4 and strict > count / 50 else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10000,
                  int(sys.argv[3]) if len(sys.argv) > 3 else int(os.environ.get('SAFEMAP_SEED') or
                                                                 random.SystemRandom().randrange(2**32))))
