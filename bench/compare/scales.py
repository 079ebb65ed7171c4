#!/usr/bin/env python3
"""Compares `convert --apply-scales` with torch doing the same, and with cp of the result: prints Markdown for
docs/performance.md.

    bench/compare/scales.py BUILD [--tensors 2] [--rounds 5] [--python PYTHON] [--work DIR]

BUILD is a build folder with the command line in it. PYTHON, if given, has torch and safetensors; its imports do not
count. Files are in memory by default, because processor time is compared. Each round runs every command once, and
figures are medians. Matrices are 8192 x 16384 in F8_E4M3; scales are in blocks of 128 x 128, for each row, or of MX.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import tempfile

ROWS, COLUMNS = 8192, 16384
KINDS = {'blocks': ('weight_scale_inv', 'F32', [ROWS // 128, COLUMNS // 128]),
         'rows': ('weight_scale', 'F32', [ROWS, 1]),
         'mx': ('weight_scale', 'F8_E8M0', [ROWS, COLUMNS // 32])}
TORCH = """
import json, resource, sys, time, safetensors, safetensors.torch, torch
torch.set_num_threads(2)
start, out = time.process_time(), {}
with safetensors.safe_open(sys.argv[1], 'pt') as file:
    for name in [name for name in file.keys() if name.endswith('.weight')]:
        numbers = file.get_tensor(name)
        scales = file.get_tensor(name + sys.argv[3]).to(torch.float32)
        for dim in range(2):
            scales = scales.repeat_interleave(numbers.shape[dim] // scales.shape[dim], dim)
        out[name] = (numbers.to(torch.float32) * scales).to(torch.bfloat16)
safetensors.torch.save_file(out, sys.argv[2])
print(json.dumps([time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10]))
"""


def write_model(path, tensors, kind):
    name, dtype, shape = KINDS[kind]
    scale_bytes = shape[0] * shape[1] * (4 if dtype == 'F32' else 1)
    scales = struct.pack('<f', 0.0371) * (scale_bytes // 4) if dtype == 'F32' else b'\x78' * scale_bytes
    numbers = os.urandom(ROWS * COLUMNS).translate(bytes(i & 0x77 for i in range(256)))
    header, at = {}, 0
    for i in range(tensors):
        for key, of, dims, size in ((f'l.{i}.weight', 'F8_E4M3', [ROWS, COLUMNS], len(numbers)),
                                    (f'l.{i}.{name}', dtype, shape, scale_bytes)):
            header[key] = {'dtype': of, 'shape': dims, 'data_offsets': [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for _ in range(tensors):
            file.write(numbers + scales)


def processor_seconds(*command):
    """Returns the processor time of a command and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, printed


def measure(options, work, kind):
    source, out, copy = work / 'in.safetensors', work / 'out.safetensors', work / 'copy.safetensors'
    write_model(source, options.tensors, kind)
    safemap = options.build / 'cli' / 'safemap'
    rows = []
    for _ in range(options.rounds):
        ours, told = processor_seconds(safemap, 'convert', source, out, '--apply-scales', '--force', '--json')
        row = [ours, json.loads(told)['peak_anon_bytes'] / 2**20, processor_seconds('cp', out, copy)[0]]
        copy.unlink()
        if options.python:
            row += json.loads(processor_seconds(options.python, '-c', TORCH, source, copy, KINDS[kind][0][6:])[1])
            copy.unlink()
        rows.append(row)
    ours, anon, cp, *torch = (statistics.median(column) for column in zip(*rows))
    beside = f' {torch[0]:.2f} s, {torch[1]:.0f} MiB | {torch[0] / ours:.1f} |' if torch else ' | |'
    rate = options.tensors * ROWS * COLUMNS / ours / 1e9
    print(f'| {kind} | {ours:.2f} s, {anon:.1f} MiB | {rate:.2f} | {cp:.2f} s | {ours / cp:.1f} |{beside}', flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('build', type=pathlib.Path)
    parser.add_argument('--tensors', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--python')
    parser.add_argument('--work', default='/dev/shm')
    options = parser.parse_args()
    print('| scales | `convert --apply-scales` | 10^9 values/s | `cp` of the result | × `cp` | torch | torch × |')
    print('| --- | --- | --- | --- | --- | --- | --- |')
    for kind in KINDS:
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            measure(options, pathlib.Path(work), kind)


if __name__ == '__main__':
    main()
