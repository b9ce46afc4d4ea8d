import sys

import pytest

from bcls._core.extras import MissingExtraError, require


def test_gives_the_module():
    assert require("json", "text", "reading") is sys.modules["json"]
    assert require("os.path", "text", "reading") is sys.modules["os.path"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inner.part"])
def test_one_line_says_what_for_and_how(module):
    with pytest.raises(MissingExtraError) as caught:
        require(module, "plots", "drawing the report")
    assert str(caught.value) == f'drawing the report needs {module}: pip install "bcls[plots]"'
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "no_such_package"


def test_a_broken_module_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "bcls_broken_example.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        require("bcls_broken_example", "text", "reading")
    assert not isinstance(caught.value, MissingExtraError)
