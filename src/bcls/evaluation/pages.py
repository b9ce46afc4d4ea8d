"""Where a page goes: looked at before the long work, written after it.

Ranks as a histogram: how many queries find their first correct item at which place.

The pseudo labels of single pairs, for the few that a page shows.

Small copies of the photos, inside the page.

Which queries a page shows, and what a model ranks first for them.

Pages of figures and queries, and the pieces that they are put together from.

How one query and what a model ranks first for it are drawn.

The page of one model: its figures, its ranks, and the queries it finds hardest.

The page of two models: their figures side by side, and the queries on which they disagree most.
"""

import base64
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

import bcls
from bcls._core.errors import check_whole, fail
from bcls._core.files import write_whole
from bcls.evaluation.tables import (
    COMPARISON_HEADINGS,
    DIRECTION_NAMES,
    comparison_rows,
    disagreement_lines,
    metric_rows,
)
from bcls.reports.html import frame

if TYPE_CHECKING:
    from bcls.data.dataset import Dataset
    from bcls.evaluation.recall import QueryRanks


def check_page(html: str | None, queries: int) -> None:
    """Check the flags of a page before anything is computed.

    Raises:
        ValueError: If the file cannot be written there, or the number of queries is none.
    """
    check_whole("--queries", queries, least=1)
    if html is None:
        return
    path = Path(html)
    if not html or path.is_dir():
        fail("--html", "the name of a file", repr(html), "give a file name such as page.html")
    if not path.parent.is_dir():
        fail("--html", "a file in a folder that exists", html, f"make the folder {path.parent} first")


def write_page(html: str, page: str) -> None:
    """Write a page, and say so on standard error."""
    try:
        write_whole(Path(html), page)
    except UnicodeEncodeError:
        fail("--html", "captions in valid Unicode", "half of a surrogate pair", "mend the text of the captions")
    print(f"page: {html}", file=sys.stderr)


# Sizes of the drawing, in units of which a narrow phone has about 340.
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 340, 86, 84, 15, 8


