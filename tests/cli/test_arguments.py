"""Flags from dataclasses: lists of words, switches, files of settings."""

from dataclasses import dataclass, field

import pytest

from bcls.cli.arguments import parse


@dataclass(frozen=True)
class Settings:
    """Settings of a verb."""

    files: list[str]
    """Which files."""
    more: list[str] = field(default_factory=lambda: ["x"])
    """Further ones."""
    count: int = 1
    """How many."""
    loud: bool = False
    """Say more."""


def read(*words):
    return parse("verb", "Does it.", Settings, words)


def test_a_list_takes_one_word_or_more():
    assert read("--files", "a.npy") == Settings(["a.npy"])
    assert read("--files", "a.npy", "b.npy", "--count", "2") == Settings(["a.npy", "b.npy"], count=2)
    assert read("--loud", "--more", "1", "null", "--files", "a:b") == Settings(["a:b"], ["1", "null"], loud=True)


def test_a_default_list_is_not_shared():
    first = read("--files", "a")
    first.more.append("y")
    assert read("--files", "a").more == ["x"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "files"),
        (("--files",), "--files"),
        (("--files", "a", "--more"), "--more"),
        (("--files", "a", "--count", "b"), "--count"),
        (("--fils", "a"), "fil"),
    ],
)
def test_mistakes_are_one_line(words, message):
    with pytest.raises(ValueError, match=message) as error:
        read(*words)
    assert "\n" not in str(error.value)
    assert "see `bcls verb --help`" in str(error.value)


def test_a_file_of_settings(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("files: [a.npy, b.npy]\ncount: 3\n")
    assert read("--config", str(config)) == Settings(["a.npy", "b.npy"], count=3)
    assert read("--config", str(config), "--files", "c.npy") == Settings(["c.npy"], count=3)


def test_help_tells_what_lists_are_for(capsys):
    with pytest.raises(SystemExit) as left:
        read("--help")
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "--files FILES [FILES ...]" in shown
    assert "Which files." in shown


def test_print_config_can_be_read_again(tmp_path, capsys):
    with pytest.raises(SystemExit):
        read("--files", "a", "b", "--print_config")
    config = tmp_path / "config.yaml"
    config.write_text(capsys.readouterr().out)
    assert read("--config", str(config)) == Settings(["a", "b"])


@pytest.mark.parametrize("flag", [["--config", "bomb.yaml"], ["--config=bomb.yaml"]])
def test_a_file_of_settings_that_would_become_a_billion(tmp_path, monkeypatch, flag):
    monkeypatch.chdir(tmp_path)
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("a0: &a0 [x, x]\n" + "".join(levels))
    with pytest.raises(ValueError, match=r"`bomb\.yaml`: expected a YAML file of at most 20000 values"):
        read("--files", "a", *flag)


@pytest.mark.parametrize(
    ("text", "says"), [("count: &a [*a]", "inside of itself"), ("count: " + "[" * 100_000, "at most 50 levels")]
)
def test_files_of_settings_without_an_end(tmp_path, text, says):
    config = tmp_path / "config.yaml"
    config.write_text("files: [a]\n" + text)
    with pytest.raises(ValueError, match=says) as raised:
        read("--config", str(config))
    assert str(config) in str(raised.value)


def test_dashes_of_known_flags_are_underscores():
    @dataclass(frozen=True)
    class Flags:
        dry_run: bool = False
        max_rows: int = 1
        name: str = ""

    parsed = parse("verb", "", Flags, ["--dry-run", "--max-rows=3", "--name", "a-b"])
    assert parsed == Flags(dry_run=True, max_rows=3, name="a-b")
    assert parse("verb", "", Flags, ["--no-dry-run", "--max-rows", "4"]) == Flags(max_rows=4)
    with pytest.raises(ValueError, match="--no-such"):
        parse("verb", "", Flags, ["--no-such"])
