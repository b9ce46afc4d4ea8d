import pytest

from tests.features.factories import draw_dataset, tiny_backbone


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """Folder of a tiny backbone."""
    return tiny_backbone(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("bcls.features.extraction.BLOCK", 5)


@pytest.fixture
def folder(tmp_path):
    """A dataset folder with 16 images for training and 4 for testing."""
    return draw_dataset(tmp_path / "data")
