"""Sums up a meson test log (testlog.json): prints "PASSED FAILED".

With --failures it prints the names of the failed tests and the end of the output of each. With --junit it reads what
pytest --junit-xml writes. A doctest program counts its
test cases, a program that ends with a line "N passed, N failed" counts those, and any other test counts as one. Skipped
tests do not count.
"""
import json
import re
import sys
import xml.etree.ElementTree

GOOD = {'OK', 'EXPECTEDFAIL'}
SHOWN_LINES = 60
CASES = re.compile(r'^(?:\[doctest\] test cases:\s*\d+\s*\|\s*)?(\d+) passed\s*[|,]\s*(\d+) failed', re.MULTILINE)


def count(lines):
    passed = failed = 0
    for test in map(json.loads, lines):
        if test['result'] == 'SKIP':
            continue
        good, bad = test['result'] in GOOD, 0
        summaries = CASES.findall(test.get('stdout') or '')
        if summaries:
            passed += int(summaries[-1][0])
            bad = int(summaries[-1][1])
        elif good:
            passed += 1
        # A program that reports success and then crashes has failed.
        failed += bad if good or bad else 1
    return passed, failed


def count_junit(path):
    suites = list(xml.etree.ElementTree.parse(path).iter('testsuite'))
    total, skipped, failed, errors = (sum(int(suite.get(key, 0)) for suite in suites)
                                      for key in ('tests', 'skipped', 'failures', 'errors'))
    return total - skipped - failed - errors, failed + errors


def failures(lines):
    """Yields one text for each failed test."""
    for test in map(json.loads, lines):
        if test['result'] in GOOD or test['result'] == 'SKIP':
            continue
        printed = ((test.get('stdout') or '') + (test.get('stderr') or '')).splitlines()
        title = f"--- {test['name']}: {test['result']} after {test['duration']:.0f} s"
        yield '\n'.join([title, *printed[-SHOWN_LINES:]])


if __name__ == '__main__':
    if sys.argv[1] == '--junit':
        print(*count_junit(sys.argv[2]))
        sys.exit()
    with open(sys.argv[-1], encoding='utf-8') as log:
        if sys.argv[1] == '--failures':
            print(*failures(log), sep='\n')
        else:
            print(*count(log))
