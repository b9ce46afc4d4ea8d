"""Known noise in the training labels: what the relaxation alpha is there to survive.

Figures of a trained model on a split: retrieval, agreement with the labels, and with the truth where it is known.

Agreement of a model with the people who judged photos of Flickr8k, in CLIPScore's protocol.

Drawn scenes as a dataset folder, for experiments that must know the true relevance.

The course of a run, epoch by epoch, from its ``metrics.jsonl``.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bcls._core.errors import fail
from bcls.data.judgements import HumanRatings, flickr8k_crowdflower, flickr8k_expert
from bcls.data.records import FILE, ImageFiles, Manifest, write_manifest
from bcls.data.synthetic import make_scenes, save
from bcls.evaluation.evaluator import Options, evaluate
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import QueryRanks, query_ranks, recalls
from bcls.evaluation.statistics import human_correlation
from bcls.training.batch_labels import BatchLabels
from bcls.training.loader import LazyImages as Pictures
from bcls.training.loader import feature_source as feature_images
from bcls.training.metrics_log import read_metrics

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from bcls.data.dataset import Dataset
    from bcls.experiments.run import Shared
    from bcls.models.base import RetrievalModel
    from bcls.training.config import TrainConfig


class NoisyLabels(BatchLabels):
    r"""Labels of a batch with noise that belongs to the pair.

    .. math:: r'_{ij} = \mathrm{clip}(r_{ij} + \sigma \epsilon_{ij}, -1, 1), \qquad \epsilon_{ij} \sim N(0, 1)

    drawn once for an image and a caption, so that a pair has one wrong label throughout training. Pairs of one image
    stay exactly 1.

    Args:
        embeddings: ``(C, d)``, as for :class:`bcls.training.batch_labels.BatchLabels`.
        image_of_caption: ``(C,)``.
        aggregate: The same.
        device: Where the labels are wanted.
        noise: Standard deviation :math:`\sigma`.
        seed: Of the draws; the same for every run that is compared.
    """

    def __init__(
        self,
        embeddings: NDArray[Any],
        image_of_caption: NDArray[np.int64],
        aggregate: Any,
        device: torch.device,
        *,
        noise: float,
        seed: int = 0,
    ) -> None:
        super().__init__(embeddings, image_of_caption, aggregate, device)
        shape = int(image_of_caption.max()) + 1, len(image_of_caption)
        drawn = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        self._noise = torch.from_numpy(drawn * np.float32(noise)).to(device)

    def __call__(self, captions: Any) -> Tensor:
        """Labels of a batch: row i is the image of caption i, column j is caption j."""
        labels = super().__call__(captions)
        chosen = torch.as_tensor(captions, dtype=torch.int64).to(self.device)
        images = self._images[chosen]
        noisy = (labels + self._noise[images[:, None], chosen]).clamp(-1, 1)
        return noisy.masked_fill(images[:, None] == images, 1.0)


def scores_of(
    model: "RetrievalModel", config: "TrainConfig", images: "Dataset", texts: list[str], pool: "ThreadPoolExecutor"
) -> NDArray[np.float32]:
    """Scores of a dataset's images and some texts, ``(N, C)``, with the inputs that the run was trained on.

    Args:
        model: The trained model.
        config: Settings of the run.
        images: Whose images.
        texts: Captions of any dataset.
        pool: Threads that read pictures.
    """
    captions: Any = model.text_vectors_of(texts) if getattr(model, "frozen_text", False) else texts  # type: ignore[operator]
    inputs: Any
    if config.features is not None:
        inputs = feature_images(images.features(config.features), model.device).everything()
    else:
        inputs = Pictures(images, pool)
        if getattr(model, "frozen_images", False):
            inputs = model.image_vectors_of(inputs)  # type: ignore[operator]
    return model.similarity(inputs, captions).numpy()


def on_device(similarity: NDArray[Any], device: str) -> Any:
    """Scores where pairs are counted fastest: on a GPU where there is one, unless it must not be used.

    Args:
        similarity: ``(N, C)`` scores.
        device: ``auto``, ``cpu`` or ``cuda``, as the sweep was told.
    """
    return torch.from_numpy(similarity).cuda() if device != "cpu" and torch.cuda.is_available() else similarity


def split_figures(
    split: "Dataset",
    similarity: NDArray[Any],
    labels: str,
    shared: "Shared",
    *,
    device: str = "auto",
    folds: int = 1,
    eccv: bool = False,
) -> tuple[dict[str, float], QueryRanks]:
    """All figures of scores on a split, and the ranks of its queries for paired tests.

    Args:
        split: Images and captions.
        similarity: ``(N, C)`` scores.
        labels: Text encoder of the labels; ``"none"`` for no graded figures.
        shared: Keeps the label vectors.
        device: ``auto``, ``cpu`` or ``cuda``, see :func:`on_device`.
        folds: Above 1, recalls averaged over folds are added as ``fold_rsum`` and so on.
        eccv: Add the figures of ECCV Caption.

    Returns:
        Recalls, ``rsum``, median ranks, tau-a and tau-b with their mean over directions ``tau`` and ``tau_b``, nDCG,
        the coherent score; on drawn scenes ``true_tau``, tau-a against the true relevance.
    """
    encoder = None if labels == "none" else labels
    captions = None if encoder is None else shared.captions(split, encoder)
    options = Options(labels=encoder, eccv=eccv)
    figures = evaluate(split, on_device(similarity, device), options, captions=captions)
    for name, key in (("tau", "tau_a"), ("tau_b", "tau_b"), ("ndcg", "ndcg")):
        if f"i2t_{key}" in figures:
            figures[name] = (figures[f"i2t_{key}"] + figures[f"t2i_{key}"]) / 2
    if folds > 1:
        figures |= {
            f"fold_{key}": value for key, value in recalls(similarity, split.image_of_caption, folds=folds).items()
        }
    figures |= _true_figures(split, similarity)
    # JSON has no NaN: a figure that does not exist is left out.
    return {key: float(value) for key, value in figures.items() if np.isfinite(value)}, query_ranks(
        similarity, split.image_of_caption
    )


def _true_figures(split: "Dataset", similarity: NDArray[Any]) -> dict[str, float]:
    if not (split.folder / "scenes.jsonl").is_file():
        return {}
    from bcls.data.synthetic import load, true_relevance

    scenes = load(split.folder)
    number = {f"{image:05d}": image for image in range(len(scenes.scenes))}
    wanted = [number[image_id] for image_id in split.image_ids]
    chosen = set(wanted)
    captions = [caption for caption in scenes.captions if caption.image in chosen]
    taus = kendall(similarity, true_relevance([scenes.scenes[image] for image in wanted], captions))
    return {"true_tau": (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2}


#: Files of judgements, how they are read, and the figure that CLIPScore prints of each.
_FILES = {
    "expert": ("ExpertAnnotations.txt", flickr8k_expert, "tau_c"),
    "crowd": ("CrowdFlowerAnnotations.txt", flickr8k_crowdflower, "tau_b"),
}
#: All judged images, those that settings may be chosen on, and those for reporting.
PARTS = ("judged", "choice", "report")


@dataclass(frozen=True)
class Judgements:
    """Judged pairs with the photos and captions that they are about."""

    ratings: Mapping[str, HumanRatings]
    """Rows by ``expert`` and ``crowd``."""
    photos: tuple[str, ...]
    """Every photo that was judged."""
    caption_ids: tuple[str, ...]
    """Every caption that was judged, as the judgements name it."""
    texts: tuple[str, ...]
    """Their texts."""
    choice: frozenset[str]
    """The photos that settings may be chosen on."""


def read_judgements(folder: str | Path, dataset: "Dataset", choice: Path | None) -> Judgements:
    """Read the judgements of Flickr8k.

    Args:
        folder: With ``ExpertAnnotations.txt`` and ``CrowdFlowerAnnotations.txt``.
        dataset: Flickr8k, whole: judged captions come from all of it.
        choice: List of file names, one a line, of the photos to choose on.

    Raises:
        ValueError: A file is missing or damaged, or the judgements are of another dataset.
        OSError: The list cannot be read.
    """
    found = {name: read(Path(folder) / file) for name, (file, read, _) in _FILES.items()}
    captions: dict[str, str] = {}
    seen: dict[str, int] = {}
    for caption in dataset.captions:
        turn = seen.get(caption.image_id, 0)
        seen[caption.image_id] = turn + 1
        captions[f"{caption.image_id}#{turn}"] = caption.text
    photos = sorted({photo for rows in found.values() for photo in rows.photos.tolist()})
    ids = sorted({caption for rows in found.values() for caption in rows.caption_ids.tolist()})
    lost = [one for one in photos if one not in seen] + [one for one in ids if one not in captions]
    if lost:
        got = f"{len(lost)} of others, such as {lost[0]!r}"
        fail("--judgements", f"judgements of {dataset.name}", got, "give those of the dataset")
    listed = frozenset() if choice is None else frozenset(choice.read_text(encoding="utf-8").split())
    unknown = sorted(listed - set(photos))
    if unknown:
        fail(str(choice), "photos that were judged", repr(unknown[0]), "draw the list anew")
    return Judgements(found, tuple(photos), tuple(ids), tuple(captions[one] for one in ids), listed)


def people_figures(
    judgements: Judgements,
    scores: Callable[[Sequence[str], Sequence[str]], NDArray[np.floating]],
    parts: Sequence[str] = PARTS,
) -> dict[str, float]:
    """Kendall's tau of a model's scores with the judgements.

    Args:
        judgements: What people said.
        scores: Gives ``(N, C)`` scores of photos by name and texts.
        parts: Which of :data:`PARTS`; the photos of ``choice`` alone are scored where nothing else is asked for.

    Returns:
        ``judged_expert_tau_c``, ``judged_crowd_tau_b`` and the same of each part; without a list of photos to choose
        on, of all judged photos alone.
    """
    wanted = [part for part in parts if judgements.choice or part == "judged"]
    photos = [one for one in judgements.photos if any(_inside(judgements, part, one) for part in wanted)]
    if not photos:
        return {}
    matrix = scores(photos, judgements.texts)
    row = {photo: number for number, photo in enumerate(photos)}
    column = {caption: number for number, caption in enumerate(judgements.caption_ids)}
    figures = {}
    for part in wanted:
        for name, rows in judgements.ratings.items():
            keep = [_inside(judgements, part, photo) for photo in rows.photos.tolist()]
            images = [row[photo] for photo in rows.photos[keep].tolist()]
            captions = [column[caption] for caption in rows.caption_ids[keep].tolist()]
            tau = _FILES[name][2]
            found = human_correlation(matrix[images, captions], rows.ratings[keep], resamples=0)
            figures[f"{part}_{name}_{tau}"] = found[tau]
    return figures


def _inside(judgements: Judgements, part: str, photo: str) -> bool:
    return part == "judged" or (photo in judgements.choice) == (part == "choice")


#: Side of the pictures.
_SIDE = 96


def draw_scenes(folder: str | Path, images: int, *, seed: int = 0) -> None:
    """Draw scenes into a folder as a dataset; a folder that has one is left as it is.

    Seven tenths of the scenes are for training, the others half for validation and half for the test.

    Args:
        folder: Where.
        images: How many scenes.
        seed: Of the scenes.
    """
    folder = Path(folder)
    if (folder / FILE).exists():
        return
    train, val = images * 7 // 10, images * 3 // 20
    splits = ["train"] * train + ["val"] * val + ["test"] * (images - train - val)
    save(make_scenes(images, seed=seed), folder, splits=splits, size=_SIDE, workers=min(2, os.cpu_count() or 1))
    write_manifest(folder, Manifest("scenes", images=(ImageFiles("images"),)))


#: Figures of each epoch's validation that a search may choose by.
MEASURES = ("rsum", "tau")
#: What is told of each epoch's validation, and as what.
_COURSE = {"loss": "validation_loss", "rsum": "rsum", "tau": "tau"}


def best_look(folder: Path) -> dict[str, float]:
    """Figures of the best epoch on the validation split, as training computed them."""
    looks = [line for line in read_metrics(folder) if line["kind"] == "validation" and line["best"]]
    return {key: value for key, value in looks[-1].items() if isinstance(value, float)} if looks else {}


def course(folder: Path) -> dict[str, Any]:
    """Training loss and validation figures of every epoch.

    Args:
        folder: The run's folder.

    Returns:
        ``history``, a mapping for each epoch with ``loss``, ``validation_loss``, ``rsum`` and ``tau`` where they are
        known; ``best_epoch``; ``epochs``; and ``seconds`` of training.
    """
    lines = read_metrics(folder)
    steps = [line for line in lines if line["kind"] == "step"]
    looks: dict[int, dict[str, Any]] = {line["epoch"]: line for line in lines if line["kind"] == "validation"}
    history = []
    for epoch in sorted({line["epoch"] for line in steps}):
        values = [line["loss"] for line in steps if line["epoch"] == epoch]
        look = looks.get(epoch, {})
        figures = {name: look[key] for key, name in _COURSE.items() if key in look}
        history.append({"epoch": epoch, "loss": fmean(values), **figures})
    return {
        "history": history,
        "best_epoch": max((epoch for epoch, look in looks.items() if look["best"]), default=len(history)),
        "epochs": len(history),
        "seconds": steps[-1]["seconds"] if steps else 0.0,
    }
