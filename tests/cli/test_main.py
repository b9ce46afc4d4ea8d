"""``bcls``: help, version, exit codes, one-line errors, and memory settings."""

import os
import subprocess
import sys

import pytest

from bcls import __version__
from bcls._core.extras import MissingExtraError
from bcls.cli import main as cli
from bcls.search.batcher import OverloadedError


def run(*words, **options):
    return subprocess.run([sys.executable, "-m", "bcls", *words], capture_output=True, text=True, **options)


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {command} " in shown for command in cli.COMMANDS)


def test_no_command_is_a_usage_error(capsys):
    assert cli.main([]) == 2
    assert "usage: bcls COMMAND" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bcls {__version__}\n"


def test_python_m_bcls_is_the_same_command():
    assert run("--version").stdout == f"bcls {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmeo"], "bcls: unknown command 'dmeo'; did you mean `bcls demo`?"),
        (["fly"], "bcls: unknown command 'fly'; the commands are "),
        (["demo", "--seeds", "0"], "bcls demo: `--seeds`: expected a whole number not below 1, got 0"),
        (["demo", "--seeds", "many"], "--seeds"),
        (["demo", "--sseeds", "3"], "--sseeds"),
        (["demo", "--images", "100", "--batch", "80"], "bcls demo: `--images`: expected a whole number not below 107"),
        (["demo", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(arguments, message, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command):
    shown = run(command, "--help")
    assert shown.returncode == 0
    assert f"usage: bcls {command}" in shown.stdout


def test_config_file_and_flags(tmp_path, capsys):
    config = tmp_path / "demo.yaml"
    config.write_text("seeds: 7\nepochs: 3\n")
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", "--config", str(config), "--epochs", "4", "--json", "--print_config"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "seeds: 7" in shown
    assert "epochs: 4" in shown
    assert "json: true" in shown


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "bcls demo: interrupted; everything written so far is kept"),
        (ValueError("`x`: expected\n this"), 2, "bcls demo: `x`: expected this"),
        (MissingExtraError('reading needs it: pip install "bcls[text]"'), 2, 'pip install "bcls[text]"'),
        (
            PermissionError(13, "Permission denied", "/etc/x"),
            2,
            "/etc/x: Permission denied; check the path",
        ),
        (FileNotFoundError(2, "no such index; build it", "x"), 2, "bcls demo: x: no such index; build it\n"),
        (OSError("no name"), 2, "bcls demo: no name; check the path, permissions and disk"),
        (
            PermissionError(13, "Denied", "a\x1b[2J\nb"),
            2,
            r"bcls demo: a\x1b[2J\nb: Denied; check the path",
        ),
        (
            PermissionError(13, "Denied", b"a\x1bb"),
            2,
            r"bcls demo: b'a\x1bb': Denied; check the path",
        ),
        (ValueError("a\x1b]0;title\x07b"), 2, r"bcls demo: a\x1b]0;title\x07b"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, 'it needs torch; pip install "bcls[train]"'),
        (OverloadedError(3), 2, "bcls demo: too many queries at once: try again in 3 s"),
    ],
)
def test_exceptions_become_one_line(error, code, message, monkeypatch, capsys):
    def fails(arguments):
        raise error

    monkeypatch.setattr("bcls.cli.demo.main", fails)
    assert cli.main(["demo"]) == code
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert line[:-1].isprintable()


@pytest.mark.parametrize("error", [ZeroDivisionError, RuntimeError, ModuleNotFoundError])
def test_internal_errors_keep_their_traceback(monkeypatch, error):
    def fails(arguments):
        raise error

    monkeypatch.setattr("bcls.cli.demo.main", fails)
    with pytest.raises(error):
        cli.main(["demo"])


def test_closed_pipe_ends_the_command_quietly():
    """`bcls ... | head -1` prints nothing on standard error."""
    lines = "import sys; [print('x' * 1000) for _ in range(1000)]"
    code = f"""
import types, sys
from bcls.cli import main as cli
sys.modules['many'] = types.SimpleNamespace(main=lambda words: exec({lines!r}) or 0)
cli.COMMANDS['doctor'] = ('many', '')
sys.exit(cli.main(['doctor']))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("x")
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_child_processes_inherit_the_memory_settings():
    code = (
        "import os; from bcls.cli.main import keep_freed_memory; print(keep_freed_memory(), "
        "os.environ['MALLOC_TRIM_THRESHOLD_'], os.environ['MALLOC_MMAP_THRESHOLD_'])"
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    run = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "1073741824", "1073741824"]
    own = clean | {"MALLOC_TRIM_THRESHOLD_": "5"}
    run = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert run.stdout.split()[1] == "5"


def test_memory_settings_are_for_linux_only(monkeypatch):
    monkeypatch.setattr(cli.sys, "platform", "darwin")
    assert not cli.keep_freed_memory()


def test_memory_settings_need_glibc(monkeypatch):
    monkeypatch.setattr(cli.sys, "platform", "linux")
    monkeypatch.setattr(cli.ctypes, "CDLL", lambda name: object())
    assert not cli.keep_freed_memory()
