"""metrics.jsonl: lines of a killed run are read, wrong lines are reported."""

import json
import sys
from types import ModuleType

import pytest

from bcls.training.metrics_log import MetricsLog, read_metrics

GOOD = b'{"kind": "step", "epoch": 1, "step": 1, "loss": 0.5}\n'


def put(folder, content):
    (folder / "metrics.jsonl").write_bytes(content)
    return folder


def test_what_is_written_is_read(tmp_path):
    log = MetricsLog(tmp_path, keep=0, step=0)
    log.write("step", 1, 10, {"loss": 0.5, "more": float("nan")})
    log.write("validation", 1, 10, {"rsum": 300.0, "best": True})
    log.close()
    step, line = read_metrics(tmp_path)
    assert (step["kind"], step["loss"], line["rsum"], line["best"]) == ("step", 0.5, 300.0, True)


@pytest.mark.parametrize("end", [b"", b"{", GOOD[:-1], GOOD[:30], b"\0" * 512, b"\xff", b"[" * 5000])
def test_an_incomplete_last_line_is_skipped(tmp_path, end):
    assert read_metrics(put(tmp_path, GOOD * 2 + end)) == [json.loads(GOOD)] * 2


def test_tensorboard_keeps_the_last_epoch_of_a_resumed_run(tmp_path, monkeypatch):
    asked = {}

    class Writer:
        def __init__(self, folder, purge_step):
            asked["purge_step"] = purge_step

        def close(self):
            pass

    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: board)
    MetricsLog(tmp_path, keep=0, step=40).close()
    assert asked["purge_step"] == 41  # what was written at step 40 is kept


def test_a_file_without_a_complete_line_is_empty(tmp_path):
    assert read_metrics(put(tmp_path, b"")) == []
    assert read_metrics(put(tmp_path, b'{"kind": "st')) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "a line of JSON"),
        (b"no json", "a line of JSON, got b'no json' (Expecting value"),
        (b'{"kind": "st', "a line of JSON"),
        (b"\xff\xfe", r"a line of JSON, got b'\xff\xfe' ("),
        (b"[" * 100_000, "a line of JSON"),
        (b'{"kind": "step", "epoch": ' + b"9" * 5000 + b"}", "a line of JSON"),
        (b"[1]", "a mapping, got [1]"),
        (b"null", "a mapping, got None"),
        (b'{"epoch": 1, "step": 1}', "line 2`: expected `kind`, got none"),
        (b'{"kind": ["step"], "epoch": 1, "step": 1}', "line 2, kind`: expected a string, got ['step']"),
        (b'{"kind": "step", "step": 1}', "line 2`: expected `epoch`, got none"),
        (b'{"kind": "step", "epoch": 1.5, "step": 1}', "line 2, epoch`: expected a whole number, got 1.5"),
        (b'{"kind": "step", "epoch": 1, "step": "1"}', "line 2, step`: expected a whole number, got '1'"),
        (b'{"kind": "step", "epoch": 1, "step": true}', "line 2, step`: expected a whole number, got True"),
        (
            b'{"kind": "' + b"x" * 10**6 + b'", "epoch": "' + b"y" * 10**6 + b'", "step": 1}',
            "line 2, epoch`: expected a whole",
        ),
    ],
)
def test_wrong_lines_are_reported(tmp_path, line, says):
    with pytest.raises(ValueError, match="expected") as raised:
        read_metrics(put(tmp_path, GOOD + line + b"\n" + GOOD))
    message = str(raised.value)
    assert message.startswith(f"`{tmp_path / 'metrics.jsonl'}, line 2")
    assert says in message
    assert message.endswith("; take the line out, or put the whole file back")
    assert len(message) < 600
    assert message.isprintable()
