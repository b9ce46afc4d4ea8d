"""The demo: draws scenes as a dataset, trains one small model with each loss and seed, and evaluates every run."""

import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional

from bcls import __version__
from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.files import write_whole
from bcls._core.progress import progress
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.records import FeatureFile, ImageFiles, Manifest, write_manifest
from bcls.data.synthetic import SceneDataset, make_scenes, save
from bcls.evaluation.recall import recalls
from bcls.evaluation.scores import score_model
from bcls.experiments import demo_report
from bcls.experiments.demo_report import LOSSES, RUNS, SCENES, DemoRun, DemoSettings, Floats, RelevanceSplit
from bcls.experiments.metrics import mean_tau, training_history, true_labels
from bcls.labels.cache import cached_embeddings
from bcls.labels.relevance import relevance
from bcls.models.folder import WEIGHTS
from bcls.models.scenes import ScenesConfig, ScenesModel
from bcls.training.config import TrainConfig
from bcls.training.run_folder import BEST, CHECKPOINTS, EPOCH
from bcls.training.train import train as train_run

#: Side of the images in pixels.
SIDE = 64
#: Name of the features: the pixels themselves, so that a run need not decode image files.
PIXELS = "pixels"
#: Text encoder of the labels and of the captions.
ENCODER = "minilm"
SPLITS = ("train", "val", "test")
RESULTS = "results.json"


@dataclass(frozen=True)
class DemoData:
    """The data of all runs.

    Attributes:
        dataset: Images and captions of all splits.
        vectors: Embeddings of all captions, by text.
        validation: The validation split with both kinds of relevance.
        test: The same for the test split.
    """

    dataset: Dataset
    vectors: dict[str, torch.Tensor]
    validation: RelevanceSplit
    test: RelevanceSplit


def run(settings: DemoSettings) -> list[DemoRun]:
    """Create the data, train with every loss and seed, and write ``results.json`` and ``report.html``.

    The dataset is written to ``scenes`` and each run to ``runs/LOSS-seedN``, where ``bcls evaluate`` and other commands
    can use them. Results and report are written after each seed, so an interrupted demo keeps the finished seeds.

    Args:
        settings: See :class:`DemoSettings`.

    Returns:
        The runs, by seed and then in the order of :data:`LOSSES`.

    Raises:
        ValueError: The folder contains other files under the names that the demo writes.
        MissingExtraError: matplotlib, Jinja2 or sentence-transformers is not installed.
    """
    started = time.perf_counter()
    # Checked before the work, which takes minutes.
    require("matplotlib", "reports", "drawing charts")
    require("jinja2", "reports", "writing HTML pages")
    require("sentence_transformers", "text", "encoding captions with MiniLM")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    _clear(out)
    described = {"version": __version__, **asdict(settings), "sizes": settings.sizes}
    _write_results(out, [], described, 0.0)
    data = prepare(settings, out / SCENES)
    runs: list[DemoRun] = []
    total = settings.seeds * len(LOSSES)
    for seed in range(settings.seeds):
        for loss, name in LOSSES.items():
            note = f"training {len(runs) + 1} of {total}: {name}, seed {seed + 1} of {settings.seeds}"
            print(note, file=sys.stderr, flush=True)
            runs.append(train(loss, seed, data, settings, out / RUNS / f"{loss}-seed{seed}"))
        seconds = time.perf_counter() - started
        _write_results(out, runs, described, seconds)
        demo_report.write_report(out / "report.html", runs, data.test, described, seconds)
    return runs


def prepare(settings: DemoSettings, folder: Path) -> DemoData:
    """Draw the scenes into a dataset folder, encode their captions with MiniLM and compute the relevance of pairs.

    Args:
        settings: Number of images.
        folder: Folder of the dataset, new or empty.
    """
    scenes = make_scenes(settings.images, seed=0)
    with progress("drawing scenes", settings.images) as step:
        write_scenes(folder, scenes, settings.sizes)
        step(settings.images)
    dataset = open_dataset(folder)
    # The cache stores float16, so the lengths are not exactly 1.
    cached = torch.from_numpy(np.array(cached_embeddings(dataset, ENCODER), dtype=np.float32))
    vectors = dict(zip(dataset.texts, functional.normalize(cached, dim=1), strict=True))
    return DemoData(dataset, vectors, *(_with_relevance(dataset.split(name)) for name in ("val", "test")))


