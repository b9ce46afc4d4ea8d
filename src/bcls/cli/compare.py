"""``bcls compare``: two models on the same queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bcls.cli.arguments import parse

ABOUT = (
    "Compares two models on a split: their recalls, the differences with intervals, p-values of a paired test over "
    "images, and on how many queries they disagree. Each is given like --similarity of `bcls evaluate`."
)


@dataclass(frozen=True)
class CompareSettings:
    """Settings of ``bcls compare``."""

    a: list[str]
    """Similarity matrices of one model, images x captions; several are averaged."""
    b: list[str]
    """Similarity matrices of the other."""
    data: str
    """Folder of the dataset."""
    split: str = "test"
    """Split that the scores are of."""
    seed: int = 0
    """Seed of the tests."""
    json: bool = False
    """Print one flat JSON object."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("compare", ABOUT, CompareSettings, arguments)
    # Here, not above: `--help` need not wait for them.
    from bcls.assess import compare, load_similarity
    from bcls.assess.show import as_json, print_comparison
    from bcls.data import open_dataset
    from bcls.evaluation import query_ranks

    split = open_dataset(Path(settings.data)).split(settings.split)
    # One matrix at a time: only the ranks are kept.
    ranks = [
        query_ranks(load_similarity(files, split, flag), split.image_of_caption)
        for flag, files in (("--a", settings.a), ("--b", settings.b))
    ]
    figures = compare(split, *ranks, seed=settings.seed)
    names = [" + ".join(Path(file).name for file in files) for files in (settings.a, settings.b)]
    if settings.json:
        about = {"a": names[0], "b": names[1], "dataset": split.name, "split": settings.split}
        sizes = {"images": len(split.images), "captions": len(split.captions)}
        print(as_json({**about, **sizes, **figures}))
    else:
        title = f"A: {names[0]}, B: {names[1]}, on {split.name}, {settings.split}: {len(split.images):,} images"
        print_comparison(title, figures)
    return 0
