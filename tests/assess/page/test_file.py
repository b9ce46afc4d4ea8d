"""Where a page goes is looked at before the long work."""

import pytest

from bcls.evaluation.pages import check_page, write_page


def test_places(tmp_path, capsys):
    check_page(None, 1)
    check_page(str(tmp_path / "page.html"), 3)
    with pytest.raises(ValueError, match="`--html`: expected a file in a folder that exists"):
        check_page(str(tmp_path / "no" / "page.html"), 3)
    for name in (str(tmp_path), ""):
        with pytest.raises(ValueError, match="`--html`: expected the name of a file"):
            check_page(name, 3)
    with pytest.raises(ValueError, match="`--queries`: expected a whole number not below 1"):
        check_page(None, 0)
    write_page(str(tmp_path / "page.html"), "ü")
    assert (tmp_path / "page.html").read_bytes() == "ü".encode()
    assert "page.html" in capsys.readouterr().err


def test_half_a_character_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="valid Unicode"):
        write_page(str(tmp_path / "page.html"), "\ud800")
    assert list(tmp_path.iterdir()) == []
