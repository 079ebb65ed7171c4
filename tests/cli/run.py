"""Tests the command line from outside: run.py SAFEMAP DATA [--update] [unittest's own arguments].

Output is compared with the files of expected/, to the byte; --update rewrites them. Each test runs in a new folder with
small files made here, and with the files of DATA that torch wrote. commands/ has a file for each command.
"""
import sys
import unittest

import case
from commands.every import EveryCommand
from commands.inspect import Inspect
from commands.convert import Convert, Extras, Runs
from commands.edit import Edit, Repair
from commands.verify import Verify, Deflated
from commands.diff import Diff, DiffTolerance
from commands.hash import Hash
from commands.scan import Scan
from commands.plan import Plan
from commands.load import Load
from commands.messages import Messages
from commands.parts import Names, Parts
from commands.torch_files import Torch, WholeModules

if __name__ == '__main__':
    words = sys.argv[1:]
    if '--update' in words:
        case.UPDATE = True
        words.remove('--update')
    case.use(*words[:2])
    unittest.main(argv=[sys.argv[0], *words[2:]])
