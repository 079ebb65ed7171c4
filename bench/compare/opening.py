#!/usr/bin/env python3
"""Compares opening .pt files of many tensors with torch.load(mmap=True): prints Markdown for docs/performance.md.

    bench/compare/opening.py BUILD [--rounds 7] [--work DIR] [--python PYTHON] [--tensors 300 3000 30000 300000]

BUILD is a build folder with bench/open_time in it; PYTHON has torch. Each time is measured in a process of its own that
has already opened a small file, without imports and without the time to free the result. Both wall-clock and processor
time are reported. Processor time is what counts on a machine with other users, since both sides work in one thread and
the files are warm. Memory is the peak anonymous memory of the process. Each round opens every file once in every way,
and ratios are medians of the rounds' ratios. With --tensors, the files are flat state dicts with so many tensors, and
torch.load also reads them without mmap.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import run

MAKE = """
import sys, torch
from collections import OrderedDict

def names(count):
    parts = ('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.o_proj', 'mlp.gate_proj',
             'mlp.up_proj', 'mlp.down_proj', 'input_layernorm')
    return [f'model.layers.{i // len(parts)}.{parts[i % len(parts)]}.weight' for i in range(count)]

def weights(count):
    return OrderedDict((name, torch.zeros(2, 2)) for name in names(count))

def training(count):
    model = weights(count)
    parameters = [torch.nn.Parameter(weight) for weight in model.values()]
    adam = torch.optim.AdamW(parameters, lr=1e-4)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    return {'epoch': 3, 'model': model, 'optimizer': adam.state_dict(), 'rng': torch.get_rng_state()}

makers = {'weights': weights, 'training': training}
for path, maker, count in zip(*[iter(sys.argv[1:])] * 3):
    torch.save(makers[maker](int(count)), path)
"""

LOAD = """
import json, sys, time, torch
first, file, safe, mmap = sys.argv[1:]
how = {'mmap': mmap == 'mmap', 'weights_only': safe == 'safe'}
torch.load(first, **how)
start, busy_before = time.perf_counter(), time.process_time()
state = torch.load(file, **how)
busy = time.process_time() - busy_before
print(json.dumps({'seconds': time.perf_counter() - start, 'busy': busy}))
"""

# Numbers of parameters; with optimizer state there are four tensors for each.
FILES = {
    "a state dict": ("weights", 10_000),
    "model and AdamW": ("training", 2_500),
    "model and AdamW, 1.3 million pickle nodes": ("training", 38_500),
}
WAYS = ("safemap", "weights_only=True", "weights_only=False")
SIZE_WAYS = ("safemap", "weights_only=True, mmap=False", "weights_only=True", "weights_only=False")


def milliseconds(times):
    return f"{1e3 * statistics.median(times):.0f} ({1e3 * min(times):.0f} to {1e3 * max(times):.0f})"


def ratio(peer, own):
    """Returns the ratios of the peer's times to ours, one per round."""
    ratios = [a / b for a, b in zip(peer, own)]
    return f"{statistics.median(ratios):.0f} ({min(ratios):.0f} to {max(ratios):.0f})"


class Opening:
    def __init__(self, build, work, python, files=FILES, ways=WAYS):
        self.made, self.ways = files, ways
        self.open_time = build / "bench" / "open_time"
        self.python = python
        self.first = work / "first.pt"
        self.files = {name: work / f"{number}.pt" for number, name in enumerate(files)}
        made = [str(word) for name, file in self.files.items() for word in (file, *files[name])]
        subprocess.run([python, "-c", MAKE, self.first, "weights", "2", *made], check=True)
        self.times, self.busy, self.anon, self.tensors = {}, {}, {}, {}

    def command(self, way, file):
        if way == "safemap":
            return [self.open_time, self.first, file]
        return [self.python, "-c", LOAD, self.first, file, "safe" if way.startswith("weights_only=True") else "any",
                "read" if way.endswith("mmap=False") else "mmap"]

    def round(self, number):
        for name, file in self.files.items():
            # The order alternates, so that no way always runs after the same other way.
            for way in self.ways if number % 2 == 0 else reversed(self.ways):
                done = run.Run(self.command(way, file), keep_output=True)
                out = json.loads(done.output)
                self.times.setdefault((name, way), []).append(out["seconds"])
                self.busy.setdefault((name, way), []).append(out["busy"])
                self.anon[name, way] = max(self.anon.get((name, way), 0), done.peak_anon)
                self.tensors[name] = out.get("tensors", self.tensors.get(name))

    def row(self, name, way):
        ratios = ["", ""] if way == "safemap" else [ratio(of[name, way], of[name, "safemap"])
                                                    for of in (self.times, self.busy)]
        each = 1e6 * statistics.median(self.busy[name, way]) / self.tensors[name]
        title = "safemap" if way == "safemap" else f"`torch.load`, `{way}`"
        return (f"| {name}, {self.tensors[name]:,} tensors | {title} | {milliseconds(self.times[name, way])} "
                f"| {ratios[0]} | {milliseconds(self.busy[name, way])} | {ratios[1]} | {each:.1f} "
                f"| {self.anon[name, way] / 2**20:.0f} MiB |")

    def size_row(self, name):
        own = [1e6 * statistics.median(of[name, "safemap"]) / self.tensors[name] for of in (self.times, self.busy)]
        ratios = [ratio(self.busy[name, way], self.busy[name, "safemap"]) for way in self.ways[1:]]
        return (f"| {self.tensors[name]:,} | {own[0]:.2f} | {own[1]:.2f} | " + " | ".join(ratios) +
                f" | {self.anon[name, 'safemap'] / 2**20:.0f} MiB | {self.anon[name, self.ways[2]] / 2**20:.0f} MiB |")

    def sizes(self):
        return "\n".join([
            "| tensors | µs a tensor by the clock | of the processor | " +
            " | ".join(f"`{way}`, times the processor's" for way in self.ways[1:]) +
            f" | peak RssAnon | of `{self.ways[2]}` |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *[self.size_row(name) for name in self.made],
        ])

    def markdown(self, command, rounds, work):
        return "\n".join([
            f"Machine: {run.machine(work)}. Date: {datetime.date.today()}. Command: `{command}`.",
            f"{rounds} rounds, medians (least to most).",
            "",
            "| file | opened by | ms by the clock | times safemap | ms of processor | times safemap | µs a tensor "
            "| peak RssAnon |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *[self.row(name, way) for name in self.made for way in self.ways],
        ])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rounds", type=run.rounds, default=7)
    parser.add_argument("--work", type=pathlib.Path, help="a folder with 100 MB to spare")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--tensors", type=int, nargs="+", help="flat state dicts of so many tensors instead")
    options = parser.parse_args()
    files = {f"{count:,} tensors": ("weights", count) for count in options.tensors or ()}
    with tempfile.TemporaryDirectory(prefix="safemap-opening-", dir=options.work) as work:
        opening = Opening(options.build.resolve(), pathlib.Path(work), options.python,
                          *((files, SIZE_WAYS) if files else ()))
        for number in range(options.rounds):
            opening.round(number)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        command = f"bench/compare/opening.py {options.build} --rounds {options.rounds}"
        print(opening.sizes() if files else opening.markdown(command, options.rounds, work))


if __name__ == "__main__":
    main()
