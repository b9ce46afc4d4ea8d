"""Index, search and serve with an exported model: ONNX Runtime and numpy, without torch and scipy."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from bcls.cli import main as cli
from bcls.data.images import decode
from bcls.models import build
from bcls.models.export import export_onnx
from bcls.models.light import LightModel
from bcls.search.build import IndexSettings, build_index
from bcls.search.engine import parse_filter
from bcls.search.index import open_index
from bcls.search.photo_index import PhotoIndex
from bcls.search.score_model import SIMILAR, read_calibration
from bcls.search.service import Service
from tests.models import factories as models
from tests.search.factories import photos

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')

#: Runs in a process in which torch and the like cannot be imported.
WITHOUT_TORCH = """
import sys
for name in ("torch", "scipy", "transformers", "sentence_transformers", "onnx"):
    sys.modules[name] = None
from bcls.cli.main import main
from bcls.search import PhotoIndex
from pathlib import Path
photos, model = sys.argv[1:]
assert main(["index", photos, "--out", "index", "--model", model]) == 0
assert main(["search", "index", "--duplicates"]) == 0
assert main(["search", "index", "a red wall", "-k", "2", "--json"]) == 0
with PhotoIndex("index") as index:
    assert len(index) == 6
    assert len(index.search("a red wall", k=3)) == 3
    first = sorted(Path(photos).rglob("*.png"))[0]
    assert index.search(first, k=1)[0].path == str(first)
    assert index.update().unchanged == 6
from starlette.testclient import TestClient
from bcls.search.service import Service
from bcls.web import Site, WebSettings, create_app
with Service("index") as service:
    app = create_app(Site(service, WebSettings(any_host=True), None, None, None))
    with TestClient(app) as client:
        answer = client.get("/api/search", params={"q": "a red wall", "k": 2})
        assert answer.status_code == 200, answer.text
assert sys.modules["torch"] is None
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A small dual model for torch, and the folder of its export."""
    folder = tmp_path_factory.mktemp("light")
    torch.manual_seed(0)
    sides = {"image": str(models.vit(folder / "vit")), "text": str(models.bert(folder / "bert"))}
    model = build({"name": "dual", **sides, "width": 16, "image_view": "four-crop"}).eval()
    export_onnx(model, folder / "export")
    return model, folder / "export"


@pytest.fixture
def copy(exported, tmp_path):
    """A copy of the export, to damage it."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in exported[1].iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_without_torch(exported, tmp_path):
    source = photos(tmp_path / "photos", 6)
    command = [sys.executable, "-c", WITHOUT_TORCH, str(source), str(exported[1])]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "CI": "1"})
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout.splitlines()[-1])
    assert len(rows) == 2


def test_same_results_as_torch(exported, tmp_path, capsys):
    model, folder = exported
    source = photos(tmp_path / "photos", 12)
    paths = sorted(source.rglob("*.png"))
    report = build_index(source, IndexSettings(out=str(tmp_path / "index"), model=str(folder)))
    assert (report.photos, report.runtime) == (12, "ONNX Runtime")
    index = open_index(tmp_path / "index")
    vectors = index.photos.vectors([index.catalog.number_of(str(path.relative_to(source))) for path in paths])
    index.close()
    assert (vectors * model.encode_images(paths).numpy()).sum(1).min() > 0.999
    with Service(tmp_path / "index") as service:
        found = {hit.path: hit.similarity for hit in service.search("a dog runs", k=12).hits}
    expected = model.similarity(paths, ["a dog runs"])[:, 0].numpy()
    np.testing.assert_allclose([found[str(path)] for path in paths], expected, atol=0.02)
    with PhotoIndex.build(source, tmp_path / "second", model=LightModel(folder)) as second:
        assert len(second.search(paths[0], k=12)) == 12


def test_torch_is_named_in_the_output(tiny, source, out, capsys):
    assert cli.main(["index", str(source), "--out", str(out), "--model", str(tiny)]) == 0
    assert "the model ran on torch" in capsys.readouterr().out


def test_light_and_torch_model_are_different_models(exported, tmp_path):
    model, folder = exported
    source = photos(tmp_path / "photos", 2)
    build_index(source, IndexSettings(out=str(tmp_path / "index"), model=str(folder)))
    with pytest.raises(ValueError, match="vectors of different models are not comparable"):
        Service(tmp_path / "index", model)


