"""Losses with graded labels against other libraries and published values, and the relations between them."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from bcls.losses import (
    LOSSES,
    InfoNCELoss,
    LambdaLoss,
    ListMLELoss,
    RankNContrastLoss,
    SoftLabelKLLoss,
    XCLRLoss,
    from_name,
    listwise,
)
from tests.losses.factories import batch, batches, untied, value_and_gradient

GRADED = ["csa", "xclr", "cwcl", "sndcg", "listmle", "rnc", "lambda", "smooth-ap", "recall"]
LEARNABLE = [name for name in GRADED if name != "lambda"]


def one_direction(loss, scores, labels):
    """Sum over the anchors in the rows."""
    return loss.anchors(scores, labels, torch.eye(len(scores), dtype=torch.bool)).sum()


@pytest.mark.parametrize(
    ("loss", "scores", "labels", "expected"),
    [
        (LambdaLoss(weighting="none"), [0.5, 0.3, 0.5], [0.5, 0.3, 0.5], 1.1962778568),
        (LambdaLoss(weighting="ndcg2++"), [0.5, 0.3, 0.5], [0.5, 0.3, 0.5], 1.1244146823),
        (ListMLELoss(), [0.5, 0.3], [1.0, 0.0], 0.5981389284),
    ],
)
def test_values_that_allrank_publishes(loss, scores, labels, expected):
    scores, labels = torch.tensor([scores], dtype=torch.float64), torch.tensor([labels], dtype=torch.float64)
    value = loss.anchors(scores, 2 * labels - 1, torch.ones(1, 1, dtype=torch.bool))
    assert value.item() == pytest.approx(expected, abs=2e-7)  # theirs are float32


class Table(nn.Module):
    """A cross encoder for sentence-transformers whose score of query i and document j is an element of a matrix."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def preprocess(self, pairs, **_):
        return {"pairs": torch.tensor([[int(query), int(document)] for query, document in pairs])}

    def forward(self, inputs):
        return {"scores": self.scores[inputs["pairs"][:, 0], inputs["pairs"][:, 1]]}


def inputs_of(size):
    """Queries and lists of documents of :class:`Table`."""
    numbers = [str(number) for number in range(size)]
    return [numbers, [numbers] * size]


