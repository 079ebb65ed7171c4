#!/usr/bin/env python3
"""Compares converting folders of DeepSpeed ZeRO with converting one .pt of the same weights, with DeepSpeed, and with
the probe of the disk: prints Markdown for docs/performance.md.

    bench/compare/zero.py BUILD [--gib 4] [--stage 2 3] [--world 4 8 64 192] [--rounds 5] [--small] [--dtype bf16]
                          [--python PYTHON] [--work DIR]

BUILD is a build folder with the command line and bench/bench_limits in it. --gib is the size of the fp32 weights;
several sizes are also drawn. With --small, the model is many matrices of 512 × 512; with --dtype, both inputs are also
converted with a cast. PYTHON, if given and if it has deepspeed, runs DeepSpeed's function
convert_zero_checkpoint_to_fp32_state_dict(): without imports, and not flushed to disk.

Each round runs every command once on warm input, in alternating order, and ratios are medians of the rounds' ratios.
Before the first round, `safemap diff` makes sure that the folder and the .pt hold the same weights.
"""

import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import run
import zero_files

GIB = 1 << 30

DEEPSPEED = """
import contextlib, json, os, sys, time
os.environ['DS_ACCELERATOR'] = 'cpu'
with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert
    # The function, the pickles and huggingface_hub import these.
    import torch.distributed.tensor
    import deepspeed.runtime.fp16.loss_scaler, deepspeed.runtime.zero.config, deepspeed.utils.tensor_fragment
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file
    start, busy = time.perf_counter(), time.process_time()
    convert(sys.argv[1], sys.argv[2], max_shard_size='5GB', safe_serialization=True)
print(json.dumps({'seconds': time.perf_counter() - start, 'busy': time.process_time() - busy}))
"""


def has_deepspeed(python):
    return python and subprocess.run(
        [python, "-c", "import os; os.environ['DS_ACCELERATOR'] = 'cpu'; import deepspeed.utils.zero_to_fp32"],
        capture_output=True).returncode == 0


def warm(path):
    """Reads the bytes of a file into the page cache, without its holes."""
    with open(path, "rb", buffering=0) as file:
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            try:
                at = file.seek(at, os.SEEK_DATA)
            except OSError:  # no data follows
                return
            end = file.seek(at, os.SEEK_HOLE)
            file.seek(at)
            while at < end and (read := len(file.read(min(end - at, 8 << 20)))):
                at += read


def spread(times):
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


@dataclasses.dataclass
class Times:
    seconds: list = dataclasses.field(default_factory=list)
    busy: list = dataclasses.field(default_factory=list)
    anon: int = 0


class Case:
    """One folder of DeepSpeed, and the times of its conversions."""

    def __init__(self, bench, stage, world):
        self.bench, self.stage, self.world = bench, stage, world
        self.folder = bench.work / f"stage_{stage}_of_{world}"
        zero_files.write(self.folder, stage, world, bench.model, bench.weights)
        subprocess.run([bench.safemap, "diff", self.folder, bench.one_file, "--quiet"], check=True)
        self.times, self.probes = {}, []

    def time(self, name, command):
        out = self.bench.work / "out"
        run.remove(out)
        # The writes of the command before are flushed.
        subprocess.run(["sync"], check=True)
        done = run.Run([*command, out], keep_output=True)
        run.remove(out)
        told = json.loads(done.output) if name == "deepspeed" else {"seconds": done.seconds, "busy": done.busy}
        times = self.times.setdefault(name, Times())
        times.seconds.append(told["seconds"])
        times.busy.append(told["busy"])
        times.anon = max(times.anon, done.peak_anon)

    def round(self, number):
        bench = self.bench
        for file in (bench.one_file, *sorted((self.folder / zero_files.TAG).iterdir())):
            warm(file)
        cast = ["--dtype", bench.dtype]
        convert = [bench.safemap, "convert", "--quiet"]
        jobs = [("zero", [*convert, self.folder]), ("pt", [*convert, bench.one_file])]
        if bench.dtype:
            jobs += [("zero cast", [*convert, *cast, self.folder]), ("pt cast", [*convert, *cast, bench.one_file])]
        if bench.python:
            jobs += [("deepspeed", [bench.python, "-c", DEEPSPEED, self.folder])]
        for name, command in jobs if number % 2 == 0 else reversed(jobs):
            self.time(name, command)
        probe = subprocess.run([bench.limits, bench.one_file, bench.work / "scratch"], check=True, capture_output=True,
                               text=True)
        self.probes.append(json.loads(probe.stdout)["write"])

    def ratio(self, of, a, b):
        return statistics.median(x / y for x, y in zip(getattr(self.times[a], of), getattr(self.times[b], of)))

    def row(self, title, name, peer="", peer_title="", written=1.0):
        if name not in self.times or (peer and peer not in self.times):
            return []
        times = self.times[name]
        ratios = ["", ""]
        if peer:
            ratios = [f"{self.ratio(of, name, peer):.2f} × {peer_title}" for of in ("seconds", "busy")]
        limit = statistics.median(self.bench.bytes * written / s / p for s, p in zip(times.seconds, self.probes))
        return [f"| {title} | {spread(times.seconds)} | {ratios[0]} | {spread(times.busy)} | {ratios[1]} "
                f"| {100 * limit:.0f} % | {times.anon / 2**20:.0f} MiB |"]

    def rows(self):
        title = f"stage {self.stage}, {self.world} ranks"
        dtype = self.bench.dtype
        fraction = 0.5 if dtype in ("bf16", "f16", "fp16") else 1.0
        return [*self.row(f"**{title}**: `convert run/ out/`", "zero", "pt", "the `.pt`"),
                *self.row("the same weights in one `.pt`", "pt"),
                *self.row(f"`convert run/ out/ --dtype {dtype}`", "zero cast", "zero", "without", fraction),
                *self.row(f"the `.pt` with `--dtype {dtype}`", "pt cast", "pt", "without", fraction),
                *self.row("DeepSpeed, not durable", "deepspeed", "zero", "safemap")]


