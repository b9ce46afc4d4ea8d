import pytest

from tests.data.factories import make_dataset


@pytest.fixture
def folder(tmp_path):
    """A dataset with four images in three splits."""
    return make_dataset(tmp_path / "made")
