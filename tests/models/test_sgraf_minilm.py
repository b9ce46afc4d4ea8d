"""SGR, SAF and SGRAF with the token states of a transformer in place of the GRU."""

import json
import shutil

import pytest
import torch

from bcls._core.extras import minilm_folder
from bcls.cli import evaluate
from bcls.models import build, load
from bcls.models.layers import unit
from bcls.models.sgraf import SgrafModel
from bcls.training.train import train
from tests.models import factories
from tests.training.factories import make_data, settings

transformers = pytest.importorskip("transformers")
SMALL = {"text": "minilm", "width": 8, "similarity_width": 4}
TEXTS = ["a dog runs", "Two people eat lunch in a park.", ""]


@pytest.fixture(scope="module")
def saf():
    torch.manual_seed(0)
    return build({"name": "saf", "features": 5, **SMALL})


@pytest.fixture(scope="module")
def sgraf():
    torch.manual_seed(0)
    return build({"name": "sgraf", "features": 5, **SMALL})


def test_words_are_the_token_states_one_caption_at_a_time(saf):
    encoder = transformers.AutoModel.from_pretrained(minilm_folder()).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    torch.nn.init.normal_(saf.reader.fc.bias)
    with torch.no_grad():
        codes = saf.eval().text_codes(saf.prepare_texts(TEXTS))
        for row, length, text in zip(codes.values, codes.lengths, TEXTS, strict=True):
            states = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            assert len(states) == length
            torch.testing.assert_close(row[:length], unit(saf.reader.fc(states)), atol=1e-5, rtol=1e-4)
            assert not row[length:].any()


def test_saved_model_has_the_trained_encoder(saf, tmp_path):
    images = factories.regions()
    with torch.no_grad():
        saf.reader.encoder.model.embeddings.word_embeddings.weight.mul_(1.1)
    saf.eval().save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.config.text, again.config.words, again.vocabulary) == ("minilm", None, None)
    assert torch.equal(again.similarity(images, TEXTS), saf.similarity(images, TEXTS))
    assert not (tmp_path / "model" / "vocab.json").exists()
    assert saf.similarity(images, []).shape == (4, 0)


def test_a_text_model_from_a_folder_is_saved_with_the_model(tmp_path):
    given = factories.bert(tmp_path / "text")
    small = {**SMALL, "features": 5, "text": str(given)}
    parts = [build({"name": name, **small}).eval() for name in ("sgr", "saf")]
    theirs = transformers.AutoModel.from_pretrained(given).state_dict()["embeddings.word_embeddings.weight"]
    assert all(torch.equal(part.reader.encoder.model.embeddings.word_embeddings.weight, theirs) for part in parts)
    shutil.rmtree(given)
    whole = SgrafModel.of(*parts)
    whole.save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    images, texts = factories.regions(), ["a dog runs", "a cat"]
    expected = sum(part.similarity(images, texts) for part in parts) / 2
    torch.testing.assert_close(whole.similarity(images, texts), expected)
    assert torch.equal(again.similarity(images, texts), whole.similarity(images, texts))


def test_sgraf_has_both_encoders_in_one_group(sgraf):
    groups = sgraf.parameter_groups()
    assert groups.keys() == {"all", "text encoder"}
    both = [*sgraf.sgr.reader.encoder.parameters(), *sgraf.saf.reader.encoder.parameters()]
    assert [id(one) for one in groups["text encoder"]] == [id(one) for one in both]
    assert sorted(id(one) for group in groups.values() for one in group) == sorted(map(id, sgraf.parameters()))
    assert factories.model("sgraf").parameter_groups().keys() == {"all"}


def test_every_parameter_gets_a_gradient_and_dropout_is_inside_the_encoder(sgraf):
    texts = sgraf.train().prepare_texts(TEXTS)
    sgraf.scores(*sgraf(factories.regions(), texts)).sum().backward()
    assert [name for name, one in sgraf.named_parameters() if one.grad is None] == []
    reader = sgraf.sgr.reader
    states = [reader.encoder(texts).values for _ in range(2)]
    assert not torch.equal(*states)
    reader.encoder.eval()
    assert not torch.equal(reader.states(texts), reader.states(texts))
    sgraf.eval()
    assert torch.equal(reader.states(texts), reader.states(texts))


def test_wrong_settings_raise(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"`text`: expected a folder or hub name with a config\.json, got '.*empty'"):
        build({"name": "sgr", "text": str(tmp_path / "empty")})
    with pytest.raises(ValueError, match="`words`: expected none with `text: minilm`, got 9"):
        build({"name": "sgr", "text": "minilm", "words": 9})


def test_a_run_trains_the_encoder_at_its_own_rate_and_is_evaluated(tmp_path, capsys):
    data = make_data(tmp_path / "data", images=12, regions=36)
    rates = {"text encoder": 0.01}
    config = settings(data, tmp_path / "run", model={"name": "saf", **SMALL}, rates=rates, epochs=2, clip=None)
    result = train(config, report=False)
    assert result.epochs == 2
    trained, start = load(tmp_path / "run"), build({"name": "saf", "features": 6, **SMALL})
    name = "encoder.model.encoder.layer.5.output.dense.weight"
    change = (trained.reader.get_parameter(name) - start.reader.get_parameter(name)).abs().max()
    assert 1e-5 < change < 2e-3  # at most 1e-4 a step
    assert evaluate.main([str(tmp_path / "run"), "--data", str(data), "--split", "val", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rsum"] == pytest.approx(result.best["rsum"])
