#!/usr/bin/env python3
"""Times the Python package beside safetensors and torch in one process, and measures its memory: prints Markdown for
docs/performance.md.

    PYTHONPATH=python .venv/bin/python bench/python.py [--rounds 9] [--work DIR] [WORDS...]

WORDS select the rows that have one of them. Each round runs both programs in turn, on files that the page cache has,
with Python's collector of cycles switched off. Figures are medians of the rounds, in processor time; what a call
returns is dropped at once. Files of 1.3 GB are made in DIR, and removed.
"""

import argparse
import gc
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import safemap
from safemap import safetensors as ours

MANY, LARGE, ROWS, ONE = "many.safetensors", "large.safetensors", "rows.safetensors", "one.safetensors"
PT, SAVED = "many.pt", "saved"
MiB = 1 << 20


def make_files(folder):
    many = {f"model.layers.{i // 10}.part{i % 10}.weight": torch.rand(4, 4) for i in range(10_000)}
    safetensors.torch.save_file(many, folder / MANY)
    torch.save(many, folder / PT)
    safetensors.torch.save_file({"weight": torch.rand(3)}, folder / ONE)
    safetensors.torch.save_file({"weight": torch.rand(8192, 1024)}, folder / ROWS)
    large = {f"layers.{i}.weight": torch.rand(4, MiB) for i in range(64)}
    safetensors.torch.save_file(large, folder / LARGE)


# A row returns what it calls with the one program and with the other, and how many calls that is.


def opens(folder):
    path = folder / MANY
    return lambda: safetensors.safe_open(path, "pt"), lambda: ours.safe_open(path, "pt"), 1


def handles(folder):
    file = open(folder / ONE, "rb")

    def calls(handle):
        def call():
            for _ in range(200):
                handle(file, "pt")

        return call

    return calls(safetensors._safe_open_handle), calls(ours._safe_open_handle), 200


def opened(folder, framework):
    files = [package.safe_open(folder / MANY, framework) for package in (safetensors, ours)]
    return *files, files[0].keys()[:2000]


def gets(folder, framework="pt"):
    theirs, our, names = opened(folder, framework)

    def calls(get):
        def call():
            for name in names:
                get(name)

        return call

    return calls(theirs.get_tensor), calls(our.get_tensor), len(names)


def gets_numpy(folder):
    return gets(folder, "np")


def slices(folder):
    theirs, our, names = opened(folder, "pt")

    def calls(file):
        parts = [file.get_slice(name) for name in names]

        def call():
            for part in parts:
                part[:4]

        return call

    return calls(theirs), calls(our), len(names)


def rows(folder):
    files = [package.safe_open(folder / ROWS, "pt", backend="pread") for package in (safetensors, ours)]
    parts = [file.get_slice("weight") for file in files]
    return lambda: parts[0][64:80], lambda: parts[1][64:80], 1


def loads(folder, backend="mmap"):
    path = folder / LARGE
    return (
        lambda: safetensors.torch.load_file(path, backend=backend),
        lambda: ours.torch.load_file(path, backend=backend),
        1,
    )


def loads_pread(folder):
    return loads(folder, "pread")


def saves(folder):
    tensors = {f"layers.{i}.weight": torch.rand(4, MiB) for i in range(16)}

    path = folder / SAVED

    def to_new_file(save):
        save.prepare = lambda: path.unlink(missing_ok=True)
        return save

    return (
        to_new_file(lambda: safetensors.torch.save_file(tensors, path)),
        to_new_file(lambda: ours.torch.save_file(tensors, path, durable=False)),
        1,
    )


def pt(folder):
    path = folder / PT
    return lambda: torch.load(path, mmap=True, weights_only=True), lambda: safemap.load(path), 1


