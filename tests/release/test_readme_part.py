"""Replacing a part of the README between two markers."""

import pytest

from scripts import readme_part


@pytest.fixture
def readme(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_part, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("before\n<a>\nold\n</a>\nafter\n", encoding="utf-8")
    return tmp_path / "README.md"


def test_part_is_replaced_and_backslashes_are_kept(readme):
    readme_part.write_part("<a>", "</a>", r"\alpha, \1 and \g<0>")
    assert readme.read_text(encoding="utf-8") == "before\n<a>\n" + r"\alpha, \1 and \g<0>" + "\n</a>\nafter\n"
    assert [path.name for path in readme.parent.iterdir()] == ["README.md"]


def test_missing_markers_are_an_error(readme):
    before = readme.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="<b> and </b>"):
        readme_part.write_part("<b>", "</b>", "new")
    assert readme.read_text(encoding="utf-8") == before
