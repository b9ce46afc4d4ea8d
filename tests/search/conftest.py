import pytest

from bcls.search.service import Service, ServiceSettings
from tests.index.made import index, photos, tiny_model


@pytest.fixture
def tiny(monkeypatch, tmp_path_factory):
    return tiny_model(monkeypatch, tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def made(tmp_path, tiny):
    """Folder of an index, with captions for two photos."""
    source = photos(tmp_path / "photos")
    (source / "0/000-red-red.txt").write_text("a red wall\nall red")
    (source / "1/001-green-red.txt").write_text("green above red")
    index(source, tmp_path / "index", tiny)
    return tmp_path / "index"


@pytest.fixture
def service(made):
    with Service(made, settings=ServiceSettings(timeout=5)) as service:
        yield service
