"""Checkpoints that are made once for all tests of the folder."""

import pytest

from tests.losses.factories import TRITON
from tests.models import factories

collect_ignore = [] if TRITON else ["test_cross_kernels.py"]  # tests/losses/test_interpreter.py runs it


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folders of tiny transformers checkpoints by kind."""
    place = tmp_path_factory.mktemp("checkpoints")
    kinds = {"clip": factories.clip, "siglip": factories.siglip, "bert": factories.bert, "vit": factories.vit}
    return {name: make(place / name) for name, make in kinds.items()}
