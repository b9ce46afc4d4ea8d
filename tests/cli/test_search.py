import json
from pathlib import Path

import pytest
from PIL import Image

from bcls.cli import main as cli
from tests.search.factories import index, photo, photos, tiny_model

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs ``bcls search ...`` as a user would; the exit code, standard output and standard error."""
    monkeypatch.setitem(cli.COMMANDS, "search", ("bcls.cli.search", "search"))

    def call(*words):
        code = cli.main(["search", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def made(monkeypatch, tmp_path, capsys):
    tiny = tiny_model(monkeypatch, tmp_path / "tiny")
    source = photos(tmp_path / "photos")
    (source / "0/000-red-red.txt").write_text("a <red> wall")
    index(source, tmp_path / "index", tiny)
    capsys.readouterr()
    return tmp_path / "index"


def test_a_moved_model_is_set_with_a_flag(run, made, tmp_path):
    (tmp_path / "tiny").rename(tmp_path / "elsewhere")
    code, printed, notes = run(made, "red")
    assert (code, printed) == (2, "")
    assert f"got '{tmp_path / 'tiny'}'; check the spelling; if it was moved, set its location with --model" in notes
    assert run(made, "red", "--model", tmp_path / "elsewhere", "--json")[0] == 0


def test_json_alone_on_standard_output(run, made, tmp_path):
    code, printed, notes = run(made, "red", "-k", 5, "--json")
    assert code == 0
    assert notes == ""
    rows = json.loads(printed)
    assert len(rows) == 5
    assert rows[0]["path"] == str(tmp_path / "photos/0/000-red-red.png")
    assert 0 <= rows[-1]["score"] <= rows[0]["score"] <= 1
    assert rows[0]["captions"] == ["a <red> wall"]


def test_text_output(run, made):
    code, printed, _ = run(made, "red", "-k", 2)
    assert code == 0
    lines = printed.splitlines()
    assert len(lines) == 2  # no note if photos fit and nothing was reranked
    assert lines[0].endswith("000-red-red.png")


def test_one_query_is_not_given_up_on_a_slow_machine(run, made, monkeypatch):
    from bcls.search import service as settings

    limits = []
    real = settings.ServiceSettings
    patched = "bcls.cli.search.ServiceSettings"
    monkeypatch.setattr(patched, lambda **given: limits.append(given["timeout"]) or real(**given))
    assert run(made, "red")[0] == 0
    assert limits[0] >= 3600


def test_nothing_fits(run, made):
    code, printed, _ = run(made, "green", "--words", "wall")  # leaves the red photo alone
    assert code == 0
    assert "000-red-red.png" in printed
    assert printed.endswith("nothing fits; these are the nearest results\n")
    assert json.loads(run(made, "green", "--words", "wall", "--json")[1])[0]["fits"] is False
    assert json.loads(run(made, "green", "--words", "wall", "--fitting", "--json")[1]) == []
    code, printed, _ = run(made, "red", "--before", "1980")
    assert (code, printed) == (0, "no photo passes the filters\n")


def test_search_by_image(run, made, tmp_path):
    image = tmp_path / "photos/1/004-black-red.png"
    code, printed, _ = run(made, "--image", image, "-k", 1, "--json")
    assert code == 0
    assert json.loads(printed)[0]["path"] == str(image)
    code, printed, _ = run(made, "--image", tmp_path / "photos/0/000-red-red.png", "--captions", "--json")
    assert code == 0
    assert json.loads(printed)[0]["text"] == "a <red> wall"
    code, printed, _ = run(made, "--image", image, "--captions")
    assert "a <red> wall  (" in printed


def test_text_with_operators_and_image(run, made, tmp_path):
    image = tmp_path / "photos/1/004-black-red.png"
    code, printed, _ = run(made, "yellow + red - blue", "-k", 1, "--json")
    assert code == 0
    assert json.loads(printed)[0]["name"] == "0/003-yellow-red.png"
    both = json.loads(run(made, "yellow", "--image", image, "-k", 12, "--json")[1])
    alone = json.loads(run(made, "--image", image, "-k", 12, "--json")[1])
    assert both[0]["similarity"] < alone[0]["similarity"]
    assert [row["name"] for row in both] != [row["name"] for row in alone]


def test_paths_for_other_programs(run, made, tmp_path):
    photo(tmp_path / "photos/x\x1b[2J.png", ["white"])
    index(tmp_path / "photos", made, tmp_path / "tiny")
    code, printed, _ = run(made, "white", "-k", 2, "--paths", "--sort", "date")
    assert code == 0
    assert printed.splitlines()[0] == str(tmp_path / "photos/x\x1b[2J.png")
    assert all(Path(line).is_file() for line in printed.splitlines())
    assert run(made, "white", "--paths")[2] == ""
    code, printed, notes = run(made, "green", "--words", "wall", "--fitting", "--paths")
    assert (code, printed, notes) == (0, "", "nothing fits\n")


def test_duplicates(run, made, tmp_path, capsys):
    first = tmp_path / "photos/0/000-red-red.png"
    (tmp_path / "photos/copy.png").write_bytes(first.read_bytes())
    index(tmp_path / "photos", made, tmp_path / "tiny")
    capsys.readouterr()
    groups = json.loads(run(made, "--duplicates", "--json")[1])
    assert [
        {str(first), str(tmp_path / "photos/copy.png")} <= {row["path"] for row in group} for group in groups
    ].count(True)
    code, printed, notes = run(made, "--duplicates", "--paths")
    assert code == 0
    blocks = [block.splitlines() for block in printed.strip().split("\n\n")]
    assert [sorted(block) for block in blocks] == [sorted(row["path"] for row in group) for group in groups]
    assert notes.endswith(f"{len(groups)} groups of {sum(map(len, groups))} photos\n")


def test_index_without_duplicates(run, monkeypatch, tmp_path, capsys):
    model = tiny_model(monkeypatch, tmp_path / "model")
    photo(tmp_path / "one/red.png", ["red"])
    index(tmp_path / "one", tmp_path / "one.index", model)
    capsys.readouterr()
    assert run(tmp_path / "one.index", "--duplicates")[:2] == (0, "no near-duplicates\n")


def test_thumbnails_are_opened(run, made, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run(made, "red", "--open", "-k", 2)[0] == 0
    file = Path(opened[0].removeprefix("file://"))
    with Image.open(file) as sheet:
        assert sheet.size == (2 * 232 + 8, 252 + 8)
    file.unlink()


def test_contact_sheet_and_page(run, made, tmp_path):
    (tmp_path / "photos/0/003-yellow-red.png").unlink()
    sheet, page = tmp_path / "sheet.png", tmp_path / "page.html"
    code, _, _ = run(made, "red <b>", "-k", 12, "--contact", sheet, "--html", page)
    assert code == 0
    with Image.open(sheet) as image:
        assert image.size == (5 * 232 + 8, 3 * 252 + 8)
    text = page.read_text()
    assert text.count("data:image/") == 11
    assert text.count("photo is missing") == 1
    assert "<h1>red &lt;b&gt;</h1>" in text
    assert "a &lt;red&gt; wall" in text
    assert f'<span title="{made.parent}/photos/0/000-red-red.png">0/000-red-red.png</span>' in text
    assert "below the threshold" in text
    assert run(made, "red", "--image", tmp_path / "photos/1/004-black-red.png", "--html", page)[0] == 0
    assert "<h1>red + 004-black-red.png</h1>" in page.read_text()


def test_bad_input_is_one_line(run, made, tmp_path):
    (tmp_path / "no.jpg").write_bytes(b"no picture")
    for words, message in (
        ((), "arguments are required: INDEX"),
        ((made,), "expected a text or --image FILE, got none"),
        ((made, "red", "--image", tmp_path / "no.jpg"), "no.jpg`: expected an image, got 10 bytes of something else"),
        ((made, "red", "--image", tmp_path / "no.jpg", "--captions"), "expected --image FILE with it"),
        ((made, "red", "--sort", "name"), "`sort`: expected one of 'score', 'date'"),
        ((made, "+ -"), "`text`: expected words between the operators + and -"),
        ((made, "red", "--duplicates", "-k", "3"), "only --paths, --json or --model with it, got text, k"),
        ((made, ""), "`text`: expected some words"),
        ((made, "x" * 100_000), "`text`: expected at most 2000 characters, got 100000"),
        ((made, "red", "-k", "0"), "`k`: expected a whole number not below 1"),
        ((made, "red", "--captions"), "expected --image FILE with it"),
        ((made, "--image", tmp_path / "no.jpg", "--captions", "--html", "x"), "no --contact, --html, --open or --sort"),
        ((made, "--image", tmp_path / "no.jpg", "--captions", "--sort", "date"), "no --contact, --html, --open or"),
        ((made, "red", "--json", "--paths"), "`--paths`: expected no --json with it, got both"),
        ((made, "red", "--model", "none"), "`model`: expected 'photo', 'photo-fast', the folder of a model"),
        ((made, "--image", tmp_path / "no.jpg"), "no.jpg`: expected an image, got 10 bytes of something else"),
        ((made, "--image", tmp_path / "none.jpg"), "No such file"),
        ((made, "red", "--html", "none/x.html"), "`--html`: expected a file in an existing folder, got none/x.html"),
        ((made, "red", "--after", "soon"), "`after`: expected a date"),
        ((tmp_path / "none", "red"), "no such index"),
        ((tmp_path, "red"), "expected an index with an index.json, got none"),
        (
            (made, "red", "--contact", tmp_path / "no" / "s.png"),
            f"a file in an existing folder, got {tmp_path}/no/",
        ),
    ):
        code, output, error = run(*words)
        assert code == 2, words
        assert output == ""
        assert message in error, error
        assert error.count("\n") == 1


def test_help(run, capsys):
    with pytest.raises(SystemExit) as left:
        run("--help")
    assert left.value.code == 0
    assert "usage: bcls search INDEX [TEXT]" in capsys.readouterr().out


def test_names_and_captions_do_not_reach_the_terminal_raw(run, made, tmp_path, monkeypatch):
    photo(tmp_path / "photos/x\x1b[2J.png", ["white"])
    (tmp_path / "photos/x\x1b[2J.txt").write_text("white \x1b]0;title\x07")
    index(tmp_path / "photos", made, tmp_path / "tiny")
    _, printed, _ = run(made, "white", "-k", 1)
    assert r"x\x1b[2J.png" in printed
    assert "\x1b" not in printed
    _, printed, _ = run(made, "--image", tmp_path / "photos/x\x1b[2J.png", "--captions")
    assert r"white \x1b]0;title\x07  (" in printed
    assert "\x1b" not in printed
