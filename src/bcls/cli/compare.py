"""``bcls compare``: a paired comparison of two models on the same queries."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bcls._core.errors import check_whole, fail, prefix_errors
from bcls.cli.arguments import parse
from bcls.cli.evaluate import check_features, joined_name
from bcls.data.dataset import Dataset, open_dataset
from bcls.reports.html import check_page, write_page


@dataclass(frozen=True)
class CompareSettings:
    """Compare two models on a split: recalls, and their differences with intervals.

    Prints p-values of a paired test over images as well, and the number of queries on which the models disagree.
    MODEL is as for `bcls evaluate`. To average several models on a side, use --a and --b.

    Attributes:
        data: Folder of the dataset.
        models: The two models.
        a: One model or several, whose scores are averaged, instead of MODEL.
        b: The other model.
        split: Split of the dataset.
        features: Features of the dataset that the models read. Default: those of their runs, or images.
        seed: Seed of the tests.
        json: Print one flat JSON object.
        html: Write a page with metrics, ranks and the queries on which the models differ most to this file.
        queries: Queries per direction on the page.
        labels: Text encoder, such as minilm, for labels on the page; with --html.
    """

    data: str
    models: list[str] = field(default_factory=list)
    a: list[str] = field(default_factory=list)
    b: list[str] = field(default_factory=list)
    split: str = "test"
    features: str | None = None
    seed: int = 0
    json: bool = False
    html: str | None = None
    queries: int = 20
    labels: str | None = None


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("compare", CompareSettings, arguments, positional={"models": "MODEL"}, imports=True)
    sides = _check(settings)
    from bcls.evaluation.tables import as_json, comparison_table, disagreement_lines

    check_page(settings.html, settings.queries)
    with prefix_errors("--", ["split"]):
        split = open_dataset(Path(settings.data)).split(settings.split)
    names = [joined_name(models) for models in sides.values()]
    if names[0] == names[1]:  # such as the checkpoints `best` of two runs
        names = [" + ".join(models) for models in sides.values()]
    metrics = compare_models(split, sides, names, settings)
    if settings.json:
        about = {"a": names[0], "b": names[1], "dataset": split.name, "split": settings.split}
        print(as_json({**about, "images": len(split.images), "captions": len(split.captions), **metrics}))
    else:
        title = f"A: {names[0]}, B: {names[1]}, on {split.name}, {settings.split}: {len(split.images):,} images"
        comparison_table(metrics).print(title)
        print(*disagreement_lines(metrics), sep="\n")
    return 0


def compare_models(
    split: Dataset, sides: Mapping[str, list[str]], names: Sequence[str], settings: CompareSettings
) -> dict[str, float]:
    """Compare two models on a split, and write the page if there is one in the settings.

    Args:
        split: The split.
        sides: Models of each side, by the flag that error messages name.
        names: Name of each side on the page.
        settings: Features, seed, and the options of the page.

    Returns:
        The metrics of :func:`bcls.evaluation.compare`.
    """
    import numpy as np

    from bcls.evaluation.evaluator import CaptionVectors, compare
    from bcls.evaluation.pages import comparison_page
    from bcls.evaluation.recall import query_ranks
    from bcls.evaluation.scores import find_models, is_model, load_similarity

    with prefix_errors("--", ["labels"]):  # before scores are computed
        labels = None if settings.labels is None else CaptionVectors(split, settings.labels)
    for flag, models in sides.items():
        find_models(models, flag)
    # One matrix at a time is in memory. The page reads the matrices again; those of models are kept in a file for it.
    with tempfile.TemporaryDirectory(prefix="bcls-scores-", ignore_cleanup_errors=True) as folder:
        scores: list[Callable[[], Any]] = []
        ranks = []
        for flag, models in sides.items():
            load: Callable[[], Any] = partial(load_similarity, models, split, flag, features=settings.features)
            matrix = load()
            ranks.append(query_ranks(matrix, split.image_of_caption))
            if settings.html is not None and any(is_model(model) for model in models):
                np.save(Path(folder) / flag, matrix)
                load = partial(np.load, Path(folder) / f"{flag}.npy", mmap_mode="r", allow_pickle=False)
            scores.append(load)
            del matrix
        metrics = compare(split, *ranks, seed=settings.seed)
        if settings.html is not None:
            with prefix_errors("--", ["labels"]):
                page = comparison_page(names, split, scores, ranks, metrics, labels=labels, count=settings.queries)
            write_page(settings.html, page)
    return metrics


def _check(settings: CompareSettings) -> dict[str, list[str]]:
    """Check combinations of settings; return the models of each side."""
    if settings.labels is not None and settings.html is None:
        fail("--labels", "--html with it", "no --html", "labels are shown on the page only: add --html page.html")
    check_whole("--seed", settings.seed, least=0)
    if settings.features is not None:
        check_features([*settings.models, *settings.a, *settings.b])
    if settings.models and (settings.a or settings.b):
        fail("--a", "two models as arguments, or --a and --b", "both", "use one of them")
    if settings.models:
        if len(settings.models) != 2:
            fail("MODEL", "two models", " ".join(settings.models), "to average several on a side, use --a and --b")
        return {"--a": [settings.models[0]], "--b": [settings.models[1]]}
    for flag, models in (("--a", settings.a), ("--b", settings.b)):
        if not models:
            fail(flag, "a model", "none", "for example `bcls compare run-a run-b --data DIR`")
    return {"--a": settings.a, "--b": settings.b}
