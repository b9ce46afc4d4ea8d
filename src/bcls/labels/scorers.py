"""Scores of image-caption pairs that do not come from vectors: the metrics of image captioning."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_choice
from bcls.labels.cider import Cider
from bcls.labels.encoder import Progress
from bcls.labels.java_metrics import Meteor, Spice


class PairScorer(Protocol):
    """Scores a caption by the captions that an image has."""

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        ...

    def pair_scores(
        self,
        texts: Sequence[str],
        image_of_caption: NDArray[np.int64],
        images: NDArray[np.int64],
        captions: NDArray[np.int64],
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Score pairs (image, caption). All captions of the image are references, the caption itself if it is one.

        Args:
            texts: C captions.
            image_of_caption: ``(C,)`` integers, whose caption each is.
            images: ``(P,)`` the image of each pair, in the numbers of ``image_of_caption``.
            captions: ``(P,)`` the caption of each pair, a place in ``texts``.
            progress: Called now and then with how many pairs are done, and how many there are.

        Returns:
            ``(P,)`` scores; higher is closer.

        Raises:
            ValueError: If a program that the metric needs is missing.
            MissingExtraError: If ``pycocoevalcap`` is not installed.
        """
        ...


_SCORERS: dict[str, Callable[[], PairScorer]] = {"cider": Cider, "meteor": Meteor, "spice": Spice}
#: Names that :func:`load_pair_scorer` knows.
SCORERS = tuple(_SCORERS)


def load_pair_scorer(name: str) -> PairScorer:
    """Load a metric of image captioning: ``"cider"``, ``"meteor"`` or ``"spice"``.

    Raises:
        ValueError: If there is no such metric, or a program that it needs is missing.
        MissingExtraError: If ``pycocoevalcap`` is not installed.

    Example:
        >>> load_pair_scorer("cider").name
        'cider'
    """
    return _SCORERS[check_choice("name", name, SCORERS)]()