def assert_same_as_twin(loss, twin, scores, labels, factor=1.0):
    """Value and gradient of one direction equal those of a loss of sentence-transformers."""
    ours = value_and_gradient(lambda leaf: one_direction(loss, leaf, labels), scores)
    graded = list((1 + labels) / 2)
    theirs = value_and_gradient(lambda leaf: twin(Table(leaf))(inputs_of(len(scores)), graded) * factor, scores)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("weighting", "scheme", "logarithm"),
    [
        ("lambdarank", "LambdaRankScheme", "binary"),
        ("ndcg2++", "NDCGLoss2PPScheme", "binary"),
        ("none", "NoWeightingScheme", "natural"),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_lambda_loss_equals_that_of_sentence_transformers(weighting, scheme, logarithm, tied):
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    scores, labels = batch(12)
    if tied:
        labels = (labels * 5).round() / 5
    ordered = int((labels[:, :, None] > labels[:, None, :]).sum())  # the other library averages over these

    def twin(model):
        return losses.LambdaLoss(
            model, weighting_scheme=getattr(losses, scheme)(), sigma=2.0, reduction_log=logarithm, mini_batch_size=-1
        )

    assert_same_as_twin(LambdaLoss(weighting, sigma=2.0), twin, scores, labels, factor=ordered)


def test_listmle_equals_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    scores, labels = batch(12)
    labels = untied(labels.double() / 2).float()

    def twin(model):
        return losses.ListMLELoss(model, respect_input_order=False, mini_batch_size=-1)

    # The other library averages over the anchors.
    assert_same_as_twin(ListMLELoss(), twin, scores, labels, factor=len(scores))


def test_xclr_equals_listnet_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    scores, labels = batch(12)
    # The other library gets (1 + r) / 2: the softmax at temperature 1 of that is the one of r at temperature 2.
    loss = XCLRLoss(temperature=1.0, label_temperature=2.0)
    assert_same_as_twin(loss, lambda model: losses.ListNetLoss(model, mini_batch_size=-1), scores, labels, factor=12)


def test_infonce_equals_multiple_negatives_ranking_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    images, texts = (nn.functional.normalize(torch.randn(9, 7), dim=1) for _ in range(2))
    twin = losses.MultipleNegativesRankingLoss(
        nn.Identity(), scale=20.0, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    theirs = twin.compute_loss_from_embeddings([images, texts], labels=None)
    torch.testing.assert_close(InfoNCELoss(temperature=0.05)(images @ texts.T), theirs)


def test_smooth_ap_equals_that_of_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    classes = torch.arange(4).repeat_interleave(4)  # that library needs as many classes as elements of each
    points = nn.functional.normalize(torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), dim=1)

    def ours(leaf):
        leaf = nn.functional.normalize(leaf, dim=1)
        return from_name("smooth-ap", temperature=0.1)(leaf @ leaf.T, image_ids=classes)

    theirs = value_and_gradient(lambda leaf: losses.SmoothAPLoss(temperature=0.1)(leaf, classes), points)
    torch.testing.assert_close(value_and_gradient(ours, points), theirs, rtol=1e-4, atol=1e-6)


def test_csa_equals_kl_div_of_torch():
    scores, labels = batch(12, dtype=torch.float64)
    labels = labels.double()
    expected = sum(
        nn.functional.kl_div((s / 0.45).log_softmax(1), r.softmax(1), reduction="batchmean") / 2
        for s, r in ((scores, labels), (scores.T, labels.T))
    )
    torch.testing.assert_close(SoftLabelKLLoss()(scores, labels), expected)


@given(batch=batches(labels="wide"))
@settings(max_examples=25, deadline=None)
def test_rank_n_contrast_is_listmle_divided_by_the_batch_without_ties(batch):
    similarity, relevance, _ = batch
    rnc = value_and_gradient(RankNContrastLoss(temperature=0.3), similarity, relevance)
    listmle = value_and_gradient(ListMLELoss(temperature=0.3), similarity, relevance)
    for one, other in zip(rnc, listmle, strict=True):
        torch.testing.assert_close(one, other / len(similarity), rtol=1e-9, atol=1e-9)


@given(batch=batches())
@settings(max_examples=25, deadline=None)
def test_csa_and_xclr_have_the_same_gradient_at_equal_temperatures(batch):
    similarity, relevance, _ = batch
    arguments = {"temperature": 0.3, "label_temperature": 0.5}
    _, csa = value_and_gradient(SoftLabelKLLoss(**arguments), similarity, relevance)
    _, xclr = value_and_gradient(XCLRLoss(**arguments), similarity, relevance)
    torch.testing.assert_close(csa, xclr, rtol=1e-9, atol=1e-9)


def test_limits_of_the_soft_labels_are_infonce():
    similarity = batch(10, dtype=torch.float64)[0]
    binary = 2 * torch.eye(10, dtype=torch.float64) - 1
    infonce = InfoNCELoss(temperature=0.1)(similarity)
    torch.testing.assert_close(from_name("cwcl", temperature=0.1)(similarity, binary), infonce)
    torch.testing.assert_close(XCLRLoss(0.1, label_temperature=1e-3)(similarity, binary), infonce)


@pytest.mark.parametrize("name", ["sndcg", "smooth-ap", "recall", "lambda"])
def test_a_perfect_order_costs_next_to_nothing(name):
    similarity = 40 * untied(batch(10, dtype=torch.float64)[1].double())
    arguments = {"recall": {"k_temperature": 0.01, "ks": (2,)}, "lambda": {"sigma": 500.0}}.get(name, {})
    labels = (similarity / 41).fill_diagonal_(1)
    similarity.fill_diagonal_(100)
    assert from_name(name, **arguments)(similarity, labels) < 1e-3


@pytest.mark.parametrize("name", ["sndcg", "lambda", "smooth-ap", "recall"])
def test_blocks_change_nothing(name, monkeypatch):
    similarity, relevance = batch(40, dtype=torch.float64)
    loss = from_name(name, **({} if name in ("sndcg", "lambda") else {"threshold": 0.2}))
    whole = value_and_gradient(loss, similarity, relevance)
    monkeypatch.setattr(listwise, "BLOCK", (3 * 40 * 40, 3 * 40 * 40))
    torch.testing.assert_close(value_and_gradient(loss, similarity, relevance), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["smooth-ap", "recall"])
def test_the_fixed_shapes_of_a_cuda_graph_change_nothing(name, monkeypatch):
    similarity, relevance = batch(20, dtype=torch.float64)
    loss = from_name(name, threshold=0.5)
    expected = value_and_gradient(loss, similarity, relevance)
    pairs_of = listwise.pairs_of
    monkeypatch.setattr(listwise, "pairs_of", lambda mask, static: pairs_of(mask, static=True))
    torch.testing.assert_close(value_and_gradient(loss, similarity, relevance), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["listmle", "rnc"])
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_scores_of_any_scale(name, scale):
    """Beyond the range of an exponential of float64 the sums are those of torch."""
    similarity, relevance = batch(12, dtype=torch.float64)
    value, gradient = value_and_gradient(from_name(name), similarity * scale, relevance)
    logits = similarity * scale / from_name(name).temperature
    largest = 2 * 12 * float(logits.max() - logits.min())
    assert 0 < value < largest + 12 * math.log(12)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", GRADED)
def test_finite_gradients_at_extreme_scores(name):
    for scale in (1e-30, 1e4, 1e30):
        similarity, relevance = batch(9)
        value, gradient = value_and_gradient(from_name(name), similarity * scale, relevance)
        assert value.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("label", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("name", GRADED)
def test_equal_labels(name, label):
    """The order of equal labels teaches nothing to the losses over ordered pairs."""
    similarity = batch(6, dtype=torch.float64)[0]
    value, gradient = value_and_gradient(from_name(name), similarity, torch.full((6, 6), label))
    assert value.isfinite()
    assert gradient.isfinite().all()
    if name == "lambda":
        assert value == 0
        assert not gradient.any()


@pytest.mark.parametrize("name", [name for name in GRADED if name not in ("smooth-ap", "recall")])
def test_labels_are_required(name):
    with pytest.raises(ValueError, match=r"`relevance`: expected a \(B, B\) matrix of labels, got None"):
        from_name(name)(torch.eye(3))


@pytest.mark.parametrize("name", ["infonce", *LEARNABLE])
def test_learned_temperature(name):
    loss = from_name(name, learn_temperature=True)
    assert [parameter for parameter, _ in loss.named_parameters()] == ["temperature"]
    similarity, relevance = batch(10)
    fixed = from_name(name)(similarity, relevance)
    torch.testing.assert_close(loss(similarity, relevance), fixed)
    optimizer = torch.optim.SGD(loss.parameters(), lr=1e-4)
    loss(similarity, relevance).backward()
    assert loss.temperature.grad != 0
    optimizer.step()
    assert loss.temperature.grad.isfinite()
    # Outside of its range the parameter is used at the bound, and still gets a gradient that can bring it back.
    low = loss.learnable["temperature"][0]
    with torch.no_grad():
        loss.temperature.fill_(low / 2)
    torch.testing.assert_close(loss(similarity, relevance), from_name(name, temperature=low)(similarity, relevance))
    loss.temperature.grad = None
    loss(similarity, relevance).backward()
    assert loss.temperature.grad is not None


def test_learned_temperatures_have_a_range():
    with pytest.raises(
        ValueError, match=r"`temperature`: expected an initial value in \[0.1, 0.99\], since it is learned"
    ):
        SoftLabelKLLoss(temperature=0.05, learn_temperature=True)
    assert SoftLabelKLLoss(temperature=0.05).temperature == 0.05
    ranges = {name: from_name(name).learnable["temperature"] for name in LEARNABLE}
    assert ranges.pop("csa") == (0.1, 0.99)
    assert ranges.pop("sndcg") == ranges.pop("smooth-ap") == ranges.pop("recall") == (0.001, 1.0)
    assert set(ranges.values()) == {(0.01, 1.0)}
    assert set(GRADED) < set(LOSSES)


def test_sums_with_binary_losses():
    similarity, relevance = batch(8)
    terms = from_name("infonce+csa", weights=(1, 0.6)).terms(similarity, relevance)
    torch.testing.assert_close(terms["csa"], 0.6 * SoftLabelKLLoss()(similarity, relevance))
    assert set(terms) == {"infonce", "csa"}
    assert set(from_name("triplet-sn+listmle").terms(similarity, relevance)) == {"triplet-sn", "listmle"}
