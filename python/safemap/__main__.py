"""The command line: `safemap` and `python -m safemap`."""

import os
import sys

from ._core import run_command_line


def _program() -> list[str]:
    """Returns the words that started this program, as a shell would start it again."""
    if sys.argv[0] == __file__:
        return sys.orig_argv[:len(sys.orig_argv) - len(sys.argv) + 1]
    folder, name = os.path.split(sys.argv[0])
    return [name if folder in os.environ.get("PATH", "").split(os.pathsep) else sys.argv[0]]


def main() -> int:
    """Runs the command in sys.argv, and returns its exit code."""
    return run_command_line(_program(), sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
