"""Tests the names, the completion, and the types in the stubs of the package."""

import inspect
import pathlib
import pydoc
import subprocess
import sys
import typing

import pytest

import safemap
from safemap import _records

PACKAGE = pathlib.Path(safemap.__file__).parent


def test_names_that_are_imported_later_are_listed():
    assert set(safemap.__all__) <= set(dir(safemap))
    assert not [name for name in dir(safemap) if name.startswith("_") and not name.startswith("__")]


def test_help_and_star_imports_work_without_torch_and_numpy():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import safemap, pydoc; text = pydoc.plain(pydoc.render_doc(safemap)); assert 'load_state_dict(' in text\n"
        "namespace = {}; exec('from safemap import load, state_dict, open, save', namespace)\n"
        "try: namespace['load'](b'')\n"
        "except (ImportError, safemap.SafemapError): pass\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_function_and_method_has_a_docstring():
    public = [getattr(safemap, name) for name in safemap.__all__ if not name.startswith("__")]
    methods = [member for each in public if inspect.isclass(each) for name, member in vars(each).items()
               if not name.startswith("_") and callable(member)]
    missing = [each for each in public + methods if "\n\n" not in (each.__doc__ or "") and len(each.__doc__ or "") < 20]
    assert not missing


def _declared() -> dict:
    """Returns the fields of the classes in _records.pyi."""
    names = {"NamedTuple": typing.NamedTuple}
    text = "\n".join(
        line for line in (PACKAGE / "_records.pyi").read_text().splitlines() if not line.startswith("from ")
    )
    exec(compile("from __future__ import annotations\n" + text, "_records.pyi", "exec"), names)
    return {name: found._fields for name, found in names.items() if hasattr(found, "_fields")}


def test_the_stub_of_records_has_their_fields():
    made = {name: found._fields for name, found in vars(_records).items() if hasattr(found, "_fields")}
    assert _declared() == made


def test_a_checkpoint_has_no_constructor_and_completes_names(tmp_path):
    for arguments in ((), ("model.pt",)):
        with pytest.raises(TypeError, match=r"safemap.open\(path\)"):
            safemap.Checkpoint(*arguments)
    np = pytest.importorskip("numpy")
    checkpoint = safemap.Checkpoint.of({"a": np.ones(1), "b": np.ones(2)})
    assert checkpoint._ipython_key_completions_() == ["a", "b"]


def test_the_optimizer_is_named_by_its_method(data):
    run = data.parents[2] / "shared/fixtures/shapes/trainer_zero3"
    if not run.exists():
        pytest.skip("needs the folder of DeepSpeed")
    assert [one.why for one in safemap.open(run).skipped if one.why.endswith("bytes; optimizer() gives it")]
