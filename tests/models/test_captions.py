"""Captions: the GRU without packing equals the packed one and the loop over words; token ids are checked."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.models.base import caption_tokens, vocabulary_size
from bcls.models.layers import Padded, WordReader
from tests.models import factories
from tests.reference import gru, vsepp

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=6)


def captions(lengths, words=9, seed=0):
    numbers = torch.randint(0, words, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return Padded(numbers, torch.tensor(lengths))


def reader(bidirectional):
    torch.manual_seed(0)
    return WordReader(9, 4, 5, bidirectional=bidirectional).double()


def gradients(model, value):
    model.zero_grad()
    (value * torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view_as(value)).sum().backward()
    return [one.grad.clone() for one in model.parameters()]


def packed(model, texts):
    vectors = model.embed(texts.values)
    inputs = torch.nn.utils.rnn.pack_padded_sequence(vectors, texts.lengths, batch_first=True, enforce_sorted=False)
    both = torch.nn.GRU(4, 5, batch_first=True, bidirectional=model.back is not None).double()
    weights = dict(model.ahead.named_parameters())
    if model.back is not None:
        weights |= {f"{name}_reverse": one for name, one in model.back.named_parameters()}
    states, _ = torch.func.functional_call(both, weights, (inputs,))
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
    return padded if model.back is None else (padded[..., :5] + padded[..., 5:]) / 2


@pytest.mark.parametrize("bidirectional", [False, True])
@given(lengths=LENGTHS)
@settings(max_examples=15, deadline=None)
def test_states_equal_packed_ones(bidirectional, lengths):
    model, texts = reader(bidirectional), captions(lengths)
    ours, theirs = model.states(texts), packed(model, texts)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(gradients(model, model.states(texts)), gradients(model, theirs), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_states_equal_the_loop(bidirectional):
    model, texts = reader(bidirectional), captions([3, 1, 5])
    ahead = dict(model.ahead.named_parameters())
    back = dict(model.back.named_parameters()) if bidirectional else None
    states, last = model.states(texts), model.last(texts)
    for row, length in enumerate([3, 1, 5]):
        words = model.embed(texts.values[row, :length])
        expected = gru.read(words, ahead) if back is None else gru.both_ways(words, ahead, back)
        torch.testing.assert_close(states[row, :length], expected)
        assert not states[row, length:].any()
        vector = vsepp.caption(texts.values[row, :length], model.embed.weight, ahead, back)
        torch.testing.assert_close(last[row] / last[row].norm(), vector)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradient_of_the_last_state_equals_the_loop(bidirectional):
    model, texts = reader(bidirectional), captions([3, 1, 5])
    ahead = dict(model.ahead.named_parameters())
    back = dict(model.back.named_parameters()) if bidirectional else None
    loop = torch.stack(
        [vsepp.caption(texts.values[row, :n], model.embed.weight, ahead, back) for row, n in enumerate([3, 1, 5])]
    )
    ours = torch.nn.functional.normalize(model.last(texts))
    for one, other in zip(gradients(model, ours), gradients(model, loop), strict=True):
        torch.testing.assert_close(one, other)


def test_order_of_captions_does_not_matter():
    model, texts = reader(True), captions([2, 6, 1, 4])
    order = torch.tensor([3, 0, 2, 1])
    torch.testing.assert_close(model.states(texts.take(order)), model.states(texts)[order])


def test_without_lengths_every_word_counts():
    model, texts = reader(True), captions([4, 4])
    torch.testing.assert_close(model.states(Padded(texts.values)), model.states(texts))
    torch.testing.assert_close(model.last(Padded(texts.values)), model.last(texts))


def test_gradients_are_deterministic():
    texts = captions([5, 2, 7])
    first, second = (gradients(model, model.states(texts)) for model in (reader(True), reader(True)))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_strings_become_token_ids():
    numbers = caption_tokens(["a dog", "a dog runs ."], factories.VOCABULARY, len(factories.VOCABULARY))
    assert numbers.lengths.tolist() == [4, 6]
    assert numbers.values[0].tolist()[4:] == [0, 0]
    assert len(caption_tokens([], factories.VOCABULARY, len(factories.VOCABULARY))) == 0


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a dog", r"put a single string in \[\]"),
        (["a", 3], "a list of strings"),
        ((torch.tensor([[1, 99]]), torch.tensor([2])), "from 0 to 8, got 99"),
        ((torch.tensor([[1, -1]]), torch.tensor([2])), "from 0 to 8, got -1"),
        ((torch.tensor([[1, 2]]), torch.tensor([3])), "lengths from 1 to 2, got 3"),
        ((torch.tensor([[1, 2]]), torch.tensor([0])), "at least one word"),
        ((torch.tensor([[1.0, 2.0]]), torch.tensor([2])), "integers"),
        ((torch.tensor([1, 2]), torch.tensor([2])), "integers"),
        (Padded(torch.tensor([[1, 2]])), "with lengths None"),
        ((torch.tensor([[1, 2]]), [2]), r"integers \(C, W\) with lengths"),
        (None, "a list of strings"),
        (Path("a"), "a list of strings"),
    ],
)
def test_wrong_texts(texts, message):
    with pytest.raises(ValueError, match=message):
        caption_tokens(texts, factories.VOCABULARY, 9)


def test_strings_need_a_vocabulary():
    with pytest.raises(ValueError, match="build the model with its `vocabulary`"):
        caption_tokens(["a dog"], None, 9)


def test_vocabulary_size():
    size = len(factories.VOCABULARY)
    assert vocabulary_size(None, factories.VOCABULARY) == vocabulary_size(size, factories.VOCABULARY) == size
    assert vocabulary_size(7, None) == 7
    with pytest.raises(ValueError, match=f"`words`: expected {size}, the size of `vocabulary`, got 7"):
        vocabulary_size(7, factories.VOCABULARY)
    with pytest.raises(ValueError, match="set it, or pass a `vocabulary`"):
        vocabulary_size(None, None)


def test_list_of_words_is_not_a_vocabulary():
    with pytest.raises(ValueError, match=r"`vocabulary`: expected a bcls\.data\.Vocabulary, got list; .*build"):
        vocabulary_size(None, ["dog"])