def _with_relevance(split: Dataset) -> RelevanceSplit:
    vectors, owner = cached_embeddings(split, ENCODER), split.image_of_caption
    return RelevanceSplit(split, relevance(vectors, vectors, owner, owner), true_labels(split))


def write_scenes(folder: Path, scenes: SceneDataset, sizes: tuple[int, ...]) -> None:
    """Write scenes as a dataset folder, with the pixels of the images as features.

    Args:
        folder: A new folder.
        scenes: Scenes with captions.
        sizes: Number of images of the three splits.
    """
    pixels = save(scenes, folder, splits=np.repeat(SPLITS, sizes).tolist(), size=SIDE)
    features = folder / "features" / PIXELS
    features.mkdir(parents=True)
    for split, part in zip(SPLITS, np.split(pixels, np.cumsum(sizes)[:-1]), strict=True):
        np.save(features / f"{split}.npy", part.transpose(0, 3, 1, 2))
    files = {split: FeatureFile(f"features/{PIXELS}/{split}.npy") for split in SPLITS}
    write_manifest(folder, Manifest("scenes", images=(ImageFiles("images"),), features={PIXELS: files}))


def train(loss: str, seed: int, data: DemoData, settings: DemoSettings, folder: Path) -> DemoRun:
    """Train the model with one loss and one seed, and evaluate it.

    The test metrics are those of the model that ``bcls.models.load(folder)`` returns, the one with the highest
    validation RSUM.

    Args:
        loss: Name of the loss.
        seed: Seed of weights, batches and dropout.
        data: Images, captions and relevance.
        settings: Epochs and batch size.
        folder: Folder of the run.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    model = ScenesModel(ScenesConfig(), lambda texts: torch.stack([data.vectors[text] for text in texts]))
    # The same for every loss; the learning rate was chosen on the validation split.
    config = TrainConfig(
        data=str(data.dataset.folder),
        out=str(folder),
        model={"name": ScenesConfig.name},
        loss=demo_report.SETTINGS.get(loss, {"name": loss}),
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
    train_run(config, model=model, dataset=data.dataset)
    history = training_history(folder)["history"]
    epochs = [one["epoch"] for one in history]
    # Computed afterwards, since neither training nor the choice of the best epoch may use the true relevance.
    by_epoch = [_scores(model, folder, EPOCH.format(epoch), data.validation) for epoch in epochs]
    similarity = _scores(model, folder, BEST, data.test)
    return DemoRun(
        loss=loss,
        seed=seed,
        epochs=epochs,
        train_loss=[one["loss"] for one in history],
        val_rsum=[one["rsum"] for one in history],
        val_tau_true=[measure(one, data.validation)["tau_true"] for one in by_epoch],
        test=measure(similarity, data.test),
        seconds=time.perf_counter() - started,
        similarity=similarity,
    )


def measure(similarity: Floats, data: RelevanceSplit) -> dict[str, float]:
    """Compute recalls, and Kendall's tau (mean of both directions) with both kinds of relevance."""
    metrics = recalls(similarity, data.split.image_of_caption)
    return metrics | {"tau_pseudo": mean_tau(similarity, data.pseudo), "tau_true": mean_tau(similarity, data.true)}


def _scores(model: ScenesModel, folder: Path, checkpoint: str, data: RelevanceSplit) -> Floats:
    """Score a split with the weights of a checkpoint."""
    model.load_trained_state(load_file(folder / CHECKPOINTS / checkpoint / WEIGHTS))
    return score_model(model, data.split, data.split.texts, PIXELS)


def _clear(out: Path) -> None:
    """Remove the dataset and the runs of an earlier demo; other files with these names are kept."""
    runs = [path for loss in LOSSES for path in sorted((out / RUNS).glob(f"{loss}-seed*"))]
    present = [path for path in (out / SCENES, *runs) if path.exists()]
    try:
        found = json.loads((out / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if present and not (isinstance(found, dict) and {"settings", "summary", "runs"} <= found.keys()):
        hint = "choose another folder with --out: nothing was overwritten"
        fail("--out", "a new folder, or that of an earlier demo", f"{present[0]} without its {RESULTS}", hint)
    for path in present:
        shutil.rmtree(path)


def _write_results(out: Path, runs: list[DemoRun], described: dict[str, object], seconds: float) -> None:
    summary, lines = demo_report.summary_json(runs), [one.as_json() for one in runs]
    results = {"settings": described, "seconds": seconds, "summary": summary, "runs": lines}
    write_whole(out / RESULTS, json.dumps(results, indent=1) + "\n")
