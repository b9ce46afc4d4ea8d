"""Replacing a part of a page between two markers."""

import pytest

from scripts.readme_part import write_part


@pytest.fixture
def page(tmp_path):
    (tmp_path / "README.md").write_text("before\n<a>\nold\n</a>\nafter\n", encoding="utf-8")
    return tmp_path / "README.md"


def test_part_is_replaced_and_backslashes_are_kept(page):
    write_part(page, "<a>", "</a>", r"\alpha, \1 and \g<0>")
    assert page.read_text(encoding="utf-8") == "before\n<a>\n" + r"\alpha, \1 and \g<0>" + "\n</a>\nafter\n"
    assert [path.name for path in page.parent.iterdir()] == ["README.md"]


def test_missing_markers_are_an_error(page):
    before = page.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"README\.md.*<b> and </b>"):
        write_part(page, "<b>", "</b>", "new")
    assert page.read_text(encoding="utf-8") == before