# Work, the program beside safemap, the least ratio that is wanted, and the calls.
TIMES = [
    ("`safe_open`, 10,000 tensors", 3.5, opens),
    ("`_safe_open_handle`, one tensor", 1, handles),
    ("`get_tensor`, torch, each", 12, gets),
    ("slice `[:4]`, torch, each", 6, slices),
    ("`get_tensor`, NumPy, each", 1.9, gets_numpy),
    ("`pread`, 16 rows of a tensor of 32 MiB", 10, rows),
    ("`load_file` of 1 GiB, mapped", 1, loads),
    ("`load_file` of 1 GiB, `pread`", 1.2, loads_pread),
    ("`save_file` of 256 MiB, not durable", 1.2, saves),
    ("`.pt` of 10,000 tensors: `torch.load(mmap=True)`", 15, pt),
]

# Work that loads no tensor, for a process of its own: `folder` is a path, and `result` stays until the end.
MEMORY = {
    "`safe_open`, 10,000 tensors": "result = ours.safe_open(folder / 'many.safetensors', 'pt')",
    "`get_tensor` of 10,000 tensors": "result = ours.torch.load_file(folder / 'many.safetensors')",
    "`load_file` of 1 GiB, mapped": "result = ours.torch.load_file(folder / 'large.safetensors')",
    "16 rows of a tensor of 32 MiB, `pread`":
        "result = ours.safe_open(folder / 'rows.safetensors', 'pt', backend='pread').get_slice('weight')[64:80]",
    "`save_file` of 1 GiB that is mapped":
        "ours.torch.save_file(ours.torch.load_file(folder / 'large.safetensors'), folder / 'saved', durable=False)",
    "`safemap.load` of a `.pt` of 10,000 tensors": "result = safemap.load(folder / 'many.pt')",
}
MEASURE = """
import pathlib, sys, threading, time
import safetensors.numpy, safetensors.torch
import safemap
from safemap import safetensors as ours
def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
folder, most, done = pathlib.Path(sys.argv[1]), 0, False
def watch():
    global most
    while not done:
        most = max(most, anonymous())
        time.sleep(0.002)
watching = threading.Thread(target=watch)
watching.start()
before = anonymous()
WORK
most, done = max(most, anonymous()), True
watching.join()
print((most - before) / 1024)
"""


def cpu_ns(call):
    getattr(call, "prepare", lambda: None)()
    gc.collect()
    gc.disable()
    before = time.process_time_ns()
    call()
    after = time.process_time_ns()
    gc.enable()
    return after - before


def medians(theirs, our, rounds):
    for call in (theirs, our):
        call()
    times = [(cpu_ns(theirs), cpu_ns(our)) for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times)]


def shown(nanoseconds):
    return f"{nanoseconds / 1e6:.2f} ms" if nanoseconds >= 1e6 else f"{nanoseconds / 1e3:.2f} µs"


def import_ms(module):
    code = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="rows to print, by words of their names")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--work", help="folder for the files")
    arguments = parser.parse_args()
    wanted = [word.lower() for word in arguments.words]
    is_wanted = lambda name: not wanted or any(word in name.lower() for word in wanted)
    print(f"safetensors {safetensors.__version__}, torch {torch.__version__}, NumPy {numpy.__version__}, "
          f"Python {sys.version.split()[0]}, medians of {arguments.rounds} rounds\n")
    with tempfile.TemporaryDirectory(dir=arguments.work) as name:
        folder = pathlib.Path(name)
        make_files(folder)
        print("| processor time | safetensors or torch | safemap | ratio | wanted |\n| --- | --- | --- | --- | --- |")
        for work, least, calls in TIMES:
            if not is_wanted(work):
                continue
            theirs, our, count = calls(folder)
            before, after = medians(theirs, our, arguments.rounds)
            ratio = f"{before / after:.3g} | {least}"
            print(f"| {work} | {shown(before / count)} | {shown(after / count)} | {ratio} |", flush=True)
        print("\n| RssAnon above that after the imports | MiB | wanted |\n| --- | --- | --- |")
        for work, code in MEMORY.items():
            if is_wanted(work):
                call = [sys.executable, "-c", MEASURE.replace("WORK", code), folder]
                more = float(subprocess.check_output(call, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}))
                print(f"| {work} | {more:.1f} | < 64 |", flush=True)
    times = [f"`import {module}` takes {import_ms(module):.1f} ms" for module in ("safemap", "safetensors")]
    print(f"\n{', '.join(times)}.")


if __name__ == "__main__":
    main()
