"""HTML pages of one or two evaluated models: metrics, histograms of ranks, and a gallery of queries."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

import bcls.evaluation.tables as tables
from bcls.data.dataset import Dataset
from bcls.evaluation.evaluator import CaptionVectors
from bcls.evaluation.inputs import Ids, first_few
from bcls.evaluation.recall import QueryRanks, query_ranks
from bcls.evaluation.tables import DIRECTION_NAMES
from bcls.reports.charts import ChartImage, bar_chart
from bcls.reports.html import embed_image, render_page

Direction: TypeAlias = Literal["i2t", "t2i"]
DIRECTIONS: tuple[Direction, Direction] = ("i2t", "t2i")
#: Number of results that are shown, as in the figures of the paper: captions for an image, images for a caption.
SHOWN = {"i2t": 10, "t2i": 5}
#: A result with a label below this value is marked as wrong.
WRONG = 0.2
#: How the value of each kind of label is written.
_FORMATS = {"pseudo label": "[{:.2f}]", "true relevance": "true {:.2f}"}


class Ranking(NamedTuple):
    """The first results of one model for one query.

    Attributes:
        direction: ``"i2t"`` or ``"t2i"``.
        query: Row of the query image, or column of the query caption.
        rank: Rank of the first correct item, from 1.
        correct: Index of that item.
        items: Indices of the first items.
    """

    direction: Direction
    query: int
    rank: int
    correct: int
    items: tuple[int, ...]


def evaluation_page(
    title: str,
    split: Dataset,
    similarity: NDArray[Any],
    metrics: Mapping[str, float],
    *,
    labels: CaptionVectors | None = None,
    count: int = 20,
) -> str:
    """Render the page of one model: its metrics, its ranks and its hardest queries.

    Args:
        title: Title of the page.
        split: Images and captions.
        similarity: ``(N, C)`` scores.
        metrics: Metrics as :func:`bcls.evaluation.evaluator.evaluate` returns them.
        labels: Caption vectors for pseudo labels, which are shown in brackets and used to mark wrong results.
        count: Number of queries of each direction.

    Returns:
        One HTML file with embedded thumbnails of the photos.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
    """
    owner = split.image_of_caption
    ranks = query_ranks(similarity, owner)
    gallery = _labelled_gallery(split, labels)
    lists = []
    for direction in DIRECTIONS:
        found = [ranking(similarity, owner, ranks, direction, query) for query in hardest(ranks, direction, count)]
        queries = [gallery.query([one], [""], note=f"rank {one.rank:,}", opened=one in found[:2]) for one in found]
        lists.append({"title": f"{DIRECTION_NAMES[direction]}: the {len(found):,} hardest", "queries": queries})
    return render_page(
        "evaluation.html",
        title,
        script="filter.js",
        lede=f"{len(split.images):,} images and {len(split.captions):,} captions.",
        metrics=tables.metric_table(metrics),
        notes=[],
        charts=_rank_charts(split, {"": ranks}),
        gallery=gallery,
        lists=lists,
    )


def comparison_page(
    names: Sequence[str],
    split: Dataset,
    scores: Sequence[Callable[[], NDArray[Any]]],
    ranks: Sequence[QueryRanks],
    metrics: Mapping[str, float],
    *,
    labels: CaptionVectors | None = None,
    count: int = 20,
) -> str:
    """Render the page of two models: their metrics side by side and the queries on which they differ most.

    Args:
        names: Names of the two models.
        split: Images and captions.
        scores: Functions that return the ``(N, C)`` scores of each model. Each is called once, one after the other, so
            that one matrix is in memory at a time.
        ranks: :func:`bcls.evaluation.query_ranks` of each model.
        metrics: Metrics as :func:`bcls.evaluation.evaluator.compare` returns them.
        labels: Caption vectors for pseudo labels, which are shown in brackets and used to mark wrong results.
        count: Number of queries of each direction.

    Returns:
        One HTML file with embedded thumbnails of the photos.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
    """
    a, b = ranks
    chosen = [(direction, query) for direction in DIRECTIONS for query in most_different(a, b, direction, count)]
    rankings: list[list[Ranking]] = []
    for load, own in zip(scores, ranks, strict=True):
        similarity = load()
        rankings.append([ranking(similarity, split.image_of_caption, own, *one) for one in chosen])
        del similarity
    gallery = _labelled_gallery(split, labels)
    lists = []
    for direction in DIRECTIONS:
        pairs = [pair for pair in zip(*rankings, strict=True) if pair[0].direction == direction]
        notes = [f"A {one.rank:,}, B {other.rank:,}" for one, other in pairs]
        queries = [gallery.query(pair, ["A", "B"], note=notes[n], opened=n == 0) for n, pair in enumerate(pairs)]
        better = sum(one.rank < other.rank for one, other in pairs)
        summary = f"A is ahead in {better:,}, B in {len(pairs) - better:,}" if pairs else "all ranks are equal"
        lists.append({"title": f"{DIRECTION_NAMES[direction]}: {summary}", "queries": queries})
    return render_page(
        "evaluation.html",
        "Two models on the same queries",
        script="filter.js",
        lede=f"A: {names[0]}. B: {names[1]}. On {split.name}: {len(split.images):,} images and "
        f"{len(split.captions):,} captions.",
        metrics=tables.comparison_table(metrics),
        notes=tables.disagreement_lines(metrics),
        charts=_rank_charts(split, {"A": a, "B": b}),
        gallery=gallery,
        lists=lists,
    )


class Gallery:
    """Prepares queries and results of a split for the macros ``legend`` and ``query`` of the templates.

    Args:
        split: Images and captions.
        sources: Label of a pair of image and caption, by the name of the label: ``"pseudo label"`` or
            ``"true relevance"``. By the last one, results are marked as wrong. Empty if there are no labels.
        encoder: Name of the text encoder of the pseudo labels, for the legend.
    """

    wrong = WRONG

    def __init__(
        self, split: Dataset, sources: Mapping[str, Callable[[int, int], float | None]], encoder: str = ""
    ) -> None:
        self._split, self._sources, self._owner = split, sources, split.image_of_caption
        self._first_caption = dict(zip(self._owner[::-1].tolist(), split.texts[::-1], strict=True))
        self._image = cache(self._read_image)
        self._read: dict[str, bool] = {}
        self.labels = list(sources)
        origin = f" of the pair, from the captions by {encoder}" if encoder else ""
        self.examples = [(name + origin, _FORMATS[name].format(0.75)) for name in sources]

    def query(
        self,
        rankings: Sequence[Ranking],
        names: Sequence[str],
        *,
        note: str = "",
        notes: Sequence[str] = (),
        classes: Sequence[str] = (),
        opened: bool = True,
    ) -> dict[str, Any]:
        """Prepare one query with the results of one or several models side by side.

        Args:
            rankings: Results of each model, all for the same query.
            names: Name of each model; an empty name is not shown.
            note: Text before the query.
            notes: Text after the name of each model; by default the rank of the first correct item.
            classes: CSS classes of each name.
            opened: Whether the results are visible at first.
        """
        first = rankings[0]
        columns = [
            {
                "name": name,
                "note": notes[place] if notes else f"rank {one.rank:,}",
                "class": classes[place] if classes else "",
                "results": [self._result(one, item, rank) for rank, item in enumerate(one.items, start=1)],
                "later": [] if notes or one.correct in one.items else [self._result(one, one.correct, one.rank)],
            }
            for place, (one, name) in enumerate(zip(rankings, names, strict=True))
        ]
        query: dict[str, Any] = {"direction": first.direction, "note": note, "open": opened, "columns": columns}
        if first.direction == "i2t":
            return query | {"image": self._image(first.query)}
        return query | {"text": self._split.texts[first.query]}

    def missing_photos(self) -> str:
        """Describe which photos could not be read, of those prepared so far; empty if all could be read."""
        missing = [image_id for image_id, found in self._read.items() if not found]
        if not missing:
            return ""
        if len(missing) == len(self._read):
            return "No photo of this dataset could be read, so images are shown by their ids."
        shown = first_few(missing)
        return f"{len(missing)} of {len(self._read)} photos could not be read and are shown by their ids: {shown}."

    def _result(self, ranking: Ranking, item: int, place: int) -> dict[str, Any]:
        image, caption = (ranking.query, item) if ranking.direction == "i2t" else (item, ranking.query)
        labels = {name: source(image, caption) for name, source in self._sources.items()}
        last = labels[self.labels[-1]] if labels else None
        kind = "other"
        if int(self._owner[caption]) == image:
            kind = "truth"
        elif last is not None and last < WRONG:
            kind = "wrong"
        texts = [(name, _FORMATS[name].format(value)) for name, value in labels.items() if value is not None]
        result = {"kind": kind, "place": f"{place:,}", "labels": texts}
        if ranking.direction == "i2t":
            return result | {"text": self._split.texts[caption]}
        return result | {"image": self._image(image)}

    def _read_image(self, image: int) -> dict[str, Any]:
        """Embed a photo, described by its first caption; only its id if it cannot be read."""
        image_id = self._split.image_ids[image]
        try:
            photo = self._split.read_image(image_id)
        except (OSError, ValueError):  # `bcls data check` reports what is wrong with it
            self._read[image_id] = False
            return {"id": image_id}
        self._read[image_id] = True
        return {"id": image_id, **embed_image(photo, self._first_caption.get(image, image_id))}


def _labelled_gallery(split: Dataset, labels: CaptionVectors | None) -> Gallery:
    return Gallery(split, {}) if labels is None else Gallery(split, {"pseudo label": labels.label}, labels.encoder)


def hardest(ranks: QueryRanks, direction: Direction, count: int) -> list[int]:
    """Find the queries whose first correct item has the worst rank, ties to the lower index.

    Images without captions are no queries.

    Example:
        >>> from bcls.evaluation import QueryRanks
        >>> hardest(QueryRanks(np.array([2, 0, 9, 2]), np.array([1])), "i2t", 3)
        [2, 0, 3]
    """
    own: Ids = getattr(ranks, direction)
    queries = np.flatnonzero(own)
    worst: list[int] = queries[np.argsort(-own[queries], kind="stable")][:count].tolist()
    return worst


def most_different(a: QueryRanks, b: QueryRanks, direction: Direction, count: int) -> list[int]:
    """Find the queries with the largest difference between two models' ranks, without those of equal rank.

    Example:
        >>> from bcls.evaluation import QueryRanks
        >>> some = np.array([1])
        >>> most_different(QueryRanks(np.array([2, 5, 9]), some), QueryRanks(np.array([4, 5, 1]), some), "i2t", 3)
        [2, 0]
    """
    gap = np.abs(getattr(a, direction) - getattr(b, direction))
    order = np.argsort(-gap, kind="stable")[:count]
    apart: list[int] = order[gap[order] > 0].tolist()
    return apart


def ranking(
    similarity: NDArray[Any], owner: Ids, ranks: QueryRanks, direction: Direction, query: int, count: int | None = None
) -> Ranking:
    """Return the first items of one query, ties to the lower index.

    Args:
        similarity: ``(N, C)`` scores.
        owner: ``(C,)`` image of each caption.
        ranks: Ranks of the same scores.
        direction: ``"i2t"`` or ``"t2i"``.
        query: An image with captions, or a caption.
        count: Number of items; by default :data:`SHOWN`.
    """
    # As float64, since the negative of an unsigned number wraps around.
    scores = np.asarray(similarity[query] if direction == "i2t" else similarity[:, query], dtype=np.float64)
    own = np.flatnonzero(owner == query) if direction == "i2t" else owner[query : query + 1]
    items = np.argsort(-scores, kind="stable")[: SHOWN[direction] if count is None else count]
    rank = int(getattr(ranks, direction)[query])
    return Ranking(direction, query, rank, int(own[np.argmax(scores[own])]), tuple(items.tolist()))


def bins(most: int) -> list[tuple[int, int]]:
    """Return the first and last rank of each bin of a histogram up to ``most``.

    Example:
        >>> bins(120)
        [(1, 1), (2, 5), (6, 10), (11, 50), (51, 100), (101, 120)]
        >>> bins(1)
        [(1, 1)]
    """
    found, low, factor, last = [], 1, 5, 1
    while low <= most:
        found.append((low, min(last, most)))
        low, last, factor = last + 1, last * factor, 7 - factor
    return found


def rank_histogram(title: str, ranks: Mapping[str, NDArray[Any]], items: int) -> ChartImage:
    """Draw how many queries have their first correct item at which rank, for one or several models.

    Args:
        title: Title of the chart.
        ranks: Ranks from 1 on by the name of the model; 0 stands for an image without captions and is left out.
        items: Number of items that are ranked.
    """
    edges = bins(items)
    labels = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in edges]
    limits = [1, *(high + 1 for _, high in edges)]
    return bar_chart(title, labels, {name: np.histogram(own, limits)[0].tolist() for name, own in ranks.items()})


def _rank_charts(split: Dataset, ranks: Mapping[str, QueryRanks]) -> list[ChartImage]:
    charts = []
    for direction, items in (("i2t", split.captions), ("t2i", split.images)):
        own = {name: getattr(model_ranks, direction) for name, model_ranks in ranks.items()}
        charts.append(rank_histogram(DIRECTION_NAMES[direction], own, len(items)))
    return charts
