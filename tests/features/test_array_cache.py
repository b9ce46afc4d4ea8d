"""The resumable array cache: blocks, resume, refusals."""

import json

import numpy as np
import pytest

from bcls.features.array_cache import ArrayCache, first_difference

ROWS = np.arange(14, dtype=np.float16).reshape(7, 2)
SETTINGS = {"weights": "ab", "size": 3}


def open_cache(folder, settings=SETTINGS, **options):
    return ArrayCache(folder / "rows.npy", 7, 3, settings, **options)


def fill(cache, numbers=None):
    for number in cache.remaining if numbers is None else numbers:
        cache.write(number, ROWS[3 * number : 3 * number + 3])


def nothing():
    """A manifest that needs no file."""


def test_blocks_in_any_order_make_the_array_that_numpy_saves(tmp_path):
    cache = open_cache(tmp_path)
    assert cache.remaining == [0, 1, 2]
    fill(cache, [2, 0, 1])
    assert not cache.path.exists()
    cache.finish(nothing)
    np.save(tmp_path / "plain.npy", ROWS)
    assert cache.path.read_bytes() == (tmp_path / "plain.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.npy", "rows.npy"]


def test_only_missing_blocks_remain_after_an_interruption(tmp_path):
    first = open_cache(tmp_path)
    first.write(1, ROWS[3:6], zero=["a"])
    with (tmp_path / ".rows.blocks").open("ab") as file:
        file.write(b'{"block": 0, "ze')  # a line that was cut off
    again = open_cache(tmp_path)
    assert (again.remaining, again.done) == ([0, 2], {1: ["a"]})
    fill(again)
    again.finish(nothing)
    np.testing.assert_array_equal(np.load(again.path), ROWS)


def test_kill_before_the_manifest_loses_nothing(tmp_path):
    cache = open_cache(tmp_path)
    fill(cache)

    def killed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.finish(killed)
    again = open_cache(tmp_path)
    assert again.remaining == []
    again.finish(nothing)
    np.testing.assert_array_equal(np.load(again.path), ROWS)


def test_other_settings_raise_or_restart(tmp_path):
    fill(open_cache(tmp_path), [0])
    other = {**SETTINGS, "weights": "cd"}
    with pytest.raises(
        ValueError, match="`weights`: expected 'ab', as in the unfinished computation, got 'cd'; finish"
    ):
        open_cache(tmp_path, other)
    assert open_cache(tmp_path).remaining == [1, 2]
    assert open_cache(tmp_path, other, restart=True).remaining == [0, 1, 2]


@pytest.mark.parametrize("journal", [b"", b"no json\n", b"3\n", b'{}\n{"block": "x", "zero": []}\n', b"{}\n{}\n"])
def test_damaged_journal_raises_or_restarts(tmp_path, journal):
    fill(open_cache(tmp_path), [0])
    (tmp_path / ".rows.blocks").write_bytes(journal)
    with pytest.raises(ValueError, match=r"\.rows\.blocks`: expected a list of finished blocks, got a damaged file"):
        open_cache(tmp_path)
    assert open_cache(tmp_path, restart=True).remaining == [0, 1, 2]


@pytest.mark.parametrize("part", [None, b"", b"\x93NUMPY"])
def test_missing_or_damaged_rows_are_computed_again(tmp_path, part):
    fill(open_cache(tmp_path), [0])
    np.save(tmp_path / "rows.npy", ROWS)  # an older array is no substitute
    (tmp_path / ".rows.part").unlink()
    if part is not None:
        (tmp_path / ".rows.part").write_bytes(part)
    cache = open_cache(tmp_path)
    assert cache.remaining == [0, 1, 2]
    fill(cache)
    cache.finish(nothing)
    np.testing.assert_array_equal(np.load(cache.path), ROWS)


@pytest.mark.parametrize("before", [{"side": "x" * 10_000}, {"k" * 10_000: 1, "side": 1}])
def test_differences_are_shortened(before):
    found = first_difference(json.loads(json.dumps(before)), {"side": 1})
    assert found is not None
    assert all(len(part) < 300 for part in found)
