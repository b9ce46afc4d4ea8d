"""Datasets that the training tests share."""

import pytest

from tests.training.factories import make_data


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A small dataset with features; tests must not change it."""
    return make_data(tmp_path_factory.mktemp("training") / "data")
