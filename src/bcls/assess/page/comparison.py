"""The page of two models: their figures side by side, and the queries on which they disagree most."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from bcls.assess.page.gallery import Gallery
from bcls.assess.page.histogram import histogram
from bcls.assess.page.pair_labels import PairLabels
from bcls.assess.page.queries import DIRECTIONS, Ranking, most_different, ranking
from bcls.assess.page.shell import FILTER, document, section, table
from bcls.assess.show import COMPARISON_HEADINGS, DIRECTION_NAMES, comparison_rows, disagreement_lines

if TYPE_CHECKING:
    from bcls.data import Dataset
    from bcls.evaluation import QueryRanks

_OPEN = 1


def comparison_page(
    names: Sequence[str],
    split: "Dataset",
    scores: Sequence[Callable[[], NDArray[Any]]],
    ranks: Sequence["QueryRanks"],
    figures: Mapping[str, float],
    *,
    labels: PairLabels | None = None,
    count: int = 20,
) -> str:
    """Make the page of two models.

    Args:
        names: What the two are called.
        split: Images and captions.
        scores: Functions that give the ``(N, C)`` scores of the two; called once each, one after the other, so that
            one matrix is in memory at a time.
        ranks: :func:`bcls.evaluation.query_ranks` of the two.
        figures: As :func:`bcls.assess.compare` gives them.
        labels: Pseudo labels of pairs, shown in brackets and used to tell what is plainly wrong.
        count: Queries of each direction that are shown.

    Returns:
        One HTML file, with small copies of the photos in it.
    """
    a, b = ranks
    chosen = [(direction, query) for direction in DIRECTIONS for query in most_different(a, b, direction, count)]
    answers: list[list[Ranking]] = []
    for load, own in zip(scores, ranks, strict=True):
        similarity = load()
        answers.append([ranking(similarity, split.image_of_caption, own, *one) for one in chosen])
        del similarity
    gallery = Gallery(split, labels)
    items = {"i2t": len(split.captions), "t2i": len(split.images)}
    drawn, lists = [], []
    for direction in DIRECTIONS:
        both = {key: getattr(own, direction) for key, own in (("a", a), ("b", b))}
        drawn.append(
            histogram(DIRECTION_NAMES[direction], {key: own[own > 0] for key, own in both.items()}, items[direction])
        )
        pairs = [pair for pair in zip(*answers, strict=True) if pair[0].direction == direction]
        shown = "".join(
            gallery.query(pair, ["A", "B"], f"A {pair[0].rank:,}, B {pair[1].rank:,}", place < _OPEN)
            for place, pair in enumerate(pairs)
        )
        ahead = sum(one.rank < other.rank for one, other in pairs)
        told = f"A is ahead in {ahead:,}, B in {len(pairs) - ahead:,}" if pairs else "both rank every query alike"
        lists.append(f"<h3>{DIRECTION_NAMES[direction]}: {told}</h3>\n{shown}")
    keys = (
        f'<span class="{one.lower()}"></span><b>{one} {escape(name)}</b>' for one, name in zip("AB", names, strict=True)
    )
    told = "".join(f"<p>{escape(line)}</p>" for line in disagreement_lines(figures))
    sections = section(
        "figures", "Figures", table(list(COMPARISON_HEADINGS), [[list(row) for row in comparison_rows(figures)]]) + told
    )
    sections += section(
        "ranks",
        "Ranks of the first correct item",
        f'<p class="key">{"".join(keys)}</p><div class="histograms">{"".join(drawn)}</div>',
    )
    about = (
        '<p class="prose">The queries whose first correct items rank furthest apart, by the difference of the two '
        f"ranks, whichever model is ahead. {escape(gallery.pictures.note())}</p>"
    )
    sections += section("queries", "Where they disagree most", about + gallery.legend() + FILTER + "".join(lists))
    lede = f"A: {names[0]}. B: {names[1]}. On {split.name}: {items['t2i']:,} images and {items['i2t']:,} captions."
    return document("Two models on the same queries", lede, sections)
