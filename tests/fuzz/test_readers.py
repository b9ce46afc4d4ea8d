"""Short fuzzing run: 100 cases for every reader of ``python -m tests.fuzz``, in a process of its own."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.damage import damage, damage_json
from tests.fuzz.engine import Reader, make_case, run

ROOT = Path(__file__).parents[2]
#: Parsed from the files, so that collecting the tests imports nothing heavy.
NAMES = sorted(
    name
    for path in (Path(__file__).parent / "readers").glob("*.py")
    for name in re.findall(r'Reader\(\s*"([^"]+)"', path.read_text(encoding="utf-8"))
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    out = tmp_path_factory.mktemp("fuzz") / "fuzz.json"
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "100", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr
    return json.loads(out.read_text(encoding="utf-8"))["readers"]


@pytest.mark.parametrize("name", NAMES)
def test_damaged_input_gives_an_error_message(outcomes, name):
    assert outcomes[name]["findings"] == {}
    assert outcomes[name]["cases"] == 100
    assert outcomes[name]["peak"] < 300 * 2**20


def test_every_reader_is_run(outcomes):
    assert sorted(outcomes) == NAMES


def test_restart_repeats_only_the_named_readers(tmp_path):
    old = {"cases": 7, "read": 7, "seconds": 1.0, "peak": 0, "findings": {"hang": [3]}, "commit": "old"}
    out = tmp_path / "fuzz.json"
    out.write_text(json.dumps({"seed": 0, "readers": {"csv": old, "sidecar": old}}))
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "5", "--out", str(out)]
    subprocess.run([*command, "--readers", "sidecar", "--restart"], cwd=ROOT, capture_output=True, check=True)
    readers = json.loads(out.read_text())["readers"]
    assert readers["csv"] == old
    assert (readers["sidecar"]["cases"], readers["sidecar"]["findings"]) == (5, {})


def misbehave(content, folder):
    kinds = {b"k": KeyError("x"), b"v": ValueError("not ours"), b"o": OSError("no name"), b"a": None}
    if content[:1] == b"h":
        while True:
            pass
    if content[:1] == b"s":
        os.abort()
    error = kinds[content[:1]]
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("start", "finding"),
    [("k", "KeyError in"), ("v", "ValueError in"), ("o", "OSError in"), ("h", "hang"), ("s", "crash"), ("a", "")],
)
def test_engine_reports_forbidden_outcomes(start, finding, monkeypatch):
    monkeypatch.setattr("tests.fuzz.engine.SECONDS", 0.3)
    reader = Reader("made", lambda: [b"a"], misbehave, lambda draw, seeds: start.encode())
    outcome = run(reader, first=0, count=2)
    assert outcome.cases == 2
    assert [kind.startswith(finding) for kind in outcome.findings] == ([True] if finding else [])


def stop_for_a_second(content, folder):
    """Like a process that gets no processor time, which no signal can tell from a hang."""
    if not os.fork():
        time.sleep(1.0)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)


def spin_in_c(content, folder):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
    while True:
        pass


@pytest.mark.parametrize(("read", "findings"), [(stop_for_a_second, []), (spin_in_c, ["hang"])])
def test_engine_kills_by_processor_time(read, findings, monkeypatch):
    monkeypatch.setattr("tests.fuzz.engine.SECONDS", 0.1)
    reader = Reader("made", list, read, lambda draw, seeds: b"a")
    assert [kind.partition(":")[0] for kind in run(reader, first=0, count=1).findings] == findings


def test_engine_reports_too_much_memory():
    reader = Reader(
        "made", lambda: [b"a"], lambda content, to: bytearray(2**31) if content == b"b" else None, lambda *_: b"b"
    )
    assert next(iter(run(reader, first=0, count=1).findings)).startswith("MemoryError in")


def test_cases_are_reproducible():
    reader = Reader("made", list, misbehave, damage)
    seeds = [b'{"a": [1, 2]}', b"hello"]
    cases = [make_case(reader, seeds, 0, number) for number in range(50)]
    assert cases == [make_case(reader, seeds, 0, number) for number in range(50)]
    assert len(set(cases)) > 30


def test_damaged_json_is_mostly_valid_json():
    made = [damage_json(random.Random(number), [b'{"a": [1, {"b": "c"}]}']) for number in range(200)]
    good = 0
    for one in made:
        try:
            json.loads(one)
            good += 1
        except (ValueError, RecursionError):
            continue
    assert 80 < good < 200
