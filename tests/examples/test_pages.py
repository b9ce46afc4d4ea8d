"""The commands that the quick start and the page of all commands show: they run, in their order, and end well."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from bcls.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What needs files that nobody has here, or never ends by itself; its flags are looked at all the same.
NOT_RUN = ("bcls serve", "bcls labels quality")


def commands(page):
    """Words of each ``$ bcls`` line of a page's console blocks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = [line for block in CONSOLE.findall(text) for line in block.splitlines() if line.startswith("$ bcls ")]
    assert lines
    return [shlex.split(line[2:], comments=True) for line in lines]


def run(words, capsys):
    if not " ".join(words).startswith(NOT_RUN):
        code = main(words[1:])
        assert code == 0, f"{shlex.join(words)}: {capsys.readouterr().err}"
        return
    with pytest.raises(SystemExit, match="0"):
        main([*words[1:3], "--help"] if words[1] == "labels" else [words[1], "--help"])
    told = capsys.readouterr().out
    for flag in (word for word in words if word.startswith("--")):
        assert flag in told, shlex.join(words)


def test_every_command_has_a_section():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    titles = " ".join(re.findall(r"^## (.*)$", page, re.MULTILINE)).split()
    assert set(COMMANDS) - set(titles) == set()
    assert {words[1] for words in commands("commands.md")} >= set(COMMANDS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_session_of_all_commands_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        Path(text[0]).write_text(text[1], encoding="utf-8")
    for words in commands("commands.md"):
        if words[1] == "demo":  # fewer scenes, since this is about the calls
            words[words.index("--images") + 1] = "100"
        if words[1] in COMMANDS and words[-1] != "--help":
            run(words, capsys)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_quick_start_runs(tmp_path, monkeypatch, capsys):
    from bcls.data.synthetic import make_scenes, render

    monkeypatch.chdir(tmp_path)
    Path("configs").symlink_to(ROOT / "configs")
    Path("photos").mkdir()
    data = make_scenes(40, seed=0)
    for number, scene in enumerate(data.scenes):
        render(scene, size=64).save(f"photos/{number:03d}.png")
    with Path("captions.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption", "split"])
        for caption in data.captions:
            split = "train" if caption.image < 28 else "val" if caption.image < 34 else "test"
            table.writerow([f"{caption.image:03d}.png", caption.text, split])
    shown = re.search(r"^```text\n(image,caption.*?)^```$", (ROOT / "docs/quickstart.md").read_text(), re.M | re.S)
    assert Path("captions.csv").read_text(encoding="utf-8").startswith(shown.group(1))
    for words in commands("quickstart.md"):
        run(words, capsys)
    assert Path("page.html").exists()
    assert Path("found.html").exists()
