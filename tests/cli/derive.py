"""Checks that a program that uses select, renamed and save writes what convert writes: derive.py DERIVE SAFEMAP
TESTS/DATA."""
import pathlib
import subprocess
import sys
import tempfile


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def main(derive, safemap, data):
    for name in ('train_gpt.pt', 'tied.pt', 'module.pt', 'odd_dtypes.pt'):
        for glob in ('*weight', 'nothing'):
            with tempfile.TemporaryDirectory() as folder:
                model = pathlib.Path(data, 'pt', name)
                ours, told = pathlib.Path(folder, 'ours'), pathlib.Path(folder, 'told')
                subprocess.run([derive, model, ours, glob, 'x.'], check=True)
                subprocess.run([safemap, 'convert', model, told, '--quiet', '--exclude', glob, '--rename', 's/^/x./',
                                '--allow-empty'],
                               check=True)
                assert files(ours) == files(told), (name, glob)


if __name__ == '__main__':
    main(*sys.argv[1:4])
