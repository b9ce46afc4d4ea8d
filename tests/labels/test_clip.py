"""CLIP's towers, from a small model with random weights."""

import json

import numpy as np
import pytest
from PIL import Image

from bcls.cli import main as cli
from bcls.labels.encoders import fingerprint, load_text_encoder

transformers = pytest.importorskip("transformers", reason='needs pip install "bcls[text]"')

WORDS = ["a", "dog", "runs", "fast", "two", "trains", "in", "station", "man", "eats", "lunch"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("clip")
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<unk>", "<bos>", "<eos>", *WORDS])}
    tokeniser = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - a word, no password
    tokeniser.pre_tokenizer = pre_tokenizers.Whitespace()
    tokeniser.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 3)]
    )
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokeniser, model_max_length=16, **special)
    fast.save_pretrained(path)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = small | {"vocab_size": len(vocabulary), "max_position_embeddings": 16, "bos_token_id": 2, "eos_token_id": 3}
    vision = small | {"image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    transformers.CLIPModel(config).save_pretrained(path)
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    (path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "CLIPImageProcessor", **sizes}))
    return path


def test_text_rows_are_the_towers(folder):
    import torch

    encoder = load_text_encoder(f"clip:{folder}")
    texts = ["a dog runs", "two trains in a station", "a dog runs", "a man"]
    rows = encoder.encode(texts)
    assert (encoder.name, encoder.dimension, rows.shape) == (f"clip:{folder}", 12, (4, 12))
    assert (rows[0] == rows[2]).all()
    model = transformers.CLIPModel.from_pretrained(folder)
    tokeniser = transformers.AutoTokenizer.from_pretrained(folder)
    for text, row in zip(texts, rows, strict=True):
        with torch.no_grad():
            plain = model.get_text_features(**tokeniser([text], return_tensors="pt"))
        plain = getattr(plain, "pooler_output", plain)
        np.testing.assert_allclose(row, torch.nn.functional.normalize(plain, dim=1)[0], atol=1e-6)
    assert encoder.encode([]).shape == (0, 12)
    half = load_text_encoder(f"clip:{folder}", precision="bfloat16").encode(texts)
    assert np.abs(half - rows).max() < 0.05


def test_photos_share_the_space(folder):
    import torch

    encoder = load_text_encoder(f"clip:{folder}")
    photos = [Image.new("RGB", (20, 30), (40 * k, 10, 200 - 40 * k)) for k in range(3)]
    rows = encoder.encode_photos(iter(photos))
    assert rows.shape == (3, 12)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert encoder.encode_photos([]).shape == (0, 12)
    model = transformers.CLIPModel.from_pretrained(folder)
    prepare = transformers.CLIPImageProcessor.from_pretrained(folder)
    with torch.no_grad():
        plain = model.get_image_features(pixel_values=prepare(images=photos, return_tensors="pt")["pixel_values"])
    plain = getattr(plain, "pooler_output", plain)
    np.testing.assert_allclose(rows, torch.nn.functional.normalize(plain, dim=1), atol=1e-5)


def test_quality_has_a_row_for_the_photos(folder, tmp_path, capsys):
    captions = [{"caption_id": 10 + k, "image_id": 7 + k // 2, "caption": " ".join(WORDS[k : k + 3])} for k in range(6)]
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    lines = ["caption,image,agg_score,sampling_method"]
    lines += [f"COCO_val2014:sentid:{10 + k},COCO_val2014_{7 + k % 3:012d}.jpg,{k % 4},x" for k in range(6)]
    (tmp_path / "sits.csv").write_text("\n".join(lines) + "\n")
    for image in (7, 8, 9):
        Image.new("RGB", (20, 20), (25 * image, 0, 0)).save(tmp_path / f"COCO_val2014_{image:012d}.jpg")
    words = ["labels", "quality", "--cxc", str(tmp_path / "sits.csv"), "--captions", str(tmp_path / "captions.json")]
    words += ["--encoder", f"clip:{folder}", "--json"]
    assert cli.main(words) == 0
    assert {row["aggregate"] for row in json.loads(capsys.readouterr().out)} == {"max"}
    assert cli.main([*words, "--images", str(tmp_path)]) == 0
    assert {row["aggregate"] for row in json.loads(capsys.readouterr().out)} == {"max", "image"}
    (tmp_path / "COCO_val2014_000000000008.jpg").unlink()
    assert cli.main([*words, "--images", str(tmp_path)]) == 2
    assert "'8'" in capsys.readouterr().err


def test_a_folder_that_is_no_clip(tmp_path):
    with pytest.raises(ValueError, match="it did not load"):
        load_text_encoder(f"clip:{tmp_path}")
    with pytest.raises(ValueError, match="check the spelling"):
        load_text_encoder("clip:")


def test_fingerprints_tell_models_apart(folder, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    first = fingerprint(f"clip:{folder}")
    assert fingerprint(f"clip:{copy}") == first
    (copy / "README.md").write_text("other words")
    assert fingerprint(str(copy)) == first
    settings = copy / "tokenizer_config.json"
    settings.write_text(settings.read_text() + "\n")
    assert fingerprint(str(copy)).weights == first.weights
    assert fingerprint(str(copy)).settings != first.settings
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert fingerprint(str(copy)).weights != first.weights
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="`encoder`: expected weights in"):
        fingerprint(str(empty))
    with pytest.raises(ValueError, match=r"`encoder`: expected 'minilm', 'wordllama', a folder .* got 'mini'"):
        fingerprint("mini")
