"""The extras are those of the package's own metadata."""

import tomllib
from pathlib import Path

from bcls.cli.doctor import PURPOSES, brings, extras
from tests.doctor.installed import describe_install

ROOT = Path(__file__).parents[2]


def test_every_extra_has_a_purpose():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(PURPOSES) == set(listed) - {"all", "dev"}


def test_both_ways_of_quoting_and_other_markers():
    given = [
        "torch>=2.6",
        'triton>=3.1; platform_system == "Linux" and extra == "kernels"',
        "fastapi>=0.115; extra == 'web'",
        "uvicorn>=0.30; extra == 'web'",
        "pytest; extra == 'dev'",
        "bcls[web]; extra == 'all'",
    ]
    assert brings(given) == {"kernels": ["triton"], "web": ["fastapi", "uvicorn"]}


def test_installed_missing_and_half(tmp_path, monkeypatch):
    needs = ["numpy; extra == 'plots'", "no-such-thing; extra == 'web'"]
    needs += ["numpy; extra == 'text'", "no-such-thing; extra == 'text'"]
    monkeypatch.syspath_prepend(describe_install(tmp_path, requires=needs))
    section = extras()
    lines = {line.name: line.value for line in section.lines}
    assert lines["plots"].startswith("numpy ")
    assert lines["web"] == 'not installed, for search in the browser: pip install "bcls[web]"'
    assert lines["text"].startswith("without no-such-thing, for labels")
    assert not any(line.problem for line in section.lines)
