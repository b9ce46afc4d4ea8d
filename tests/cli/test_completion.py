"""``bcls completion``: what the parsers know is what a shell offers."""

import dataclasses
import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from bcls.cli import main as cli
from bcls.cli.completion import commands, main
from bcls.cli.evaluate import EvaluateSettings
from bcls.data.check import CheckSettings
from bcls.search.build import IndexSettings

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture(scope="module")
def known():
    return {" ".join(command.words): command for command in commands()}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    from bcls.cli.completion import bash

    path = tmp_path_factory.mktemp("completion") / "bcls.bash"
    path.write_text(bash(commands()))
    return path


def test_every_verb_and_job(known):
    assert set(cli.VERBS) <= set(known)
    assert {"data import", "data check", "data stats", "data features"} <= set(known)
    assert {"labels embed", "labels quality", "labels alpha"} <= set(known)


@pytest.mark.parametrize(
    ("words", "settings"),
    [("index", IndexSettings), ("data check", CheckSettings), ("evaluate", EvaluateSettings)],
)
def test_flags_are_the_parsers(words, settings, known):
    flags = set(known[words].flags)
    fields = {f"--{field.name}" for field in dataclasses.fields(settings)}
    assert {"--help", "--config", "--print_config"} | fields == {flag for flag in flags if "--no_" not in flag}


def test_switches_can_be_turned_off(known):
    assert {"--captions", "--no_captions"} <= set(known["index"].flags)


def test_choices(known):
    assert known["train"].choices["--schedule"] == ("step", "cosine", "constant")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_verb_prints_a_script(shell, capsys):
    assert main([shell]) == 0
    shown = capsys.readouterr().out
    for part in ("evaluate", "import", "max_pixels", "cosine"):
        assert part in shown
    interpreter = shutil.which(shell)
    if interpreter:
        check = subprocess.run([interpreter, "-n"], input=shown, capture_output=True, text=True)
        assert (check.returncode, check.stderr) == (0, "")


def test_help_and_mistakes(capsys):
    assert main(["--help"]) == 0
    assert "usage: bcls completion" in capsys.readouterr().out
    assert main([]) == 2
    with pytest.raises(ValueError, match="did you mean 'bash'"):
        main(["bsh"])


@needs_bash
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bcls ev", ["evaluate"]),
        ("bcls --v", ["--version"]),
        ("bcls data ch", ["check"]),
        ("bcls data check DIR --max_", ["--max_pixels"]),
        ("bcls data --h", ["--help"]),
        ("bcls train --sched", ["--schedule"]),
        ("bcls train --schedule co", ["cosine", "constant"]),
        ("bcls train --sch --lr 1 --schedule s", ["step"]),
        ("bcls index photos --no_cap", ["--no_captions"]),
        ("bcls index pho", []),
        ("bcls nothing --x", []),
    ],
)
def test_bash_offers(line, offered, script):
    words = line.split(" ")
    given = " ".join(f"'{word}'" for word in words)
    code = f'. {script}; COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _bcls; printf "%s\\n" "${{COMPREPLY[@]}}"'
    run = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert run.stdout.split() == offered


@needs_bash
def test_a_person_at_a_terminal(script, tmp_path):
    """Tab in a real bash: the verb, a flag, and the name of a folder."""
    (tmp_path / "dataset one").mkdir()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        environment = {**os.environ, "TERM": "dumb", "PS1": "> "}
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)  # noqa: S606
    try:
        os.write(terminal, f". {script}\n".encode())
        # Ctrl-A goes to the start of the line: what was completed is printed instead of run.
        os.write(terminal, b"bcls da\tche\tdat\t --max_p\t 5\x01printf '[%s]' \n")
        assert "[bcls][data][check][dataset one/][--max_pixels][5]" in _read(terminal, "[5]")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def _read(terminal, until):
    shown, limit = "", time.monotonic() + 20
    while until not in shown and time.monotonic() < limit:
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown
