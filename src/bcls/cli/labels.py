"""``bcls labels``: how good labels are."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bcls._checks import check_choice, fail
from bcls.cli.arguments import parse
from bcls.cli.places import places


@dataclass(frozen=True)
class QualitySettings:
    """Settings of ``bcls labels quality``."""

    cxc: str
    """CxC's image-caption judgements, sits_val.csv or sits_test.csv, plain or .gz."""
    captions: str
    """The captions as a JSON list of {"caption_id", "image_id", "caption"}, plain or .gz."""
    encoder: str = "minilm"
    """Text encoder, or several separated by commas."""
    aggregate: str = "max"
    """max, mean or paired, or several separated by commas."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class AlphaSettings:
    """Settings of ``bcls labels alpha``."""

    split: str = "train"
    """Split to look at."""
    encoder: str = "minilm"
    """Text encoder that makes the labels."""
    json: bool = False
    """Print JSON instead of a table."""


USAGE = """usage: bcls labels JOB ...

  quality    agreement of labels with what people say of image-caption pairs (CxC)
  alpha DIR  spread of similarities between captions of one image: how wide a window should be
"""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(USAGE, end="")
        return 0 if arguments else 2
    kinds = {"quality": _quality, "alpha": _alpha}
    return kinds[check_choice("labels", arguments[0], kinds)](arguments[1:])


def _alpha(arguments: Sequence[str]) -> int:
    about = "Prints the standard deviation of similarities between captions of one image, the paper's choice of alpha."
    (folder,), flags = places("labels", arguments, ("DIR",), "labels alpha flickr8k")
    settings = parse("labels alpha DIR", about, AlphaSettings, flags)
    from bcls.data import open_dataset
    from bcls.labels.alpha import suggest_alpha

    spread = suggest_alpha(open_dataset(Path(folder)).split(settings.split), settings.encoder)
    if settings.json:
        print(json.dumps(asdict(spread)))
        return 0
    print(f"alpha {spread.alpha:.3f}: spread over {spread.pairs:,} pairs of captions of {spread.images:,} images")
    print(f"mean similarity {spread.mean:.3f}, spread within an image {spread.per_image:.3f} on average")
    marks = zip((5, 25, 50, 75, 95), spread.quantiles, strict=True)
    print("quantiles " + ", ".join(f"{percent} %: {value:.2f}" for percent, value in marks))
    return 0


def _quality(arguments: Sequence[str]) -> int:
    about = "Correlates labels made from captions with what people said of image-caption pairs: the paper's Table II."
    settings = parse("labels quality", about, QualitySettings, arguments)
    # Here, not above: `--help` need not wait for them.
    from bcls.labels.quality import label_quality

    encoders, aggregates = _several("--encoder", settings.encoder), _several("--aggregate", settings.aggregate)
    rows = label_quality(Path(settings.cxc), Path(settings.captions), encoders, aggregates)
    if settings.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Labels against people (CxC); 95 % interval of Pearson by resampling images")
    for heading in ("encoder", "aggregate", "pairs", "Pearson", "interval", "Spearman"):
        table.add_column(heading, justify="left" if heading in {"encoder", "aggregate"} else "right")
    for row in rows:
        pairs = f"{row.pairs:,} {'all' if row.subset == 'all' else 'not its own'}"
        interval = f"{row.low:.3f} to {row.high:.3f}"
        table.add_row(row.encoder, row.aggregate, pairs, f"{row.pearson:.3f}", interval, f"{row.spearman:.3f}")
    Console().print(table)
    return 0


def _several(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        fail(flag, "at least one name", repr(text), "separate several by commas")
    return names