def bins(most: int) -> list[tuple[int, int]]:
    """Give first and last rank of each bin, up to ``most``: 1, 2 to 5, 6 to 10, and on by fives and tens.

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


def histogram(title: str, ranks: Mapping[str, NDArray[Any]], items: int) -> str:
    """Draw the ranks of one model or of several side by side.

    Args:
        title: What is drawn.
        ranks: Ranks from 1 on by the class of their bars; without a query that does not count.
        items: How many items there are to rank.

    Returns:
        An SVG element whose text is readable as it is.
    """
    rows, top = [], 0
    for low, high in bins(items):
        name = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        middle = top + _BAR * len(ranks) / 2
        rows.append(f'<text x="{_LEFT - 8}" y="{middle}" class="bin">{name}</text>')
        for kind, own in ranks.items():
            count = int(np.count_nonzero((own >= low) & (own <= high)))
            share = count / max(1, len(own))
            width = share * (_WIDTH - _LEFT - _RIGHT)
            text = f"{count:,} ({share:.1%})"
            rows.append(
                f'<rect x="{_LEFT}" y="{top}" width="{max(width, 1):.1f}" height="{_BAR - 1}" class="{kind}"/>'
                f'<text x="{_LEFT + width + 6:.1f}" y="{top + _BAR / 2}">{text}</text>'
            )
            top += _BAR
        top += _GAP
    return (
        f'<figure class="histogram"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {top}" role="img" aria-label="{escape(title)}">{"".join(rows)}</svg></figure>'
    )


#: Below this label a result is called plainly wrong.
WRONG = 0.2


class PairLabels:
    """Labels of pairs, from embeddings of all captions.

    Args:
        encoder: Name of the text encoder.
        vectors: ``(C, d)`` its embeddings of the captions.
        owner: ``(C,)`` image of each caption.
    """

    def __init__(self, encoder: str, vectors: NDArray[np.float32], owner: NDArray[np.int64]) -> None:
        self.encoder = encoder
        self._vectors, self._owner = vectors, owner

    def of(self, image: int, captions: Sequence[int]) -> list[float] | None:
        """Compute the labels of an image with captions, 1 for its own; none where nobody wrote about it.

        Example:
            >>> labels = PairLabels("x", np.eye(3, dtype=np.float32), np.array([0, 0, 1]))
            >>> labels.of(0, [1, 2]), labels.of(2, [1])
            ([1.0, 0.0], None)
        """
        from bcls.labels.relevance import relevance

        own = np.flatnonzero(self._owner == image)
        if not own.size:
            return None
        (found,) = relevance(self._vectors[own], self._vectors[list(captions)], np.zeros(len(own), dtype=np.int64))
        labels: list[float] = np.where(self._owner[list(captions)] == image, 1.0, found).tolist()
        return labels


#: Longest side of a small copy, in pixels.
SIDE = 160
_QUALITY = 80


class Pictures:
    """Small copies of the photos of a split, made when asked for; those that cannot be read are remembered.

    Args:
        split: Images and captions.
    """

    def __init__(self, split: "Dataset") -> None:
        self._split = split
        self._made: dict[int, str | None] = {}
        self._first = dict(zip(split.image_of_caption[::-1].tolist(), split.texts[::-1], strict=True))

    def html(self, image: int) -> str:
        """Return the photo as an element, described by its first caption; its id where there is no photo."""
        if image not in self._made:
            self._made[image] = self._make(image)
        return self._made[image] or f'<span class="no-photo">{escape(self._split.image_ids[image])}</span>'

    def note(self) -> str:
        """Say which photos are missing, of those asked for so far; nothing where all are there."""
        missing = [self._split.image_ids[image] for image, made in self._made.items() if made is None]
        if not missing:
            return ""
        if len(missing) == len(self._made):
            return "No photo of this dataset could be read, so that images are shown by their ids."
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        return f"{len(missing)} of {len(self._made)} photos could not be read and are shown by their ids: {shown}."

    def _make(self, image: int) -> str | None:
        image_id = self._split.image_ids[image]
        try:
            picture = self._split.read_image(image_id)
        except (OSError, ValueError):  # what is wrong with single photos is for `bcls data check` to say
            return None
        picture.thumbnail((SIDE, SIDE))
        encoded = io.BytesIO()
        picture.save(encoded, format="JPEG", quality=_QUALITY, optimize=True)
        data = base64.b64encode(encoded.getvalue()).decode()
        width, height = picture.size
        return (
            f'<img src="data:image/jpeg;base64,{data}" alt="{escape(self._first.get(image, image_id))}" '
            f'title="{escape(image_id)}" width="{width}" height="{height}">'
        )


Direction: TypeAlias = Literal["i2t", "t2i"]
DIRECTIONS: tuple[Direction, Direction] = ("i2t", "t2i")
#: How many results are shown, as in the figures of the paper: captions for an image, images for a caption.
SHOWN = {"i2t": 10, "t2i": 5}


@dataclass(frozen=True)
class Ranking:
    """What a model answers to one query."""

    direction: Direction
    """What asks for what: ``"i2t"`` or ``"t2i"``."""
    query: int
    """Row of the image, or column of the caption, that asks."""
    rank: int
    """Rank of the first correct item."""
    correct: int
    """That item."""
    items: tuple[int, ...]
    """The first items."""


def hardest(ranks: "QueryRanks", direction: Direction, count: int) -> list[int]:
    """Find the queries whose first correct item ranks worst; of equals the first, and no image without captions.

    Example:
        >>> from bcls.evaluation import QueryRanks
        >>> hardest(QueryRanks(np.array([2, 0, 9, 2]), np.array([1])), "i2t", 3)
        [2, 0, 3]
    """
    own: NDArray[np.int64] = getattr(ranks, direction)
    asked = np.flatnonzero(own)
    worst: list[int] = asked[np.argsort(-own[asked], kind="stable")][:count].tolist()
    return worst


def most_different(a: "QueryRanks", b: "QueryRanks", direction: Direction, count: int) -> list[int]:
    """Find the queries whose first correct items rank furthest apart in two models; none that rank alike.

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
    similarity: NDArray[Any], owner: NDArray[np.int64], ranks: "QueryRanks", direction: Direction, query: int
) -> Ranking:
    """Read the first items of one query, ties to the lower index.

    Args:
        similarity: ``(N, C)`` scores.
        owner: ``(C,)`` image of each caption.
        ranks: Of the same scores.
        direction: What asks for what.
        query: An image with captions, or a caption.
    """
    # Wide, for the negative of an unsigned number is another number.
    scores = np.asarray(similarity[query] if direction == "i2t" else similarity[:, query], dtype=np.float64)
    own = np.flatnonzero(owner == query) if direction == "i2t" else owner[query : query + 1]
    items = np.argsort(-scores, kind="stable")[: SHOWN[direction]]
    rank = int(getattr(ranks, direction)[query])
    return Ranking(direction, query, rank, int(own[np.argmax(scores[own])]), tuple(items.tolist()))


def document(title: str, lede: str, sections: str) -> str:
    """Put a page together.

    The content security policy names style and script by their hashes (:func:`bcls.reports.html.frame`): even where a
    caption were not escaped, nothing in it could run or load anything.

    Args:
        title: Plain text.
        lede: Plain text under the title.
        sections: HTML.

    Returns:
        The page.
    """
    content = f"""<header>
<h1>{escape(title)}</h1>
<p class="lede">{escape(lede)}</p>
</header>
{sections}
<footer>bcls {escape(bcls.__version__)}</footer>"""
    return frame(title, content, _part("page.css"), _part("page.js"))


def section(name: str, title: str, content: str) -> str:
    """Return a section with a heading; ``content`` is HTML."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>\n{content}\n</section>\n'


def table(headings: list[str], groups: list[list[list[str]]]) -> str:
    """Return a table of plain texts; groups of rows are set apart, and the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in headings)
    bodies = ""
    for rows in groups:
        cells = (
            f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
            for row in rows
        )
        bodies += f"<tbody>{''.join(cells)}</tbody>\n"
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n{bodies}</table></div>'


