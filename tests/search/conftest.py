import pytest

from bcls.search.service import Service, ServiceSettings
from tests.search.factories import index, photos, tiny_model


@pytest.fixture
def tiny(monkeypatch, tmp_path_factory):
    """Folder of a small model that sees colors."""
    return tiny_model(monkeypatch, tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def source(tmp_path):
    """A folder of photos."""
    return photos(tmp_path / "photos")


@pytest.fixture
def out(tmp_path):
    """Path of an index that does not exist yet."""
    return tmp_path / "index"


@pytest.fixture
def built(source, out, tiny):
    """Folder of an index, with captions for two photos."""
    (source / "0/000-red-red.txt").write_text("a red wall\nall red")
    (source / "1/001-green-red.txt").write_text("green above red")
    index(source, out, tiny)
    return out


@pytest.fixture
def service(built):
    with Service(built, settings=ServiceSettings(timeout=5)) as service:
        yield service
