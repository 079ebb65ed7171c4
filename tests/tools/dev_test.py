"""Tests what `./dev` says and does where packages are missing, its help, and which of its commands CI runs.

The programs that it would call are replaced.
"""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEV = ROOT / 'dev'
NOT_INSTALLED = 4


@unittest.skipUnless(shutil.which('bash'), 'no bash here')
class Missing(unittest.TestCase):
    def run_dev(self, *arguments, user=0, missing=('meson', 'doctest-dev'), programs=('sudo',)):
        """Runs a copy of `dev` in a folder of its own. Returns the exit code, stderr, and the calls of programs."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / 'bin').mkdir()
            for wanted in ('bash', 'dirname', 'cat', 'cmp', 'grep', 'rm'):
                (folder / 'bin' / wanted).symlink_to(shutil.which(wanted))

            def program(called, body):
                path = folder / 'bin' / called
                path.write_text(f'#!/bin/bash\n{body}\n')
                path.chmod(0o755)

            program('dpkg-query', f'[[ " {" ".join(missing)} " == *" ${{!#}} "* ]] || echo -n installed')
            program('id', f'echo {user}')
            log = f'>>{folder}/calls'
            program('apt-get', f'echo apt-get "$@" {log}')
            program('meson', f'echo meson "$@" {log}; exit 9')
            program('python3', f'echo python3 "$@" {log}; exit 9')
            for each in programs:
                program(each, f'echo {each} {log}; "$@"')
            program('env', 'shift; "$@"')
            shutil.copy(DEV, folder / 'dev')
            for each in ('tests/interop/requirements.txt', 'tests/interop/optional.txt', 'python/requirements.txt'):
                (folder / each).parent.mkdir(parents=True, exist_ok=True)
                (folder / each).write_text('torch\n')
            done = subprocess.run(['bash', folder / 'dev', *arguments], capture_output=True, text=True,
                                  env={'PATH': str(folder / 'bin'), 'HOME': name}, cwd=folder, check=False)
            calls = folder / 'calls'
            return done.returncode, done.stderr, calls.read_text().splitlines() if calls.exists() else []

    def test_no_install_names_packages_and_the_command_and_stops(self):
        code, said, calls = self.run_dev('--no-install', 'test')
        self.assertEqual((code, calls), (NOT_INSTALLED, []))
        self.assertIn('Missing: meson doctest-dev.', said)
        self.assertRegex(said, r'\n +apt-get update -q\n +env .*apt-get install .* meson doctest-dev\n')
        self.assertNotIn('ninja-build', said)

    def test_no_install_goes_on_if_nothing_is_missing(self):
        code, said, calls = self.run_dev('--no-install', 'test', missing=())
        self.assertEqual((code, said), (9, ''))  # of meson
        self.assertEqual([call.split()[:2] for call in calls], [['meson', 'setup']])

    def test_the_command_is_said_and_then_run(self):
        code, said, calls = self.run_dev('test', user=1000)
        self.assertEqual(code, 9)
        self.assertIn('sudo apt-get update -q\n', said)
        self.assertEqual([call.split()[:2] for call in calls],
                         [['sudo'], ['apt-get', 'update'], ['sudo'], ['apt-get', 'install'], ['meson', 'setup']])
        self.assertTrue(calls[3].endswith(' meson doctest-dev'))

    def test_without_sudo_the_command_is_said_only(self):
        code, said, calls = self.run_dev('test', user=1000, programs=())
        self.assertEqual((code, calls), (NOT_INSTALLED, []))
        self.assertIn('Missing: meson doctest-dev, and sudo', said)
        self.assertIn('sudo apt-get update -q\n', said)

    def test_python_packages_are_named_too(self):
        code, said, calls = self.run_dev('--no-install', 'interop', missing=())
        self.assertEqual((code, calls), (NOT_INSTALLED, []))
        self.assertIn('python3 -m venv .venv\n', said)
        self.assertIn('-r tests/interop/requirements.txt -r python/requirements.txt\n', said)
        code, _, calls = self.run_dev('interop', missing=())
        self.assertEqual((code, calls), (9, ['python3 -m venv .venv']))

    def test_all_stops_before_its_first_part(self):
        code, said, calls = self.run_dev('--no-install', 'all', missing=('clang-14', 'mpich'))
        self.assertEqual((code, calls), (NOT_INSTALLED, []))
        self.assertIn('Missing: clang-14 mpich.', said)


class Help(unittest.TestCase):
    def test_every_command_and_benchmark_is_in_the_help(self):
        shown = subprocess.run(['bash', DEV, 'help'], capture_output=True, text=True, check=True).stdout
        source = DEV.read_text(encoding='utf-8')
        commands = [line[3:line.index('(')] for line in source.splitlines() if line.startswith('do_')]
        self.assertGreater(len(commands), 10)
        for command in commands:
            if command != 'help':
                self.assertRegex(shown, rf'\n  {command} ')
        for name in ('compare', 'zero_plan', 'hf_shards'):
            self.assertRegex(shown, rf'\n    bench {name} ')

    def test_the_workflow_has_the_parts_of_ci(self):
        quick = re.search(r'\nelse\n(.*?)\nif ', (ROOT / '.ci/run').read_text(encoding='utf-8'), re.DOTALL)[1]
        parts = re.findall(r'^ *part (.*)$', quick, re.MULTILINE)
        workflow = (ROOT / '.github/workflows/ci.yml').read_text(encoding='utf-8')
        self.assertGreater(len(parts), 3)
        self.assertEqual(re.findall(r'^          - (.*)$', workflow, re.MULTILINE), parts)


if __name__ == '__main__':
    unittest.main()
