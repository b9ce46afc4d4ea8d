"""``bcls evaluate``: the figures of a model, from the model itself or from its scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from bcls._core.errors import check_choice, fail
from bcls.cli.arguments import parse

ABOUT = (
    "Computes the figures of a model on a split. A model is the folder of a training run or of a saved model, a "
    "similarity matrix (images x captions), or a folder with embeddings in images.npy and texts.npy; several are "
    "averaged. They stand in front of the flags, or behind --similarity. Files are .npy, .npz or .safetensors; "
    "file.npz:key chooses an array."
)


@dataclass(frozen=True)
class EvaluateSettings:
    """Settings of ``bcls evaluate``."""

    data: str
    """Folder of the dataset."""
    split: str = "test"
    """Split that the scores are of."""
    similarity: list[str] = field(default_factory=list)
    """Runs, models, matrices (images x captions), or folders with images.npy and texts.npy; several are averaged."""
    features: str | None = None
    """Features of the dataset that a model reads; left out, those of its run, and else pictures."""
    images: str | None = None
    """Embeddings of the images, with --texts instead of --similarity."""
    texts: str | None = None
    """Embeddings of the captions."""
    folds: int = 1
    """Average over this many consecutive folds of the images; 5 on COCO 5K is the 1K protocol."""
    labels: str | None = None
    """Text encoder, such as minilm: adds tau, nDCG and the coherent score against labels from captions."""
    cs: int | None = None
    """K of the coherent score, with --labels; 100, or all images of a smaller split."""
    eccv: bool = False
    """Add the figures of ECCV Caption, CxC and COCO; for the COCO 5K test split with COCO's ids."""
    intervals: bool = False
    """Add 95 % intervals of the recalls, by resampling images."""
    hubness: bool = False
    """Add how uneven the first 10 places are."""
    qbnorm: bool = False
    """Add recalls after QB-Norm with the test queries as their own bank, under names of their own."""
    name: str | None = None
    """What the model is called; the files' names when left out."""
    row: str | None = None
    """Print one row of a table, markdown or latex."""
    json: bool = False
    """Print one flat JSON object."""
    html: str | None = None
    """Also write a page with the figures, the ranks and the hardest queries here; --labels adds labels to it."""
    queries: int = 20
    """Queries of each direction on the page."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("evaluate", ABOUT, EvaluateSettings, _with_flag(list(arguments)), imports=True)
    _check(settings)
    # Here, not above: `--help` need not wait for them.
    from bcls.data.dataset import open_dataset
    from bcls.evaluation.evaluator import CaptionVectors, evaluate
    from bcls.evaluation.pages import PairLabels, evaluation_page
    from bcls.evaluation.scores import load_embeddings, load_similarity
    from bcls.evaluation.tables import as_json, as_row, print_metrics
    from bcls.reports.html import check_page, write_page

    check_page(settings.html, settings.queries)
    split = open_dataset(Path(settings.data)).split(settings.split)
    if settings.images is not None and settings.texts is not None:
        similarity = load_embeddings(settings.images, settings.texts, split)
    else:
        similarity = load_similarity(settings.similarity, split, features=settings.features)
    chosen = ("folds", "labels", "cs", "eccv", "intervals", "hubness", "qbnorm")
    captions = None if settings.labels is None else CaptionVectors(split, settings.labels)
    wanted = {key: getattr(settings, key) for key in chosen}
    figures = evaluate(split, similarity, captions=captions, **wanted)
    name = settings.name if settings.name is not None else _name(settings)
    folds = f", mean of {settings.folds} folds" if settings.folds > 1 else ""
    title = f"{name} on {split.name}, {settings.split}"
    if settings.html is not None:
        labels = None
        if captions is not None:
            labels = PairLabels(captions.encoder, captions.vectors, split.image_of_caption)
        write_page(
            settings.html,
            evaluation_page(title + folds, split, similarity, figures, labels=labels, count=settings.queries),
        )
    if settings.json:
        about = {"name": name, "dataset": split.name, "split": settings.split}
        sizes = {"images": len(split.images), "captions": len(split.captions)}
        print(as_json({**about, **sizes, **figures}))
    elif settings.row is not None:
        print(as_row(settings.row, name, figures))
    else:
        count = f"{len(split.images):,} images, {len(split.captions):,} captions"
        print_metrics(f"{title}: {count}{folds}", figures)
    return 0


def models_in_front(words: Sequence[str]) -> list[str]:
    """The words in front of the flags.

    Example:
        >>> models_in_front(["runs/a", "b.npy", "--data", "scenes"])
        ['runs/a', 'b.npy']
    """
    return list(takewhile(lambda word: not word.startswith("-"), words))


def _with_flag(words: list[str]) -> list[str]:
    """Put the flag in front of models that stand without one."""
    models = models_in_front(words)
    if not models:
        return words
    if any(word.partition("=")[0] == "--similarity" for word in words):
        fail("--similarity", "models in front of the flags, or behind this one", "both", "leave one of them out")
    return ["--similarity", *words]


def _check(settings: EvaluateSettings) -> None:
    embeddings = [flag for flag in ("images", "texts") if getattr(settings, flag) is not None]
    if settings.similarity and embeddings:
        fail("--similarity", "it without --images and --texts", f"--{embeddings[0]} as well", "leave one of them out")
    if len(embeddings) == 1:
        other = "texts" if embeddings == ["images"] else "images"
        fail(f"--{other}", "it together with the other embeddings", f"--{embeddings[0]} alone", "give both")
    if not settings.similarity and not embeddings:
        remedy = "name a run, a model or a matrix, or give embeddings by --images and --texts"
        fail("--similarity", "a model or files with scores", "none", remedy)
    if settings.features is not None and embeddings:
        fail("--features", "a model that reads them", f"--{embeddings[0]}", "leave one of them out")
    if settings.row is not None:
        check_choice("--row", settings.row, ("markdown", "latex"))
        if settings.json:
            fail("--row", "it without --json", "both", "leave one of them out")


def _name(settings: EvaluateSettings) -> str:
    files = settings.similarity or [str(settings.images)]
    return " + ".join(Path(file).name for file in files)
