"""The examples of docs/python.md and docs/python-api.md run, one after the other, as a reader would type them; and the
reference names everything."""

import pathlib
import re

import pytest

import safemap
import safemap._records

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGES = {"python.md": 9, "python-api.md": 2}  # and the least number of examples


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("numpy")
    monkeypatch.chdir(tmp_path)
    torch.save({"tokens.weight": torch.randn(8, 4), "head.weight": torch.randn(8, 4)}, "model.pt")
    names = {"torch": torch}
    assert len(blocks(page)) >= PAGES[page]
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)


def _section(title: str) -> str:
    text = (DOCS / "python-api.md").read_text()
    return re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def test_the_reference_names_everything():
    everything = (DOCS / "python-api.md").read_text()
    assert [name for name in safemap.__all__ if f"`{name}" not in everything and f".{name}`" not in everything] == []
    for title, function in {"Options of open()": safemap.open, "Options of save()": safemap.save}.items():
        options = re.findall(r"(\w+): ", function.__doc__.split("\n")[0].split("*, ")[1])
        section = _section(title) + "`progress`"
        assert [option for option in options if f"`{option}`" not in section] == []
    for one in (safemap.Checkpoint, safemap.LazyTensor, safemap.ShardWriter, safemap.LoadPlan, safemap.Uploader):
        members = [name for name in vars(one) if not name.startswith("_")]
        section = _section(one.__name__)
        assert [name for name in members if not re.search(rf"[`. ]{name}\b", section)] == []
    for name in ("SaveReport", "DiffReport", "VerifyReport", "Digests", "Examined", "ScanReport", "UploadStats"):
        fields = getattr(safemap._records, name)._fields
        assert [field for field in fields if f"`{field}`" not in _section("Reports")] == []


def test_the_reference_has_the_keywords_of_each_function():
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", _section("Functions"), re.M))
    for name, arguments in rows.items():
        signature = (getattr(safemap, name).__doc__ or "").split("\n")[0]
        if name not in ("open", "save") and "*, " in signature:
            keywords = re.findall(r"(\w+): ", signature.split("*, ")[1])
            assert [one for one in keywords if one not in arguments and one != "options"] == [], name
