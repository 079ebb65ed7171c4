#!/usr/bin/env python3
"""Times many views of one storage and headers of many tensors, with one build or several side by side: prints Markdown
for docs/performance.md.

    bench/compare/views.py SAFEMAP... --python PYTHON [--rounds 5] [--work DIR]

SAFEMAP is the command line of a build; the first one is what the others are compared with. PYTHON has torch, which
saves the views. Each round runs every job with every program in turn on warm input. Figures are medians of the rounds:
seconds of processor, and the most memory that was resident, the program itself included.
"""

import argparse
import datetime
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

MAKE = """
import sys, torch
def columns(rows, columns, count, dtype=torch.float32):
    matrix = torch.rand(rows, columns).to(dtype)
    return {f'c{i:05d}': matrix[:, i] for i in range(count)}
cubes = torch.rand(100_000, 2, 100)
files = {
    'columns': columns(5_000, 2_000, 2_000),
    'tall': columns(20_000, 1_000, 1_000),
    'wide': columns(500, 20_000, 20_000),
    'pairs': {f'p{i:03d}': cubes[:, :, 2 * i:2 * i + 2] for i in range(50)},
    'narrow': {'t': torch.rand(15_000_000, 2).t()},
}
for name, state in files.items():
    torch.save(state, f'{sys.argv[1]}/{name}.pt')
"""
VIEWS = {
    "columns": "2,000 columns of 20 kB, of a matrix of 40 MB",
    "tall": "1,000 columns of 80 kB, of 80 MB",
    "wide": "20,000 columns of 2 kB, of 40 MB",
    "pairs": "50 views `[:, :, i:i+2]` of a tensor of 80 MB",
    "narrow": "the transpose of a matrix of 15,000,000 x 2, 120 MB",
}
HEADERS = {"w%06d": "`w000000` to `w899999`", "model.layers.%d.mlp.experts.weight": "names of 34 characters"}


def write_header(path, name, count=900_000):
    """Writes tensors of 16 bytes each. Keeps no list of them: the memory of a child begins with that of its parent."""
    with open(path, "w+b") as file:
        file.write(bytes(8) + b"{")
        for i in range(count):
            place = f'"data_offsets":[{16 * i},{16 * i + 16}]'
            text = f'{"," if i else ""}"{name % i}":{{"dtype":"F32","shape":[2,2],{place}}}'
            file.write(text.encode())
        file.write(b"}")
        file.write(b" " * (-file.tell() % 8))
        size = file.tell() - 8
        file.write(os.urandom(16 * count))
        file.seek(0)
        file.write(struct.pack("<Q", size))


def measure(command, out):
    """Runs a command; returns its seconds of processor and its resident MiB."""
    shutil.rmtree(out, ignore_errors=True)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = pathlib.Path(folder)
        out = work / "out"
        subprocess.run([options.python, "-c", MAKE, folder], check=True)
        jobs = {}
        for name, what in VIEWS.items():
            jobs[f"`convert`, {what}"] = ["convert", work / f"{name}.pt", out]
            jobs[f"`hash`, {what}"] = ["hash", work / f"{name}.pt"]
        for number, (name, what) in enumerate(HEADERS.items()):
            path = work / f"{number}.safetensors"
            write_header(path, name)
            jobs[f"`inspect`, 900,000 tensors, {what}"] = ["inspect", path]
            jobs[f"`inspect --json`, {what}"] = ["inspect", "--json", path]
            jobs[f"`convert`, {what}"] = ["convert", path, out]
        found = {}
        for _ in range(options.rounds):
            for job, arguments in jobs.items():
                for program in options.programs:
                    found.setdefault((job, program), []).append(measure([program, *arguments], out))
    print(f"{datetime.date.today()}, {options.rounds} rounds\n")
    print("| job | seconds of processor | resident MiB |\n| --- | --- | --- |")
    for job in jobs:
        cells = []
        for figure, form in ((0, "{:.2f}"), (1, "{:.0f}")):
            medians = (statistics.median(each[figure] for each in found[job, program]) for program in options.programs)
            cells.append(" → ".join(form.format(median) for median in medians))
        print(f"| {job} | {cells[0]} | {cells[1]} |")


main()
