"""The demo's data: drawn scenes as a dataset folder, MiniLM's vectors of their captions, both kinds of relevance.

One run of the demo: the library's own training loop, then a look at the model of every epoch.

The demo from start to end.

The demo's table on the terminal, and what to do next.
"""

import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional

from bcls import __version__
from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.files import write_whole
from bcls._core.progress import progress
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.records import Caption, FeatureFile, ImageRecord
from bcls.data.synthetic import SceneDataset, make_scenes, render_all, true_relevance
from bcls.data.write import Content, write_dataset
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.experiments.demo_model import Reader, ScenesConfig, ScenesModel
from bcls.experiments.demo_report import Floats, JudgedSplit, write_report
from bcls.experiments.demo_results import FIGURES, LOSSES, DemoSettings, Run, summary
from bcls.labels.cache import cached_embeddings
from bcls.labels.relevance import relevance
from bcls.models.folder import WEIGHTS
from bcls.models.padded import Padded
from bcls.training.config import TrainConfig
from bcls.training.metrics_log import read_metrics
from bcls.training.run_folder import BEST, CHECKPOINTS, EPOCH
from bcls.training.train import train as train_run

#: Side of the pictures that the model sees; large enough for a person to tell a cat from a dog.
SIDE = 64
#: Name of the pictures as an array, which every run reads in place of files.
PIXELS = "pixels"
#: Text encoder of the labels, and of the captions that the model sees.
ENCODER = "minilm"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class DemoData:
    """What every run of the demo works with.

    Attributes:
        dataset: Pictures and captions of all splits.
        reader: Knows the vectors of all captions.
        validation: The validation split, with both kinds of relevance.
        test: The same of the test split.
    """

    dataset: Dataset
    reader: Reader
    validation: JudgedSplit
    test: JudgedSplit


def prepare(settings: DemoSettings, folder: Path) -> DemoData:
    """Draw the scenes into a dataset folder, read their captions with MiniLM and label the pairs that are judged.

    Args:
        settings: How many.
        folder: Where to; new or empty.
    """
    scenes = make_scenes(settings.images, seed=0)
    with progress("drawing scenes", settings.images) as step:
        pixels = render_all(scenes.scenes, size=SIDE, workers=min(2, os.cpu_count() or 1))
        step(settings.images)
    write(folder, scenes, pixels, settings.sizes)
    dataset = open_dataset(folder)
    # Kept as float16, so their lengths are a little off 1.
    kept = torch.from_numpy(np.array(cached_embeddings(dataset, ENCODER), dtype=np.float32))
    vectors = functional.normalize(kept, dim=1)
    train, validate, _ = settings.sizes
    return DemoData(
        dataset=dataset,
        reader=Reader(dict(zip(dataset.texts, vectors, strict=True))),
        validation=_split(scenes, pixels, vectors.numpy(), train, train + validate),
        test=_split(scenes, pixels, vectors.numpy(), train + validate, settings.images),
    )


def write(folder: Path, scenes: SceneDataset, pixels: npt.NDArray[np.uint8], sizes: tuple[int, int, int]) -> None:
    """Write scenes as a dataset folder: captions, PNG files in a zip, and the same pictures as features.

    Args:
        folder: Where to; new or empty.
        scenes: Scenes and captions, in the order of the splits.
        pixels: ``(N, S, S, 3)`` pictures of the scenes.
        sizes: Images to train on, to validate and to test.
    """
    splits = np.repeat(SPLITS, sizes).tolist()
    ids = [f"{number:05d}" for number in range(len(splits))]
    images = tuple(ImageRecord(one, split, f"{one}.png") for one, split in zip(ids, splits, strict=True))
    taken = [0] * len(ids)
    captions = []
    for caption in scenes.captions:
        one = ids[caption.image]
        captions.append(Caption(f"{one}-{taken[caption.image]}", one, caption.text, splits[caption.image]))
        taken[caption.image] += 1
    with tempfile.TemporaryDirectory(prefix="bcls-demo-") as beside:
        files = {}
        for split, part in zip(SPLITS, np.split(pixels, np.cumsum(sizes)[:-1]), strict=True):
            files[split] = FeatureFile(str(Path(beside) / f"{split}.npy"))
            np.save(files[split].path, part.transpose(0, 3, 1, 2))
        pictures = zip((f"{one}.png" for one in ids), _png(pixels), strict=True)
        content = Content("scenes", images, tuple(captions), features={PIXELS: files}, pictures=pictures)
        write_dataset(folder, content, copy=True)


