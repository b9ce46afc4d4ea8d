"""Checkpoints that are made once for all tests of the folder."""

import pytest

from tests.models.dual import made


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folders of tiny transformers checkpoints by kind."""
    place = tmp_path_factory.mktemp("checkpoints")
    kinds = {"clip": made.clip, "siglip": made.siglip, "bert": made.bert, "vit": made.vit}
    return {name: make(place / name) for name, make in kinds.items()}