#: The box that the script makes work; without a script it stays hidden.
FILTER = (
    '<form class="filter" hidden><label for="words">Show queries with</label>'
    '<input id="words" type="search" autocomplete="off" placeholder="words, such as: dog water">'
    '<output for="words"></output></form>'
)


def _part(name: str) -> str:
    return (
        resources.files("bcls.reports").joinpath(f"evaluation{name.removeprefix('page')}").read_text(encoding="utf-8")
    )


_RIGHT_GALLERY = '<span class="badge"><span aria-hidden="true">✓</span> match</span>'
_FALSE = '<span class="badge"><span aria-hidden="true">✗</span> wrong</span>'


class Gallery:
    """Draws queries of a split.

    Args:
        split: Images and captions.
        labels: Of the pairs that are shown; without them none is called wrong.
    """

    def __init__(self, split: "Dataset", labels: PairLabels | None) -> None:
        self._split, self._labels = split, labels
        self._owner = split.image_of_caption
        self.pictures = Pictures(split)

    def legend(self) -> str:
        """Explain marks and brackets."""
        items = [f'<li class="truth">{_RIGHT} ground truth</li>']
        if self._labels is None:
            items.append("<li>without --labels there are no pseudo labels, and nothing is called wrong</li>")
        else:
            encoder = escape(self._labels.encoder)
            items.append(f'<li class="wrong">{_FALSE} plainly wrong: pseudo label below {WRONG}</li>')
            items.append(f"<li><b>[0.75]</b> pseudo label of the pair, from the captions by {encoder}</li>")
        return f'<ul class="legend">{"".join(items)}</ul>'

    def query(self, rankings: Sequence[Ranking], names: Sequence[str], note: str, opened: bool) -> str:
        """Draw one query with the answers of one model or of several side by side.

        Args:
            rankings: Of the models, all of one query.
            names: What the models are called; not shown where there is one.
            note: In front of the query.
            opened: Whether the answers are in view from the start.
        """
        first = rankings[0]
        if first.direction == "i2t":
            image_id = escape(self._split.image_ids[first.query])
            asked = f'<span class="asked">{self.pictures.html(first.query)}</span><span class="id">{image_id}</span>'
        else:
            asked = f"<span>“{escape(self._split.texts[first.query])}”</span>"
        columns = []
        for ranking, name in zip(rankings, names, strict=True):
            heading = f'<h4>{name} <span class="quiet">rank {ranking.rank:,}</span></h4>' if len(names) > 1 else ""
            columns.append(f'<div class="column">{heading}{self._answers(ranking)}</div>')
        return (
            f'<details class="query {first.direction}"{" open" * opened}><summary><span class="note">{note}</span> '
            f'{asked}</summary><div class="columns">{"".join(columns)}</div></details>\n'
        )

    def _answers(self, ranking: Ranking) -> str:
        answers = "".join(self._item(ranking, item, place) for place, item in enumerate(ranking.items, start=1))
        kind = "captions" if ranking.direction == "i2t" else "pictures"
        html = f'<ol class="{kind}">{answers}</ol>'
        if ranking.rank > SHOWN[ranking.direction]:
            found = self._item(ranking, ranking.correct, ranking.rank)
            html += f'<p class="later">The first correct item:</p><ol class="{kind}">{found}</ol>'
        return html

    def _item(self, ranking: Ranking, item: int, place: int) -> str:
        image, caption = (ranking.query, item) if ranking.direction == "i2t" else (item, ranking.query)
        found = None if self._labels is None else self._labels.of(image, [caption])
        kind, badge = "other", ""
        if int(self._owner[caption]) == image:
            kind, badge = "truth", _RIGHT_GALLERY
        elif found is not None and found[0] < WRONG:
            kind, badge = "wrong", _FALSE
        label = "" if found is None else f'<span title="pseudo label">[{found[0]:.2f}]</span> '
        about = f'<span class="place">{place:,}</span> {label}{badge}'
        if ranking.direction == "i2t":
            return f'<li class="{kind}"><p>{escape(self._split.texts[caption])}</p><p class="about">{about}</p></li>'
        return f'<li class="{kind}">{self.pictures.html(image)}<p class="about">{about}</p></li>'


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
        figures: As :func:`bcls.evaluation.evaluator` gives them.
        labels: Pseudo labels of pairs, shown in brackets and used to tell what is plainly wrong.
        count: Queries of each direction that are shown.

    Returns:
        One HTML file, with small copies of the photos in it.
    """
    from bcls.evaluation.recall import query_ranks

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
    groups = [[list(row) for row in rows] for rows in metric_rows(figures)]
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


_OPEN_COMPARISON = 1


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
        figures: As :func:`bcls.evaluation.evaluator` gives them.
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
            gallery.query(pair, ["A", "B"], f"A {pair[0].rank:,}, B {pair[1].rank:,}", place < _OPEN_COMPARISON)
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
