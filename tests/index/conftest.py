import pytest

from tests.index.made import photos, tiny_model


@pytest.fixture
def tiny(monkeypatch, tmp_path_factory):
    """Folder of a small model that sees colours."""
    return tiny_model(monkeypatch, tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def source(tmp_path):
    """A folder of photos."""
    return photos(tmp_path / "photos")


@pytest.fixture
def out(tmp_path):
    """Where an index is to be."""
    return tmp_path / "index"
