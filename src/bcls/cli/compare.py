"""``bcls compare``: two models on the same queries."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bcls._core.errors import fail
from bcls.cli.arguments import parse
from bcls.cli.evaluate import models_in_front

ABOUT = (
    "Compares two models on a split: their recalls, the differences with intervals, p-values of a paired test over "
    "images, and on how many queries they disagree. A model is named as for `bcls evaluate`: the folder of a run or of "
    "a saved model, a matrix (images x captions), or a folder with embeddings in images.npy and texts.npy. Two models "
    "stand in front of the flags; behind --a and --b several are averaged."
)


@dataclass(frozen=True)
class CompareSettings:
    """Settings of ``bcls compare``."""

    a: list[str]
    """One model: a run, a saved model, a matrix, or a folder with images.npy and texts.npy; several are averaged."""
    b: list[str]
    """The other model."""
    data: str
    """Folder of the dataset."""
    split: str = "test"
    """Split that the scores are of."""
    features: str | None = None
    """Features of the dataset that a model reads; left out, those of its run, and else pictures."""
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
    settings = parse("compare", ABOUT, CompareSettings, _with_flags(list(arguments)), imports=True)
    # Here, not above: `--help` need not wait for them.
    import numpy as np

    from bcls.data.dataset import open_dataset
    from bcls.evaluation.evaluator import CaptionVectors, compare
    from bcls.evaluation.pages import PairLabels, comparison_page
    from bcls.evaluation.recall import query_ranks
    from bcls.evaluation.scores import is_model, load_similarity
    from bcls.evaluation.tables import as_json, print_comparison
    from bcls.reports.html import check_page, write_page

    check_page(settings.html, settings.queries)
    if settings.labels is not None and settings.html is None:
        fail("--labels", "it with --html", "no --html", "labels stand on the page alone: add --html page.html")
    split = open_dataset(Path(settings.data)).split(settings.split)
    names = [" + ".join(Path(model).name for model in models) for models in (settings.a, settings.b)]
    # One matrix at a time in memory; the page looks at them again, and no model is asked twice.
    with tempfile.TemporaryDirectory(prefix="bcls-scores-", ignore_cleanup_errors=True) as folder:
        scores: list[Callable[[], Any]] = []
        ranks = []
        for flag, models in (("--a", settings.a), ("--b", settings.b)):
            load: Callable[[], Any] = partial(load_similarity, models, split, flag, features=settings.features)
            matrix = load()
            ranks.append(query_ranks(matrix, split.image_of_caption))
            again = settings.html is not None and any(is_model(model) for model in models)
            if again:
                np.save(Path(folder) / flag, matrix)
                load = partial(np.load, Path(folder) / f"{flag}.npy", mmap_mode="r", allow_pickle=False)
            scores.append(load)
            del matrix
        figures = compare(split, *ranks, seed=settings.seed)
        if settings.html is not None:
            labels = None
            if settings.labels is not None:
                vectors = CaptionVectors(split, settings.labels).vectors
                labels = PairLabels(settings.labels, vectors, split.image_of_caption)
            page = comparison_page(names, split, scores, ranks, figures, labels=labels, count=settings.queries)
            write_page(settings.html, page)
    if settings.json:
        about = {"a": names[0], "b": names[1], "dataset": split.name, "split": settings.split}
        sizes = {"images": len(split.images), "captions": len(split.captions)}
        print(as_json({**about, **sizes, **figures}))
    else:
        title = f"A: {names[0]}, B: {names[1]}, on {split.name}, {settings.split}: {len(split.images):,} images"
        print_comparison(title, figures)
    return 0


def _with_flags(words: list[str]) -> list[str]:
    """Put the flags in front of two models that stand without them."""
    models = models_in_front(words)
    flags = words[len(models) :]
    if not models:
        return flags
    if any(word.partition("=")[0] in {"--a", "--b"} for word in flags):
        fail("--a", "two models in front of the flags, or behind --a and --b", "both", "leave one of them out")
    if len(models) != 2:
        fail("MODEL", "two models in front of the flags", " ".join(models), "average several behind --a and --b")
    return ["--a", models[0], "--b", models[1], *flags]
