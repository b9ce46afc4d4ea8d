import json
import subprocess
import sys

import pytest

from bcls.cli import data as features
from bcls.data.dataset import open_dataset
from tests.features.factories import draw_dataset, tiny_backbone

pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    return draw_dataset(tmp_path / "data")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return tiny_backbone(tmp_path_factory.mktemp("cli") / "tiny")


def test_extracts_and_says_where(folder, backbone, capsys):
    words = [str(folder), "--backbone", backbone, "--regions", "4"]
    assert features.main(words) == 0
    said = capsys.readouterr()
    assert "train: 16 x 4 x 16\n" in said.out
    assert "tiny-4 is in" in said.out
    assert open_dataset(folder).features("tiny-4").shape == (20, 4, 16)
    assert features.main(words) == 0
    assert "train: 16 x 4 x 16 (finished before)\n" in capsys.readouterr().out


def test_json_alone_on_standard_output(folder, backbone, capsys):
    words = ["--regions", "global", "--view", "ten-crop", "--name", "mine", "--split", "test", "--json"]
    assert features.main([str(folder), "--backbone", backbone, *words]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["name"], content["shapes"]) == ("mine", {"test": [4, 16]})


def test_views_are_told(folder, backbone, capsys):
    words = [str(folder), "--backbone", backbone, "--regions", "global", "--views", "2", "--smallest_crop", "0.6"]
    assert features.main(words) == 0
    said = capsys.readouterr().out
    assert "train: 48 x 16, 3 rows a picture\n" in said
    assert "tiny-global-views2 is in" in said
    assert features.main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["views"], content["shapes"]["test"], content["already"]) == (3, [12, 16], ["train", "test"])


def test_unreadable_pictures_are_listed_and_the_code_is_1(folder, backbone, capsys):
    bad = open_dataset(folder).image_ids[0]
    (folder / "images" / f"{bad}.png").write_bytes(b"")
    assert features.main([str(folder), "--backbone", backbone, "--regions", "4"]) == 1
    out, said = capsys.readouterr()
    assert out == "test: 4 x 4 x 16\n"  # the other split is not finished
    assert f"unreadable: {bad}: " in said
    assert "1 picture cannot be read" in said
    assert "bcls data check" in said


def test_moved_pictures(folder, backbone, tmp_path, monkeypatch):
    (folder / "images").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert features.main(["data", "--images", "moved", "--backbone", backbone, "--regions", "4"]) == 0


def test_wrong_words_are_one_line(folder):
    with pytest.raises(ValueError, match="DIR"):
        features.main([])
    with pytest.raises(ValueError, match="--regoins"):
        features.main([str(folder), "--regoins", "36"])


def test_help_is_light(capsys):
    with pytest.raises(SystemExit) as left:
        features.main(["--help"])
    assert left.value.code == 0
    assert "ten-crop" in capsys.readouterr().out
    code = "import sys, bcls.cli.data; print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
