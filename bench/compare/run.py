#!/usr/bin/env python3
"""Compares whole commands with the limits of the machine, in alternating pairs: prints Markdown for
docs/performance.md.

    bench/compare/run.py BUILD [--size 4GB] [--rounds 5] [--work DIR] [--python PYTHON]

BUILD is a build folder with the command line, bench/make_pt and bench/bench_limits in it. Absolute times drift
several-fold within an hour on shared machines, so each round runs every command once, and the ratio of a pair is the
median of the rounds' ratios. All input is warm: each round begins by reading it.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SAMPLE_SECONDS = 0.005

# The conversion that a user of PyTorch runs today; timed without imports, and durable as safemap's is.
TORCH = """
import json, os, sys, time
import torch
from safetensors.torch import save_file
start = time.perf_counter()
save_file(torch.load(sys.argv[1], mmap=True), sys.argv[2])
file = os.open(sys.argv[2], os.O_RDONLY)
os.fsync(file)
print(json.dumps({'seconds': time.perf_counter() - start}))
"""


def anonymous_bytes(pid):
    """Returns RssAnon of a process, or 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Run:
    """A command: its duration, its processor time and its peak anonymous memory. Its output is kept only on
    request."""

    def __init__(self, command, keep_output=False):
        self.peak_anon = 0
        start, busy_before = time.perf_counter(), children_seconds()
        process = subprocess.Popen(command, stdout=subprocess.PIPE if keep_output else subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        over = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(process.pid, over))
        sampler.start()
        self.output, errors = process.communicate()
        self.seconds = time.perf_counter() - start
        self.busy = children_seconds() - busy_before
        over.set()
        sampler.join()
        if process.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}: {errors.decode(errors='replace')}")

    def _sample(self, pid, over):
        while not over.wait(SAMPLE_SECONDS):
            self.peak_anon = max(self.peak_anon, anonymous_bytes(pid))


