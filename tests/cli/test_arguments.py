"""Parsing: lists, switches, positional arguments, files of settings, `--import`, and one-line errors."""

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from bcls.cli.arguments import parse
from bcls.training.config import TrainConfig


@dataclass(frozen=True)
class Settings:
    """Settings of a command."""

    files: list[str]
    """Which files."""
    more: list[str] = field(default_factory=lambda: ["x"])
    """Further ones."""
    count: int = 1
    """How many."""
    loud: bool = False
    """Print more."""


def read(*words):
    return parse("command", Settings, words)


def test_a_list_takes_one_value_or_more():
    assert read("--files", "a.npy") == Settings(["a.npy"])
    assert read("--files", "a.npy", "b.npy", "--count", "2") == Settings(["a.npy", "b.npy"], count=2)
    assert read("--loud", "--more", "1", "null", "--files", "a:b") == Settings(["a:b"], ["1", "null"], loud=True)


def test_a_repeated_list_adds_up(tmp_path):
    words = ["--files", "a", "--count", "2", "--files=b", "--more", "1", "--files", "c", "d"]
    assert read(*words) == Settings(["a", "b", "c", "d"], ["1"], count=2)
    (tmp_path / "a.yaml").write_text("files: [x]\n")
    assert read("--config", str(tmp_path / "a.yaml"), "--files", "a", "--files", "b") == Settings(["a", "b"])
    with pytest.raises(ValueError, match="unrecognized arguments: z"):
        read("z", "--files", "a")
    assert read("--files=-x") == Settings(["-x"])


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
def test_bad_input_is_one_line(words, message):
    with pytest.raises(ValueError, match=message) as error:
        read(*words)
    assert "\n" not in str(error.value)
    assert "see `bcls command --help`" in str(error.value)