class Bench:
    """One model, as a .pt; its folders of DeepSpeed are there one at a time."""

    def __init__(self, options, work, gib):
        build = options.build.resolve()
        self.safemap, self.limits = build / "cli" / "safemap", build / "bench" / "bench_limits"
        for program in (self.safemap, self.limits):
            if not program.exists():
                sys.exit(f"{program} is not there: ninja -C {build} cli/safemap bench/bench_limits")
        self.work, self.dtype, self.python = work, options.dtype, options.python
        elements = int(gib * GIB) // 4
        self.model = zero_files.experts(elements) if options.small else zero_files.llama_of(elements)
        self.bytes = 4 * sum(parameter.count for parameter in self.model)
        self.weights = zero_files.Weights()
        self.one_file = work / "model.pt"
        zero_files.one_file(self.one_file, self.model, self.weights)

    def case(self, stage, world, rounds):
        """Returns one folder after its rounds."""
        case = Case(self, stage, world)
        for number in range(rounds):
            case.round(number)
            print(f"stage {stage}, {world} ranks: round {number + 1} of {rounds}", file=sys.stderr)
        run.remove(case.folder)
        return case


def section(bench, cases):
    """Returns the table of one model."""
    probes = list(itertools.chain(*(case.probes for case in cases)))
    return [
        "",
        f"{bench.bytes / 1e9:.2f} GB of fp32 in {len(bench.model)} tensors. The probe of the disk in the same rounds:",
        f"{spread([limit / 1e9 for limit in probes])} GB/s.",
        "",
        "| job | seconds (least to most) | in the same rounds | seconds of processor | in the same rounds "
        "| of the probe | peak RssAnon |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *itertools.chain(*(case.rows() for case in cases)),
    ]


def plot(cases):
    """Returns a drawing of the seconds by the size of the model, for each stage and number of ranks."""
    titles = {"zero": "safemap", "pt": "one .pt", "deepspeed": "DeepSpeed"}
    medians = {(case, name): statistics.median(case.times[name].seconds)
               for case in cases for name in titles if name in case.times}
    scale = 60 / max(medians.values())
    lines = ["", "```text"]
    for (stage, world), same in itertools.groupby(sorted(cases, key=lambda case: (case.stage, case.world)),
                                                  key=lambda case: (case.stage, case.world)):
        lines += [f"seconds, stage {stage}, {world} ranks"]
        for case in same:
            size = f"{case.bench.bytes / GIB:.3g} GiB"
            for name, title in titles.items():
                if (case, name) in medians:
                    seconds = medians[case, name]
                    lines += [f"{size:>11}  {title:9}  {'█' * max(1, round(scale * seconds))} {seconds:.2f}"]
                    size = ""
    return [*lines, "```"]


def main():
    parser = run.common_arguments(__doc__)
    parser.add_argument("--gib", type=float, nargs="+", default=[4.0], help="fp32 weights, in GiB")
    parser.add_argument("--stage", type=int, nargs="+", choices=(2, 3), default=[2, 3])
    parser.add_argument("--world", type=int, nargs="+", default=[4, 8, 64, 192], help="ranks")
    parser.add_argument("--small", action="store_true", help="many matrices of 512 × 512")
    parser.add_argument("--dtype", help="also convert with this cast, such as bf16")
    parser.add_argument("--python", help="an interpreter with deepspeed, to be compared with too")
    options = parser.parse_args()
    if options.python and not has_deepspeed(options.python):
        print(f"{options.python} has no deepspeed: it is not compared with", file=sys.stderr)
        options.python = None
    lines, cases = [], []
    with tempfile.TemporaryDirectory(prefix="safemap-zero-", dir=options.work) as work:
        for gib in options.gib:
            bench = Bench(options, pathlib.Path(work), gib)
            of_model = [bench.case(stage, world, options.rounds)
                        for stage, world in itertools.product(options.stage, options.world)]
            lines += section(bench, of_model)
            cases += of_model
        if len(options.gib) > 1:
            lines += plot(cases)
        command = " ".join(["./dev bench zero", *sys.argv[2:]])
        print(f"Machine: {run.machine(work)}. Date: {datetime.date.today()}. Command: `{command}`. Input",
              f"warm; medians of {options.rounds} rounds.", *lines, sep="\n")


if __name__ == "__main__":
    main()
