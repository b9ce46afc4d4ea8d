from dataclasses import replace

import pytest

from bcls.data.dataset import open_dataset
from bcls.data.records import Manifest
from bcls.data.stats import compute_stats, plot_stats, print_splits, print_stats
from tests.data.factories import make_dataset


@pytest.fixture
def data(tmp_path):
    return open_dataset(make_dataset(tmp_path / "made"))


def test_statistics(data, capsys):
    stats = compute_stats(data)
    assert [one.split for one in stats] == ["train", "val", "test"]
    row = stats[0].as_json()
    assert (row["images"], row["captions"]) == (2, 4)
    assert row["words_per_caption"] == {"min": 4, "p5": 4.0, "median": 4.0, "mean": 4.0, "p95": 4.0, "max": 4}
    assert (row["width"]["max"], row["height"]["min"]) == (32, 24)
    print_stats("made", stats)
    assert "5th / 50th / 95th percentile" in capsys.readouterr().out


def test_names_with_brackets_are_names(data, capsys):
    stats = [replace(one, split=f"{one.split}[/b]") for one in compute_stats(data)]
    print_stats("x[/b]", stats)
    print_splits(Manifest("y[/i]", {"train[/i]": (1, 2)}))
    output = capsys.readouterr().out
    assert all(name in output for name in ("x[/b]", "test[/b]", "y[/i]", "train[/i]"))


def test_unreadable_images_are_skipped(data):
    (data.folder / "images" / "i0.png").write_bytes(b"")
    (data.folder / "images" / "i1.png").write_bytes(b"no image")
    assert compute_stats(data)[0].as_json()["width"] is None
    assert compute_stats(data, sizes=False)[2].as_json()["width"] is None


def test_plot(data, tmp_path):
    pytest.importorskip("matplotlib", reason='needs pip install "bcls[reports]"')
    stats = compute_stats(data)
    plot_stats([replace(stats[0], words=stats[0].words + 100), *stats[1:]], tmp_path / "stats.svg", "made")
    drawn = (tmp_path / "stats.svg").read_text()
    assert drawn.rstrip().endswith("</svg>")
    assert ">100<" in drawn  # the axis of the words
