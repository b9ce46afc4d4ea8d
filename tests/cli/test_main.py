"""The command line: help, versions, exit codes, one-line errors."""

import subprocess
import sys

import pytest

from bcls import __version__
from bcls._core.extras import MissingExtraError
from bcls.cli import main as cli
from bcls.search.batcher import OverloadedError


def run(*words, **options):
    return subprocess.run([sys.executable, "-m", "bcls", *words], capture_output=True, text=True, **options)


def test_help_names_every_verb(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in cli.VERBS)


def test_no_verb_is_a_usage_error(capsys):
    assert cli.main([]) == 2
    assert "usage: bcls VERB" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bcls {__version__}\n"


def test_python_m_is_the_same():
    assert run("--version").stdout == f"bcls {__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dmeo"], "bcls: there is no verb 'dmeo'; did you mean `bcls demo`?"),
        (["fly"], "bcls: there is no verb 'fly'; the verbs are "),
        (["demo", "--seeds", "0"], "bcls demo: `--seeds`: expected a whole number not below 1, got 0"),
        (["demo", "--seeds", "many"], "--seeds"),
        (["demo", "--sseeds", "3"], "--sseeds"),
        (["demo", "--images", "100", "--batch", "80"], "bcls demo: `--images`: expected a whole number not below 107"),
        (["demo", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(words, says, capsys):
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb):
    shown = run(verb, "--help")
    assert shown.returncode == 0
    assert f"usage: bcls {verb}" in shown.stdout


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
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "bcls demo: interrupted; what was written so far is kept"),
        (ValueError("`x`: expected\n this"), 2, "bcls demo: `x`: expected this"),
        (MissingExtraError('reading needs it: pip install "bcls[text]"'), 2, 'pip install "bcls[text]"'),
        (PermissionError(13, "Permission denied", "/etc/x"), 2, "/etc/x: Permission denied; check the path"),
        (OSError("no name"), 2, "bcls demo: no name; check the path"),
        (PermissionError(13, "Denied", "a\x1b[2J\nb"), 2, r"bcls demo: a\x1b[2J\nb: Denied; check the path"),
        (PermissionError(13, "Denied", b"a\x1bb"), 2, r"bcls demo: b'a\x1bb': Denied; check the path"),
        (ValueError("a\x1b]0;title\x07b"), 2, r"bcls demo: a\x1b]0;title\x07b"),
        (OverloadedError(3), 2, "bcls demo: too many queries at once: try again in 3 s"),
    ],
)
def test_what_goes_wrong_inside(error, code, says, monkeypatch, capsys):
    def fails(arguments):
        raise error

    monkeypatch.setattr("bcls.cli.demo.main", fails)
    assert cli.main(["demo"]) == code
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
    assert told[:-1].isprintable()


@pytest.mark.parametrize("error", [ZeroDivisionError, RuntimeError])
def test_faults_of_ours_are_not_hidden(monkeypatch, error):
    def fails(arguments):
        raise error

    monkeypatch.setattr("bcls.cli.demo.main", fails)
    with pytest.raises(error):
        cli.main(["demo"])


def test_a_reader_that_has_seen_enough_is_no_error():
    """`bcls ... | head -1` ends without a word, whether the pipe breaks in the middle or at the end."""
    lines = "import sys; [print('x' * 1000) for _ in range(1000)]"
    code = f"""
import types, sys
from bcls.cli import main as cli
sys.modules['many'] = types.SimpleNamespace(main=lambda words: exec({lines!r}) or 0)
cli.VERBS['doctor'] = ('many', '')
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