@pytest.mark.parametrize("name", ["image.onnx", "text.onnx", "model.safetensors", "tokenizer.json"])
def test_a_flipped_bit_is_one_line(copy, tmp_path, capsys, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 4
    (copy / name).write_bytes(content)
    source = photos(tmp_path / "photos", 2)
    assert cli.main(["index", str(source), "--out", str(tmp_path / "index"), "--model", str(copy)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{name}`: expected a file with sha256" in error
    assert "copy the whole folder again" in error


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json`: expected a file of the model"),
        (lambda folder: (folder / "text.onnx").unlink(), "text.onnx`: expected a file of the model"),
        (lambda folder: change(folder, sha256={}), 'expected "sha256" with the hashes of the files'),
        (lambda folder: change(folder, onnx=3), "expected the config of an exported model"),
        (lambda folder: change(folder, onnx={"version": 7}), "expected an export of version 1, got version 7"),
        (lambda folder: rehash(folder, "image.onnx", b"no graph"), "expected a graph that ONNX Runtime can read"),
        (lambda folder: rehash(folder, "tokenizer.json", b"{}"), "tokenizer.json`: expected a tokenizer"),
    ],
)
def test_damaged_folders_are_one_line(copy, tmp_path, capsys, damage, message):
    damage(copy)
    source = photos(tmp_path / "photos", 2)
    assert cli.main(["index", str(source), "--out", str(tmp_path / "index"), "--model", str(copy)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_weights_of_a_folder_beside_it(exported, copy):
    (copy.parent / "other").mkdir()
    shared = copy.parent / "other" / "model.safetensors"
    (copy / shared.name).rename(shared)
    about = json.loads((copy / "config.json").read_text(encoding="utf-8"))["onnx"]
    change(copy, onnx={**about, "shared": "other"})
    texts = ["a red wall", "two dogs"]
    np.testing.assert_array_equal(LightModel(copy).encode_texts(texts), LightModel(exported[1]).encode_texts(texts))
    shared.write_bytes(shared.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=r"other.model.safetensors`: expected a file with sha256"):
        LightModel(copy).encode_texts(texts)
    shared.unlink()
    with pytest.raises(ValueError, match=r"other.model.safetensors`: expected a file of the model, got no such file"):
        LightModel(copy).encode_texts(texts)


@pytest.fixture
def calibrated(copy):
    """An exported model with a calibration, and the length of its vectors."""
    width = json.loads((copy / "config.json").read_text(encoding="utf-8"))["onnx"]["width"]
    background = np.random.default_rng(0).normal(size=(5, width)).astype(np.float16)
    save_file({"background": background}, copy / "calibration.safetensors")
    settings = {"pair": [-1.0, 4.0], "query": [1.0, 2.0, 0.5, -0.5, 1.0], "gate": [2, 4, 0.4, 0.1], "threshold": 0.3}
    (copy / "calibration.json").write_text(json.dumps({**settings, "word": "a {}"}), encoding="utf-8")
    return copy, width


def test_scores_by_the_calibration_of_the_model(calibrated, tmp_path):
    """Also of queries with operators; one word is encoded with the template of the model."""
    folder, width = calibrated
    source = photos(tmp_path / "photos", 4)
    calibration, model = read_calibration(folder), LightModel(folder)
    with PhotoIndex.build(source, tmp_path / "index", model=str(folder)) as index:
        for query, added, subtracted in (
            ("red", {"a red": 1.0}, {}),
            ("red wall", {"red wall": 1.0}, {}),
            ("red wall + 0.5 dog", {"red wall": 1.0, "a dog": 0.5}, {}),
            ("red wall + 0.5 dog - blue", {"red wall": 1.0, "a dog": 0.5}, {"a blue": 1.0}),
        ):
            for hit in index.search(query, k=4):
                photo = model.encode_images([hit.path])[0]
                first, second = (
                    sum((weight * model.encode_texts([text])[0] for text, weight in terms.items()), np.zeros(width))
                    for terms in (added, subtracted)
                )
                vector = first / np.linalg.norm(first)
                expected = float(calibration(photo @ vector, vector))
                for text in subtracted:
                    (vector,) = model.encode_texts([text])
                    expected *= 1 - float(calibration(photo @ vector, vector))
                both = (first - second) / np.linalg.norm(first - second)
                assert hit.similarity == pytest.approx(float(photo @ both), abs=1e-4)
                assert hit.score == pytest.approx(expected, abs=1e-3)
                assert hit.threshold == 0.3


def test_scores_of_captions_by_the_calibration_of_the_model(calibrated, tmp_path):
    folder, _ = calibrated
    source = photos(tmp_path / "photos", 4)
    first = sorted(source.rglob("*.png"))[0]
    first.with_suffix(".txt").write_text("a red wall\nred\ntwo dogs", encoding="utf-8")
    calibration, model = read_calibration(folder), LightModel(folder)
    (photo,) = model.encode_images([first])
    with PhotoIndex.build(source, tmp_path / "index", model=str(folder)) as index:
        number = index.service.number_of(first.relative_to(source).as_posix())
        for result in (index.service.captions_for(number), index.service.captions_for_image(first.read_bytes())):
            assert len(result.hits) == 3
            for hit in result.hits:
                (text,) = model.encode_texts([hit.text])
                assert hit.score == pytest.approx(float(calibration(photo @ text, text)), abs=1e-3)
                assert (hit.threshold, hit.fits) == (0.3, hit.score >= 0.3)
                assert "threshold" not in hit.as_json()
        assert index.service.captions_for(number, filters=parse_filter(before="1990")).hits == ()
        assert index.search("red - blue", filters=parse_filter(before="1990")) == []


def test_scores_for_images_by_the_calibration_of_the_model(calibrated, tmp_path):
    folder, width = calibrated
    source = photos(tmp_path / "photos", 4)
    first = sorted(source.rglob("*.png"))[0]
    calibration, model = read_calibration(folder), LightModel(folder)
    (text,) = model.encode_texts(["red wall"])
    with PhotoIndex.build(source, tmp_path / "index", model=str(folder)) as index:
        for hits, added in (
            (index.search(first), np.zeros(width)),
            (index.similar(first.relative_to(source).as_posix()), np.zeros(width)),
            (index.search("- 0.5 red wall", image=first), -0.5 * text),
        ):
            for hit in hits:
                assert hit.score == pytest.approx(float(calibration.score_similar(hit.similarity, added)), abs=1e-3)
                assert hit.threshold == SIMILAR


def change(folder, **entries):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **entries}), encoding="utf-8")


