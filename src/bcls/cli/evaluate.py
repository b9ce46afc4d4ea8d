"""``bcls evaluate``: retrieval metrics of a model or of saved scores."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bcls._core.errors import check_choice, fail, prefix_errors
from bcls.cli.arguments import parse

#: Settings that are options of :func:`bcls.evaluation.evaluate`.
_OPTIONS = ("folds", "cs", "eccv", "intervals", "hubness", "qbnorm")


@dataclass(frozen=True)
class EvaluateSettings:
    """Compute retrieval metrics of a model on a split.

    MODEL is the folder of a training run or of a saved model, a similarity matrix (images x captions), or a folder
    with embeddings in images.npy and texts.npy. The scores of several models are averaged. Files are .npy, .npz or
    .safetensors; file.npz:key selects an array.

    Attributes:
        data: Folder of the dataset.
        models: Runs, models, similarity matrices, or folders with embeddings.
        split: Split of the dataset.
        similarity: The same as MODEL.
        features: Features of the dataset that the model reads. Default: those of its run, or images.
        images: Image embeddings, with --texts, instead of MODEL.
        texts: Caption embeddings.
        folds: Average over this many consecutive folds of the images; 5 on COCO 5K is the 1K protocol.
        labels: Text encoder, such as minilm: adds tau, nDCG and the coherent score with labels from the captions.
        cs: K of the coherent score, with --labels. Default: 100, or all images of a smaller split.
        eccv: Add the metrics of ECCV Caption, CxC and COCO; for the COCO 5K test split with COCO's ids.
        intervals: Add 95 % intervals of the recalls, from resampled images.
        hubness: Add the hubness of the first 10 results.
        qbnorm: Add recalls after QB-Norm with the test queries as query bank.
        name: Name of the model in the output. Default: the names of the files.
        row: Print one row of a table: markdown or latex.
        json: Print one flat JSON object.
        html: Write a page with metrics, ranks and the hardest queries to this file; --labels adds labels to it.
        queries: Queries per direction on the page.
    """

    data: str
    models: list[str] = field(default_factory=list)
    split: str = "test"
    similarity: list[str] = field(default_factory=list)
    features: str | None = None
    images: str | None = None
    texts: str | None = None
    folds: int = 1
    labels: str | None = None
    cs: int | None = None
    eccv: bool = False
    intervals: bool = False
    hubness: bool = False
    qbnorm: bool = False
    name: str | None = None
    row: str | None = None
    json: bool = False
    html: str | None = None
    queries: int = 20


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("evaluate", EvaluateSettings, arguments, positional={"models": "MODEL"}, imports=True)
    models = _check(settings)
    from bcls.data.dataset import open_dataset
    from bcls.evaluation.evaluator import CaptionVectors, check_options, evaluate
    from bcls.evaluation.pages import evaluation_page
    from bcls.evaluation.scores import load_embeddings, load_similarity
    from bcls.evaluation.tables import as_json, as_row, metric_table
    from bcls.reports.html import check_page, write_page

    check_page(settings.html, settings.queries)
    options = {key: getattr(settings, key) for key in _OPTIONS}
    with prefix_errors("--", (*_OPTIONS, "split", "labels")):  # before scores are computed
        split = open_dataset(Path(settings.data)).split(settings.split)
        captions = None if settings.labels is None else CaptionVectors(split, settings.labels)
        check_options(split, graded=captions is not None, **options)
    if settings.images is not None and settings.texts is not None:
        similarity = load_embeddings(settings.images, settings.texts, split)
    else:
        flag = "MODEL" if settings.models else "--similarity"
        similarity = load_similarity(models, split, flag, features=settings.features)
    with prefix_errors("--", (*_OPTIONS, "labels")):
        metrics = evaluate(split, similarity, captions=captions, **options)
    name = settings.name or joined_name(models or [str(settings.images)])
    title = f"{name} on {split.name}, {settings.split}"
    folds = f", recalls are means of {settings.folds} folds" if settings.folds > 1 else ""
    if settings.html is not None:
        page = evaluation_page(title + folds, split, similarity, metrics, labels=captions, count=settings.queries)
        write_page(settings.html, page)
    sizes = {"images": len(split.images), "captions": len(split.captions)}
    if settings.json:
        print(as_json({"name": name, "dataset": split.name, "split": settings.split, **sizes, **metrics}))
    elif settings.row is not None:
        print(as_row(settings.row, name, metrics))
    else:
        metric_table(metrics).print(f"{title}: {sizes['images']:,} images, {sizes['captions']:,} captions{folds}")
    return 0


def joined_name(models: Sequence[str]) -> str:
    """Name of a model, or of an ensemble, in the output: the names of the files and folders.

    Example:
        >>> joined_name(["runs/sgr/", "saf.npy"])
        'sgr + saf.npy'
    """
    return " + ".join(Path(os.path.abspath(model)).name for model in models)  # the absolute path, for "."


def check_features(models: Sequence[str]) -> None:
    """Check that there is a model that ``--features`` applies to, among models, files and flags of files."""
    from bcls.evaluation.scores import is_model

    if not any(is_model(model) for model in models if not model.startswith("--")):
        hint = "leave it out, the scores are computed already"
        fail("--features", "a model that reads them", " ".join(models), hint)


def _check(settings: EvaluateSettings) -> list[str]:
    """Check combinations of settings; return the models."""
    if settings.models and settings.similarity:
        fail("--similarity", "models as arguments or with this flag", "both", "use one of them")
    models = settings.models or settings.similarity
    embeddings = [flag for flag in ("--images", "--texts") if getattr(settings, flag[2:]) is not None]
    if models and embeddings:
        fail("--similarity", "no --images and --texts with models", embeddings[0], "use one of them")
    if len(embeddings) == 1:
        other = "--texts" if embeddings == ["--images"] else "--images"
        fail(other, "both embeddings", f"{embeddings[0]} only", "give both")
    if not models and not embeddings:
        hint = "name a run, a model or a similarity matrix, or give embeddings with --images and --texts"
        fail("MODEL", "a model or files with scores", "none", hint)
    if settings.features is not None:
        check_features([*models, *embeddings])
    if settings.row is not None:
        check_choice("--row", settings.row, ("markdown", "latex"))
        if settings.json:
            fail("--row", "no --json with it", "both", "use one of them")
    return models
