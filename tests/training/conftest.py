"""Datasets that the training tests share, and runs without charts."""

import sys

import pytest

from tests.training.factories import make_data


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A small dataset with features; tests must not change it."""
    return make_data(tmp_path_factory.mktemp("training") / "data")


@pytest.fixture
def charts():
    """For tests whose runs draw charts."""


@pytest.fixture(autouse=True)
def without_charts(request, monkeypatch):
    """Other runs write their page as without matplotlib: charts take longer than most of these runs."""
    if "charts" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
