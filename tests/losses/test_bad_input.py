"""Bad input raises a ValueError that names the argument; a batch with nothing to learn gives a differentiable zero."""

import pytest
import torch
from torch import nn

from bcls.losses import (
    AdaptiveLadderLoss,
    BCLSLoss,
    InfoNCELoss,
    KendallLoss,
    KendallWindowLoss,
    LadderLoss,
    RecallSurrogateLoss,
    SAMLoss,
    SigmoidLoss,
    SumLoss,
    TripletHardLoss,
    TripletLoss,
    TripletSoftLoss,
    from_name,
)
from bcls.losses._torch import mining
from bcls.losses.base import check_batch
from tests.losses.test_graded import GRADED
from tests.losses.test_modes import NAMES

EYE = torch.eye(3)
#: Losses that compare pairs, so that they are 0 if there is no pair to compare.
PAIRWISE = {
    "triplet", "triplet-hn", "triplet-sn", "kendall", "kendall-sw", "kendall-sw-hs", "bcls", "ladder",
    "ladder-adaptive", "sam", "infonce",
}  # fmt: skip


@pytest.mark.parametrize(
    ("similarity", "says"),
    [
        ([[1.0]], "`similarity`: expected a torch.Tensor, got list"),
        (torch.zeros(3), r"expected a matrix .* got shape \(3,\)"),
        (torch.zeros(2, 3), r"expected a square matrix .* got shape \(2, 3\)"),
        (torch.zeros(0, 0), r"got shape \(0, 0\)"),
        (torch.zeros(3, 3, dtype=torch.int64), "floating point numbers, got .* of torch.int64; convert it with"),
        (EYE.masked_fill(EYE == 1, torch.nan), "`similarity`: expected finite numbers, got nan at row 0, column 0"),
        (torch.tensor([[0.0, 1.0], [-torch.inf, 0.0]]), "got -inf at row 1, column 0"),
    ],
)
@pytest.mark.parametrize("name", ["triplet", "smooth-ap"])
def test_similarity(name, similarity, says):
    with pytest.raises(ValueError, match=says):
        from_name(name)(similarity)


@pytest.mark.parametrize(
    ("relevance", "says"),
    [
        (EYE.tolist(), "`relevance`: expected a torch.Tensor"),
        (torch.zeros(3, 4), r"the shape of `similarity`, \(3, 3\), got \(3, 4\)"),
        (EYE * 1.5, r"`relevance`: expected labels in \[-1, 1\], got values from 0 to 1.5; rescale"),
        (EYE - 1.01, "got values from -1.01"),
        (EYE.masked_fill(EYE == 0, torch.inf), "`relevance`: expected finite numbers, got inf at row 0, column 1"),
        (EYE.long(), "floating point"),
        (torch.eye(3, device="meta"), "`relevance`: expected a tensor on cpu, got one on meta"),
        (None, "`relevance`: expected .* got None; this loss learns from continuous labels"),
    ],
)
@pytest.mark.parametrize("name", ["kendall", "bcls", "ladder", *GRADED])
def test_relevance(name, relevance, says):
    if relevance is None and name in {"smooth-ap", "recall"}:
        pytest.skip("the match alone is enough")
    with pytest.raises(ValueError, match=says):
        from_name(name)(EYE, relevance)


def test_more_than_rounding_is_not_forgiven():
    with pytest.raises(ValueError, match="labels in"):
        BCLSLoss()(EYE, EYE * 1.001)


@pytest.mark.parametrize(("label", "negative"), [(0.9998, True), (0.99995, False)])
def test_labels_next_to_one_are_no_negatives(label, negative):
    similarity = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    relevance = torch.full((2, 2), label).fill_diagonal_(1)
    assert bool(TripletLoss()(similarity, relevance) > 0) is negative


def test_too_many_pairs_for_the_keys():
    huge = torch.zeros(1, 1).expand(65_537, 65_537)
    with pytest.raises(ValueError, match=r"at most 65536 pairs of torch\.float32, got 65537"):
        mining.cell_ranks(huge)
    with pytest.raises(ValueError, match=r"at most 46340 pairs of torch\.float64"):
        mining.cell_ranks(torch.zeros(1, 1, dtype=torch.float64).expand(46_341, 46_341))


def test_rounding_is_forgiven_and_clamped():
    similarity = torch.randn(3, 3)
    relevance = torch.full((3, 3), -1 - 5e-5).fill_diagonal_(1 + 5e-5)
    exact = relevance.clamp(-1, 1)
    assert BCLSLoss()(similarity, relevance) == BCLSLoss()(similarity, exact)


def test_labels_are_checked_in_their_own_precision():
    """Used to round float64 labels to the precision of the scores: one was infinite, one above its edge."""
    with pytest.raises(ValueError, match=r"expected labels in \[-1, 1\], got values from 0 to 1e\+300"):
        KendallLoss()(EYE, EYE.double() * 1e300)
    similarity = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    relevance = torch.tensor([[1.0, -0.9000010192], [1.0, 1.0]], dtype=torch.float64)
    for loss in (KendallWindowLoss(), BCLSLoss()):
        assert float(loss(similarity, relevance)) == pytest.approx(float(loss(similarity.double(), relevance)))


@pytest.mark.parametrize(
    "ids", [torch.arange(4), torch.zeros(3), torch.zeros(3, dtype=torch.bool), torch.eye(3).long()]
)
def test_image_ids(ids):
    with pytest.raises(ValueError, match=r"`image_ids`: expected 3 integers, one for each row"):
        TripletLoss()(EYE, image_ids=ids)


@pytest.mark.parametrize("ids", [["a", "b", "c"], [1, None, 3], [2**70, 1, 2]])
def test_image_ids_that_are_no_numbers(ids):
    with pytest.raises(ValueError, match=r"`image_ids`: expected 3 integers, got \["):
        TripletLoss()(EYE, image_ids=ids)


def test_image_ids_may_be_a_list():
    similarity = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    assert TripletLoss()(similarity, image_ids=[7, 7]) == 0
    assert TripletLoss()(similarity, image_ids=[7, 8]) > 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TripletLoss(margin=-0.1), "`margin`: expected a finite number not below 0, got -0.1"),
        (lambda: TripletHardLoss(margin=float("nan")), "`margin`"),
        (lambda: TripletHardLoss(margin="wide"), "`margin`: .* got 'wide'"),
        (lambda: TripletSoftLoss(gamma=0), "`gamma`: expected a finite number above 0, got 0; the paper uses 50"),
        (lambda: TripletSoftLoss(lse="men"), "`lse`: expected one of 'sum', 'mean', got 'men'; did you mean 'mean'"),
        (lambda: TripletLoss(reduction=7), "`reduction`: expected one of 'mean', 'sum', got 7; choose one"),
        (lambda: KendallLoss(alpha=2.0), "`alpha`: expected a number below 2"),
        (lambda: KendallLoss(alpha=-0.1), "`alpha`"),
        (lambda: KendallLoss(normalize="all"), "`normalize`"),
        (lambda: KendallWindowLoss(beta=-1), "`beta`"),
        (lambda: KendallWindowLoss(beta=1.9), "`beta`: expected at most 2 - alpha = 1.8"),
        (lambda: KendallWindowLoss(beta=0, mining="none"), '`beta`: expected a stride above 0 with mining="none"'),
        (lambda: KendallWindowLoss(mining="none", window_norm="valid"), "`window_norm`"),
        (lambda: KendallWindowLoss(mining="soft"), "`mining`"),
        (lambda: BCLSLoss(weight=-1), "`weight`"),
        (lambda: BCLSLoss(gamma=10, binary=TripletLoss()), "`binary`: expected no gamma, margin or lse besides it"),
        (lambda: BCLSLoss(alpha=0.1, continuous=KendallLoss()), "`continuous`"),
        (lambda: LadderLoss(thresholds=()), "`thresholds`"),
        (lambda: LadderLoss(margins=(0.2,)), "`margins`: expected 2 numbers"),
        (lambda: LadderLoss(weights=(1, 2)), "`weights`: expected 1 number, got"),
        (lambda: LadderLoss(thresholds=0.4), "`thresholds`: expected a sequence of numbers, got 0.4"),
        (lambda: LadderLoss(thresholds=(0.4, "x")), "`thresholds`: .* got 'x'"),
        (lambda: LadderLoss(thresholds=(1.5,)), "`thresholds`: expected at least one threshold, none above 1"),
        (lambda: AdaptiveLadderLoss(levels=(1, 3)), "`levels`: expected a whole number not below 2, got 1"),
        (lambda: AdaptiveLadderLoss(levels=(3, 2)), "`levels`: expected a whole number not below 3, got 2"),
        (lambda: AdaptiveLadderLoss(levels=(2.7, 3.2)), "`levels`: .* got 2.7"),
        (
            lambda: AdaptiveLadderLoss(levels=3),
            "`levels`: expected the smallest and the largest number of levels, got 3",
        ),
        (lambda: AdaptiveLadderLoss(levels=(2, 3, 4)), "`levels`: expected the smallest and the largest .* got"),
        (lambda: SAMLoss(temperature=0), "`temperature`"),
        (lambda: SAMLoss(sampling="mixed"), "`sampling`"),
        (lambda: InfoNCELoss(temperature=-1.0), "`temperature`"),
        (lambda: InfoNCELoss(nn.Parameter(torch.ones(2))), "`temperature`: expected a number or an nn.Parameter with"),
        (lambda: SigmoidLoss(scale=0.0), "`scale`"),
        (lambda: RecallSurrogateLoss(ks=()), r"`ks`: expected at least one number, got \(\)"),
        (lambda: SumLoss({}), "`parts`"),
        (lambda: SumLoss([TripletLoss()]), "`parts`: expected a dict"),
        (lambda: SumLoss({"a.b": TripletLoss()}), "`parts`: expected names without a dot"),
        (lambda: SumLoss({"a": 3}), "`a`: expected a loss, an nn.Module, got 3"),
        (lambda: SumLoss({"a": TripletLoss()}, weights={"a": 1}), "`weights`: expected a sequence of numbers"),
        (lambda: BCLSLoss(binary="triplet"), "`binary`: expected a loss, an nn.Module, got 'triplet'"),
        (lambda: BCLSLoss(binary=TripletLoss(), reduction="sum"), '`binary`: expected a loss with reduction="sum"'),
        (lambda: SAMLoss(binary=TripletLoss(reduction="sum")), '`binary`: expected a loss with reduction="mean"'),
        (
            lambda: SumLoss({"a": TripletLoss(), "b": TripletLoss(reduction="sum")}),
            "`b`: expected a loss with reduction",
        ),
        (lambda: KendallWindowLoss(beta=1e-6), "`beta`: .* beta=0 computes the exact limit"),
        (lambda: TripletSoftLoss(margin=-0.1), "`margin`"),
        (lambda: InfoNCELoss(0.0), "`temperature`"),
        (lambda: InfoNCELoss(torch.ones(())), "`temperature`: .* got a plain tensor; wrap it in nn.Parameter"),
        (lambda: SumLoss({"a": TripletLoss()}, weights=(1, 2)), "`weights`"),
        (lambda: from_name("tripled"), "`name`: expected one of .* got 'tripled'; did you mean 'triplet'"),
        (lambda: from_name(3), "`name`"),
        (
            lambda: from_name("bcls", alfa=0.1),
            r"`alfa`: expected an argument of the loss 'bcls' \('alpha', .* got 'alfa'; did you mean 'alpha'",
        ),
        (lambda: from_name("kendall-sw", mining="hard"), "got 'mining'"),
        (lambda: from_name("infonce+infonce"), "`name`: expected each loss once"),
        (lambda: from_name("infonce+kendall", alpha=0.1), "`alpha`: .* write kendall.alpha"),
        (lambda: from_name("infonce+kendall", tau=0.1), "`tau`: .* write infonce.tau"),
        (lambda: from_name("infonce+kendall", **{"sam.weight": 1}), "`sam.weight`"),
        (
            lambda: from_name("infonce+kendall", **{"kendall.beta": 1}),
            "`kendall.beta`: expected an argument of the loss 'kendall'",
        ),
        (lambda: from_name("sam+kendall"), "`kendall`: expected a loss with `relevance` of any scale, as the"),
        (lambda: from_name("kendall+sam"), r"`sam`: expected a loss with `relevance` in \[-1, 1\], as the whole"),
        (lambda: BCLSLoss(continuous=SAMLoss()), r"`continuous`: expected a loss with `relevance` in \[-1, 1\]"),
        (lambda: SumLoss({1: TripletLoss()}), "`parts`: expected names without a dot, got \\[1\\]"),
        (lambda: from_name("infonce+bcls", **{"infonce.temperature": -1}), "`infonce.temperature`: expected a finite"),
        (lambda: from_name("bcls", **{"bcls.alpha": 0.1, "alpha": 0.3}), "`bcls`: expected each argument once"),
    ],
)
def test_arguments(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(("name", "arguments"), NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_one_pair_is_a_zero_with_a_graph(name, arguments, dtype):
    similarity = torch.zeros(1, 1, dtype=dtype, requires_grad=True)
    value = from_name(name, **arguments)(similarity, torch.ones(1, 1))
    value.backward()
    assert similarity.grad is not None
    if name in PAIRWISE:
        assert value == 0
        assert similarity.grad == 0


@pytest.mark.parametrize(("name", "arguments"), NAMES)
@pytest.mark.parametrize("label", [1.0, 0.3])
def test_all_labels_equal(name, arguments, label):
    """With labels of 1 nothing is a negative; with lower ones only the binary losses find something to learn."""
    similarity = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    relevance = torch.full((5, 5), label)
    terms = from_name(name, **arguments).terms(similarity, relevance)
    sum(terms.values()).backward()
    assert torch.isfinite(similarity.grad).all()
    for key, term in terms.items():
        if name in PAIRWISE and (key == "kendall" or (key == "continuous" and name != "ladder") or label == 1):
            assert term == 0


@pytest.mark.parametrize(("name", "arguments"), NAMES)
def test_one_image_throughout(name, arguments):
    """A batch of captions of one image: the binary losses have no negatives."""
    similarity = torch.randn(4, 4, requires_grad=True)
    relevance = torch.full((4, 4), 0.6).fill_diagonal_(1)
    loss = from_name(name, **arguments)
    terms = loss.terms(similarity, relevance, image_ids=torch.zeros(4, dtype=torch.int64))
    sum(terms.values()).backward()
    assert torch.isfinite(similarity.grad).all()
    assert all(term == 0 for key, term in terms.items() if key in {"triplet", "binary", "infonce"})


def test_values_are_not_read_while_compiling(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.isnan(TripletLoss()(torch.full((2, 2), torch.nan)))


def test_a_tensor_without_numbers_is_refused():
    with pytest.raises(RuntimeError, match="meta"):
        TripletLoss()(torch.zeros(2, 2, device="meta"))


def test_labels_are_bounded_unless_a_loss_says_otherwise():
    with pytest.raises(ValueError, match=r"`relevance`: expected labels in \[-1, 1\], got values from 0 to 2"):
        check_batch(EYE, 2 * EYE)
    assert check_batch(EYE, 2 * EYE, bounded=False).relevance.max() == 2
