"""Helpers and fixtures that the tests of the Python package share."""

import os
import pathlib
import random
import signal

import pytest

# A shell lets programs in its background ignore Ctrl-C, and so would the programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"


@pytest.fixture
def measured():
    """For a test of memory or of times: the sanitizers of ./dev python-asan change both."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer keeps memory that was freed, and takes time")


@pytest.fixture
def rng(request):
    """A random generator; the seed is printed where a test fails."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


@pytest.fixture(scope="session")
def data():
    """The folder of files that the C++ tests read, too."""
    return DATA