def test_a_file_of_settings(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("files: [a.npy, b.npy]\ncount: 3\n")
    assert read("--config", str(config)) == Settings(["a.npy", "b.npy"], count=3)
    assert read("--config", str(config), "--files", "c.npy") == Settings(["c.npy"], count=3)


def test_help_describes_lists(capsys):
    with pytest.raises(SystemExit) as left:
        read("--help")
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "--files FILES [FILES ...]" in shown
    assert "Which files." in shown


def test_print_config_can_be_read_again(tmp_path, capsys):
    with pytest.raises(SystemExit):
        read("--files", "a", "b", "--print-config")
    config = tmp_path / "config.yaml"
    config.write_text(capsys.readouterr().out)
    assert read("--config", str(config)) == Settings(["a", "b"])


def test_a_missing_file_of_settings(tmp_path):
    with pytest.raises(ValueError, match=r"--config: .*no\.yaml.*the presets are in the folder configs"):
        read("--files", "a", "--config", str(tmp_path / "no.yaml"))


@pytest.mark.parametrize("flag", [["--config", "bomb.yaml"], ["--config=bomb.yaml"]])
def test_a_file_of_settings_that_expands_to_a_billion_values(tmp_path, monkeypatch, flag):
    monkeypatch.chdir(tmp_path)
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("a0: &a0 [x, x]\n" + "".join(levels))
    with pytest.raises(ValueError, match=r"`bomb\.yaml`: expected a YAML file of at most 20000 values"):
        read("--files", "a", *flag)


@pytest.mark.parametrize(
    ("text", "says"), [("count: &a [*a]", "inside itself"), ("count: " + "[" * 100_000, "at most 50 levels")]
)
def test_files_of_settings_without_an_end(tmp_path, text, says):
    config = tmp_path / "config.yaml"
    config.write_text("files: [a]\n" + text)
    with pytest.raises(ValueError, match=says) as raised:
        read("--config", str(config))
    assert str(config) in str(raised.value)


@dataclass(frozen=True)
class Flags:
    dry_run: bool = False
    max_rows: int = 1
    name: str = ""
    k: int = 10


def test_flags_are_accepted_with_hyphens_and_with_underscores():
    expected = Flags(dry_run=True, max_rows=3, name="a_b")
    assert parse("command", Flags, ["--dry-run", "--max-rows=3", "--name", "a_b"]) == expected
    assert parse("command", Flags, ["--dry_run", "--max_rows=3", "--name", "a_b"]) == expected
    assert parse("command", Flags, ["--no-dry-run", "--max-rows", "4"]) == Flags(max_rows=4)
    assert parse("command", Flags, ["--no_dry_run"]) == Flags()
    with pytest.raises(ValueError, match="--no-such"):
        parse("command", Flags, ["--no-such"])


@dataclass(frozen=True)
class Optional:
    folder: str
    links: bool | None = None


def test_a_switch_without_a_default(tmp_path, capsys):
    def links(*words):
        return parse("command", Optional, ["a", *words], positional={"folder": "DIR"}).links

    assert (links(), links("--links"), links("--no-links")) == (None, True, False)
    assert parse("command", Optional, ["--links", "a"], positional={"folder": "DIR"}) == Optional("a", links=True)
    for words, expected in (([], None), (["--no-links"], False)):
        with pytest.raises(SystemExit):
            links(*words, "--print-config")
        (tmp_path / "a.yaml").write_text(capsys.readouterr().out)
        assert links("--config", str(tmp_path / "a.yaml")) is expected


def test_dotted_flags_are_accepted_with_hyphens_and_with_underscores():
    for flag in ("--model.similarity-width", "--model.similarity_width"):
        parsed = parse("train", TrainConfig, ["--model.name", "saf", flag, "8"])
        assert parsed.model == {"name": "saf", "similarity_width": 8}


def test_a_name_of_one_letter_has_a_short_flag():
    assert parse("command", Flags, ["-k", "3"]) == parse("command", Flags, ["--k", "3"]) == Flags(k=3)


def test_errors_and_help_spell_flags_with_hyphens(capsys):
    with pytest.raises(ValueError, match=r"--max-rows: Expected an int"):
        parse("command", Flags, ["--max-rows", "x"])
    with pytest.raises(ValueError, match=r"did you mean --max-rows\?"):
        parse("command", Flags, ["--max_row", "1"])
    with pytest.raises(SystemExit):
        parse("command", Flags, ["--help"])
    shown = capsys.readouterr().out
    assert "--max-rows MAX_ROWS" in shown
    assert "--dry-run, --no-dry-run" in shown
    assert "--print-config" in shown


@dataclass(frozen=True)
class Search:
    index: str
    """Folder of the index."""
    text: str | None = None
    others: list[str] = field(default_factory=list)
    k: int = 10


def search(*words):
    names = {"index": "INDEX", "text": "TEXT", "others": "OTHER"}
    return parse("search", Search, words, positional=names)


def test_positional_arguments(capsys):
    assert search("i") == Search("i")
    assert search("i", "a dog", "-k", "5") == Search("i", "a dog", k=5)
    assert search("-k", "5", "i", "a dog", "x", "y") == Search("i", "a dog", ["x", "y"], k=5)
    with pytest.raises(ValueError, match=r"arguments are required: INDEX; see `bcls search --help`"):
        search("-k", "5")
    with pytest.raises(SystemExit):
        search("--help")
    shown = capsys.readouterr().out
    assert "usage: bcls search INDEX [TEXT] OTHER ... [options]" in shown
    assert "Folder of the index." in shown


@dataclass(frozen=True)
class Mixed(Search):
    json: bool = False
    paths: list[str] = field(default_factory=list)
    weight: float = 0.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["i", "-k", "2", "a dog"], {"k": 2}),
        (["i", "-k2", "a dog"], {"k": 2}),
        (["i", "--k=2", "a dog"], {"k": 2}),
        (["i", "--json", "a dog", "--no-json"], {}),
        (["--json", "i", "--weight", "-1.5", "a dog"], {"json": True, "weight": -1.5}),
        (["i", "--weight", "2", "a dog", "--json", "x", "-k", "2", "y"], {"k": 2, "json": True, "weight": 2.0}),
        (["--paths", "p", "q", "--json", "i", "a dog"], {"paths": ["p", "q"], "json": True}),
        (["i", "--paths=p", "a dog"], {"paths": ["p"]}),
        (["i", "a dog", "--paths", "p", "--", "x"], {"paths": ["p"]}),
    ],
)
def test_positional_arguments_between_flags(words, expected):
    others = [word for word in words if word in {"x", "y"}]
    names = {"index": "INDEX", "text": "TEXT", "others": "OTHER"}
    assert parse("search", Mixed, words, positional=names) == Mixed("i", "a dog", others, **expected)


