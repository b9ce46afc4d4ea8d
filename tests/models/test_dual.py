"""The dual encoder: encoders in any combination, frozen encoders, and precomputed features."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bcls.data.vocabulary import Vocabulary
from bcls.features.backbones import load_backbone
from bcls.models import build
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.layers import Padded
from tests.models import factories

IMAGES = [factories.image(seed=0), factories.image(90, 30, seed=1)]
TEXTS = factories.TEXTS
VOCABULARY = Vocabulary.build(TEXTS, threshold=1)
FEATURES = {"image": "features", "features": 5, "width": 6}


def regions(seed=0, rows=3, count=4, width=5):
    return torch.randn(rows, count, width, generator=torch.Generator().manual_seed(seed))


def gru(**settings):
    return DualModel(DualConfig(**FEATURES, text="gru", word_width=4, states=7, **settings), vocabulary=VOCABULARY)


@pytest.mark.parametrize("pooling", ["mean", "max", "gpo"])
@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("text_pooling", ["last", "mean", "gpo"])
def test_features_with_a_gru(pooling, head, text_pooling):
    torch.manual_seed(0)
    model = gru(image_pooling=pooling, image_head=head, text_pooling=text_pooling)
    images, texts = model.encode_images(regions()), model.encode_texts(TEXTS)
    torch.testing.assert_close(images.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(model.similarity(regions(), TEXTS), images @ texts.T)
    # One at a time, and so without any padding.
    torch.testing.assert_close(torch.cat([model.encode_texts([one]) for one in TEXTS]), texts, atol=1e-5, rtol=1e-4)
    longer = torch.cat((regions(), torch.full((3, 2, 5), 9.0)), dim=1)
    found = model.encode_images(Padded(longer, torch.tensor([4, 4, 4])))
    torch.testing.assert_close(found, images, atol=1e-5, rtol=1e-4)


def test_head_equals_its_formula():
    torch.manual_seed(0)
    model = gru(image_head="mlp").eval()
    x, head = regions().mean(1), model.image.head
    first, _, last = head.mlp
    hidden = torch.relu(x @ first.weight.T + first.bias)
    expected = x @ head.linear.weight.T + head.linear.bias + hidden @ last.weight.T + last.bias
    expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(model.image_codes(Padded(regions())).values, expected)


def test_by_name_with_a_vocabulary():
    model = build({"name": "dual", **FEATURES, "text": "gru", "states": 8}, vocabulary=VOCABULARY)
    assert isinstance(model, DualModel)
    assert model.reads_strings
    assert model.text.encoder.words == len(VOCABULARY)


@pytest.mark.parametrize("pooling", ["mean", "cls", "gpo"])
def test_a_text_model_of_transformers(checkpoints, pooling):
    from transformers import AutoModel, AutoTokenizer

    folder = checkpoints["bert"]
    model = DualModel(DualConfig(**FEATURES, text=str(folder), text_pooling=pooling))
    features = model.text_vectors_of(TEXTS)
    words = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    theirs = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        states = theirs(input_ids=words["input_ids"], attention_mask=words["attention_mask"]).last_hidden_state
    if pooling == "cls":
        torch.testing.assert_close(features.values, states[:, 0], atol=1e-5, rtol=1e-4)
    elif pooling == "mean":
        mask = words["attention_mask"][:, :, None]
        torch.testing.assert_close(features.values, (states * mask).sum(1) / mask.sum(1), atol=1e-5, rtol=1e-4)
    else:
        mask = words["attention_mask"].bool()
        torch.testing.assert_close(features.values[mask], states[mask], atol=1e-5, rtol=1e-4)
        assert features.lengths.tolist() == mask.sum(1).tolist()


@pytest.mark.parametrize("view", ["mirrored", "four-crop", "six-crop"])
def test_image_views_equal_extracted_features(checkpoints, view):
    model = DualModel(
        DualConfig(image=str(checkpoints["vit"]), text=str(checkpoints["bert"]), width=6, image_view=view)
    )
    backbone = load_backbone(checkpoints["vit"])
    expected = torch.stack([backbone(backbone.views(one, view)).mean((0, 2, 3)) for one in IMAGES]).detach()
    torch.testing.assert_close(model.image_vectors_of(IMAGES).values, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "gpo"])
def test_frozen_features_replace_the_encoders(checkpoints, pooling):
    config = DualConfig(
        image=str(checkpoints["vit"]),
        text=str(checkpoints["bert"]),
        width=6,
        image_pooling=pooling,
        text_pooling=pooling,
        dropout_images=0.0,
        dropout_texts=0.0,
    )
    torch.manual_seed(0)
    model = DualModel(config)
    assert model.frozen_images
    assert model.frozen_text
    many = TEXTS * 20  # more than one batch, of different lengths
    images, texts = model.image_vectors_of(IMAGES), model.text_vectors_of(many)
    assert images.values.shape[-1] == texts.values.shape[-1] == 16
    assert not images.values.requires_grad
    model.train()
    short = model(images, texts)
    long = model(model.prepare_images(IMAGES), model.prepare_texts(many))
    for one, other in zip(short, long, strict=True):
        torch.testing.assert_close(one.values, other.values, atol=1e-5, rtol=1e-4)
    gradients = []
    for codes in (short, long):
        model.zero_grad()
        model.scores(*codes).pow(2).sum().backward()
        gradients.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], atol=1e-4, rtol=1e-3)
    assert all(name.split(".")[1] != "encoder" for name in gradients[0])


def test_tuned_parts_are_in_their_groups(checkpoints):
    settings = {"image": str(checkpoints["vit"]), "text": str(checkpoints["bert"]), "width": 6}
    model = DualModel(DualConfig(**settings, tune_image=True, tune_text=True))
    groups = model.parameter_groups()
    assert list(groups) == ["image backbone", "text encoder", "heads"]
    trained = [one for one in model.parameters() if one.requires_grad]
    assert sorted(map(id, trained)) == sorted(id(one) for group in groups.values() for one in group)
    model.scores(*model(model.prepare_images(IMAGES), model.prepare_texts(TEXTS))).sum().backward()
    without = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
    assert [name for name in without if "pooler" not in name] == []
    assert list(DualModel(DualConfig(**settings)).parameter_groups()) == ["heads"]


def test_features_of_a_trained_encoder_raise(checkpoints):
    model = DualModel(DualConfig(**FEATURES, text=str(checkpoints["bert"]), tune_text=True))
    with pytest.raises(ValueError, match="`texts`: expected a frozen encoder, got one that is trained"):
        model.text_vectors_of(TEXTS)
    with pytest.raises(ValueError, match="`texts`: expected inputs of the encoder, since it is trained"):
        model.encode_texts(Padded(torch.zeros(2, 16)))
    with pytest.raises(ValueError, match="expected a frozen encoder"):
        gru().text_vectors_of(TEXTS)


def test_saved_model_does_not_need_the_original_encoder(checkpoints, tmp_path):
    model = DualModel(DualConfig(**FEATURES, text=str(checkpoints["bert"]), tune_text=True))
    for name, content in model.files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    again = DualModel(DualConfig(**{**model.as_dict(), "text": "gone/away"}), folder=tmp_path)
    again.load_trained_state(model.trained_state())
    torch.testing.assert_close(again.encode_texts(TEXTS), model.encode_texts(TEXTS))
    assert again.text.encoder.longest == model.text.encoder.longest


def test_zero_features_give_no_nan():
    model = gru(dropout_images=0.0)
    nothing = torch.zeros(2, 5, requires_grad=True)
    codes = model.image_codes(Padded(nothing)).values
    codes.sum().backward()
    assert codes.isfinite().all()
    assert nothing.grad.isfinite().all()


def test_autocast_keeps_unit_vectors_in_float32():
    model = gru(image_pooling="gpo", text_pooling="mean")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        images, texts = model(model.prepare_images(regions()), model.prepare_texts(TEXTS))
    for codes in (images, texts):
        assert codes.values.dtype == torch.float32
        torch.testing.assert_close(codes.values.norm(dim=1), torch.ones(len(codes)))
    exact = model.eval().image_codes(model.prepare_images(regions())).values
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model.image_codes(model.prepare_images(regions())).values, exact, atol=3e-2, rtol=0)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 4), r"`images`: expected features \(N, 5\) or \(N, R, 5\), got \(2, 4\)"),
        (torch.zeros(5), r"`images`: expected features"),
        (torch.full((2, 5), torch.nan), r"`images`: expected finite features, got NaN or infinity in row 0"),
        (IMAGES, r"`images`: expected features \(N, 5\) or \(N, R, 5\), got images"),
        (torch.zeros(2, 3, 8, 8), r"`images`: expected features .* got a tensor \(2, 3, 8, 8\)"),
        (Padded(torch.ones(2, 3, 5), torch.tensor([5, 1])), "`images`: expected lengths from 1 to 3, got 5"),
        (Padded(torch.ones(2, 3, 5), torch.tensor([0, -1])), "`images`: expected lengths from 1 to 3, got -1"),
        (Padded(torch.ones(2, 3, 5), torch.tensor([1, 1, 1])), r"`images`: expected lengths \(N,\)"),
        ((torch.ones(2, 3, 5), [3, 3]), r"`images`: expected lengths \(N,\).* got list"),
        (torch.zeros(2, 4, dtype=torch.int64), r"`images`: expected features \(N, 5\) or \(N, R, 5\), got \(2, 4\)"),
        (np.array(["a.jpg"]), "`images`: expected features"),
        (Path("a.jpg"), "`images`: expected features"),
        (IMAGES[0], "`images`: expected features"),
        (None, "`images`: expected features"),
        ({"a": 1}, "`images`: expected features"),
    ],
)
def test_wrong_images(images, message):
    with pytest.raises(ValueError, match=message):
        gru().encode_images(images)


@pytest.mark.parametrize("images", [Path("a.jpg"), IMAGES[0], None, np.array(["a.jpg"]), "a.jpg"])
def test_wrong_images_of_a_backbone_raise(checkpoints, images):
    model = DualModel(DualConfig(image=str(checkpoints["vit"]), text=str(checkpoints["bert"]), width=6))
    with pytest.raises(ValueError, match="`images`: expected a list of paths or PIL images"):
        model.encode_images(images)


@pytest.mark.parametrize("texts", ["a dog", [1, 2], [b"a"], None, Path("a"), np.array([1])])
def test_wrong_texts(checkpoints, texts):
    model = DualModel(DualConfig(**FEATURES, text=str(checkpoints["bert"])))
    with pytest.raises(ValueError, match="`texts`: expected a list of strings"):
        model.encode_texts(texts)


def test_wrong_encoders(checkpoints):
    with pytest.raises(ValueError, match="`text`: expected a text model"):
        DualModel(DualConfig(**FEATURES, text=str(checkpoints["vit"])))
    with pytest.raises(ValueError, match="`image_head`: expected heads with one output width, such as 6, got 5 and 6"):
        gru(image_head="none")


def test_empty_inputs(checkpoints):
    model = DualModel(DualConfig(image=str(checkpoints["vit"]), text=str(checkpoints["bert"]), width=6))
    assert model.encode_images([]).shape == model.encode_texts([]).shape == (0, 6)
    assert model.encode_images(()).shape == model.encode_texts(()).shape == (0, 6)
    assert model.text_vectors_of([]).values.shape == (0, 16)


def test_empty_inputs_of_several_heads():
    model = gru(heads=2)
    images = torch.zeros(0, model.config.features)
    assert model.encode_images(images).shape == model.encode_texts([]).shape
    assert model.encode_texts([]).shape[0] == 0


def test_float16_features_and_arrays():
    model = gru()
    exact = model.encode_images(regions())
    torch.testing.assert_close(model.encode_images(regions().numpy()), exact)
    torch.testing.assert_close(model.encode_images(regions().half()), exact, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(model.encode_images(regions().transpose(0, 1).contiguous().transpose(0, 1)), exact)


def test_features_of_whole_numbers_and_pairs():
    model, whole = gru(), torch.arange(30).reshape(2, 3, 5)
    torch.testing.assert_close(model.encode_images(whole), model.encode_images(whole.float()))
    torch.testing.assert_close(model.encode_images(whole.numpy()), model.encode_images(whole.float()))
    pair = whole.float(), torch.tensor([2, 3])
    torch.testing.assert_close(model.prepare_images(pair).values, model.prepare_images(Padded(*pair)).values)


def test_features_of_captions_with_wrong_lengths(checkpoints):
    model = DualModel(DualConfig(**FEATURES, text=str(checkpoints["bert"]), text_pooling="gpo"))
    with pytest.raises(ValueError, match="`texts`: expected lengths from 1 to 3, got 4"):
        model.encode_texts(Padded(torch.ones(2, 3, 16), torch.tensor([4, 1])))


def test_strings_of_an_array(checkpoints):
    model = DualModel(DualConfig(**FEATURES, text=str(checkpoints["bert"])))
    torch.testing.assert_close(model.encode_texts(np.array(TEXTS)), model.encode_texts(TEXTS))


def test_token_numbers_beyond_the_encoder(checkpoints):
    model = DualModel(DualConfig(**FEATURES, text=str(checkpoints["bert"])))
    numbers = torch.ones(1, 600, dtype=torch.int64)
    with pytest.raises(ValueError, match="`texts`: expected at most 20 tokens a caption, got 600"):
        model.encode_texts((numbers, torch.tensor([600])))
    with pytest.raises(ValueError, match="`texts`: expected integers"):
        model.encode_texts((numbers, [3]))
    # What stands behind a caption is not read.
    short = (numbers[:, :3], torch.tensor([3]))
    torch.testing.assert_close(model.encode_texts((numbers, torch.tensor([3]))), model.encode_texts(short))


def test_vectors_are_for_further_work():
    model = gru()
    for vectors in (model.encode_images(regions()), model.encode_texts(TEXTS), model.similarity(regions(), TEXTS)):
        assert not vectors.requires_grad
        vectors.mul_(2)
        torch.nn.Linear(vectors.shape[1], 2)(vectors).sum().backward()


def test_an_encoder_without_a_limit(tmp_path):
    from transformers import T5Config, T5Model

    numbers = factories.tokenizer(tmp_path, start="<s>", end="</s>", pad="<pad>")
    told = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    told["model_max_length"] = int(1e30)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    T5Model(T5Config(vocab_size=len(numbers), decoder_start_token_id=0, **sizes)).save_pretrained(tmp_path)
    model = DualModel(DualConfig(**FEATURES, text=str(tmp_path)))
    assert model.text.encoder.longest == 512
    assert model.encode_texts([*TEXTS, "dog " * 900]).shape == (5, 6)


def test_a_checkpoint_cut_short(tmp_path):
    folder = factories.bert(tmp_path / "bert")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"`text`: expected a folder or hub name with model.safetensors") as caught:
        DualModel(DualConfig(**FEATURES, text=str(folder)))
    assert "\n" not in str(caught.value)


def test_unknown_home_folder_raises():
    with pytest.raises(ValueError, match="`text`: expected a folder or hub name"):
        DualModel(DualConfig(**FEATURES, text="~nosuchuser/x"))


def test_a_twin_for_queries_leaves_the_mode_alone(checkpoints, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    model = DualModel(DualConfig(**FEATURES, text=str(checkpoints["bert"]), tune_text=True)).train()
    before = [part.training for part in model.modules()]
    twin = model.for_queries()
    assert twin is not model
    assert not any(part.training for part in twin.text.encoder.modules())
    assert [part.training for part in model.modules()] == before
    twin.encode_texts(TEXTS)
    assert [part.training for part in model.modules()] == before
    assert any(before)


def step(config, images):
    """Bytes that a training step keeps for its backward pass, and its gradients."""
    torch.manual_seed(0)
    model, saved = DualModel(config).train(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one.nbytes) or one, lambda one: one):
        codes = model(model.prepare_images(images), model.prepare_texts(TEXTS[:2]))
    model.scores(*codes)[0].sum().backward()
    return sum(saved), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("kind", ["clip", "siglip", "bert"])
@pytest.mark.parametrize("rank", [0, 2])
def test_checkpointing_keeps_less_and_gives_the_same_gradients(kind, rank, checkpoints):
    folder = str(checkpoints[kind])
    text = {"image": "features", "features": 5, "text": folder, "width": 6, "lora_targets": ("query", "value")}
    clip = {"image": "clip", "model": folder, "tune_image": True}
    config = DualConfig(**text if kind == "bert" else clip, tune_text=True, lora_rank=rank)
    images = torch.ones(2, 5) if kind == "bert" else IMAGES
    (kept, expected), (less, found) = (step(replace(config, checkpointing=on), images) for on in (False, True))
    assert less < kept / 2
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        torch.testing.assert_close(found[name], one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"text": "gru", "words": 9}])
def test_checkpointing_needs_a_trained_transformer(changes, checkpoints):
    config = {"image": "features", "features": 5, "text": str(checkpoints["bert"]), **changes}
    with pytest.raises(ValueError, match="`checkpointing`: expected a transformers encoder that is trained"):
        DualModel(DualConfig(**config, checkpointing=True))
