"""``bcls compare``: two models on the same queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bcls._checks import fail
from bcls.cli.arguments import parse

ABOUT = (
    "Compares two models on a split: their recalls, the differences with intervals, p-values of a paired test over "
    "images, and on how many queries they disagree. A model is named like --similarity of `bcls evaluate`: a matrix "
    "(images x captions) or a folder with embeddings in images.npy and texts.npy; several are averaged."
)


@dataclass(frozen=True)
class CompareSettings:
    """Settings of ``bcls compare``."""

    a: list[str]
    """One model: a matrix, images x captions, or a folder with images.npy and texts.npy; several are averaged."""
    b: list[str]
    """The other model."""
    data: str
    """Folder of the dataset."""
    split: str = "test"
    """Split that the scores are of."""
    seed: int = 0
    """Seed of the tests."""
    json: bool = False
    """Print one flat JSON object."""
    html: str | None = None
    """Also write a page with the figures, the ranks and the queries on which the models disagree most here."""
    queries: int = 20
    """Queries of each direction on the page."""
    labels: str | None = None
    """Text encoder, such as minilm, whose labels stand on the page; with --html."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("compare", ABOUT, CompareSettings, arguments)
    # Here, not above: `--help` need not wait for them.
    from bcls.assess import CaptionVectors, PairLabels, compare, comparison_page, load_similarity
    from bcls.assess.page.file import check_page, write_page
    from bcls.assess.show import as_json, print_comparison
    from bcls.data import open_dataset
    from bcls.evaluation import query_ranks

    check_page(settings.html, settings.queries)
    if settings.labels is not None and settings.html is None:
        fail("--labels", "it with --html", "no --html", "labels stand on the page alone: add --html page.html")
    split = open_dataset(Path(settings.data)).split(settings.split)
    # One matrix at a time: only the ranks are kept.
    scores = [
        partial(load_similarity, models, split, flag) for flag, models in (("--a", settings.a), ("--b", settings.b))
    ]
    ranks = [query_ranks(load(), split.image_of_caption) for load in scores]
    figures = compare(split, *ranks, seed=settings.seed)
    names = [" + ".join(Path(model).name for model in models) for models in (settings.a, settings.b)]
    if settings.html is not None:
        labels = None
        if settings.labels is not None:
            vectors = CaptionVectors(split, settings.labels).vectors
            labels = PairLabels(settings.labels, vectors, split.image_of_caption)
        write_page(
            settings.html, comparison_page(names, split, scores, ranks, figures, labels=labels, count=settings.queries)
        )
    if settings.json:
        about = {"a": names[0], "b": names[1], "dataset": split.name, "split": settings.split}
        sizes = {"images": len(split.images), "captions": len(split.captions)}
        print(as_json({**about, **sizes, **figures}))
    else:
        title = f"A: {names[0]}, B: {names[1]}, on {split.name}, {settings.split}: {len(split.images):,} images"
        print_comparison(title, figures)
    return 0
