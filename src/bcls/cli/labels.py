"""``bcls labels``: embed captions, measure the quality of labels, and suggest the window width alpha."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bcls._core.errors import fail, prefix_errors
from bcls.cli.arguments import Subcommands, parse, run_subcommand
from bcls.data.dataset import open_dataset


@dataclass(frozen=True)
class EmbedSettings:
    """Embed the captions of a dataset and cache the embeddings in its folder. Run again to resume.

    Attributes:
        folder: Folder of the dataset.
        encoder: Text encoder: minilm, wordllama, clip:PATH, a folder or a hub name, or several joined by +.
        precision: float32 or bfloat16.
        engine: local, or ray for a Ray cluster.
        address: Address of a Ray cluster. Default: start a local one.
        workers: Workers on Ray.
        overwrite: Replace embeddings of other captions, another encoder or another precision.
        json: Print JSON.
    """

    folder: str
    encoder: str = "minilm"
    precision: str = "float32"
    engine: str = "local"
    address: str | None = None
    workers: int = 1
    overwrite: bool = False
    json: bool = False


@dataclass(frozen=True)
class QualitySettings:
    """Correlate labels from captions with human ratings.

    The ratings are those of the paper's Table II with --cxc, pairs of captions with --sts, and Flickr8k in
    CLIPScore's protocol with --flickr8k.

    Attributes:
        cxc: CxC's image-caption ratings, sits_val.csv or sits_test.csv, plain or .gz.
        sts: CxC's caption-caption ratings, sts_val.csv or sts_test.csv, plain or .gz.
        captions: Captions for --cxc and --sts: a JSON list of {"caption_id", "image_id", "caption"}, plain or .gz.
        flickr8k: Folder with Flickr8k's ExpertAnnotations.txt, CrowdFlowerAnnotations.txt and dataset_flickr8k.json.
        images: Folder, zip or tar with the photos, for the image-text score of a CLIP model (with --cxc or --flickr8k).
        encoder: Text encoder, cider, meteor or spice, or several separated by commas.
        aggregate: max, mean or paired, or several separated by commas.
        json: Print JSON instead of a table.
    """

    cxc: str | None = None
    sts: str | None = None
    captions: str | None = None
    flickr8k: str | None = None
    images: str | None = None
    encoder: str = "minilm"
    aggregate: str = "max"
    json: bool = False


@dataclass(frozen=True)
class AlphaSettings:
    """Print the standard deviation of similarities between captions of an image, the paper's choice of alpha.

    Attributes:
        folder: Folder of the dataset.
        split: Split of the dataset.
        encoder: Text encoder of the labels.
        plot: Write a histogram to this file, such as alpha.png.
        json: Print JSON instead of a table.
    """

    folder: str
    split: str = "train"
    encoder: str = "minilm"
    plot: str | None = None
    json: bool = False


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    return run_subcommand("labels", "Continuous labels from captions.", SUBCOMMANDS, arguments)


def _embed(arguments: list[str]) -> int:
    settings = parse("labels embed", EmbedSettings, arguments, positional={"folder": "DIR"})
    from bcls.labels.cache import cache_folder, cached_embeddings

    started = time.monotonic()
    options = {key: getattr(settings, key) for key in ("precision", "engine", "address", "workers", "overwrite")}
    with prefix_errors("--", ("encoder", *options)):
        rows = cached_embeddings(open_dataset(Path(settings.folder)), settings.encoder, **options)
    seconds = time.monotonic() - started
    out = cache_folder(Path(settings.folder), settings.encoder)
    if settings.json:
        done = {"encoder": settings.encoder, "precision": settings.precision, "folder": str(out)}
        print(json.dumps(done | {"captions": len(rows), "dimension": rows.shape[1], "seconds": round(seconds, 3)}))
    else:
        print(f"{len(rows):,} embeddings of width {rows.shape[1]} in {out}, {seconds:.1f} s")
    return 0


def _alpha(arguments: list[str]) -> int:
    settings = parse("labels alpha", AlphaSettings, arguments, positional={"folder": "DIR"})
    from bcls.labels.alpha import plot_histogram, suggest_alpha, text_histogram
    from bcls.labels.encoders import check_encoder
    from bcls.reports.charts import check_figure

    check_encoder("--encoder", settings.encoder)
    if settings.plot is not None:
        check_figure("--plot", settings.plot)
    with prefix_errors("--", ("split",)):
        dataset = open_dataset(Path(settings.folder)).split(settings.split)
    spread = suggest_alpha(dataset, settings.encoder)
    if settings.plot is not None:
        plot_histogram(spread, Path(settings.plot), f"{dataset.name}, {settings.split}, {settings.encoder}")
    if settings.json:
        print(json.dumps(asdict(spread)))
        return 0
    pairs = f"{spread.pairs:,} caption pairs of {spread.images:,} images"
    print(f"alpha {spread.alpha:.3f}: standard deviation over {pairs}")
    print(f"mean similarity {spread.mean:.3f}, mean standard deviation per image {spread.per_image:.3f}")
    quantiles = zip((5, 25, 50, 75, 95), spread.quantiles, strict=True)
    print("quantiles " + ", ".join(f"{percent} %: {value:.2f}" for percent, value in quantiles))
    print(text_histogram(spread))
    return 0


def _quality(arguments: list[str]) -> int:
    settings = parse("labels quality", QualitySettings, arguments)
    encoders, aggregates = _split("--encoder", settings.encoder), _split("--aggregate", settings.aggregate)
    from bcls.evaluation.statistics import human_correlation
    from bcls.labels.quality import label_quality, pair_labels

    _check_ratings(settings)
    if settings.images is not None:
        _check_photos(settings, encoders)
    rated = _load_ratings(settings)
    rows: list[dict[str, Any]] = []
    with prefix_errors("--", ("encoder", "aggregate")):  # checks all of them before the first labels are computed
        computed = [pair_labels(rated, encoder, aggregates) for encoder in encoders]
    for encoder, labelled in zip(encoders, computed, strict=True):
        for aggregate, one, labels in labelled:
            rows += label_quality(encoder, aggregate, one, labels)
            # The metrics that CLIPScore reports.
            tau = {"flickr8k-expert": "tau_c", "flickr8k-crowdflower": "tau_b"}.get(one.data)
            if tau is not None:
                metrics = human_correlation(labels, one.ratings, one.groups)
                rows[-1] |= {key: metrics[key] for key in (tau, f"{tau}_low", f"{tau}_high")}
    if settings.json:
        # Equal labels have no correlation, and JSON has no NaN.
        print(json.dumps([{key: None if value != value else value for key, value in row.items()} for row in rows]))
    else:
        _print(rows)
    return 0


def _check_ratings(settings: QualitySettings) -> None:
    from bcls.data.text_files import find_file

    of_coco = settings.cxc or settings.sts
    if not (of_coco or settings.flickr8k):
        fail("--cxc", "this flag, --sts or --flickr8k", "none of them", "name the ratings to compare with")
    if of_coco and not settings.captions:
        fail("--captions", "the captions of CxC's images", "none", "give them as JSON; see docs/labels.md")
    if settings.captions and not of_coco:
        fail("--captions", "--cxc or --sts with it", "neither", "leave it out: the captions are in --flickr8k")
    for flag in ("cxc", "sts", "captions"):
        file = getattr(settings, flag)
        if file and not find_file(Path(file)).is_file():
            fail(f"--{flag}", "a file", f"nothing at {file}", "check the path")


def _check_photos(settings: QualitySettings, encoders: list[str]) -> None:
    from bcls.labels.encoders import CLIP

    if settings.cxc and settings.flickr8k:
        fail("--images", "photos of one dataset", "--cxc and --flickr8k", "run them one after the other")
    if not (settings.cxc or settings.flickr8k):
        fail("--images", "--cxc or --flickr8k with it", "--sts", "leave it out: it rates pairs of captions")
    if not any(name.startswith(CLIP) for name in encoders):
        hint = f"add {CLIP}FOLDER, or leave out --images: other encoders do not read photos"
        fail("--images", "a CLIP model in --encoder", ", ".join(encoders), hint)


def _load_ratings(settings: QualitySettings) -> list[Any]:
    from bcls.labels.quality import load_cxc, load_flickr8k, load_sts

    photos = None if settings.images is None else Path(settings.images)
    rated = []
    if settings.cxc:
        rated.append(load_cxc(Path(settings.cxc), Path(str(settings.captions)), photos))
    if settings.sts:
        rated.append(load_sts(Path(settings.sts), Path(str(settings.captions))))
    if settings.flickr8k:
        rated += load_flickr8k(Path(settings.flickr8k), photos)
    return rated


def _print(rows: list[dict[str, Any]]) -> None:
    from bcls.reports.blocks import Table

    cells = []
    for row in rows:
        pairs = f"{row['pairs']:,} {'all' if row['subset'] == 'all' else 'not its own'}"
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        tau = next((key for key in ("tau_b", "tau_c") if key in row), None)
        kendall = "" if tau is None else f"{tau} {row[tau]:.3f} ({row[f'{tau}_low']:.3f} to {row[f'{tau}_high']:.3f})"
        correlations = (f"{row['pearson']:.3f}", interval, f"{row['spearman']:.3f}", kendall)
        cells.append((row["data"], row["encoder"], row["aggregate"], pairs, *correlations))
    headings = ("ratings", "encoder", "aggregate", "pairs", "Pearson", "interval", "Spearman", "Kendall")
    title = "Correlation of labels with human ratings; 95 % intervals from resampled images"
    Table.of_texts(headings, cells).print(title)


def _split(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        fail(flag, "at least one name", repr(text), "separate several with commas")
    return names


SUBCOMMANDS: Subcommands = {
    "embed": (_embed, "embed DIR", "embed the captions of a dataset and cache the embeddings in its folder"),
    "quality": (_quality, "quality --cxc FILE --captions FILE", "correlate labels with human judgements"),
    "alpha": (_alpha, "alpha DIR", "suggest the window width alpha from the captions of each image"),
}