def test_a_file_without_the_first_positional_argument_does_not_fill_it_with_the_second(tmp_path):
    (tmp_path / "a.yaml").write_text("text: a dog\n")
    config = ["--config", str(tmp_path / "a.yaml")]
    assert search("i", *config) == Search("i", "a dog")
    with pytest.raises(ValueError, match="required: INDEX"):
        search(*config)


def test_positional_arguments_with_a_hyphen():
    assert search("i", "-k", "2", "- person") == Search("i", "- person", k=2)
    assert search("i", "-k", "2", "--", "--dog") == Search("i", "--dog", k=2)
    assert search("i", "--", "--config") == Search("i", "--config")
    with pytest.raises(ValueError, match="unrecognized arguments: --dog"):
        search("i", "-k", "2", "--dog")
    with pytest.raises(ValueError, match="unrecognized arguments: a"):
        parse("command", Flags, ["--dry-run", "a"])


@pytest.mark.parametrize("at", [0, 2])
def test_flags_win_over_a_file_of_settings_wherever_they_stand(tmp_path, at):
    (tmp_path / "a.yaml").write_text("max_rows: 7\nname: a\n")
    words = ["--max-rows", "3"]
    words[at:at] = ["--config", str(tmp_path / "a.yaml")]
    assert parse("command", Flags, words) == Flags(max_rows=3, name="a")


def test_the_last_file_of_settings_wins(tmp_path):
    for name, rows in (("a", 7), ("b", 8)):
        (tmp_path / f"{name}.yaml").write_text(f"max_rows: {rows}\n")
    words = [f"--config={tmp_path}/a.yaml", "--config", f"{tmp_path}/b.yaml"]
    assert parse("command", Flags, words) == Flags(max_rows=8)
    with pytest.raises(ValueError, match="`--config`: expected a value"):
        parse("command", Flags, ["--config"])


@dataclass(frozen=True)
class Named:
    loss: dict[str, Any] = field(default_factory=lambda: {"name": "bcls"})
    epochs: int = 1


def test_a_new_name_drops_the_arguments_of_the_preset(tmp_path):
    (tmp_path / "a.yaml").write_text("loss: {name: triplet-sn, gamma: 20}\nepochs: 4\n")
    config = ["--config", str(tmp_path / "a.yaml")]

    def loss(*words):
        return parse("train", Named, [*words]).loss

    assert loss(*config) == {"name": "triplet-sn", "gamma": 20}
    assert loss(*config, "--loss.name", "infonce") == {"name": "infonce"}
    assert loss("--loss.temperature", "0.1", "--loss.name=infonce", *config) == {"name": "infonce", "temperature": 0.1}
    assert loss(*config, "--loss.name=infonce", "--loss.name=triplet-sn") == {"name": "triplet-sn", "gamma": 20}
    assert loss(*config, "--loss.name", "triplet-sn", "--loss.margin", "0.1") == {
        "name": "triplet-sn",
        "gamma": 20,
        "margin": 0.1,
    }


