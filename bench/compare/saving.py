#!/usr/bin/env python3
"""Compares saving with cp, the disk probe, and common packages: prints Markdown for docs/performance.md.

    bench/compare/saving.py BUILD [--size 4GB] [--rounds 5] [--work DIR] [--python PYTHON]

BUILD is a build folder with the command line, bench/make_pt, bench/bench_limits and bench/save_time in it. PYTHON, if
given, has torch, safetensors and huggingface_hub; their imports are not counted, and their files are not flushed to
disk. As in run.py, every round runs every command once on warm input, and ratios are medians of the rounds' ratios.
"""

import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import run

RESHARD = """
import json, sys, time
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
start = time.perf_counter()
save_torch_state_dict(load_file(sys.argv[1]), sys.argv[2], max_shard_size='1GB')
print(json.dumps({'seconds': time.perf_counter() - start}))
"""

SAVE = """
import json, sys, time
from safetensors.torch import load_file, save_file
tensors = {name: tensor.clone() for name, tensor in load_file(sys.argv[1]).items()}
start = time.perf_counter()
save_file(tensors, sys.argv[2])
print(json.dumps({'seconds': time.perf_counter() - start}))
"""


class Saving:
    def __init__(self, build, work, size, python):
        self.safemap = build / "cli" / "safemap"
        self.save_time = build / "bench" / "save_time"
        self.limits = build / "bench" / "bench_limits"
        self.python = python
        self.work = work
        self.model = work / "model.safetensors"
        subprocess.run([build / "bench" / "make_pt", work / "model.pt", size], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([self.safemap, "convert", work / "model.pt", self.model, "--quiet"], check=True)
        run.remove(work / "model.pt")
        self.bytes = self.model.stat().st_size
        self.times, self.anon, self.probes = {}, {}, []

    def time(self, name, command, leaves):
        """Returns the seconds that the command itself prints, or else the duration of the whole command."""
        leaves.mkdir() if name == "hub" else run.remove(leaves)
        done = run.Run(command, keep_output=True)
        run.remove(leaves)
        seconds = json.loads(done.output)["seconds"] if name in ("hub", "save", "save_file") else done.seconds
        self.times.setdefault(name, []).append(seconds)
        self.anon[name] = max(self.anon.get(name, 0), done.peak_anon)

    def round(self, number):
        out, file = self.work / "out", self.work / "out.safetensors"
        convert = [self.safemap, "convert", self.model, out, "--max-shard-size", "1GB"]
        jobs = [
            ("reshard", convert, out),
            ("cp", ["sh", "-c", 'cp "$0" "$1" && sync "$1"', self.model, file], file),
            ("checksums", [*convert, "--checksums"], out),
            ("bf16", [*convert, "--dtype", "bf16"], out),
            ("save", [self.save_time, self.model, file], file),
        ]
        if self.python:
            jobs += [("hub", [self.python, "-c", RESHARD, self.model, out], out),
                     ("save_file", [self.python, "-c", SAVE, self.model, file], file)]
        for name, command, leaves in jobs if number % 2 == 0 else reversed(jobs):
            # The input is warm, and the writes of the previous job are flushed.
            subprocess.run(["sync"], check=True)
            subprocess.run(["cat", self.model], check=True, stdout=subprocess.DEVNULL)
            self.time(name, command, leaves)
        probe = subprocess.run([self.limits, self.model, self.work / "scratch"], check=True, capture_output=True,
                               text=True)
        self.probes.append(json.loads(probe.stdout))

    def row(self, title, name, peer=None, peer_title=None, written=1.0):
        if name not in self.times or (peer and peer not in self.times):
            return None
        times = self.times[name]
        ratio = ""
        if peer:
            faster = statistics.median(p / t for t, p in zip(times, self.times[peer]))
            ratio = f"{faster:.2f} × as fast as {peer_title}"
        limit = statistics.median(self.bytes * written / t / probe["write"] for t, probe in zip(times, self.probes))
        return (f"| {title} | {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}) | {ratio} "
                f"| {100 * limit:.0f} % | {self.anon[name] / 2**20:.0f} MiB |")

    def markdown(self, command):
        write = statistics.median(probe["write"] for probe in self.probes)
        rows = [
            self.row("`convert model.safetensors out/ --max-shard-size 1GB`", "reshard", "cp", "`cp` and `sync`"),
            self.row("the same", "reshard", "hub", "`load_file` and `save_torch_state_dict`"),
            self.row("`cp model.safetensors x && sync x`", "cp"),
            self.row("`load_file` and `save_torch_state_dict`, not durable", "hub"),
            self.row("… `--checksums`", "checksums", "reshard", "without"),
            self.row("… `--dtype bf16`", "bf16", "reshard", "without", 0.5),
            self.row("`save()` from memory", "save", "save_file", "`save_file`"),
            self.row("`save_file` from memory, not durable", "save_file"),
        ]
        return "\n".join([
            f"Machine: {run.machine(self.work)}. Date: {datetime.date.today()}. Command: `{command}`.",
            f"{self.bytes / 1e9:.2f} GB of fp32, warm; medians of {len(self.probes)} rounds. The probe of the disk in",
            f"the same rounds: {write / 1e9:.2f} GB/s.",
            "",
            "| job | seconds (least to most) | in the same rounds | of the probe | peak RssAnon |",
            "| --- | --- | --- | --- | --- |",
            *[row for row in rows if row],
        ])


def main():
    parser = run.arguments(__doc__)
    parser.add_argument("--python", help="an interpreter with torch, safetensors and huggingface_hub")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="safemap-saving-", dir=options.work) as work:
        saving = Saving(options.build.resolve(), pathlib.Path(work), options.size, options.python)
        for number in range(options.rounds):
            saving.round(number)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        command = f"bench/compare/saving.py {options.build} --size {options.size} --rounds {options.rounds}"
        print(saving.markdown(command))


if __name__ == "__main__":
    main()
