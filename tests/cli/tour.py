"""Tests that the README's example does what its comments say: tour.py TOUR SAFEMAP."""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'forge'))
from forged import floats, safetensors

EXPECTED = """\
wte F32 [4, 2]
ids I64 [3]
8 of 32 bytes
2 tensors written
1 on the device
"""


def main(tour, safemap):
    with tempfile.TemporaryDirectory() as folder:
        model, out = pathlib.Path(folder, 'model.safetensors'), pathlib.Path(folder, 'out')
        model.write_bytes(safetensors([('wte', 'F32', [4, 2], floats(*range(8))),
                                        ('ids', 'I64', [3], struct.pack('<3q', 8, 9, 10))]))
        said = subprocess.run([tour, model, out], check=True, stdout=subprocess.PIPE).stdout.decode()
        assert said == EXPECTED, said
        seen = subprocess.run([safemap, 'inspect', out, '--json'], check=True, stdout=subprocess.PIPE).stdout
        dtypes = {t['name']: t['dtype'] for t in json.loads(seen)['tensors']}
        assert dtypes == {'wte': 'BF16', 'ids': 'I64'}, dtypes


if __name__ == '__main__':
    main(*sys.argv[1:3])
