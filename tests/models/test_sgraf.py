"""SGR and SAF: the blocked scores equal the loop over captions and images in value, gradient and statistics."""

import pytest
import torch

from bcls.models.layers import Padded
from tests.models import factories
from tests.reference import sgraf

WORDS = [4, 2, 5, 4, 1]


def rows(codes):
    lengths = codes.lengths if codes.lengths is not None else [codes.values.shape[1]] * len(codes)
    return [row[: int(length)] for row, length in zip(codes.values, lengths, strict=True)]


def tensors(model):
    return {**dict(model.named_parameters()), **{name: one.clone() for name, one in model.named_buffers()}}


def both(model, images, texts, **arguments):
    """Ours and the loop's, each with scores, gradients of all inputs and parameters, and buffers."""
    steps = getattr(model.config, "steps", None)
    per_region = model.config.regions == 36
    found = []
    p = tensors(model)
    for kind in ("loop", "ours"):
        inputs = [images.values, texts.values, *model.parameters()]
        for one in inputs:
            one.grad = None
        if kind == "ours":
            scores = model.scores(images, texts)
            buffers = dict(model.named_buffers())
        else:
            scores = sgraf.scores(
                p,
                rows(images),
                rows(texts),
                steps=steps,
                smooth=model.config.smooth,
                training=model.training,
                per_region=per_region,
            )
            buffers = p
        weights = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).view_as(scores)
        (scores * weights).sum().backward()
        found.append((scores.detach(), [one.grad for one in inputs], buffers))
    return found


def assert_equal(found, model, tolerance=1e-9):
    (expected, expected_gradients, expected_buffers), (scores, gradients, buffers) = found
    torch.testing.assert_close(scores, expected, rtol=tolerance, atol=tolerance)
    assert scores.std() > 1e-4, "scores that do not differ prove nothing"
    for gradient, one in zip(gradients, expected_gradients, strict=True):
        zeros = torch.zeros(()) if one is None else one
        if gradient is not None or one is not None:
            torch.testing.assert_close(gradient, zeros.expand_as(gradient), rtol=1e-6, atol=tolerance)
    for name, buffer in buffers.items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(buffer, expected_buffers[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_scores_equal_the_loop(name, training):
    model = factories.model(name).double().train(training)
    images = factories.codes(3, 36, [36, 36, 36])
    assert_equal(both(model, Padded(images.values), factories.codes(5, 6, WORDS, seed=3)), model)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "regions"), [("saf", 36), ("sgr", 7)])
