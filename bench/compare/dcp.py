#!/usr/bin/env python3
"""Measures folders of torch.distributed.checkpoint, and prints Markdown for docs/performance.md:

- opening 100,000 and 1,000,000 chunks
- jobs on boxes of grids of ranks, beside the same jobs on rows of as many ranks
- converting a folder of 4 ranks, beside one .pt of the same weights and beside torch

    bench/compare/dcp.py BUILD [--part opening grids sizes] [--chunks 100000 1000000] [--grid-gib 1] [--dtype bf16]
                         [--gib 4] [--rounds 5] [--python PYTHON] [--work DIR] [--out DIR]

BUILD is a build folder with the command line, bench/bench_limits and bench/dcp_open in it. --gib is the size of the
fp32 weights; several sizes are also drawn. PYTHON, if given and if it has torch, runs dcp_to_torch_save() and
save_file() one after the other: without imports, and not flushed to disk.

Each round runs every command once on warm input, in alternating order, and ratios are medians of the rounds' ratios.
Before the first round, `safemap diff` makes sure that two folders hold the same weights. Before each round the input is
dropped from the page cache and read again in the same way: how large the parts are in which the kernel holds a file
decides over a fifth of the time of a job that reads rows of boxes.

Opened weights are holes, so 1,000,000 chunks take little room on the disk. --out, by default the work folder, gets what
is converted: `--out /dev/shm` measures without the disk, whose noise may exceed the differences between grids.
"""

import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import dcp_files
import run
import zero_files

GIB = 1 << 30
SIDE = 4096
# Rows of as many ranks, and the grids that are compared with them.
GRIDS = {(8, 1): [(2, 4)], (64, 1): [(8, 8), (1, 64)], (1024, 1): [(32, 32), (1, 1024)]}

TORCH = """
import json, pathlib, sys, time
import torch, torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
start, busy = time.perf_counter(), time.process_time()
between = sys.argv[2] + '.pt'
dcp_to_torch_save(sys.argv[1], between)
tensors = torch.load(between, weights_only=False)['model']
save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, sys.argv[2])
print(json.dumps({'seconds': time.perf_counter() - start, 'busy': time.process_time() - busy}))
pathlib.Path(between).unlink()
"""


def has_torch(python):
    return python and subprocess.run([python, "-c", "import torch.distributed.checkpoint, safetensors"],
                                     capture_output=True).returncode == 0


def refresh(*paths):
    """Drops files from the page cache, and reads them again."""
    os.sync()
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(8 << 20):
                pass


def spread(times):
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def mib(size):
    return f"{size / 2**20:.0f} MiB"


def in_turn(jobs, number):
    """Returns the jobs of a round in its order."""
    return jobs if number % 2 == 0 else list(reversed(jobs))


@dataclasses.dataclass
class Times:
    seconds: list = dataclasses.field(default_factory=list)
    busy: list = dataclasses.field(default_factory=list)
    anon: int = 0

    def add(self, seconds, busy, anon):
        self.seconds.append(seconds)
        self.busy.append(busy)
        self.anon = max(self.anon, anon)

    def ratio(self, of, other):
        return statistics.median(a / b for a, b in zip(getattr(self, of), getattr(other, of)))


class Bench:
    """The programs, and the times of commands by their names."""

    def __init__(self, options, work):
        build = options.build.resolve()
        self.safemap, self.limits = build / "cli/safemap", build / "bench/bench_limits"
        self.open = build / "bench/dcp_open"
        for program in (self.safemap, self.limits, self.open):
            if not program.exists():
                sys.exit(f"{program} is not there: ninja -C {build} cli/safemap bench/bench_limits bench/dcp_open")
        self.options, self.work = options, work
        self.out = pathlib.Path(tempfile.mkdtemp(prefix="safemap-dcp-", dir=options.out or work))
        self.weights = zero_files.Weights()
        self.times = {}

    def time(self, name, command, tells=False):
        """Runs a command, and what it writes goes to the folder for output. If it tells its own times, those count."""
        out = self.out / "out"
        run.remove(out)
        os.sync()  # the writes of the command before
        done = run.Run([part if part != "OUT" else out for part in command], keep_output=True)
        run.remove(out)
        told = json.loads(done.output) if tells else {"seconds": done.seconds, "busy": done.busy}
        self.times.setdefault(name, Times()).add(told["seconds"], told["busy"], done.peak_anon)
        return told

    def same(self, a, b):
        """Makes sure that two inputs hold the same model."""
        subprocess.run([self.safemap, "diff", a, b, "--quiet"], check=True)

    def rounds(self, title):
        for number in range(self.options.rounds):
            yield number
            print(f"{title}: round {number + 1} of {self.options.rounds}", file=sys.stderr)