def test_a_module_is_imported_before_the_settings_are_parsed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imported_by_a_test.py").write_text("import sys\nsys.imported_by_a_test = True\n")
    words = ["--dry-run", "--import", "imported_by_a_test"]
    assert parse("command", Flags, words, imports=True) == Flags(dry_run=True)
    assert sys.imported_by_a_test
    with pytest.raises(ValueError, match=r"`--import`: expected a Python module.*got no_such_module"):
        parse("command", Flags, ["--import=no_such_module"], imports=True)
    (tmp_path / "broken_by_a_test.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match=r"broken_by_a_test \(ZeroDivisionError: division by zero\)"):
        parse("command", Flags, ["--import", "broken_by_a_test"], imports=True)
    with pytest.raises(ValueError, match="unrecognized arguments: --import"):
        parse("command", Flags, ["--import", "sys"])


def test_positional_arguments_of_a_file(tmp_path, capsys):
    @dataclass(frozen=True)
    class Copy:
        """Copy files."""

        folder: str
        files: list[str] = field(default_factory=list)
        fast: bool = False

    def read(*words):
        return parse("copy", Copy, words, positional={"folder": "DIR", "files": "FILE"})

    with pytest.raises(SystemExit):
        read("here", "a b.npy", "--fast", "--print-config", "--", "-c.npy")
    config = tmp_path / "c.yaml"
    config.write_text(capsys.readouterr().out)
    assert read("--config", str(config)) == Copy("here", ["a b.npy", "-c.npy"], fast=True)
    assert read("--config", str(config), "there", "--no-fast") == Copy("there", ["a b.npy", "-c.npy"])
    assert read("there", "--config", str(config), "d.npy") == Copy("there", ["d.npy"], fast=True)
    config.write_text("fast: true\n")
    with pytest.raises(ValueError, match="arguments are required: DIR"):
        read("--config", str(config))
    for line, message in (
        ("files: a.npy", "files in .*c.yaml`: expected a list, got 'a.npy'; write it as `--print-config` does"),
        ("files: {a: 1}", "files in .*c.yaml`: expected a list"),
        ("folder: [a]", r"folder in .*c.yaml`: expected a string, got \['a'\]"),
        ("folder: 3", "--folder: Expected a str"),
        ("files: [3]", "files.*Expected a str"),
        ("[1]", r"c.yaml`: expected settings as `name: value`, got \[1\]"),
        ("", "c.yaml`: expected settings as `name: value`, got None"),
    ):
        config.write_text(line + "\n")
        with pytest.raises(ValueError, match=message):
            read("--config", str(config), "here")


def test_flags_inside_a_mapping_of_a_mapping_keep_the_other_values_and_their_types(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("loss: {name: infonce+bcls, infonce: {temperature: 0.07}, bcls: {alpha: 0.3}}\n")
    words = ["--loss.bcls.margin", "0.5", "--loss.bcls.lse=mean", "--loss.weights", "[1, 5e-1]"]
    expected = {"bcls": {"alpha": 0.3, "margin": 0.5, "lse": "mean"}, "weights": [1, 0.5]}
    parsed = parse("train", TrainConfig, ["--config", str(config), *words])
    assert parsed.loss == {"name": "infonce+bcls", "infonce": {"temperature": 0.07}, **expected}
    parsed = parse("train", TrainConfig, ["--loss.name", "infonce+bcls", *words])
    assert parsed.loss == {"name": "infonce+bcls", **expected, "bcls": {"margin": 0.5, "lse": "mean"}}


def test_a_whole_mapping_as_a_flag_replaces_that_of_the_file(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("loss: {name: bcls, alpha: 0.1}\n")
    words = ["--config", str(config), "--loss.margin", "0.1", "--loss", '{"name": "triplet", "reduction": "sum"}']
    assert parse("train", TrainConfig, words).loss == {"name": "triplet", "reduction": "sum", "margin": 0.1}
    words = ["--loss.name", "triplet", "--loss", "{margin: 0.1}"]
    assert parse("train", TrainConfig, words).loss == {"name": "triplet", "margin": 0.1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss", "bcls"], r"`--loss`: expected a mapping, got bcls; set its name with `--loss\.name NAME`"),
        (["--loss.margin", "--lr", "1"], r"`--loss\.margin`: expected a value, got none; .*`--loss\.margin VALUE`"),
        (["--loss.margin"], r"`--loss\.margin`: expected a value, got none"),
        (["--loss="], r"`--loss`: expected a value, got none"),
        (["--config", ""], r"`--config`: expected a value, got none"),  # as from an empty variable of the shell
        (["--config="], r"`--config`: expected a value, got none"),
        (["--config.file", "a.yaml"], r"unrecognized arguments: --config\.file=a\.yaml"),
    ],
)
def test_wrong_flags_of_a_mapping_or_a_file(words, message):
    with pytest.raises(ValueError, match=message):
        parse("train", TrainConfig, words)


def test_a_wrong_choice_is_a_list_of_the_choices():
    with pytest.raises(ValueError, match=r"--precision: Expected one of 'no', 'bf16', 'fp16'\. Got value: half; see"):
        parse("train", TrainConfig, ["--precision", "half"])
