"""How one query and what a model ranks first for it are drawn."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from bcls.assess.page.pair_labels import WRONG, PairLabels
from bcls.assess.page.pictures import Pictures
from bcls.assess.page.queries import SHOWN, Ranking

if TYPE_CHECKING:
    from bcls.data import Dataset

_RIGHT = '<span class="badge"><span aria-hidden="true">✓</span> match</span>'
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
            kind, badge = "truth", _RIGHT
        elif found is not None and found[0] < WRONG:
            kind, badge = "wrong", _FALSE
        label = "" if found is None else f'<span title="pseudo label">[{found[0]:.2f}]</span> '
        about = f'<span class="place">{place:,}</span> {label}{badge}'
        if ranking.direction == "i2t":
            return f'<li class="{kind}"><p>{escape(self._split.texts[caption])}</p><p class="about">{about}</p></li>'
        return f'<li class="{kind}">{self.pictures.html(image)}<p class="about">{about}</p></li>'
