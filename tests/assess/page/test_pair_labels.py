"""Labels of single pairs are those of the whole matrix."""

import numpy as np
import pytest

from bcls.evaluation.pages import PairLabels
from bcls.labels.relevance import relevance


def test_they_are_the_labels_of_the_figures():
    rng = np.random.default_rng(0)
    owner = np.array([0, 0, 1, 1, 1, 2])
    vectors = rng.standard_normal((6, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = relevance(vectors, vectors, owner, caption_image=owner)
    labels = PairLabels("made", vectors, owner)
    for image in range(3):
        assert labels.of(image, [5, 0, 3]) == pytest.approx(expected[image, [5, 0, 3]].tolist(), abs=1e-6)
        assert labels.of(image, np.flatnonzero(owner == image).tolist())[0] == 1.0
    assert labels.of(3, [0]) is None