def children_seconds():
    """Returns the processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def machine(work):
    model = "unknown processor"
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    file_system = subprocess.run(["stat", "-f", "-c", "%T", work], capture_output=True, text=True).stdout.strip()
    return f"{os.cpu_count()} × {model}, {memory:.0f} GiB, {file_system}, Linux {platform.release()}"


class Compare:
    def __init__(self, build, work, size, python):
        self.python = python
        self.safemap = build / "cli" / "safemap"
        self.make_pt = build / "bench" / "make_pt"
        self.limits = build / "bench" / "bench_limits"
        for program in (self.safemap, self.make_pt, self.limits):
            if not program.exists():
                sys.exit(f"{program} is not there: ninja -C {build} cli/safemap bench/make_pt bench/bench_limits")
        self.work = work
        self.inputs = {"rows": work / "big.pt", "transposed": work / "transposed.pt"}
        subprocess.run([self.make_pt, self.inputs["rows"], size], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([self.make_pt, self.inputs["transposed"], size, "--transposed"], check=True,
                       stdout=subprocess.DEVNULL)
        self.bytes = self.inputs["rows"].stat().st_size
        self.times = {}
        self.anon = {}
        self.probes = []

    def time(self, name, command, leaves=None):
        if leaves:
            remove(leaves)
        run = Run(command, keep_output=name == "torch")
        if leaves:
            remove(leaves)
        seconds = json.loads(run.output)["seconds"] if name == "torch" else run.seconds
        self.times.setdefault(name, []).append(seconds)
        self.anon[name] = max(self.anon.get(name, 0), run.peak_anon)

    def round(self, number):
        big, transposed, out, copy = self.inputs["rows"], self.inputs["transposed"], self.work / "out", self.work / "x"
        for path in self.inputs.values():
            subprocess.run(["cat", path], check=True, stdout=subprocess.DEVNULL)
        jobs = [
            ("convert", [self.safemap, "convert", big, out], out),
            ("cp", ["sh", "-c", 'cp "$0" "$1" && sync "$1"', big, copy], copy),
            ("convert bf16", [self.safemap, "convert", big, out, "--dtype", "bf16"], out),
            ("convert transposed", [self.safemap, "convert", transposed, out], out),
            ("load", [self.safemap, "load", big, "--device", "host", "--budget", "1GiB"], None),
            ("cat", ["sh", "-c", 'cat "$0" > /dev/null', big], None),
        ]
        if self.python:
            jobs.insert(1, ("torch", [self.python, "-c", TORCH, big, copy], copy))
        # The order alternates, so that no command always runs after the same other command.
        for name, command, leaves in jobs if number % 2 == 0 else reversed(jobs):
            self.time(name, command, leaves)
        probe = subprocess.run([self.limits, big, self.work / "scratch"], check=True, capture_output=True, text=True)
        self.probes.append(json.loads(probe.stdout))

    def limit(self, name):
        return statistics.median(probe[name] for probe in self.probes)

    def ratio(self, a, b):
        return statistics.median(x / y for x, y in zip(self.times[a], self.times[b]))

    def of_limit(self, name, limit, written=1.0):
        """Returns the fraction of a machine limit that was reached, per round; `written` is the fraction of the input's
        bytes that count."""
        return statistics.median(self.bytes * written / seconds / probe[limit]
                                 for seconds, probe in zip(self.times[name], self.probes))

    def row(self, title, name, peer, limit, written=1.0):
        times = self.times[name]
        other = f"{self.ratio(name, peer):.2f} × `{peer}`" if peer else ""
        return (f"| {title} | {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}) | {other} "
                f"| {100 * self.of_limit(name, limit, written):.0f} % of {limit} "
                f"| {self.anon[name] / 2**20:.0f} MiB |")

    def markdown(self, command, rounds):
        return "\n".join([
            f"Machine: {machine(self.work)}. Date: {datetime.date.today()}. Command: `{command}`. Input:",
            f"{self.bytes / 1e9:.2f} GB of fp32, warm; {rounds} rounds, medians. The limits of the machine in the same",
            f"rounds, by `bench_limits`: write {self.limit('write') / 1e9:.2f} GB/s (through the page cache"
            f" {self.limit('write_cached') / 1e9:.2f}, past it {self.limit('write_direct') / 1e9:.2f}), read"
            f" {self.limit('read_1') / 1e9:.1f} GB/s (one thread) and {self.limit('read_2') / 1e9:.1f} GB/s (two),",
            f"memcpy {self.limit('memcpy') / 1e9:.1f} GB/s.",
            "",
            "| job | seconds (least to most) | time in the same rounds | of the machine's limit | peak RssAnon |",
            "| --- | --- | --- | --- | --- |",
            self.row("`safemap convert big.pt out/`", "convert", "cp", "write"),
            self.row("`cp big.pt x && sync x`", "cp", None, "write"),
            self.row("`safemap convert big.pt out/ --dtype bf16`", "convert bf16", "cp", "write", 0.5),
            self.row("`safemap convert transposed.pt out/`", "convert transposed", "cp", "write"),
            self.row("`safemap load big.pt --device host --budget 1GiB`", "load", "cat", "read_2"),
            self.row("`cat big.pt > /dev/null`", "cat", None, "read_2"),
            *self.torch_row(),
        ])

    def torch_row(self):
        if not self.python:
            return []
        ratio = self.ratio("torch", "convert")
        title = "`torch.load(mmap=True)`, `save_file` and `fsync`, without imports"
        return [self.row(title, "torch", "convert", "write"), "",
                f"`safemap convert` is {ratio:.2f} times as fast as `torch.load` and `save_file`."]


def arguments(description):
    """The arguments that every comparison takes."""
    parser = common_arguments(description)
    parser.add_argument("--size", default="4GB", help="of the input, as make_pt takes it")
    return parser


def common_arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rounds", type=rounds, default=5)
    parser.add_argument("--work", type=pathlib.Path, help="a folder with three times the size of the input to spare")
    return parser


def rounds(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError("wants at least 1")
    return int(text)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--python", help="an interpreter with torch and safetensors, to be compared with too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="safemap-compare-", dir=options.work) as work:
        compare = Compare(options.build.resolve(), pathlib.Path(work), options.size, options.python)
        for number in range(options.rounds):
            compare.round(number)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        command = f"bench/compare/run.py {options.build} --size {options.size} --rounds {options.rounds}"
        print(compare.markdown(command, options.rounds))


if __name__ == "__main__":
    main()
