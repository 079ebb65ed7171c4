#!/usr/bin/env python3
"""Times header parsing against the safetensors package, alternating in one run: headers.py BUILD [ROUNDS].

Files are sparse: a header of F32 tensors of [1024, 1024], and data that is never read. The package is timed by
safe_open, which parses and validates in Rust and creates no Python object per tensor. Prints a table for
docs/performance.md.
"""
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from safetensors import safe_open


def make(path, count):
    names = {f'model.layers.{i // 9}.mlp.proj_{i % 9}.weight': i for i in range(count)}
    size = 1024 * 1024 * 4
    header = {'__metadata__': {'format': 'pt'}}
    for at, name in enumerate(sorted(names)):
        header[name] = {'dtype': 'F32', 'shape': [1024, 1024], 'data_offsets': [at * size, (at + 1) * size]}
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        file.truncate(8 + len(text) + count * size)


def theirs(path):
    began = time.perf_counter_ns()
    with safe_open(path, framework='np'):
        return time.perf_counter_ns() - began


class Ours:
    """A process that stays alive, as this one does, so that neither figure contains the cost of a first run."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, path):
        print(path, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


def main():
    ours = Ours(pathlib.Path(sys.argv[1]) / 'bench/header_time')
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    print('| tensors | safemap, ns a tensor | safetensors, ns a tensor | ratio |\n| --- | --- | --- | --- |')
    with tempfile.TemporaryDirectory() as folder:
        for count in (300, 3_000, 30_000, 300_000):
            path = pathlib.Path(folder) / f'{count}.safetensors'
            make(path, count)
            ours(path), theirs(path)
            pairs = [(ours(path), theirs(path)) for _ in range(rounds)]
            a, b = (statistics.median(side) / count for side in zip(*pairs))
            ratio = statistics.median(y / x for x, y in pairs)
            print(f'| {count:,} | {a:.0f} | {b:.0f} | {ratio:.1f} |')
            path.unlink()


if __name__ == '__main__':
    main()
