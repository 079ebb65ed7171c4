#!/usr/bin/env python3
"""Compares converting Hugging Face shards with torch's consolidation of them, writing them with writing one file, and
several processes with several threads: prints Markdown for docs/performance.md.

    bench/compare/hf_shards.py BUILD [--gib 2] [--ranks 4] [--rounds 5] [--python PYTHON] [--mpi SAFEMAP] [--work DIR]

BUILD is a build folder with the command line and bench/bench_limits in it. PYTHON, if given, runs torch's
consolidate_safetensors_files() with two threads, without imports, and not flushed to disk. SAFEMAP, if given, is built
with MPI: `mpirun -n 2` with a thread each runs beside one process with two threads. Its times are those that it
reports, so the start of MPI is not in them.

Each round runs every command once on warm input, and ratios are medians of the rounds' ratios.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

import run

TORCH = """
import glob, json, os, sys, time
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from safetensors import safe_open
names = {k: 1 for f in glob.glob(sys.argv[1] + '/*.safetensors') for k in safe_open(f, 'pt').keys()}
os.makedirs(sys.argv[2])
start = time.perf_counter()
consolidate_safetensors_files(sys.argv[1], sys.argv[2], names, num_threads=2)
print(json.dumps({'seconds': time.perf_counter() - start}))
"""
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]


def write_model(path, gib):
    """Writes matrices of 32 MiB."""
    count, size = int(gib * 32), 32 << 20
    header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [8192, 1024], "data_offsets": [size * i, size * (i + 1)]}
              for i in range(count)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = os.urandom(size)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            file.write(data)


class Bench:
    def __init__(self, options, work):
        self.work, self.times, self.anon, self.probes = work, {}, {}, []
        self.limits = options.build / "bench" / "bench_limits"
        self.one_file, self.ranks = work / "in.safetensors", work / "ranks"
        safemap = options.build / "cli" / "safemap"
        write_model(self.one_file, options.gib)
        cut = ["--shards-for", str(options.ranks)]
        subprocess.run([safemap, "convert", self.one_file, self.ranks, *cut, "--quiet"], check=True)
        convert = ["convert", "--json", "--threads", "2"]
        self.jobs = {
            "join": [safemap, *convert, self.ranks],
            "one": [safemap, *convert, self.one_file],
            "cut": [safemap, *convert, *cut, self.one_file],
        }
        if options.python:
            self.jobs["torch"] = [options.python, "-c", TORCH, self.ranks]
        for name, more in (("", []), (" cast", ["--dtype", "bf16"]), (" digests", ["--checksums"])):
            if options.mpi:
                alone = [options.mpi, "convert", "--json", self.one_file, *more, "--threads"]
                self.jobs["threads" + name] = [*alone, "2"]
                self.jobs["processes" + name] = [*MPIRUN, *alone, "1"]

    def round(self, number):
        for file in (self.one_file, *sorted(self.ranks.iterdir())):
            subprocess.run(["cat", file], check=True, stdout=subprocess.DEVNULL)
        for name in self.jobs if number % 2 == 0 else reversed(self.jobs):
            subprocess.run(["sync"], check=True)
            out = self.work / "out"
            done = run.Run([*self.jobs[name], out], keep_output=True)
            run.remove(out)
            self.times.setdefault(name, []).append(json.loads(done.output)["seconds"])
            self.anon[name] = max(self.anon.get(name, 0), done.peak_anon)
        probe = subprocess.run([self.limits, self.one_file, self.work / "scratch"], check=True, capture_output=True,
                               text=True)
        self.probes.append(json.loads(probe.stdout)["write"])

    def row(self, title, name, peer="", peer_title=""):
        if name not in self.times:
            return []
        times = self.times[name]
        ratio = ""
        if peer in self.times:
            ratio = f"{statistics.median(a / b for a, b in zip(times, self.times[peer])):.2f} × {peer_title}"
        size = self.one_file.stat().st_size
        limit = statistics.median(size / s / p for s, p in zip(times, self.probes))
        return [f"| {title} | {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}) | {ratio} "
                f"| {100 * limit:.0f} % | {self.anon[name] / 2**20:.0f} MiB |"]

    def table(self):
        rows = [
            *self.row("`convert ranks/ out/`", "join", "one", "the one file"),
            *self.row("`convert one.safetensors out/`", "one"),
            *self.row("torch's consolidation, not durable", "torch", "join", "safemap"),
            *self.row("`convert one.safetensors ranks/ --shards-for N`", "cut", "one", "without"),
        ]
        for title, name in (("", ""), (" --dtype bf16", " cast"), (" --checksums", " digests")):
            rows += self.row(f"`mpirun -n 2`, `convert{title}`", "processes" + name, "threads" + name, "two threads")
        head = ["| job | seconds (least to most) | time in the same rounds | of the write limit | peak RssAnon |",
                "| --- | --- | --- | --- | --- |"]
        return "\n".join(head + rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python")
    parser.add_argument("--mpi", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path)
    options = parser.parse_args()
    options.build = options.build.resolve()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        bench = Bench(options, pathlib.Path(folder))
        for number in range(options.rounds):
            bench.round(number)
        print(f"{datetime.date.today()}, {run.machine(folder)}; {options.gib} GiB for {options.ranks} ranks, "
              f"{options.rounds} rounds\n")
        print(bench.table())


if __name__ == "__main__":
    sys.exit(main())
