"""``bcls doctor``: text, JSON, exit codes, nothing private."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bcls.cli.doctor import Line, Report, Section, main

SOUND = Report((Section("disk", (Line("current folder", "2 GiB free, writable"),)),))
BROKEN = Report((Section("weights", (Line("minilm", "cannot be used", "expected /home/ada/m.bin; install it"),)),))


def test_the_real_report(capsys):
    code = main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "devices", "extras", "disk", "self-test", "weights", "problems"]
    assert code == bool(report["problems"])
    assert report["self-test"]["loss on cpu"].startswith("0.2667")
    told = json.dumps(report)
    assert str(Path.home()) + "/" not in told
    assert str(Path.cwd()) not in told
    assert platform.node() not in told or len(platform.node()) < 4


@pytest.mark.parametrize(("report", "code"), [(SOUND, 0), (BROKEN, 1)])
def test_exit_codes(report, code, monkeypatch, capsys):
    monkeypatch.setattr("bcls.cli.doctor.examine", lambda: report)
    assert main([]) == code
    shown = capsys.readouterr().out
    assert ("1 problem found:\n- weights, minilm: expected .../m.bin; install it" in shown) == bool(code)
    assert ("No problems found." in shown) != bool(code)
    assert "ada" not in shown


def test_a_section_that_breaks_does_not_end_the_report(monkeypatch, capsys):
    def breaks():
        raise RuntimeError("no such driver")

    monkeypatch.setattr("bcls.cli.doctor.devices", breaks)
    assert main([]) == 1
    shown = capsys.readouterr().out
    assert "- devices, all: RuntimeError: no such driver" in shown
    assert "## self-test" in shown


def test_help_is_light():
    code = "import sys, bcls.cli.doctor as d\ntry: d.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert run.returncode == 0
    assert "usage: bcls doctor" in run.stdout
