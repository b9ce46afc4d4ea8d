"""The state of a run, read from a damaged file."""

import json

import pytest

from bcls.training.checkpoint import read_state

WHOLE = {"version": 1, "progress": {}, "settings": {}, "data": {}, "scaler": None}


def test_a_whole_state_is_read(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps(WHOLE), encoding="utf-8")
    assert read_state(tmp_path) == WHOLE


@pytest.mark.parametrize("key", ["progress", "settings", "data"])
@pytest.mark.parametrize("value", [None, [], "missing"])
def test_a_missing_part_is_named_with_the_file(tmp_path, key, value):
    state = {name: one for name, one in WHOLE.items() if name != key}
    if value != "missing":
        state[key] = value
    (tmp_path / "training.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"training\.json`: expected a mapping `{key}`"):
        read_state(tmp_path)