# ---- Opening


def opening(bench):
    lines = ["", "| chunks | `.metadata` | seconds (least to most) | seconds of processor | peak RssAnon | "
             "of the metadata | afterwards |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for chunks in bench.options.chunks:
        folder = bench.work / f"chunks_{chunks}"
        tensors, ranks = max(1, chunks // 1000), min(1000, chunks)
        made, metadata = dcp_files.write(folder, dcp_files.many_small(tensors, ranks), (ranks, 1))
        refresh(folder)
        told = [bench.time("open", [bench.open, folder], tells=True) for _ in bench.rounds(f"{chunks} chunks")]
        peak, after = (max(one[key] for one in told) for key in ("peak", "after"))
        lines += [f"| {made:,} in {tensors} tensors, {ranks} ranks | {mib(metadata)} "
                  f"| {spread([one['seconds'] for one in told])} | {spread([one['busy'] for one in told])} "
                  f"| {mib(peak)} | {peak / metadata:.1f} × | {mib(after)} |"]
        run.remove(folder)
    return lines


# ---- Grids


def jobs_on(bench, folder):
    """Returns the jobs on a folder that are compared between grids: a title and a command."""
    convert = [bench.safemap, "convert", folder, "OUT", "--quiet"]
    return [("convert", convert),
            (f"convert --dtype {bench.options.dtype}", [*convert, "--dtype", bench.options.dtype]),
            ("load --rank 1/4", [bench.safemap, "load", folder, "--device", "host", "--rank", "1/4", "--quiet"]),
            ("hash", [bench.safemap, "hash", folder, "--quiet"])]


def grids(bench):
    model = dcp_files.matrices(int(bench.options.grid_gib * GIB) // 4, SIDE)
    size = 4 * sum(parameter.count for parameter in model)
    lines = ["", f"{size / 1e9:.2f} GB of fp32 in {len(model)} matrices of {SIDE} × {SIDE}.", "",
             "| job | grid | seconds (least to most) | of rows of as many ranks | seconds of processor | of rows |",
             "| --- | --- | --- | --- | --- | --- |"]
    for rows, others in GRIDS.items():
        shapes = [rows, *others]
        folders = [bench.work / f"grid_{r}x{c}" for r, c in shapes]
        for folder, shape in zip(folders, shapes):
            dcp_files.write(folder, model, shape, bench.weights)
        for folder in folders[1:]:
            bench.same(folders[0], folder)
        for number in bench.rounds(f"grids of {rows[0]} ranks"):
            refresh(*folders)
            for place, (title, _) in enumerate(jobs_on(bench, folders[0])):
                for folder, shape in in_turn(list(zip(folders, shapes)), number):
                    bench.time((title, shape), jobs_on(bench, folder)[place][1])
        for folder in folders:
            run.remove(folder)
    titles = [title for title, _ in jobs_on(bench, bench.work)]
    for title, (rows, others) in itertools.product(titles, GRIDS.items()):
        base = bench.times[title, rows]
        for shape in (rows, *others):
            times = bench.times[title, shape]
            ratios = ["", ""] if shape == rows else [f"{times.ratio(of, base):.2f} ×" for of in ("seconds", "busy")]
            lines += [f"| `{title}` | {shape[0]} × {shape[1]} | {spread(times.seconds)} | {ratios[0]} "
                      f"| {spread(times.busy)} | {ratios[1]} |"]
    return lines


# ---- Sizes


class Size:
    """The times of one size of a model: a folder of 4 ranks, and one .pt."""

    def __init__(self, bench, gib):
        self.bench, self.gib, self.probes = bench, gib, []
        model = zero_files.llama_of(int(gib * GIB) // 4)
        self.bytes, self.tensors = 4 * sum(parameter.count for parameter in model), len(model)
        folder, one_file = bench.work / "folder", bench.work / "model.pt"
        dcp_files.write(folder, model, (4, 1), bench.weights)
        zero_files.one_file(one_file, model, bench.weights)
        subprocess.run([bench.safemap, "convert", folder, bench.out / "out", "--root", "model", "--quiet"], check=True)
        bench.same(bench.out / "out", one_file)
        convert = [bench.safemap, "convert", "--quiet"]
        self.jobs = [("dcp", [*convert, folder, "OUT"]), ("pt", [*convert, one_file, "OUT"])]
        if bench.options.python:
            self.jobs += [("torch", [bench.options.python, "-c", TORCH, folder, "OUT"])]
        for number in bench.rounds(f"{gib:g} GiB"):
            refresh(folder, one_file)
            for name, command in in_turn(self.jobs, number):
                bench.time((name, gib), command, tells=name == "torch")
            probe = subprocess.run([bench.limits, one_file, bench.out / "scratch"], check=True, capture_output=True,
                                   text=True)
            self.probes.append(json.loads(probe.stdout)["write"])
        run.remove(folder)
        run.remove(one_file)

    def times(self, name):
        return self.bench.times.get((name, self.gib))

    def rows(self):
        titles = {"dcp": f"**{self.bytes / 1e9:.2f} GB in {self.tensors} tensors**: `convert step-1000/ out/`",
                  "pt": "the same weights in one `.pt`", "torch": "`dcp_to_torch_save`, `save_file`; not durable"}
        peers = {"dcp": ("pt", "the `.pt`"), "torch": ("dcp", "safemap")}
        for name, _ in self.jobs:
            times, ratios = self.times(name), ["", ""]
            if name in peers:
                peer, title = peers[name]
                ratios = [f"{times.ratio(of, self.times(peer)):.2f} × {title}" for of in ("seconds", "busy")]
            limit = statistics.median(self.bytes / s / p for s, p in zip(times.seconds, self.probes))
            yield (f"| {titles[name]} | {spread(times.seconds)} | {ratios[0]} | {spread(times.busy)} | {ratios[1]} "
                   f"| {100 * limit:.0f} % | {mib(times.anon)} |")


def plot(sizes):
    """Returns a drawing of the seconds by the size of the model."""
    titles = {"dcp": "safemap", "pt": "one .pt", "torch": "torch"}
    medians = {(size.gib, name): statistics.median(size.times(name).seconds)
               for size in sizes for name in titles if size.times(name)}
    scale = 60 / max(medians.values())
    lines = ["", "```text", "seconds"]
    for (gib, name), seconds in medians.items():
        label = f"{gib:.3g} GiB" if name == "dcp" else ""
        lines += [f"{label:>11}  {titles[name]:8} {'█' * max(1, round(scale * seconds))} {seconds:.2f}"]
    return [*lines, "```"]


def sizes(bench):
    measured = [Size(bench, gib) for gib in bench.options.gib]
    probes = list(itertools.chain(*(size.probes for size in measured)))
    lines = ["", f"The probe of the disk in the same rounds: {spread([probe / 1e9 for probe in probes])} GB/s.", "",
             "| job | seconds (least to most) | in the same rounds | seconds of processor | in the same rounds "
             "| of the probe | peak RssAnon |", "| --- | --- | --- | --- | --- | --- | --- |",
             *itertools.chain(*(size.rows() for size in measured))]
    return lines + (plot(measured) if len(measured) > 1 else [])


def main():
    parts = {"opening": opening, "grids": grids, "sizes": sizes}
    parser = run.common_arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--chunks", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--grid-gib", type=float, default=1.0, help="fp32 weights on the grids, in GiB")
    parser.add_argument("--dtype", default="bf16", help="the cast of the jobs on grids")
    parser.add_argument("--gib", type=float, nargs="+", default=[4.0], help="fp32 weights of a model, in GiB")
    parser.add_argument("--python", help="an interpreter with torch and safetensors, to be compared with too")
    parser.add_argument("--out", type=pathlib.Path, help="where output goes")
    options = parser.parse_args()
    if options.python and not has_torch(options.python):
        print(f"{options.python} has no torch: it is not compared with", file=sys.stderr)
        options.python = None
    with tempfile.TemporaryDirectory(prefix="safemap-dcp-", dir=options.work) as work:
        bench = Bench(options, pathlib.Path(work))
        try:
            lines = list(itertools.chain(*(parts[part](bench) for part in options.part)))
        finally:
            shutil.rmtree(bench.out)
        command = " ".join(["./dev bench dcp", *sys.argv[2:]])
        print(f"Machine: {run.machine(work)}. Date: {datetime.date.today()}. Command: `{command}`. Input",
              f"warm; medians of {options.rounds} rounds.", *lines, sep="\n")


if __name__ == "__main__":
    main()
