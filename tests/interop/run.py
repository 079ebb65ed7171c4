"""Runs the comparisons with PyTorch, NumPy, safetensors and huggingface_hub: run.py BUILD_FOLDER [MODULE].

Without a module it runs all of them, each in a process of its own, and as many at a time as there are processors.
"""
import concurrent.futures
import os
import re
import subprocess
import sys

# Long ones first, so that no processor waits for them at the end.
MODULES = ['like_deepspeed', 'like_dcp', 'training_folders', 'from_torch', 'hf_shards', 'rank_files', 'casts', 'scales',
           'checksums', 'dlpack', 'leaves', 'like_allclose', 'like_hub', 'like_load_state_dict', 'like_numpy',
           'like_pickle', 'like_safetensors', 'like_torch_load', 'like_weights_only', 'modules', 'structure']


def run_apart(build, module):
    """Runs a module in another process and prints what it said; returns how many tests passed and failed."""
    run = subprocess.run([sys.executable, __file__, build, module], capture_output=True, text=True, errors='replace',
                         check=False)
    counted = re.search(r'^(\d+) passed, (\d+) failed$', run.stdout, re.MULTILINE)
    ended = '' if counted else f'{run.stdout}{module} ended with {run.returncode}, without a result\n'
    print(f'--- {module}\n{run.stderr}{ended}', end='', file=sys.stderr, flush=True)
    return (int(counted[1]), int(counted[2])) if counted else (0, 1)


def run_all(build):
    """The last line on stdout states how many tests passed and failed."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        passed, failed = map(sum, zip(*pool.map(lambda module: run_apart(build, module), MODULES)))
    print(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


def run_module(build, module):
    import common  # which loads PyTorch
    return common.main(build, [module])


if __name__ == '__main__':
    sys.exit(run_module(*sys.argv[1:]) if len(sys.argv) == 3 else run_all(sys.argv[1]))