def test_images_with_different_numbers_of_regions(name, regions, training):
    model = factories.model(name, regions=regions).double().train(training)
    images = factories.codes(3, 7, [7, 3, 5])
    assert_equal(both(model, images, factories.codes(4, 5, [3, 5, 1, 5], seed=3)), model)


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_padding_does_not_change_scores(name):
    model = factories.model(name, regions=7).double().train()
    images, texts = factories.codes(3, 7, [7, 3, 5]), factories.codes(3, 5, [3, 5, 1], seed=3)
    clean = model.scores(images, texts)
    dirty = [codes.values.detach() + 9.0 * ~codes.mask[..., None] for codes in (images, texts)]
    model = factories.model(name, regions=7).double().train()
    scores = model.scores(Padded(dirty[0], images.lengths), Padded(dirty[1], texts.lengths))
    torch.testing.assert_close(scores, clean)


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_a_score_does_not_depend_on_the_other_items_in_eval_mode(name):
    model = factories.model(name).eval()
    images = factories.regions()
    whole = model.similarity(images, factories.CAPTIONS)
    assert whole.shape == (4, 3)
    assert whole.dtype == torch.float32
    assert ((whole > 0) & (whole < 1)).all()
    for row in range(4):
        for column, caption in enumerate(factories.CAPTIONS):
            alone = model.similarity(images.values[row : row + 1], [caption])
            torch.testing.assert_close(alone[0, 0], whole[row, column], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_similarity_equals_scores_of_codes(name):
    model = factories.model(name, regions=7).eval()
    images = factories.regions(number=7, lengths=[7, 2, 7, 4])
    texts = model.prepare_texts(factories.CAPTIONS)
    with torch.no_grad():
        expected = model.scores(model.image_codes(images), model.text_codes(texts))
    torch.testing.assert_close(model.similarity(images, factories.CAPTIONS), expected)
    assert not model.training


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
@pytest.mark.parametrize("training", [False, True])
def test_a_zero_image_gives_no_nan(name, training):
    model = factories.model(name).train(training)
    torch.nn.init.zeros_((model.sgr if name == "sgraf" else model).fc.bias)
    features = factories.regions().values
    features[0] = 0
    features[1, 3] = 0
    features.requires_grad_()
    codes = model.image_codes(Padded(features))
    scores = model.scores(codes, model.text_codes(model.prepare_texts(factories.CAPTIONS)))
    scores.sum().backward()
    assert scores.isfinite().all()
    assert features.grad.isfinite().all()
    assert all(one.grad.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_one_pair_trains(name):
    model = factories.model(name).train()
    codes = model.image_codes(factories.regions(count=1))
    scores = model.scores(codes, model.text_codes(model.prepare_texts(["a dog"])))
    scores.sum().backward()
    assert all(one.grad.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_empty_inputs_give_empty_scores(name):
    model = factories.model(name)
    assert model.similarity(factories.regions(), []).shape == (4, 0)
    assert model.similarity(factories.regions().values[:0], factories.CAPTIONS).shape == (0, 3)


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_autocast_scores_are_close(name):
    model = factories.model(name).eval()
    exact = model.similarity(factories.regions(), factories.CAPTIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model.similarity(factories.regions(), factories.CAPTIONS)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.02)
    assert (rough - exact).std() < exact.std() / 3
    assert rough.unique().numel() == rough.numel(), "half precision would have made ties"


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_coarse_vectors_are_unit_rows(name):
    model = factories.model(name)
    for vectors in (model.encode_images(factories.regions()), model.encode_texts(factories.CAPTIONS)):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
        assert not vectors.requires_grad
        assert vectors.shape[1] == (12 if name == "sgraf" else 6)


def test_dropout_is_where_the_authors_have_it():
    model = factories.model("saf", dropout=0.4).train()
    torch.manual_seed(0)
    texts = model.prepare_texts(factories.CAPTIONS)
    assert not torch.equal(model.text_codes(texts).values, model.text_codes(texts).values)
    words = model.text_codes(texts)
    assert not torch.equal(model.text_vectors(words), model.text_vectors(words))
    images = factories.regions()
    assert torch.equal(model.image_codes(images).values, model.image_codes(images).values)


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_dropout_on_region_features(name):
    model = factories.model(name, dropout_features=0.3).train()
    images = factories.regions()
    codes = model.image_codes(images).values
    assert not torch.equal(codes, model.image_codes(images).values)
    model.eval()
    plain = factories.model(name).eval()
    plain.load_trained_state(model.trained_state())
    assert torch.equal(model.image_codes(images).values, plain.image_codes(images).values)
    one = model.saf if name == "sgraf" else model
    # Whole features are dropped before the linear layer: without its bias, zero features give zero regions.
    one.train().dropout.p = 0.999
    torch.nn.init.zeros_(one.fc.bias)
    assert (one.image_codes(images).values == 0).all(-1).float().mean() > 0.9
    with pytest.raises(ValueError, match="`dropout_features`: expected a probability below 1"):
        factories.model(name, dropout_features=1.0)


def test_sgraf_is_the_mean_of_its_two():
    sgr, saf = factories.model("sgr", seed=3).eval(), factories.model("saf", seed=4).eval()
    from bcls.models.sgraf import SgrafModel

    both = SgrafModel.of(sgr, saf)
    images = factories.regions()
    mean = (sgr.similarity(images, factories.CAPTIONS) + saf.similarity(images, factories.CAPTIONS)) / 2
    torch.testing.assert_close(both.similarity(images, factories.CAPTIONS), mean)
    assert not both.training
    cosines = both.encode_images(images) @ both.encode_texts(factories.CAPTIONS).T
    apart = [one.encode_images(images) @ one.encode_texts(factories.CAPTIONS).T for one in (sgr, saf)]
    torch.testing.assert_close(cosines, sum(apart) / 2)
    with pytest.raises(ValueError, match="expected an SGR"):
        SgrafModel.of(saf, sgr)
    with pytest.raises(ValueError, match="expected `width` 6, as `sgr`, got 8"):
        SgrafModel.of(sgr, factories.model("saf", width=8))
    with pytest.raises(ValueError, match="vocabulary"):
        SgrafModel.of(sgr, factories.model("saf", vocabulary=None, words=len(factories.VOCABULARY)))


@pytest.mark.parametrize(("name", "rate"), [("sgr", 0.003), ("saf", 0.01), ("sgraf", 0.01)])
def test_small_model_learns_on_a_cpu(name, rate):
    model = factories.model(name, width=32, similarity_width=32).train()
    images = factories.regions(count=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    texts = model.prepare_texts(factories.CAPTIONS)
    for _ in range(60):
        loss = torch.nn.functional.binary_cross_entropy(model.scores(*model(images, texts)), torch.eye(3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5  # the same score for all pairs cannot do better than 0.637


def test_more_than_36_regions_raise_with_a_norm_for_each_region():
    with pytest.raises(ValueError, match="at most 36 regions"):
        factories.model("sgr").similarity(factories.regions(number=40), factories.CAPTIONS)
    assert factories.model("sgr", regions=10).similarity(factories.regions(number=40), factories.CAPTIONS).shape == (
        4,
        3,
    )


def test_every_parameter_gets_a_gradient():
    """Processes that wait for each other's gradients need one of each."""
    for name in ("sgr", "saf", "sgraf"):
        model = factories.model(name).train()
        model.scores(*model(factories.regions(), model.prepare_texts(factories.CAPTIONS))).sum().backward()
        assert [key for key, one in model.named_parameters() if one.grad is None] == []
