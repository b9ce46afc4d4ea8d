"""The page of one model: its figures, its ranks, and the queries it finds hardest."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from bcls.assess.page.gallery import Gallery
from bcls.assess.page.histogram import histogram
from bcls.assess.page.pair_labels import PairLabels
from bcls.assess.page.queries import DIRECTIONS, hardest, ranking
from bcls.assess.page.shell import FILTER, document, section, table
from bcls.assess.show import DIRECTION_NAMES, figure_rows

if TYPE_CHECKING:
    from bcls.data import Dataset

# Queries of each direction whose answers are in view from the start.
_OPEN = 2


def evaluation_page(
    title: str,
    split: "Dataset",
    similarity: NDArray[Any],
    figures: Mapping[str, float],
    *,
    labels: PairLabels | None = None,
    count: int = 20,
) -> str:
    """Make the page of one model.

    Args:
        title: Plain text.
        split: Images and captions.
        similarity: ``(N, C)`` scores.
        figures: As :func:`bcls.assess.evaluate` gives them.
        labels: Pseudo labels of pairs, shown in brackets and used to tell what is plainly wrong.
        count: Queries of each direction that are shown.

    Returns:
        One HTML file, with small copies of the photos in it.
    """
    from bcls.evaluation import query_ranks

    owner = split.image_of_caption
    ranks = query_ranks(similarity, owner)
    gallery = Gallery(split, labels)
    items = {"i2t": len(split.captions), "t2i": len(split.images)}
    drawn, lists = [], []
    for direction in DIRECTIONS:
        own = getattr(ranks, direction)
        drawn.append(histogram(DIRECTION_NAMES[direction], {"a": own[own > 0]}, items[direction]))
        found = [ranking(similarity, owner, ranks, direction, query) for query in hardest(ranks, direction, count)]
        shown = "".join(
            gallery.query([one], [""], f"rank {one.rank:,}", place < _OPEN) for place, one in enumerate(found)
        )
        lists.append(f"<h3>{DIRECTION_NAMES[direction]}: the {len(found):,} hardest</h3>\n{shown}")
    about = (
        '<p class="prose">The queries whose first correct item ranks worst, worst first: the first 10 captions for an '
        f"image, the first 5 images for a caption. {escape(gallery.pictures.note())}</p>"
    )
    groups = [[list(row) for row in rows] for rows in figure_rows(figures)]
    sections = section("figures", "Figures", table(["figure", *DIRECTION_NAMES.values()], groups))
    sections += section(
        "ranks",
        "Ranks of the first correct item",
        f'<p class="prose">Number and share of queries by the rank of the first correct item, among all items of the '
        f'split.</p><div class="histograms">{"".join(drawn)}</div>',
    )
    sections += section("queries", "Hardest queries", about + gallery.legend() + FILTER + "".join(lists))
    lede = f"{len(split.images):,} images and {len(split.captions):,} captions."
    return document(title, lede, sections)
