"""``bcls data features``."""

import json
import subprocess
import sys

import pytest

from bcls.cli.data import main
from bcls.data.dataset import open_dataset
from tests.features.factories import draw_dataset, tiny_backbone

pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    return draw_dataset(tmp_path / "data")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return tiny_backbone(tmp_path_factory.mktemp("cli") / "tiny")


def test_extracts_features_and_reports_the_folder(folder, backbone, capsys):
    words = [str(folder), "--backbone", backbone, "--regions", "4"]
    assert main(["features", *words]) == 0
    shown = capsys.readouterr()
    assert "train: 16 x 4 x 16\n" in shown.out
    assert "tiny-4 is in" in shown.out
    assert open_dataset(folder).features("tiny-4").shape == (20, 4, 16)
    assert main(["features", *words]) == 0
    assert "train: 16 x 4 x 16 (already extracted)\n" in capsys.readouterr().out


def test_json_alone_on_standard_output(folder, backbone, capsys):
    words = ["--regions", "global", "--view", "ten-crop", "--name", "mine", "--split", "test", "--json"]
    assert main(["features", str(folder), "--backbone", backbone, *words]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["name"], content["shapes"]) == ("mine", {"test": [4, 16]})


def test_number_of_views_is_reported(folder, backbone, capsys):
    words = [str(folder), "--backbone", backbone, "--regions", "global", "--views", "2", "--smallest-crop", "0.6"]
    assert main(["features", *words]) == 0
    shown = capsys.readouterr().out
    assert "train: 48 x 16, 3 rows per image\n" in shown
    assert "tiny-global-views2 is in" in shown
    assert main(["features", *words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["views"], content["shapes"]["test"], content["already"]) == (3, [12, 16], ["train", "test"])


def test_unreadable_images_are_listed_and_the_exit_code_is_1(folder, backbone, capsys):
    bad = open_dataset(folder).image_ids[0]
    (folder / "images" / f"{bad}.png").write_bytes(b"")
    assert main(["features", str(folder), "--backbone", backbone, "--regions", "4"]) == 1
    out, shown = capsys.readouterr()
    assert out == "test: 4 x 4 x 16\n"  # the other split is not finished
    assert f"unreadable: {bad}: " in shown
    assert "1 unreadable image" in shown
    assert "bcls data check" in shown


def test_rows_of_zeros_are_reported(folder, backbone, capsys):
    bad = open_dataset(folder).image_ids[0]
    (folder / "images" / f"{bad}.png").write_bytes(b"")
    assert main(["check", str(folder)]) == 1
    for _ in range(2):  # extracted now, and extracted before
        capsys.readouterr()
        assert main(["features", str(folder), "--backbone", backbone, "--regions", "4"]) == 0
        shown = capsys.readouterr().err
        assert f"note: rows of zeros for images in quarantine (1); once they are repaired, delete {folder}" in shown


def test_moved_images(folder, backbone, tmp_path, monkeypatch):
    (folder / "images").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert main(["features", "data", "--images", "moved", "--backbone", backbone, "--regions", "4"]) == 0


def test_wrong_arguments_are_named(folder):
    with pytest.raises(ValueError, match="DIR"):
        main(["features"])
    with pytest.raises(ValueError, match="--regoins"):
        main(["features", str(folder), "--regoins", "36"])


def test_help_is_light(capsys):
    with pytest.raises(SystemExit) as left:
        main(["features", "--help"])
    assert left.value.code == 0
    assert "ten-crop" in capsys.readouterr().out
    code = "import sys, bcls.cli.data; print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
