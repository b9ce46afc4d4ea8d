"""Compares the margins that SAM gets from CIDEr and from MiniLM labels: ``python scripts/label_scale.py DIR``.

DIR is a folder of ``bcls data import``. Ten batches of 128 training images with one caption each are drawn. For each
image a table shows the difference between the label of its own caption and that of a negative: all negatives, and the
one whose label is the second highest, which is what a trained model takes for the second most similar.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from bcls.data.dataset import open_dataset
from bcls.labels import load_text_encoder, relevance
from bcls.labels.caption_metrics import CiderD, ptb_tokens

BATCHES, SIZE = 10, 128


def main(folder: str) -> None:
    """Print mean, standard deviation and quantiles of the differences."""
    split = open_dataset(folder).split("train")
    owner = split.image_of_caption
    cider = CiderD([text.split() for text in ptb_tokens("cider", split.texts)], owner)
    draw = np.random.default_rng(0)
    images = draw.permutation(len(split.images))[: BATCHES * SIZE]
    used = np.flatnonzero(np.isin(owner, images))
    vectors = np.zeros((len(owner), 384), np.float32)
    vectors[used] = load_text_encoder("minilm").encode([split.texts[row] for row in used])
    found: dict[tuple[str, str], list[NDArray[np.float32]]] = {}
    other = ~np.eye(SIZE, dtype=bool)
    for batch in images.reshape(BATCHES, SIZE):
        captions = np.array([draw.choice(np.flatnonzero(owner == image)) for image in batch])
        rows = np.flatnonzero(np.isin(owner, batch))
        place = np.argsort(batch)[np.searchsorted(np.sort(batch), owner[rows])]
        labels = {
            "cider": cider(batch, captions),
            "minilm": relevance(vectors[rows], vectors[captions], place, np.arange(SIZE)),
        }
        for name, values in labels.items():
            differences = values.diagonal()[:, None] - values
            found.setdefault((name, "all negatives"), []).append(differences[other])
            for by, order in labels.items():
                second = np.argsort(-np.where(other, order, -np.inf), axis=1, kind="stable")[:, 1]
                kind = f"second highest by {by}"
                found.setdefault((name, kind), []).append(differences[np.arange(SIZE), second])
    for (name, kind), parts in found.items():
        values = np.concatenate(parts)
        low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
        print(f"{name:7} {kind:25} mean {values.mean():.3f} sd {values.std():.3f}", end=" ")
        print(f"quantiles {low:.3f} {middle:.3f} {high:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
