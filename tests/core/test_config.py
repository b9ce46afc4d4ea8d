"""YAML files from untrusted sources: read, or rejected early and with little memory."""

import pytest
import yaml

from bcls._core.config import convert_numbers, read_yaml
from bcls.training.config import TrainConfig, write_yaml
from tests.memory import below

#: A billion values in a few hundred bytes, as lists and as mappings that are merged.
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
MERGED = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10))


def put(folder, text):
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1",
        "\ufeffa: 1",
        "a: [1, {b: 'é'}]\nc: null\n",
        "a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\ne: [*x, *x]\n",
        "a: &x 5\nb: &y [*x, *x]\nc: *y\n",
        "about: " + "1 word of many " * 200,
        "seeds: [" + "1, " * 10_000 + "1]",
        "[" * 49 + "]" * 49,
    ],
)
def test_ordinary_files_are_read(tmp_path, text):
    assert read_yaml(put(tmp_path, text)) == yaml.safe_load(text)
    assert read_yaml(put(tmp_path, text), lambda content: content) == text


def test_a_written_config_is_read_back(tmp_path):
    config = TrainConfig(data="Fotos/Über", loss={"name": "bcls", "alpha": 0.2})
    write_yaml(tmp_path / "config.yaml", config)
    assert TrainConfig(**read_yaml(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "a YAML file of at most 20000 values, got more with aliases expanded"),
        (MERGED, "a YAML file of at most 20000 values"),
        ("a: [" + "1, " * 30_000 + "]", "a YAML file of at most 20000 values"),
        ("a: &a [*a]", "finite values, got `*a` inside itself"),
        ("&a {b: [1, {c: *a}]}", "finite values"),
        ("&a {<<: *a}", "finite values"),
        ("[" * 100_000, "a YAML file of at most 50 levels"),
        ("- " * 100_000, "a YAML file of at most 50 levels"),
        ("{a: " * 50_000, "a YAML file of at most 50 levels"),
        ("a: b\n" * 100_000, "a YAML file of at most 262144 bytes"),
        ("a: 1" + ":59" * 80_000, "numbers of at most 1000 digits"),
        ("a: 0x" + "f" * 200_000, "numbers of at most 1000 digits"),
    ],
)
def test_oversized_files_are_rejected_with_little_memory(tmp_path, text, says):
    path = put(tmp_path, text)
    with below(8 * 2**20), pytest.raises(ValueError, match=r"a\.yaml") as raised:
        read_yaml(path)
    assert f"`{path}`: expected {says}" in str(raised.value)


@pytest.mark.parametrize("length", [2**18, 2**30])
def test_only_the_allowed_length_of_a_file_is_read(tmp_path, length):
    path = put(tmp_path, "")
    with path.open("r+b") as file:
        file.truncate(length + 1)  # a hole, which takes no room on the disk
    with below(8 * 2**20), pytest.raises(ValueError, match="at most 262144 bytes, got a longer one"):
        read_yaml(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a: [", "in line 1"),
        (b"a: 1\nb: *c\n", "found undefined alias 'c' in line 2"),
        (b"a: &x 1\nb: &x 2\n", "found duplicate anchor"),
        (b"a: 1\n---\nb: 2\n", "another document in line 2"),
        (b"a: 2020-99-99", "month must be in 1..12"),
        (b"a: \x1b[2J", "special characters are not allowed"),
        (b"a: \xff", "'utf-8' codec can't decode byte 0xff"),
        (b"? [a]\n: b", "unhashable key in line 1"),
    ],
)
def test_invalid_yaml_is_rejected_with_the_line(tmp_path, content, says):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"expected a YAML file, got .*; correct the file$") as raised:
        read_yaml(path)
    assert str(raised.value).startswith(f"`{path}`: ")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        'a: !!int ""',
        "a: !!bool maybe",
        "a: !!timestamp x",
        "a: !own 3",
        "a: ! 3",
        "!!set {a}",
        "a: !!int '" + "9" * 5000 + "'",
        "- !!omap [a: 1]",
        "!!python/object/apply:os.getcwd []",
    ],
)
def test_tags_are_rejected(tmp_path, text):
    """Settings need no tags, and the loader raises unexpected errors for them."""
    with pytest.raises(ValueError, match=r"a\.yaml`: expected plain values, got the tag '.*'; remove it"):
        read_yaml(put(tmp_path, text))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_yaml(tmp_path / "none.yaml")


def test_numbers_that_yaml_reads_as_strings():
    assert convert_numbers({"a": "1e-3", "b": ["2E4", "e5", "-x"], "c": {"d": "5e"}}) == {
        "a": 0.001,
        "b": [20000.0, "e5", "-x"],
        "c": {"d": "5e"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 1\nbatch: 2\nlr: 3\n", "'lr' again in line 3"),
        ("runs:\n  A: {lr: 1}\n  B: {}\n  A: {}\n", "'A' again in line 4"),
        ("grid: [{a: 1, 'a': 2}]\n", "'a' again in line 1"),
    ],
)
def test_a_key_twice_raises(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as raised:
        read_yaml(path)
    assert "a.yaml" in str(raised.value)


def test_a_merged_key_may_be_replaced(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("A: &a {lr: 1, loss: {name: b}}\nB: {<<: *a, lr: 2}\nC: *a\n", encoding="utf-8")
    assert read_yaml(path)["B"] == {"lr": 2, "loss": {"name": "b"}}
