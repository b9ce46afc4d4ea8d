"""Checkpoints that are made once for all tests of the folder."""

import pytest

from tests.models import factories


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folders of tiny transformers checkpoints by kind."""
    place = tmp_path_factory.mktemp("checkpoints")
    kinds = {"clip": factories.clip, "siglip": factories.siglip, "bert": factories.bert, "vit": factories.vit}
    return {name: make(place / name) for name, make in kinds.items()}