def rehash(folder, name, content):
    """Other contents with the right checksum, as of a damaged export."""
    import hashlib

    (folder / name).write_bytes(content)
    hashes = json.loads((folder / "config.json").read_text(encoding="utf-8"))["sha256"]
    change(folder, sha256={**hashes, name: hashlib.sha256(content).hexdigest()})


def test_devices_and_precisions(exported, tmp_path):
    source = photos(tmp_path / "photos", 2)
    settings = {"out": str(tmp_path / "index"), "model": str(exported[1])}
    with pytest.raises(ValueError, match=r"expected an ONNX Runtime with CUDA, got .*onnxruntime-gpu"):
        build_index(source, IndexSettings(**settings, device="cuda"))
    with pytest.raises(ValueError, match="`device`: expected cpu, cuda or cuda:NUMBER"):
        build_index(source, IndexSettings(**settings, device="tpu"))
    with pytest.raises(ValueError, match="`precision`: expected float32 with a model on ONNX Runtime"):
        build_index(source, IndexSettings(**settings, precision="bfloat16"))


def test_index_of_the_previous_version(built, capsys):
    content = json.loads((built / "index.json").read_text(encoding="utf-8"))
    (built / "index.json").write_text(json.dumps({**content, "version": 1}), encoding="utf-8")
    assert cli.main(["search", str(built), "a red wall"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"delete the folder, then run `bcls index {content['photos'][0]} --out {built}`" in error


def test_large_jpeg_files_are_decoded_at_a_reduced_size():
    buffer = io.BytesIO()
    models.image(800, 600, seed=1).save(buffer, format="JPEG", quality=95)
    whole, small = (decode(buffer.getvalue(), "a.jpg", side=side) for side in (0, 64))
    assert (whole.size, small.size) == ((800, 600), (200, 150))
    pair = [np.asarray(one.resize((64, 64), 3), dtype=float) for one in (whole, small)]
    assert np.abs(pair[0] - pair[1]).mean() < 4
    assert decode(buffer.getvalue(), "a.jpg", side=400).size == (800, 600)
    with pytest.raises(ValueError, match="at most 1000 pixels"):
        decode(buffer.getvalue(), "a.jpg", side=64, max_pixels=1000)
