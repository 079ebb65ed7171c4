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


@pytest.mark.parametrize(
    ("hint", "wanted"),
    [
        ("--force (SaveOptions::overwrite) replaces it", "overwrite=True replaces it"),
        ("--root PART (OpenOptions::root) gives one of the parts", "root=PART gives one of the parts"),
        ("--max-header-size 12 (OpenOptions::max_header_bytes) opens it", "max_header_bytes=12 opens it"),
        ("leave out --deepspeed-compat or --weights module", "leave out deepspeed_compat=True or weights='module'"),
        ("copy them: --keep-dtype '*.w'", "copy them: keep_dtype='*.w'"),
        ("save shards (--max-shard-size), or not", "save shards (max_shard_size), or not"),
        ("save it with --ckpt-format torch_dist", "save it with --ckpt-format torch_dist"),
        ("safemap convert IN OUT --force does", "safemap convert IN OUT --force does"),
        ("names of the file (--strip-prefix m.)", "names of the file (renamed(lambda name: name.removeprefix('m.')))"),
        ("names of the model (--strip-prefix m.)", "names of the model (renamed(lambda name: 'm.' + name))"),
    ],
)
def test_hints_name_options_of_python(hint, wanted):
    assert _errors.exception_for("io_error", "t", "m", "", "", hint, 3).hint == wanted


def test_every_option_of_the_command_line_in_a_hint_is_one_of_python():
    signatures = [function.__doc__.split("\n")[0] for function in (safemap.open, safemap.save)]
    options = {name for signature in signatures for name in re.findall(r"(\w+): ", signature)}
    assert {*_errors._flags.values(), *_errors._valued.values()} <= options


def test_unknown_options_are_named_with_what_may_be_meant(tmp_path):
    for call, text in [
        (lambda: safemap.open("x", acces="copied"), "open() has no option 'acces'; did you mean 'access'?"),
        (lambda: safemap.save("x", {}, overwite=True), "save() has no option 'overwite'; did you mean 'overwrite'?"),
        (lambda: safemap.ShardWriter("x", {}, stm="m"), "ShardWriter() has no option 'stm'; did you mean 'stem'?"),
        (lambda: safemap.scan("x", hiden=True), "scan() has no option 'hiden'; did you mean 'hidden'?"),
        (lambda: safemap.verify("x", polcy="strict"), "verify() has no option 'polcy'; did you mean 'policy'?"),
        (lambda: safemap.repair("x", "y", untye=True), "repair() has no option 'untye'; did you mean 'untie'?"),
        (lambda: safemap.open("x", zzz=1), "open() has no option 'zzz'"),
        (lambda: safemap.open("x", weights_only=True), "open() has no option 'weights_only': no pickle is run"),
    ]:
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == text


def test_bytes_that_are_a_path(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"")
    with pytest.raises(safemap.SafemapError, match="are the path of a file") as caught:
        safemap.open(str(path).encode())
    assert "os.fsdecode" in caught.value.hint
    with pytest.raises(safemap.SafemapError, match="text file"):
        safemap.open(b"no such file")


def test_names_below_a_prefix_are_near(data):
    with safemap.open(data / "pt/train_gpt.pt") as checkpoint:
        with pytest.raises(KeyError) as caught:
            checkpoint["tokens.weight"]
    assert caught.value.hint == "did you mean 'model/tokens.weight'?"
