import pytest


@pytest.fixture
def out(tmp_path):
    """Output folder of an import."""
    return tmp_path / "out"
