"""Helpers and fixtures that the tests of the Python package share."""

import pathlib
import random

import pytest

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"


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
