"""Tests that an installation works from a prefix that was moved: installed.py CASE BUILD VERSION MESON COMPILER...

CASE is one of the classes below. It is skipped (exit code 77) if the tool that it needs is not installed.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parents[2]
EXAMPLE = SOURCE / 'examples/cmake'
SAMPLE = SOURCE / 'tests/data/safetensors/every_dtype.safetensors'
# The environment without the machine's own settings, which are not tested.
CLEAN = {key: value for key, value in os.environ.items()
         if key not in ('DESTDIR', 'LD_LIBRARY_PATH', 'PKG_CONFIG_PATH', 'CMAKE_PREFIX_PATH')}


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], env=CLEAN | environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    if done.returncode != 0:
        raise AssertionError(f'{" ".join(map(str, command))}: exit {done.returncode}\n{done.stdout}')
    return done.stdout


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Installed(Case):
    """Installs the build, and moves the prefix to an unusual place."""

    needed = None

    @classmethod
    def setUpClass(cls):
        if cls.needed and not shutil.which(cls.needed):
            raise unittest.SkipTest(f'{cls.needed} is not installed')
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        place = pathlib.Path(folder.name)
        run(MESON, 'install', '-C', BUILD, '--no-rebuild', '--quiet', DESTDIR=str(place / 'stage'))
        options = json.loads(run(MESON, 'introspect', BUILD, '--buildoptions'))
        options = {option['name']: option['value'] for option in options}
        cls.prefix = place / 'another place'
        (place / 'stage' / options['prefix'].lstrip('/')).rename(cls.prefix)
        cls.libdir = cls.prefix / options['libdir']
        cls.program = cls.prefix / options['bindir'] / 'safemap'

    def without_shared(self):
        """Continues in a copy of the prefix that has only the static library."""
        other = self.folder / 'static only'
        shutil.copytree(self.prefix, other, copy_function=os.link, symlinks=True)
        libdir = other / self.libdir.relative_to(self.prefix)
        for file in libdir.glob('libsafemap.so*'):
            file.unlink()
        self.prefix, self.libdir = other, libdir

    def library(self, kind):
        found = sorted(self.libdir.glob(f'libsafemap.{kind}*'))
        if not found:
            self.skipTest(f'this build installs no libsafemap.{kind}')
        return found[-1]

    def check_names(self, program, **environment):
        self.assertIn('u64\n', run(program, SAMPLE, **environment))


class Program(Installed):
    def test_it_starts(self):
        if not self.program.exists():
            self.skipTest('this build has no program')
        self.assertEqual(run(self.program, '--version').strip(), f'safemap {VERSION}')
        self.assertNotIn('libsafemap', run('ldd', self.program))


class PkgConfig(Installed):
    needed = 'pkg-config'

    def flags(self, *options):
        # Without the system's folders: packages of safemap's own dependencies may be missing.
        return run('pkg-config', *options, 'safemap', PKG_CONFIG_LIBDIR=str(self.libdir / 'pkgconfig')).strip()

    def build(self, *options):
        program = self.folder / 'names'
        # Uses the shell, because paths with spaces are quoted in the output.
        run('sh', '-c', '"$@" ' + self.flags('--cflags', '--libs', *options), 'sh',
            *COMPILER, '-std=c++20', EXAMPLE / 'names.cpp', '-o', program)
        return program

    def test_a_program_links_the_shared_library(self):
        self.library('so')
        self.check_names(self.build(), LD_LIBRARY_PATH=str(self.libdir))

    def test_a_program_links_the_static_library(self):
        self.library('a')
        self.without_shared()
        self.check_names(self.build('--static'))

    def test_private_dependencies_are_only_for_static_programs(self):
        self.library('so')
        self.assertNotIn('-D', self.flags('--cflags', '--static'))
        self.assertNotRegex(self.flags('--libs'), r'(?<!\S)-l(?!safemap)')
        self.assertRegex(self.flags('--libs', '--static'), '-lsafemap .*-lsimdjson')
        self.assertEqual(self.flags('--modversion'), VERSION)


class CMake(Installed):
    needed = 'cmake'

    def build(self, source):
        build = self.folder / 'build'
        run('cmake', '-S', source, '-B', build, '-G', 'Ninja' if shutil.which('ninja') else 'Unix Makefiles',
            f'-DCMAKE_PREFIX_PATH={self.prefix}', f'-DCMAKE_CXX_COMPILER={COMPILER[-1]}')
        run('cmake', '--build', build)
        return build / 'names'

    def test_the_example_links_the_shared_library(self):
        self.library('so')
        program = self.build(EXAMPLE)
        self.check_names(program)
        self.assertIn(str(self.libdir), run('ldd', program))

    def test_a_program_links_the_static_library(self):
        self.library('a')
        source = self.folder / 'static'
        shutil.copytree(EXAMPLE, source)
        listed = (source / 'CMakeLists.txt').read_text().replace('safemap::safemap)', 'safemap::static)')
        (source / 'CMakeLists.txt').write_text(listed)
        program = self.build(source)
        self.check_names(program)
        self.assertNotIn('libsafemap', run('ldd', program))

    def test_a_program_asks_for_a_version(self):
        major, minor, patch = map(int, VERSION.split('.'))
        asked = {f'{major}.{minor}': True, VERSION: True, f'{VERSION} EXACT': True,
                 f'{major}.{minor}.{patch + 1}': False, f'{major}.{minor + 1}': False, f'{major + 1}.0': False,
                 f'{VERSION}...{major + 1}': True, f'{major}...<{VERSION}': False}
        script = ['cmake_minimum_required(VERSION 3.19)', 'project(versions LANGUAGES NONE)']
        for i, version in enumerate(asked):
            script += ['unset(safemap_DIR CACHE)',
                       f'find_package(safemap {version} CONFIG QUIET PATHS "{self.libdir}/cmake" NO_DEFAULT_PATH)',
                       f'message("found {i} ${{safemap_FOUND}}")']
        source = self.folder / 'versions'
        source.mkdir()
        (source / 'CMakeLists.txt').write_text('\n'.join(script))
        told = run('cmake', '-S', source, '-B', source / 'build')
        found = dict(re.findall(r'found (\d+) (\d)', told))
        self.assertEqual({version: found[str(i)] == '1' for i, version in enumerate(asked)}, asked)


class Exports(Installed):
    needed = 'nm'

    def symbols(self):
        for line in run('nm', '--dynamic', '--defined-only', self.library('so')).splitlines():
            yield line.split(maxsplit=2)[1:]

    def test_the_library_exports_only_names_of_safemap(self):
        ours = re.compile(r'_Z(N[KRO]*|T[ISV]N|T[hv][n0-9_]*NK?)7safemap')
        names = [name for _, name in self.symbols()]
        self.assertGreater(len(names), 100)
        self.assertEqual([name for name in names if not ours.match(name)], [])

    def test_every_symbol_names_its_abi(self):
        abi = '{}v{}_{}'.format(len('v_'.join(VERSION.split('.')[:2])), *VERSION.split('.'))
        self.assertEqual([name for _, name in self.symbols() if f'7safemap{abi}' not in name], [])

    def test_the_library_can_be_unloaded(self):
        self.assertEqual([name for kind, name in self.symbols() if kind == 'u'], [])
        script = ('import _ctypes, ctypes, sys\n'
                  '_ctypes.dlclose(ctypes.CDLL(sys.argv[1])._handle)\n'
                  'print("libsafemap" in open("/proc/self/maps").read())\n')
        self.assertEqual(run(sys.executable, '-c', script, self.library('so')).strip(), 'False')


class Subproject(Case):
    def test_a_subproject_builds_only_the_library(self):
        (self.folder / 'subprojects').mkdir()
        (self.folder / 'subprojects/safemap').symlink_to(SOURCE)
        shutil.copy(EXAMPLE / 'names.cpp', self.folder)
        (self.folder / 'meson.build').write_text(
            "project('names', 'cpp', default_options: 'cpp_std=c++20')\n"
            "executable('names', 'names.cpp', dependencies: dependency('safemap', fallback: 'safemap'))\n")
        build = self.folder / 'build'
        run(MESON, 'setup', build, self.folder, CXX=' '.join(COMPILER))
        compiled = json.loads((build / 'compile_commands.json').read_text())
        files = [pathlib.Path(os.path.normpath(os.path.join(entry['directory'], entry['file']))) for entry in compiled]
        units = [file for file in files if file.is_relative_to(build)]
        files += [pathlib.Path(file) for unit in units for file in re.findall('#include "(.*)"', unit.read_text())]
        safemap = self.folder / 'subprojects/safemap'
        inside = sorted(file.relative_to(safemap).as_posix() for file in files if file.is_relative_to(safemap))
        library = sorted(p.relative_to(SOURCE).as_posix() for p in (SOURCE / 'lib').rglob('*.cpp'))
        for name in ('libcrypto', 'zstd'):
            library.remove(f'lib/base/no_{name}.cpp' if f'lib/base/{name}.cpp' in inside else f'lib/base/{name}.cpp')
        self.assertEqual(inside, library)
        self.assertEqual(json.loads(run(MESON, 'introspect', build, '--installed')), {})
        self.assertEqual(json.loads(run(MESON, 'introspect', build, '--tests')), [])


def main(case):
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(
        unittest.defaultTestLoader.loadTestsFromTestCase(globals()[case]))
    if not result.wasSuccessful():
        return 1
    return 77 if result.testsRun <= len(result.skipped) else 0


if __name__ == '__main__':
    BUILD, VERSION, MESON, *COMPILER = sys.argv[2:]
    sys.exit(main(sys.argv[1]))
