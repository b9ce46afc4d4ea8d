import pytest

from tests.index.made import tiny_model


@pytest.fixture
def tiny(monkeypatch, tmp_path_factory):
    """Folder of a small model that sees colours."""
    return tiny_model(monkeypatch, tmp_path_factory.mktemp("model") / "tiny")
