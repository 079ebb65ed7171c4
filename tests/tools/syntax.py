#!/usr/bin/env python3
"""Checks each source that is in one of the FOLDERs as the compiler of a build does, and writes no object file.

    syntax.py BUILD FOLDER...

Takes half of the time of compiling. Prints what the compiler says, and how many sources there are.
"""
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# Options that name an output: the object file, and the list of the headers that it needs.
OUTPUTS = re.compile(r"\s-(?:o|MF|MQ)\s+\S+|\s-(?:MD|c)(?=\s)")


def check(entry):
    command = OUTPUTS.sub("", entry["command"]) + " -fsyntax-only"
    done = subprocess.run(command, shell=True, cwd=entry["directory"], capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    return done.returncode == 0


def is_in(folders, entry):
    path = os.path.abspath(os.path.join(entry["directory"], entry["file"]))
    return path.endswith(".cpp") and path.startswith(folders)


def main():
    build = sys.argv[1]
    folders = tuple(os.path.abspath(folder) + os.sep for folder in sys.argv[2:])
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if is_in(folders, entry)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        right = sum(threads.map(check, entries))
    print(f"{right} of {len(entries)} sources compile")
    return 0 if entries and right == len(entries) else 1


if __name__ == "__main__":
    sys.exit(main())
