"""The GRU of VSE++ and SGRAF, one word after another; autograd gives its gradient."""

import torch


def read(words, layer):
    """States of one caption ``(n, d)``; ``layer`` has torch's names and gate order (reset, update, new)."""
    state = words.new_zeros(layer["weight_hh_l0"].shape[1])
    states = []
    for word in words:
        of_word = layer["weight_ih_l0"] @ word + layer["bias_ih_l0"]
        of_state = layer["weight_hh_l0"] @ state + layer["bias_hh_l0"]
        word_reset, word_update, word_new = of_word.chunk(3)
        state_reset, state_update, state_new = of_state.chunk(3)
        reset = torch.sigmoid(word_reset + state_reset)
        update = torch.sigmoid(word_update + state_update)
        new = torch.tanh(word_new + reset * state_new)
        state = (1 - update) * new + update * state
        states.append(state)
    return torch.stack(states)


def both_ways(words, ahead, back):
    """Mean of the two directions for each word."""
    backwards = read(words.flip(0), back).flip(0)
    return (read(words, ahead) + backwards) / 2
