#!/usr/bin/env python3
"""Times the plan of converting Llama 3.1 405B from folders of DeepSpeed ZeRO: prints Markdown for docs/performance.md.

    bench/compare/zero_plan.py BUILD [--world 192 1024 4096] [--stage 3] [--rounds 5] [--work DIR]

BUILD is a build folder with the command line in it. The files describe 1.62 TB of fp32 weights in 1,137 parameters, and
all of their tensors are holes. So a folder takes as much of the disk as its headers and pickles: about half a megabyte
a rank. What is timed is `safemap convert --dry-run --json`, which opens all files, makes the tensors and lays out the
shards. Files are warm, because they were just written.
"""

import datetime
import json
import pathlib
import statistics
import sys
import tempfile

import run
import zero
import zero_files


class Plan:
    """One folder, and the times of its plan."""

    def __init__(self, safemap, work, model, stage, world):
        self.safemap, self.work, self.stage, self.world = safemap, work, stage, world
        self.model = model
        self.folder = work / f"stage_{stage}_of_{world}"
        zero_files.write(self.folder, stage, world, model, data=False)
        self.runs = []

    def round(self):
        done = run.Run([self.safemap, "convert", self.folder, self.work / "out", "--dry-run", "--json"],
                       keep_output=True)
        planned = json.loads(done.output)
        if planned["tensors"] != len(self.model):
            sys.exit(f"the plan has {planned['tensors']} tensors, wanted {len(self.model)}")
        self.runs.append(done)

    def row(self):
        pieces = zero_files.pieces(self.stage, self.world, self.model)
        peak = max(done.peak_anon for done in self.runs)
        busy = statistics.median(done.busy for done in self.runs)
        return (f"| {self.stage} | {self.world:,} | {pieces:,} | {zero.spread([done.seconds for done in self.runs])} "
                f"| {zero.spread([done.busy for done in self.runs])} | {1e6 * busy / pieces:.2f} "
                f"| {peak / 2**20:.0f} MiB |")


def main():
    parser = run.common_arguments(__doc__)
    parser.add_argument("--stage", type=int, nargs="+", choices=(2, 3), default=[3])
    parser.add_argument("--world", type=int, nargs="+", default=[192, 1024, 4096], help="ranks")
    options = parser.parse_args()
    safemap = options.build.resolve() / "cli" / "safemap"
    if not safemap.exists():
        sys.exit(f"{safemap} is not there: ninja -C {options.build} cli/safemap")
    model, rows = zero_files.llama_405b(), []
    for stage in options.stage:
        for world in options.world:
            with tempfile.TemporaryDirectory(prefix="safemap-plan-", dir=options.work) as work:
                plan = Plan(safemap, pathlib.Path(work), model, stage, world)
                for number in range(options.rounds):
                    plan.round()
                    print(f"stage {stage}, {world} ranks: round {number + 1} of {options.rounds}", file=sys.stderr)
                rows.append(plan.row())
                machine = run.machine(work)
    command = " ".join(["./dev bench zero_plan", *sys.argv[2:]])
    total = 4 * sum(parameter.count for parameter in model)
    print(f"Machine: {machine}. Date: {datetime.date.today()}. Command: `{command}`.",
          f"{total / 1e12:.2f} TB of fp32 in {len(model):,} parameters; medians of {options.rounds} rounds.", "",
          "| stage | ranks | pieces | seconds (least to most) | seconds of processor | µs of processor a piece "
          "| peak RssAnon |",
          "| --- | --- | --- | --- | --- | --- | --- |", *rows, sep="\n")


if __name__ == "__main__":
    main()
