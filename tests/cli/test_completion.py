"""``bcls completion``: shells complete the commands, flags, choices and files that the parsers accept."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from bcls.cli.completion import main

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "bcls.bash"
    with path.open("w") as file:
        subprocess.run([sys.executable, "-m", "bcls", "completion", "bash"], stdout=file, check=True)
    return path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_contains_commands_flags_and_choices(shell, capsys):
    assert main([shell]) == 0
    shown = capsys.readouterr().out
    for part in ("evaluate", "import", "max-pixels", "cosine"):
        assert part in shown
    interpreter = shutil.which(shell)
    if interpreter:
        check = subprocess.run([interpreter, "-n"], input=shown, capture_output=True, text=True)
        assert (check.returncode, check.stderr) == (0, "")


def test_unknown_or_missing_shell_is_an_error():
    with pytest.raises(ValueError, match="bsh"):
        main(["bsh"])
    with pytest.raises(ValueError, match="SHELL"):
        main([])


@needs_bash
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bcls ev", ["evaluate"]),
        ("bcls --v", ["--version"]),
        ("bcls data ch", ["check"]),
        ("bcls data check DIR --max-", ["--max-pixels"]),
        ("bcls data --h", ["--help"]),
        ("bcls train --sched", ["--schedule"]),
        ("bcls train --schedule co", ["cosine", "constant"]),
        ("bcls train --lr 1 --schedule s", ["step"]),
        ("bcls index photos --no-cap", ["--no-captions"]),
        ("bcls index pho", []),
        ("bcls nothing --x", []),
    ],
)
def test_bash_completions(line, offered, script):
    words = line.split(" ")
    given = " ".join(f"'{word}'" for word in words)
    code = f". {script}; COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _shtab_bcls; "
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    run = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert run.stdout.split() == offered


@needs_bash
def test_tab_in_an_interactive_bash(script, tmp_path):
    """Tab completes the command, a flag and the name of a folder."""
    (tmp_path / "dataset_one").mkdir()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        environment = {**os.environ, "TERM": "dumb", "PS1": "> "}
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)  # noqa: S606
    try:
        os.write(terminal, f". {script}\n".encode())
        # Ctrl-A moves to the start of the line: the completed line is printed instead of run.
        os.write(terminal, b"bcls da\tche\tdat\t --max-p\t 5\x01printf '[%s]' \n")
        assert "[bcls][data][check][dataset_one" in _read(terminal, "[5]")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def _read(terminal, until):
    shown, limit = "", time.monotonic() + 20
    while until not in shown and time.monotonic() < limit:
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown
