"""SAM equals its slow transcription, and chooses the negatives that it documents."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.losses import KendallWindowLoss, SAMLoss, from_name, sam
from tests.losses.factories import batch, batches, untied, value_and_gradient
from tests.reference import kendall_loss

EXACT = {"rtol": 1e-9, "atol": 1e-9}
MINED = ["soft", "hard", "least-similar"]


@pytest.mark.parametrize("sampling", MINED)
@given(batch=batches(), scale=st.sampled_from([1.0, 10.0]))
@settings(max_examples=25, deadline=None)
def test_value_and_gradient(sampling, batch, scale):
    similarity, relevance, image_ids = batch
    similarity, phi = untied(similarity), relevance * scale
    loss = SAMLoss(sampling=sampling, temperature=3.0, reduction="sum")
    value, gradient = value_and_gradient(loss, similarity, phi, image_ids=image_ids)
    expected, slope = value_and_gradient(
        kendall_loss.sam, similarity, phi, image_ids, sampling=sampling, temperature=3.0
    )
    torch.testing.assert_close(value, expected, **EXACT)
    torch.testing.assert_close(gradient, slope, **EXACT)


@pytest.mark.parametrize("sampling", MINED)
@given(batch=batches())
@settings(max_examples=40, deadline=None)
def test_ties_take_the_lower_index_first(sampling, batch):
    """In value and gradient of the adaptive part: labels of equally similar negatives differ, so the choice matters."""
    similarity, relevance, image_ids = batch
    similarity = similarity.round() + 0.1 * torch.eye(len(similarity), dtype=torch.float64)
    phi = relevance * 9.7  # no hinge is exactly 0, where the slope is not unique
    loss = SAMLoss(sampling=sampling, temperature=13.1, weight=2.0, reduction="sum")
    value, gradient = value_and_gradient(lambda s: loss.terms(s, phi, image_ids=image_ids)["continuous"], similarity)
    expected, slope = value_and_gradient(kendall_loss.sam_margins, similarity, phi, image_ids, 13.1, sampling, 2.0)
    torch.testing.assert_close(value, expected, **EXACT)
    torch.testing.assert_close(gradient, slope, **EXACT)


def chosen(sampling, scores, negatives=None):
    scores = torch.tensor(scores)
    allowed = torch.ones_like(scores, dtype=torch.bool) if negatives is None else torch.tensor(negatives).bool()
    return sam._choose(scores, allowed, sampling)[:, 0].tolist()


def test_each_sampling_takes_its_negative():
    scores = [[0.9, 0.1, 0.7, 0.5], [0.3, 0.3, 0.3, 0.3], [-0.2, -0.4, -0.4, -0.2]]
    assert chosen("hard", scores) == [0, 0, 0]
    assert chosen("soft", scores) == [2, 1, 3]
    assert chosen("least-similar", scores) == [1, 0, 1]


def test_only_negatives_are_candidates():
    scores = [[0.9, 0.1, 0.7, 0.5]] * 3
    negatives = [[0, 1, 1, 1], [0, 0, 0, 1], [1, 0, 0, 1]]  # the second row has a single one
    assert chosen("hard", scores, negatives) == [2, 3, 0]
    assert chosen("soft", scores, negatives) == [3, 3, 3]
    assert chosen("least-similar", scores, negatives) == [1, 3, 3]
    assert chosen("random", [[0.0, 0.0, 0.0]], [[0, 0, 1]]) == [2]


def test_the_default_is_the_authors():
    similarity, relevance = batch(9)
    assert SAMLoss().sampling == "soft"
    assert SAMLoss()(similarity, relevance) == SAMLoss(sampling="soft")(similarity, relevance)
    values = {float(SAMLoss(sampling=one)(similarity, relevance)) for one in MINED}
    assert len(values) == 3


@pytest.mark.parametrize("sampling", [*MINED, "random"])
@pytest.mark.parametrize(
    ("size", "image_ids"), [(1, None), (3, [5, 5, 5]), (2, [4, 4])], ids=["one pair", "one image", "two captions"]
)
def test_without_negatives_it_is_zero(sampling, size, image_ids):
    similarity, phi = torch.randn(size, size), torch.rand(size, size) + torch.eye(size)
    ids = None if image_ids is None else torch.tensor(image_ids)
    value, gradient = value_and_gradient(SAMLoss(sampling=sampling), similarity, phi, image_ids=ids)
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("sampling", ["soft", "random", "least-similar"])
def test_a_single_negative_is_taken_by_all(sampling):
    similarity, phi = torch.tensor([[0.4, 0.3], [0.6, 0.5]]), torch.tensor([[8.0, 3.0], [2.0, 9.0]])
    expected = value_and_gradient(SAMLoss(sampling="hard"), similarity, phi)
    found = value_and_gradient(SAMLoss(sampling=sampling), similarity, phi)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("sampling", MINED)
def test_duplicates_are_no_negatives(sampling):
    """Captions 0 and 1 are equal in words: as relevant to both images, though the images differ."""
    similarity, phi = batch(5, dtype=torch.float64)
    phi = phi.double() * 5
    phi[:, 1] = phi[:, 0]
    phi[0, :2] = phi[1, :2] = 5.0
    similarity[0, 1] = similarity[1, 0] = 3.0
    loss = SAMLoss(sampling=sampling, reduction="sum")
    value, gradient = value_and_gradient(loss, similarity, phi)
    expected, slope = value_and_gradient(kendall_loss.sam, similarity, phi, sampling=sampling)
    torch.testing.assert_close(value, expected, **EXACT)
    torch.testing.assert_close(gradient, slope, **EXACT)
    assert gradient[0, 1] == gradient[1, 0] == 0


@pytest.mark.parametrize("sampling", MINED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores(sampling, dtype):
    """Rounded scores tie; the choice and the value are those of the same scores in double precision."""
    similarity, relevance = batch(40)
    similarity = similarity.to(dtype)
    loss = SAMLoss(sampling=sampling, temperature=1.0)
    terms = value_and_gradient(lambda s: loss.terms(s, relevance)["continuous"], similarity)
    wide = value_and_gradient(lambda s: loss.terms(s, relevance.double())["continuous"], similarity.double())
    assert terms[0].dtype == torch.float32
    assert terms[1].dtype == dtype
    torch.testing.assert_close(terms[0].double(), wide[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(terms[1].double(), wide[1], rtol=1e-2, atol=1e-6)


def test_random_draws_from_torchs_generator():
    similarity, relevance = batch(30)
    loss = SAMLoss(sampling="random", temperature=1.0)
    torch.manual_seed(1)
    first = loss(similarity, relevance)
    torch.manual_seed(1)
    assert loss(similarity, relevance) == first
    assert loss(similarity, relevance) != first


def test_random_never_draws_a_positive():
    """Only one negative an anchor is left: whatever is drawn, the loss equals the mined ones."""
    similarity, relevance = batch(4)
    ids = torch.tensor([0, 0, 0, 1])
    values = {float(SAMLoss(sampling="random")(similarity, relevance, image_ids=ids)) for _ in range(20)}
    # Captions 0 to 2 have one negative each; image and caption 3 have three.
    assert len(values) <= 9


def test_hands_its_binary_part_the_pairs_alone():
    """Used to pass on the lowest CIDEr as the lowest label, so that windows were skipped."""
    generator = torch.Generator().manual_seed(0)
    similarity = torch.randn(6, 6, generator=generator)
    phi = (torch.rand(6, 6, generator=generator) + 0.5).fill_diagonal_(3)
    terms = SAMLoss(binary=KendallWindowLoss()).terms(similarity, phi)
    torch.testing.assert_close(terms["binary"], KendallWindowLoss()(similarity, torch.eye(6)))


def test_margin_may_be_negative():
    similarity = torch.zeros(2, 2, dtype=torch.float64)
    phi = torch.tensor([[2.0, 5.0], [1.0, 3.0]], dtype=torch.float64)  # caption 1 fits image 0 better than its own
    terms = SAMLoss(temperature=10.0, weight=1.0, reduction="sum").terms(similarity - 0.1 * torch.eye(2), phi)
    # Hinges of 0.1 + margin: (2 - 5) / 10, (3 - 1) / 10 by image; (2 - 1) / 10, (3 - 5) / 10 by caption.
    assert float(terms["continuous"]) == pytest.approx(0.0 + 0.3 + 0.2 + 0.0)


def test_takes_no_zeros_for_duplicates():
    similarity = torch.randn(3, 3)
    assert SAMLoss().terms(similarity, torch.zeros(3, 3))["binary"] == from_name("triplet-hn")(similarity)


def test_draws_for_each_row_anew():
    torch.manual_seed(0)
    drawn = sam._choose(torch.zeros(50, 50), ~torch.eye(50, dtype=torch.bool), "random")[:, 0]
    assert len(set(drawn.tolist())) > 10
    assert not (drawn == torch.arange(50)).any()
