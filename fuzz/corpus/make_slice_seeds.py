"""Writes the seeds of fuzz_slice: make_slice_seeds.py FOLDER. fuzz_slice.cpp defines how it reads its input."""
import pathlib
import sys


def number(n):
    """Returns a small number as one byte, and any other as a marker byte and eight bytes."""
    return bytes([n + 8]) if -8 <= n < 8 else b'\xff' + n.to_bytes(8, 'big', signed=True)


def at(i):
    return b'\x00' + number(i)


def part(start=None, stop=None, step=None):
    kind = 2 | 8 * (start is not None) | 16 * (stop is not None) | 32 * (step is not None)
    return bytes([kind]) + b''.join(number(n) for n in (start, stop, step) if n is not None)


REST = b'\x01'
U8, F4, F6 = range(3)

# Name: dtype, shape, and the slices of each step.
SEEDS = {
    'whole': (U8, [2, 3], []),
    'index_ellipsis': (U8, [2, 3, 4], [at(-1), REST], [part(1)], [part(step=-1)]),
    'beyond_both_ends': (U8, [5], [part(-8, 7)], [part(7, -8, -1)]),
    'step_two_of_reverse': (U8, [7, 3], [part(step=-1)], [part(step=2), part(1, 2)], [at(0)]),
    'two_ellipses': (U8, [2, 2], [REST, REST]),
    'too_many': (U8, [2], [at(0), at(0)]),
    'out_of_range': (U8, [2], [at(2)]),
    'step_zero': (U8, [2], [part(step=0)]),
    'scalar': (U8, [], [REST]),
    'empty': (U8, [0, 3], [part(), at(1)]),
    'empty_behind_many': (U8, [3] + [-8] * 8 + [0], [part(step=-1)]),
    'huge_step': (U8, [5], [part(step=2**63 - 1)], [part(step=-2**63)]),
    'packed_rows': (F4, [4, 6], [part(1, 3)], [at(0)]),
    'packed_half_byte': (F4, [4, 6], [part(), part(1, 3)]),
    'packed_empty_odd': (F4, [4, 6], [part(0, 0), part(1, 2)]),
    'packed_six_bits': (F6, [2, 7, 4], [part(step=-1), part(2)], [at(0), at(1)]),
    'dimensions_without_elements': (U8, [0, 2**40, 2**40], [part(), part(-1), part(step=2**62)], [REST, at(-1)]),
    'dimension_beyond_63_bits': (U8, [-2**63, 0], [part(2**63 - 1), part()], [at(0)]),
    'large': (U8, [2**31, 2**31], [at(-1), part(step=-3)], [part(5, step=2**20)]),
    'ten_dimensions': (U8, [1, 2] * 5, [at(0), REST, part(step=-1)], [part(), at(1)], [REST, at(0)]),
}

if __name__ == '__main__':
    for name, (dtype, shape, *cuts) in SEEDS.items():
        seed = bytes([dtype, len(shape)]) + b''.join(map(number, shape))
        seed += b''.join(bytes([len(cut)]) + b''.join(cut) for cut in cuts)
        pathlib.Path(sys.argv[1], name).write_bytes(seed)
