"""GPO one item and one dimension at a time, from its description."""

import math

import torch


def positions(length, width=32):
    table = torch.zeros(length, width)
    for position in range(length):
        for pair in range(width // 2):
            angle = position * math.exp(-2 * pair * math.log(10000.0) / width)
            table[position, 2 * pair] = math.sin(angle)
            table[position, 2 * pair + 1] = math.cos(angle)
    return table


def gpo(items, lengths, gru, score):
    """``items`` (N, L, D), a bidirectional ``gru`` (32, 32) and a linear ``score`` (32, 1); gives (N, D)."""
    rows = []
    for item, length in zip(items, lengths.tolist(), strict=True):
        states = gru(positions(length)[None])[0][0]
        both = (states[:, :32] + states[:, 32:]) / 2
        weights = torch.softmax(score(both)[:, 0] / 0.1, dim=0)
        columns = []
        for column in item[:length].T:
            ordered = column.sort(descending=True).values
            columns.append(sum(weight * value for weight, value in zip(weights, ordered, strict=True)))
        rows.append(torch.stack(columns))
    return torch.stack(rows)
