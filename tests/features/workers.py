"""Workers that the tests send to other processes."""

import os

import numpy as np
import torch


class Draw:
    """Draws a random row for each word of a block, seeded by its length."""

    def __init__(self, width):
        self.width = width
        self.layer = torch.nn.Linear(64, width, bias=False)
        torch.nn.init.normal_(self.layer.weight, generator=torch.Generator().manual_seed(0))

    def __call__(self, block):
        seeds = [torch.Generator().manual_seed(len(word)) for word in block]
        with torch.inference_mode():
            rows = self.layer(torch.stack([torch.randn(64, generator=seed) for seed in seeds]))
        return rows.half().numpy()


def threads_and_process(block):
    return np.array([torch.get_num_threads(), os.getpid()])


def start_threads():
    return threads_and_process


def refuse(block):
    raise ValueError(f"`block`: expected words, got {block!r}; pass words")


def start_refuse():
    return refuse


def start_broken():
    raise FileNotFoundError(2, "no such model", "here")


def die(block):
    os._exit(9)


def start_die():
    return die
