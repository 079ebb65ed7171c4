"""Loads a file of safetensors to a GPU, in turn with what users have today. Prints a table.

    gpu.py GPU_TIME [--size 4] [--rounds 3] [--folder FOLDER] [--rc FOLDER]

GPU_TIME is the program that gpu_time.cpp makes. The file, of --size GiB in the shapes of a language model, is made in
--folder, and is in the page cache. Each loader runs in a process of its own, in turn, `rounds` times. A process has its
CUDA context before the time is taken. It loads the file four times, and frees it each time: the first time counts as
"first", and the median of the others as "again". Peers that are not installed are left out. --rc names a folder with a
newer version of the package safetensors, which has prefetch().
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TIMES = 4


def make(path, gib):
    import torch
    from safetensors.torch import save_file

    hidden, inner, vocabulary = 4096, 11008, 32000
    shapes = {"embed": (vocabulary, hidden)}
    size = 2 * vocabulary * hidden
    layer = 0
    while size < gib << 30:
        parts = {name: (hidden, hidden) for name in ("q", "k", "v", "o")}
        parts |= {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        parts |= {"norm_1": (hidden,), "norm_2": (hidden,)}
        for name, shape in parts.items():
            shapes[f"layers.{layer}.{name}"] = shape
            size += 2 * torch.Size(shape).numel()
        layer += 1
    block = torch.randint(-30000, 30000, (inner * hidden * 3,), dtype=torch.int16)
    tensors = {}
    for at, (name, shape) in enumerate(shapes.items()):
        values = block[at * 64 : at * 64 + torch.Size(shape).numel()]
        tensors[name] = values.clone().view(torch.bfloat16).reshape(shape)
    save_file(tensors, path)


def load_file(path):
    from safetensors.torch import load_file

    return load_file(path, device="cuda:0")


def prefetch(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cuda:0") as file, file.prefetch() as loader:
        return dict(loader)


def instanttensor(path):
    import instanttensor

    with instanttensor.safe_open(path, framework="pt", device="cuda:0") as file:
        return dict(file.tensors())


def instanttensor_views(path):
    """Keeps no tensor: each is a view of a ring, as a loader uses it that copies to its parameters."""
    import instanttensor

    with instanttensor.safe_open(path, framework="pt", device="cuda:0", copy=False) as file:
        return {name: None for name, _ in file.tensors()}


def fastsafetensors(path):
    from fastsafetensors import fastsafe_open

    with fastsafe_open(path, nogds=True, device="cuda:0") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


PEERS = {f.__name__: f for f in (load_file, prefetch, instanttensor, instanttensor_views, fastsafetensors)}


def run_peer(name, path):
    import torch

    torch.zeros(1, device="cuda:0")
    seconds = []
    for _ in range(TIMES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        tensors = PEERS[name](path)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        del tensors
    print(json.dumps({"seconds": seconds}))


def measure(options):
    path = os.path.join(options.folder, "model.safetensors")
    make(path, options.size)
    size = os.path.getsize(path)
    folders = [options.rc, os.environ.get("PYTHONPATH", "")]
    newer = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    jobs = {"safemap": ([options.program, path, "cuda:0", str(TIMES)], os.environ)}
    for name in PEERS:
        command = [sys.executable, __file__, "--peer", name, path]
        jobs[name] = (command, newer if name == "prefetch" else os.environ)
    times = {name: [] for name in jobs}
    for _ in range(options.rounds):
        for name in list(jobs):
            done = subprocess.run(jobs[name][0], env=jobs[name][1], capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                print(f"{name}: not measured: {done.stderr.strip().splitlines()[-1:]}")
                del jobs[name]
                continue
            times[name].append(json.loads(done.stdout.splitlines()[-1])["seconds"])
    os.unlink(path)
    print(f"{size / 1e9:.2f} GB, {options.rounds} rounds; GB/s, and the seconds of a peer by those of safemap")
    ours = times["safemap"]
    for name, rounds in times.items():
        if len(rounds) < options.rounds or not ours:
            continue
        first = [load[0] for load in rounds]
        again = [statistics.median(load[1:]) for load in rounds]
        ratios = [statistics.median(load[1:]) / statistics.median(own[1:]) for load, own in zip(rounds, ours)]
        firsts = [load[0] / own[0] for load, own in zip(rounds, ours)]
        print(
            f"{name:20} first {size / statistics.median(first) / 1e9:6.2f}  x{statistics.median(firsts):6.2f}"
            f"   again {size / statistics.median(again) / 1e9:6.2f}  x{statistics.median(ratios):6.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--rc", default="")
    parser.add_argument("--peer", nargs=2)
    options = parser.parse_args()
    if options.peer:
        run_peer(*options.peer)
    else:
        measure(options)


if __name__ == "__main__":
    main()
