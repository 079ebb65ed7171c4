"""The budget of the build and of ./dev test.

budget.py ROOT BUILD        Fails if there are too many compile jobs, or if a header of the tests costs too much. What a
                            header costs is its lines, times the files that include it: each of them compiles them all.
budget.py --times TESTLOG   Names the tests that take more than their share of a run of all tests. Never fails: time
                            depends on the machine.
"""
import collections
import json
import pathlib
import re
import sys

# About a tenth more than there is. A commit that needs more says why: a job is one to ten seconds of processor time for
# everybody, every day.
JOBS = {'lib': 52, 'cli': 6, 'tests': 64, 'fuzz': 3}
HEADER_LINES = 6000
HEADER_EXCEPTIONS = {'doctest_safemap.hpp': 12000}  # which every test needs

TEST_SECONDS = 5
# The tests of the command line start it some hundred times, those of CUDA are loops over random schedules, and those of
# io wait for the disk.
TIME_EXCEPTIONS = {'cli': 10, 'deepspeed_cli': 10, 'cuda': 8, 'io': 10}
ALL_SECONDS = 100  # of all tests on two quiet processors; a slower machine may take longer for each of them


def jobs(commands):
    """Yields a fault for each folder with too many compile jobs. Headers that are checked alone write no objects."""
    found = collections.Counter(command['output'].split('/')[0] for command in commands
                                if 'headers_alone' not in command['output'])
    for folder, most in JOBS.items():
        if not 0 < found[folder] <= most:
            yield f'{folder}/: {found[folder]} compile jobs, and the budget is {most}'


def headers(tests):
    """Yields a fault for each header of the tests that costs too much."""
    texts = {str(path.relative_to(tests)): path.read_text(encoding='utf-8') for path in tests.rglob('*.[ch]pp')}
    users = collections.Counter(name for text in texts.values()
                                for name in set(re.findall(r'#include "([^"]+)"', text)))
    for name, text in texts.items():
        lines = users[name] * len(text.splitlines())
        if lines > HEADER_EXCEPTIONS.get(name, HEADER_LINES):
            yield f'tests/{name}: {users[name]} files compile {lines} lines of it; move what it defines to a .cpp'


def times(log):
    """Yields a line for each test that takes more than its share."""
    tests = [json.loads(line) for line in log]
    slow = max(1, sum(test['duration'] for test in tests) / ALL_SECONDS)
    for test in tests:
        name = test['name'].split(' / ')[-1].strip()
        allowed = slow * TIME_EXCEPTIONS.get(name, TEST_SECONDS)
        if test['duration'] > allowed:
            yield f'{name}: takes {test["duration"]:.1f} s, and its share is {allowed:.1f} s'


def check(root, build):
    commands = json.loads(pathlib.Path(build, 'compile_commands.json').read_text(encoding='utf-8'))
    return [*jobs(commands), *headers(pathlib.Path(root, 'tests'))]


if __name__ == '__main__':
    if sys.argv[1] == '--times':
        with open(sys.argv[2], encoding='utf-8') as testlog:
            for line in times(testlog):
                print('over budget: ' + line)
        sys.exit()
    faults = check(*sys.argv[1:])
    print(*faults, sep='\n')
    sys.exit(bool(faults))
