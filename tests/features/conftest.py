import pytest

from tests.features.made import draw, tiny


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("bcls.features.extraction.BLOCK", 5)


@pytest.fixture
def folder(tmp_path):
    return draw(tmp_path / "data")
