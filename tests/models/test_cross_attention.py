"""Blocks of captions: every caption once, within the memory budget, with the same scores and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.models.cross_attention import (
    MemoryBudget,
    all_pairs,
    caption_blocks,
    image_side,
    memory_budget,
    running_average,
)
from bcls.models.layers import Padded
from tests.models import factories


@given(
    lengths=st.lists(st.integers(1, 40), max_size=60), most=st.integers(1, 200), alignment=st.sampled_from([1, 4, 8])
)
@settings(max_examples=60, deadline=None)
def test_every_caption_once_within_the_budget(lengths, most, alignment):
    blocks = caption_blocks(lengths, most, alignment)
    assert sorted(one for block in blocks for one in block.captions) == list(range(len(lengths)))
    for block in blocks:
        assert block.captions
        assert len(block.captions) == 1 or block.nodes * len(block.captions) <= most
        assert block.nodes % alignment == 0
        assert block.nodes > max(lengths[one] for one in block.captions)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60), alignment=st.sampled_from([1, 8]))
@settings(max_examples=60, deadline=None)
def test_blocks_are_few_and_padding_is_little(lengths, alignment):
    """No more than a single block costs, and no more than a block for each width costs."""
    blocks = caption_blocks(lengths, 10**6, alignment)
    padded = [-(-(one + 1) // alignment) * alignment for one in lengths]
    cost = sum(len(block.captions) * block.nodes for block in blocks) + len(blocks) * sum(padded) / 16
    assert cost <= max(padded) * len(padded) + sum(padded) / 16 + 1e-6
    assert cost <= sum(padded) + len(set(padded)) * sum(padded) / 16 + 1e-6


def test_few_captions_of_another_width_join_a_block_if_launches_cost_more():
    lengths = [12] * 90 + [20] * 20 + [24] * 18
    assert [block.nodes for block in caption_blocks(lengths, 10**6, 8)] == [16, 24, 32]
    assert [block.nodes for block in caption_blocks(lengths, 10**6, 8, 100_000 / 128)] == [16, 32]
    assert [block.nodes for block in caption_blocks(lengths, 10**6, 8, 100_000 / 32)] == [32]


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_no_whole_tensor_is_copied_in_the_backward_pass(name):
    """In-place changes of views would do that; in the hand-written gradient they are not recorded."""
    model = factories.model(name, regions=7).double()
    scores = model.scores(factories.codes(2, 7, [7, 3]), factories.codes(3, 9, [4, 9, 1], seed=3))
    nodes, names = [scores.grad_fn], set()
    for node in nodes:
        names.add(node.name())
        nodes += [one for one, _ in node.next_functions if one is not None and one not in nodes]
    assert not [name for name in names if "CopySlices" in name]


def scored(name, training, budget, monkeypatch):
    if budget is not None:
        monkeypatch.setattr("bcls.models.cross_attention.memory_budget", lambda *_: MemoryBudget(*budget))
    model = factories.model(name, regions=7).double().train(training)
    images, texts = factories.codes(5, 7, [7, 3, 5, 7, 7]), factories.codes(6, 9, [4, 9, 1, 4, 8, 2], seed=3)
    scores = model.scores(images, texts)
    (scores * torch.linspace(-1, 1, 30, dtype=scores.dtype).view(5, 6)).sum().backward()
    gradients = [one.grad for one in (images.values, texts.values, *model.parameters())]
    return scores.detach(), gradients, [one.clone() for one in model.buffers()]


@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("budget", [(1, 10**6), (1, 0), (13, 0), (10**6, 0)])
def test_blocks_and_recomputation_do_not_change_results(name, training, budget, monkeypatch):
    whole = scored(name, training, None, monkeypatch)
    cut = scored(name, training, budget, monkeypatch)
    torch.testing.assert_close(cut, whole)


@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("budget", [(10**6, 10**6), (50, 0)])
def test_cuda_graph_capture_gives_the_same_results(name, training, budget, monkeypatch):
    """Captions by their place, with lengths that the host does not look at."""
    whole = scored(name, training, None, monkeypatch)
    monkeypatch.setattr("bcls.models.cross_attention._is_capturing", lambda _: True)
    monkeypatch.setattr("bcls.models.cross_attention._host_lengths", None)
    torch.testing.assert_close(scored(name, training, budget, monkeypatch), whole)


def test_lengths_that_the_host_knows_are_not_read_from_the_device():
    side = image_side(Padded(torch.randn(2, 5, 3)), torch.randn(2, 3))
    captions = Padded(torch.randn(3, 6, 3), torch.full((3,), -1), host_lengths=[2, 6, 4])
    (numbers,) = all_pairs(
        lambda _, block: (block.mask.sum(1).expand(2, -1),), side, captions, torch.randn(3, 3), width=3
    )
    assert numbers.tolist() == [[3, 7, 5]] * 2  # words, and the whole caption


def test_recomputation_stores_less(monkeypatch):
    """What autograd holds on to between the passes."""
    kept = []
    for budget in (MemoryBudget(40, 10**6), MemoryBudget(40, 0)):
        monkeypatch.setattr("bcls.models.cross_attention.memory_budget", lambda *_, budget=budget: budget)
        model = factories.model("sgr", width=64, features=64).train()
        images, texts = factories.regions(count=6, width=64), model.prepare_texts(factories.CAPTIONS * 3)
        sizes = []
        codes = model(images, texts)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda one, sizes=sizes: (sizes.append(one.numel()), one)[1], id_
        ):
            model.scores(*codes)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def id_(value):
    return value


def test_budgets_are_bounded_and_never_empty():
    for device in ("cpu", "cuda"):
        for width in (1, 1024, 1 << 30):
            budget = memory_budget(torch.device(device), width)
            assert budget.block >= 1
            most = torch.cuda.get_device_properties(0).total_memory // 128 if torch.cuda.is_available() else 0
            assert budget.block * width <= max(1 << 28, most, width)


def test_blocks_hold_no_more_than_the_budget(monkeypatch):
    monkeypatch.setattr("bcls.models.cross_attention.memory_budget", lambda *_: MemoryBudget(100, 10**9))
    sizes = []

    def score(images, captions):
        sizes.append(len(images.regions) * captions.words.shape[0] * captions.words.shape[1])
        return (torch.zeros(len(images.regions), len(captions.words)),)

    side = image_side(Padded(torch.randn(50, 2, 3)), torch.randn(50, 3))
    captions = Padded(torch.randn(20, 8, 3), torch.arange(20) % 8 + 1)
    (scores,) = all_pairs(score, side, captions, torch.randn(20, 3), width=3)
    assert scores.shape == (50, 20)
    assert max(sizes) <= 100
    assert len(sizes) < 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_compiled_blocks_give_the_same_scores(name):
    """Traced whole, without a break; the backend that generates no code shows that."""
    model = factories.model(name).eval()
    images = factories.regions()
    plain = model.similarity(images, factories.CAPTIONS)
    model.head.score_block = torch.compile(model.head.score_block, dynamic=True, fullgraph=True, backend="eager")
    torch.testing.assert_close(model.similarity(images, factories.CAPTIONS), plain)


@given(values=st.lists(st.floats(-3, 3), max_size=9), momentum=st.floats(0.01, 1))
@settings(max_examples=30, deadline=None)
def test_running_average_equals_updates_in_turn(values, momentum):
    expected = 0.7
    for value in values:
        expected = (1 - momentum) * expected + momentum * value
    start = torch.tensor([0.7], dtype=torch.float64)
    done = running_average(start, torch.tensor(values, dtype=torch.float64), momentum)
    torch.testing.assert_close(done, torch.tensor([expected], dtype=torch.float64))
