"""Pages are self-contained and escaped, and their options are checked first."""

import sys

import numpy as np
import pytest
from PIL import Image

from bcls._core.extras import MissingExtraError
from bcls.reports import html
from bcls.reports.html import check_page, embed_image, render_page, write_page
from tests.reports.page_reader import check_page_is_closed


def test_options_of_a_page_are_checked(tmp_path, capsys):
    check_page(None, 1)
    check_page(str(tmp_path / "page.html"), 3)
    with pytest.raises(ValueError, match="`--html`: expected a file in an existing folder"):
        check_page(str(tmp_path / "no" / "page.html"), 3)
    for name in (str(tmp_path), ""):
        with pytest.raises(ValueError, match="`--html`: expected a file name"):
            check_page(name, 3)
    with pytest.raises(ValueError, match="`--queries`: expected a whole number not below 1"):
        check_page(None, 0)
    write_page(str(tmp_path / "page.html"), "ü")
    assert (tmp_path / "page.html").read_bytes() == "ü".encode()
    assert "page.html" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_packages_are_reported_before_the_work(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    check_page(None)
    with pytest.raises(MissingExtraError, match=rf'needs {package}: pip install "bcls\[reports\]"'):
        check_page(str(tmp_path / "page.html"))


def test_rendering_without_jinja2_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    html.template_environment.cache_clear()
    with pytest.raises(MissingExtraError, match=r"bcls\[reports\]"):
        render_page("report.html", "title", lede="", sections=[])


def test_half_of_a_surrogate_pair_is_an_error_and_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="valid Unicode"):
        write_page(str(tmp_path / "page.html"), "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_values_are_escaped():
    read = check_page_is_closed(render_page("report.html", "<b>", lede="<script>", sections=[]), script=False)
    assert "<script>" in read.text()


def test_missing_variables_are_errors():
    import jinja2

    with pytest.raises(jinja2.UndefinedError, match="'lede' is undefined"):
        render_page("report.html", "title", sections=[])


@pytest.mark.parametrize(("size", "kind", "shown"), [((400, 200), "jpeg", (160, 80)), ((64, 48), "webp", (64, 48))])
def test_thumbnails(size, kind, shown):
    image = Image.fromarray(np.zeros((size[1], size[0], 4), dtype=np.uint8))
    small = embed_image(image, "alt")
    assert small["src"].startswith(f"data:image/{kind};base64,")
    assert (small["width"], small["height"]) == shown
    assert image.size == size