def _png(pixels: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    for picture in pixels:
        encoded = io.BytesIO()
        Image.fromarray(picture).save(encoded, format="PNG")
        yield encoded.getvalue()


def _split(
    scenes: SceneDataset, pixels: npt.NDArray[np.uint8], vectors: npt.NDArray[np.float32], start: int, stop: int
) -> JudgedSplit:
    own = (scenes.image_of_caption >= start) & (scenes.image_of_caption < stop)
    chosen = [scenes.captions[place] for place in np.flatnonzero(own)]
    image_of_caption = scenes.image_of_caption[own] - start
    return JudgedSplit(
        pixels=pixels[start:stop],
        texts=[caption.text for caption in chosen],
        image_of_caption=image_of_caption,
        pseudo=relevance(vectors[own], vectors[own], image_of_caption, image_of_caption),
        true=true_relevance(scenes.scenes[start:stop], chosen),
    )


def train(loss: str, seed: int, data: DemoData, settings: DemoSettings, folder: Path) -> Run:
    """Train the towers under one loss from one seed and measure them.

    The test figures are those of the model that ``bcls.models.load(folder)`` gives: the one with the highest RSUM on
    the validation split.

    Args:
        loss: Name of the loss; its defaults are the paper's.
        seed: Of weights, batches and dropout.
        data: Pictures, captions and labels.
        settings: Epochs and batch size.
        folder: The run's folder.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    model = ScenesModel(ScenesConfig(), data.reader)
    result = train_run(_config(loss, seed, data, settings, folder), model=model, dataset=data.dataset)
    epochs = list(range(1, result.epochs + 1))
    # No loss and no choice has seen the true relevance, so it is looked at afterwards.
    looks = [_scores(model, folder, EPOCH.format(epoch), data, data.validation) for epoch in epochs]
    seen = [measure(look, data.validation) for look in looks]
    similarity = _scores(model, folder, BEST, data, data.test)
    return Run(
        loss=loss,
        seed=seed,
        epochs=epochs,
        train_loss=_losses(read_metrics(folder), result.epochs),
        val_rsum=[look["rsum"] for look in result.history],
        val_tau_true=[look["tau_true"] for look in seen],
        test=measure(similarity, data.test),
        seconds=time.perf_counter() - started,
        similarity=similarity,
    )


def _config(loss: str, seed: int, data: DemoData, settings: DemoSettings, folder: Path) -> TrainConfig:
    """The same for every loss but for its name; the learning rate was chosen on the validation split."""
    return TrainConfig(
        data=str(data.dataset.folder),
        out=str(folder),
        model={"name": ScenesConfig.name},
        loss={"name": loss},
        features=PIXELS,
        labels=ENCODER,
        val_images=None,
        epochs=settings.epochs,
        batch=settings.batch,
        optimizer="adamw",
        lr=3e-3,
        weight_decay=1e-3,
        schedule="cosine",
        warmup=settings.epochs / 10,
        keep_epochs=True,
        device="cpu",
        seed=seed,
    )


def measure(similarity: Floats, split: JudgedSplit) -> dict[str, float]:
    """Recalls against the pairs, and Kendall's tau (mean of both directions) against both kinds of relevance."""
    figures = recalls(similarity, split.image_of_caption)
    for name, labels in (("pseudo", split.pseudo), ("true", split.true)):
        taus = kendall(similarity, labels)
        figures[f"tau_{name}"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    return figures


def _scores(model: ScenesModel, folder: Path, checkpoint: str, data: DemoData, split: JudgedSplit) -> Floats:
    """Scores of a split by the model as a checkpoint has it."""
    model.load_trained_state(load_file(folder / CHECKPOINTS / checkpoint / WEIGHTS))
    pixels = torch.from_numpy(split.pixels).permute(0, 3, 1, 2)
    scores: Floats = model.similarity(pixels, Padded(data.reader(split.texts))).numpy()
    return scores


def _losses(lines: list[dict[str, Any]], epochs: int) -> list[float]:
    """Mean training loss of each epoch, from the lines of ``metrics.jsonl``.

    Each line has the mean over the steps since the line before.

    Example:
        >>> steps = ((1, 2, 4.0), (1, 3, 1.0), (2, 4, 0.5))
        >>> _losses([{"kind": "step", "epoch": e, "step": s, "loss": value} for e, s, value in steps], 2)
        [3.0, 0.5]
    """
    sums, counts, before = [0.0] * epochs, [0] * epochs, 0
    for line in lines:
        if line["kind"] == "step":
            count, before = line["step"] - before, line["step"]
            sums[line["epoch"] - 1] += line["loss"] * count
            counts[line["epoch"] - 1] += count
    return [total / count for total, count in zip(sums, counts, strict=True)]


#: The figures, and folders of the dataset and of the runs, in the demo's folder.
RESULTS, SCENES, RUNS = "results.json", "scenes", "runs"


def run(settings: DemoSettings) -> list[Run]:
    """Make the data, train every loss from every seed, write ``results.json`` and ``report.html``.

    The dataset lies in ``scenes`` and each run in ``runs/LOSS-seedN``, for ``bcls evaluate`` and the like. Figures and
    report are written again after each round of losses, so an interrupted demo keeps what it has.

    Args:
        settings: See :class:`DemoSettings`.

    Returns:
        The runs, by seed and then in the order of :data:`LOSSES`.

    Raises:
        ValueError: The folder holds something else under the names that the demo writes.
    """
    started = time.perf_counter()
    # Said before the work, not after four minutes of it.
    require("matplotlib", "plots", "drawing the report's curves")
    require("sentence_transformers", "text", "reading captions with MiniLM")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    _clear(out)
    described = {"version": __version__, **asdict(settings), "sizes": settings.sizes}
    _write(out, [], described, 0.0)
    data = prepare(settings, out / SCENES)
    runs: list[Run] = []
    total = settings.seeds * len(LOSSES)
    for seed in range(settings.seeds):
        for loss, name in LOSSES.items():
            note = f"training {len(runs) + 1} of {total}: {name}, seed {seed + 1} of {settings.seeds}"
            print(note, file=sys.stderr, flush=True)
            runs.append(train(loss, seed, data, settings, out / RUNS / f"{loss}-seed{seed}"))
        seconds = time.perf_counter() - started
        _write(out, runs, described, seconds)
        write_report(out / "report.html", runs, data.test, described, seconds)
    return runs


def _clear(out: Path) -> None:
    """Remove what an earlier demo left in its folder; nothing else that has those names is touched."""
    runs = [path for loss in LOSSES for path in sorted((out / RUNS).glob(f"{loss}-seed*"))]
    there = [path for path in (out / SCENES, *runs) if path.exists()]
    if there and not _is_demo(out / RESULTS):
        remedy = "choose another folder with --out: nothing is overwritten"
        fail("--out", "a new folder, or that of an earlier demo", f"{there[0]} without its {RESULTS}", remedy)
    for path in there:
        shutil.rmtree(path)


def _is_demo(results: Path) -> bool:
    try:
        content = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"settings", "summary", "runs"} <= content.keys()


def _write(out: Path, runs: list[Run], described: dict[str, object], seconds: float) -> None:
    figures = {loss: {key: asdict(spread) for key, spread in row.items()} for loss, row in summary(runs).items()}
    results = {
        "settings": described,
        "seconds": seconds,
        "summary": figures,
        "runs": [one.as_json() for one in runs],
    }
    write_whole(out / RESULTS, json.dumps(results, indent=1) + "\n")


def print_table(runs: Sequence[Run], out: Path) -> None:
    """Print mean and deviation of every test figure, the best of each in bold, and the next steps."""
    from rich.console import Console
    from rich.table import Table

    rows = summary(runs)
    seeds = len({run.seed for run in runs})
    table = Table(title="Test split" + (f", mean ± deviation over {seeds} seeds" if seeds > 1 else ", one seed"))
    table.add_column("loss")
    for _, heading, _ in FIGURES:
        table.add_column(heading, justify="right")
    best = {key: max(row[key].mean for row in rows.values()) for key, _, _ in FIGURES}
    for loss, row in rows.items():
        cells = []
        for key, _, digits in FIGURES:
            cell = f"{row[key].mean:.{digits}f}" + (f" ± {row[key].deviation:.{digits}f}" if seeds > 1 else "")
            cells.append(f"[bold]{cell}[/bold]" if row[key].mean == best[key] else cell)
        table.add_row(LOSSES[loss], *cells)
    # Off a terminal rich would fold the table to 80 columns.
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)
    console.print(
        "R@K, RSUM: is the right one among the first K? τ pseudo: agreement with MiniLM's labels, which BCLS learned "
        "from. τ true: agreement with the scenes themselves, which no loss has seen.\n"
    )
    # Plain: names of folders may look like markup.
    console.print(f"Report with curves and a gallery: {out / 'report.html'}", markup=False)
    console.print(f"All figures: {out / 'results.json'}", markup=False)
    next_step = f"bcls evaluate {out / RUNS / 'bcls-seed0'} --data {out / SCENES} · bcls demo --help"
    console.print(f"Next: {next_step}", markup=False)
