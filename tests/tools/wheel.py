"""Checks a wheel of the Python package, as it would be uploaded: wheel.py WHEEL PYTHON.

It runs on the systems that its name promises, and has all files of the package and nothing else. The extension exports
only the function that Python calls. It is small, and PYTHON, which has it installed, imports it quickly.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 3_500_000
MOST_GLIBC = 36  # that of Debian 12
MOST_IMPORT_US = 5_000
IMPORTS = 40


def printed(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


class Wheel(unittest.TestCase):
    wheel = python = ''

    def setUp(self):
        self.archive = zipfile.ZipFile(self.wheel)
        self.addCleanup(self.archive.close)
        self.names = self.archive.namelist()

    def metadata(self, name):
        return next(self.archive.read(each).decode() for each in self.names if each.endswith(f'.dist-info/{name}'))

    def test_its_name_says_where_it_runs(self):
        name = re.fullmatch(r'safemap-[\d.]+-(cp3\d+)-(cp3\d+|abi3)-(.+)\.whl', pathlib.Path(self.wheel).name)
        self.assertTrue(name, self.wheel)
        extension = next(each for each in self.names if each.startswith('safemap/_core.'))
        self.assertEqual(name[2] == 'abi3', extension == 'safemap/_core.abi3.so', extension)
        self.assertEqual(name[2], 'abi3' if name[1] == 'cp312' else name[1])
        glibc = [int(minor) for minor in re.findall(r'manylinux_2_(\d+)_', name[3])]
        self.assertTrue(glibc and min(glibc) <= MOST_GLIBC, name[3])

    def test_it_has_the_package_and_nothing_else(self):
        source = ROOT / 'python' / 'safemap'
        wanted = {f'safemap/{path.relative_to(source)}' for path in source.rglob('*')
                  if path.suffix in ('.py', '.pyi', '.typed')}
        found = {name for name in self.names if re.match(r'safemap/.*\.(py|pyi|typed)$', name)}
        self.assertEqual(found, wanted)
        others = {re.match(r'[^/]*', name)[0] for name in self.names} - {'safemap', 'safemap.libs'}
        self.assertEqual(len(others), 1, others)
        self.assertRegex(others.pop(), r'^safemap-[\d.]+\.dist-info$')

    def test_it_needs_no_package(self):
        needed = re.findall(r'^Requires-Dist: (.*)$', self.metadata('METADATA'), re.MULTILINE)
        self.assertEqual([each for each in needed if 'extra ==' not in each], [])
        self.assertRegex(self.metadata('METADATA'), r'(?m)^Requires-Python: >=3\.10$')
        self.assertIn('safemap = safemap.__main__:main', self.metadata('entry_points.txt'))
        self.assertTrue(any(name.endswith('/LICENSE') for name in self.names))

    def test_the_extension_exports_one_function_and_is_stripped(self):
        with tempfile.TemporaryDirectory() as folder:
            extension = self.archive.extract(next(n for n in self.names if n.startswith('safemap/_core.')), folder)
            self.assertEqual(printed('nm', '-D', '--defined-only', extension).split()[1:], ['T', 'PyInit__core'])
            self.assertEqual(printed('nm', extension), '')

    def test_it_is_small(self):
        size = pathlib.Path(self.wheel).stat().st_size
        print(f'\n{size} bytes')
        self.assertLess(size, MOST_BYTES)

    def test_it_is_imported_quickly(self):
        timed = ("import time; began = time.perf_counter_ns(); import safemap; "
                 "print((time.perf_counter_ns() - began) // 1000)")
        times = sorted(int(printed(self.python, '-c', timed)) for _ in range(IMPORTS))
        print(f'\nimport safemap: {times[0]} us, median {times[len(times) // 2]} us')
        self.assertLess(times[0], MOST_IMPORT_US)  # a busy machine has a longer median


if __name__ == '__main__':
    Wheel.wheel, Wheel.python = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
