"""The examples of docs/python.md run, one after the other, as a reader would type them."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_examples_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("numpy")
    monkeypatch.chdir(tmp_path)
    torch.save({"tokens.weight": torch.randn(8, 4), "head.weight": torch.randn(8, 4)}, "model.pt")
    names = {"torch": torch}
    assert len(blocks()) >= 9
    for block in blocks():
        exec(compile(block, str(PAGE), "exec"), names)
