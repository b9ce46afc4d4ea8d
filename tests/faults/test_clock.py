"""Clock jumps: files from the future or the past, and a clock that goes back."""

import os
import time

import pytest

from bcls.search.build import IndexSettings, build_index
from bcls.training.train import train
from bcls.web.site import LOGIN_SECONDS, Logins
from tests.faults.records import tried
from tests.search.factories import photo, photos, tiny_model
from tests.training.factories import TinyModel, make_data, settings

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')
_LATER = 4_000_000_000


@pytest.fixture
def backwards(monkeypatch):
    """A clock that goes back an hour at every reading."""
    now = [time.time()]

    def read_clock():
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", read_clock)


def test_files_from_the_future_and_the_past(tmp_path, monkeypatch):
    model = tiny_model(monkeypatch, tmp_path / "model")
    source = photos(tmp_path / "photos", 6)
    wanted = IndexSettings(out=str(tmp_path / "index"), model=str(model), workers=1)
    assert build_index(source, wanted).added == 6
    files = sorted(source.rglob("*.png"))
    tries = 0
    for when in (_LATER, 0, 1, _LATER + 1):
        os.utime(files[0], (when, when))  # touched, nothing else
        report = build_index(source, wanted)
        assert (report.added, report.updated, report.unchanged) == (0, 0, 6)
        photo(files[1], ["red"], seed=when)  # changed, with a date before or after everything
        os.utime(files[1], (when, when))
        assert build_index(source, wanted).updated == 1
        tries += 2
    tried(
        "clock jumps",
        "index of photos",
        tries,
        "changed photos are found for any date; touched ones are not indexed again",
    )


def test_indexing_while_the_clock_goes_back(tmp_path, monkeypatch, backwards):
    model = tiny_model(monkeypatch, tmp_path / "model")
    source = photos(tmp_path / "photos", 6)
    report = build_index(source, IndexSettings(out=str(tmp_path / "index"), model=str(model), workers=1))
    assert report.added == 6
    assert report.seconds >= 0
    tried("clock jumps", "indexing", 1, "finished while the clock went back an hour at every reading")


def test_training_while_the_clock_goes_back(tmp_path, backwards):
    data = make_data(tmp_path / "data")
    result = train(settings(data, tmp_path / "run"), model=TinyModel())
    assert result.epochs == 2
    assert result.seconds >= 0
    tried("clock jumps", "training", 1, "finished while the clock went back an hour at every reading")


def test_logins_expire_by_date(monkeypatch):
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    logins = Logins()
    login = logins.start()
    now[0] = 0
    assert logins.is_valid(login)
    now[0] = 1e9 + LOGIN_SECONDS
    assert not logins.is_valid(login)
    tried("clock jumps", "logins of the web app", 2, "a login expires at its date, not when the clock goes back")
