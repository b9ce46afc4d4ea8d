"""Cross attention (SGR) on region features of a dataset."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from bcls.data.dataset import open_dataset
from bcls.data.records import Caption, Content, ImageRecord, write_dataset
from bcls.data.vocabulary import Vocabulary
from bcls.models import build
from bcls.models.layers import Padded
from bcls.search.build import IndexSettings, build_index
from bcls.search.index import open_index
from bcls.search.service import Service, ServiceSettings

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')
N, R, D = 9, 36, 8


@pytest.fixture
def data(tmp_path):
    images = tuple(ImageRecord(f"i{n}", "train") for n in range(N))
    captions = tuple(Caption(f"c{n}", f"i{n}", f"thing {n} on a table", "train") for n in range(N))
    write_dataset(tmp_path / "data", Content("regions", images, captions))
    rng = np.random.default_rng(0)
    np.save(tmp_path / "data/r.npy", rng.standard_normal((N, R, D)).astype(np.float16))
    np.save(tmp_path / "data/counts.npy", np.array([R, 20, *[R] * (N - 3), 5]))
    manifest = json.loads((tmp_path / "data/manifest.json").read_text())
    manifest["features"] = {"regions": {"train": {"path": "r.npy", "counts": "counts.npy"}}}
    (tmp_path / "data/manifest.json").write_text(json.dumps(manifest))
    return tmp_path / "data"


def test_cross_attention_reranks_the_nearest_vectors(data, tmp_path):
    torch.manual_seed(0)
    dataset = open_dataset(data)
    sizes = {"features": D, "width": 16, "word_width": 12, "similarity_width": 8}
    model = build({"name": "sgr", **sizes}, vocabulary=Vocabulary.build(dataset.texts, threshold=1)).eval()
    model.save_pretrained(tmp_path / "model")
    settings = IndexSettings(out=str(tmp_path / "index"), model=str(tmp_path / "model"), features="regions")
    report = build_index(data, settings)
    assert (report.photos, report.captions, report.skipped) == (N, N, {})
    index = open_index(tmp_path / "index")
    assert index.manifest.cross
    features = dataset.features("regions")
    counts = torch.tensor([features.regions(n) for n in range(N)])
    regions = Padded(torch.from_numpy(features.take(range(N)).astype(np.float32)), counts)
    query = "thing 3 on a table"
    vectors = index.photos.vectors([index.catalog.number_of(name) for name in dataset.image_ids])
    np.testing.assert_allclose(vectors, model.encode_images(regions), atol=1e-5)
    index.close()
    expected = model.similarity(regions, [query])[:, 0].numpy()
    with Service(tmp_path / "index") as service:
        answer = service.search(query, k=4)
        assert answer.reranked == N
        assert [hit.name for hit in answer.hits] == [f"i{n}" for n in np.argsort(-expected)[:4]]
        captions = service.captions_for(service.number_of("i8"), k=3)
        assert captions.reranked == N
        own = model.similarity(regions.take(slice(8, 9)), dataset.texts)[0]
        np.testing.assert_allclose([hit.similarity for hit in captions.hits], own.topk(3).values, atol=1e-5)
        with pytest.raises(ValueError, match="`image`: expected an index of images, got one of features"):
            service.search(image=b"")
        with pytest.raises((OSError, ValueError), match="images"):
            service.read_photo(service.number_of("i1"))
    few = ServiceSettings(rerank=3)
    with Service(tmp_path / "index", settings=few) as service:
        assert service.search(query, k=2).reranked == 3


def test_index_of_features_still_serves_the_images(data, tmp_path):
    model = build({"name": "vsepp", "features": D, "width": 16}, vocabulary=Vocabulary.build(["thing"], threshold=1))
    model.save_pretrained(tmp_path / "model")
    (data / "images").mkdir()
    for n in range(N):
        Image.new("RGB", (8, 6), (n, 0, 0)).save(data / "images" / f"i{n}.png")
    manifest = json.loads((data / "manifest.json").read_text())
    (data / "manifest.json").write_text(json.dumps({**manifest, "images": [{"path": "images"}]}))
    settings = IndexSettings(out=str(tmp_path / "index"), model=str(tmp_path / "model"), features="regions")
    build_index(data, settings)
    with Service(tmp_path / "index") as service:
        number = service.number_of("i4")
        assert service.read_photo(number) == (data / "images/i4.png").read_bytes()
        assert service.thumbnail(number).getpixel((0, 0)) == (4, 0, 0)
        (data / "images/i5.png").unlink()
        with pytest.raises(OSError, match="i5"):
            service.read_photo(service.number_of("i5"))
