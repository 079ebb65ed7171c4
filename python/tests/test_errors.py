"""SafemapError: codes, attributes, and the classes that Python has for such faults."""

import pathlib
import pickle
import re

import pytest

import safemap
from safemap import _errors

HEADER = pathlib.Path(__file__).resolve().parents[2] / "include/safemap/error.hpp"
CODES = re.findall(r"^    (\w+),? +///<", HEADER.read_text(), re.M)


def test_attributes(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        safemap.open(tmp_path / "missing")
    error = caught.value
    assert isinstance(error, safemap.SafemapError)
    assert (error.code, error.exit_code, error.tensor) == ("path_not_found", 2, "")
    assert error.path == str(tmp_path / "missing")
    assert error.message and str(error).startswith(error.path)


def test_every_code_makes_an_exception_that_pickles():
    for code in CODES + ["cancelled"]:
        error = _errors.exception_for(code, "text", "message", "path", "tensor", "hint", 3)
        assert isinstance(error, safemap.SafemapError) and str(error) == "text\nhint: hint"
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and vars(again) == vars(error) and str(again) == str(error)


def test_codes_with_a_class_of_python_exist():
    assert set(_errors._builtin_of) <= set(CODES)


@pytest.mark.parametrize("name", ["header_bad_field", "truncated"])
def test_data_errors_are_no_os_errors(name):
    error = _errors.exception_for("header_bad_field", "t", "m", "", "", "", 1)
    assert not isinstance(error, (OSError, ValueError))
