"""Metrics of the runs of a sweep: retrieval, agreement with labels and humans, and the training history."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls.data.dataset import Dataset
from bcls.data.judgements import HumanRatings, flickr8k_crowdflower, flickr8k_expert
from bcls.data.records import MANIFEST_FILE, ImageFiles, Manifest, write_manifest
from bcls.data.synthetic import load, make_scenes, save, true_relevance
from bcls.evaluation.coco import precisions
from bcls.evaluation.evaluator import CaptionVectors, evaluate
from bcls.evaluation.graded import ndcg
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import QueryRanks, query_ranks, recalls
from bcls.evaluation.statistics import human_correlation, jackknife_values
from bcls.labels.cache import cached_embeddings
from bcls.labels.encoders import unit_or_zero
from bcls.training.metrics_log import read_metrics

#: Metrics of each epoch's validation that a search may choose by.
EPOCH_METRICS = ("rsum", "tau")
#: All rated images, those that settings may be chosen on, and those for reporting.
PARTS = ("judged", "choice", "report")
# Files of human ratings, their readers, and the coefficient that CLIPScore reports for each.
_FILES = {
    "expert": ("ExpertAnnotations.txt", flickr8k_expert, "tau_c"),
    "crowd": ("CrowdFlowerAnnotations.txt", flickr8k_crowdflower, "tau_b"),
}
# Validation metrics in the history, and their names there.
_HISTORY = {"loss": "validation_loss", "rsum": "rsum", "tau": "tau"}
_SCENE_SIDE = 96


def split_metrics(
    split: Dataset,
    similarity: NDArray[Any],
    captions: CaptionVectors | None = None,
    *,
    device: str = "auto",
    folds: int = 1,
    eccv: bool = False,
) -> tuple[dict[str, float], QueryRanks]:
    """Compute all metrics of scores on a split, and the ranks of its queries for paired tests.

    Args:
        split: Images and captions.
        similarity: ``(N, C)`` scores.
        captions: Caption vectors of the label encoder; ``None`` for no graded metrics.
        device: ``auto``, ``cpu`` or ``cuda``, see :func:`on_device`.
        folds: If above 1, recalls averaged over folds are added as ``fold_rsum`` and so on.
        eccv: Add the metrics of ECCV Caption.

    Returns:
        Recalls, ``rsum``, median ranks, tau-a and tau-b with their means over directions ``tau`` and ``tau_b``, nDCG
        and the coherent score; on synthetic scenes also ``true_tau``, tau-a against the true relevance.
    """
    labels = None if captions is None else captions.encoder
    metrics = evaluate(split, on_device(similarity, device), labels=labels, eccv=eccv, captions=captions)
    metrics |= _means(metrics, {"tau": "tau_a", "tau_b": "tau_b", "ndcg": "ndcg"})
    owner = split.image_of_caption
    if folds > 1:
        metrics |= {f"fold_{key}": value for key, value in recalls(similarity, owner, folds=folds).items()}
    if (split.folder / "scenes.jsonl").is_file():
        metrics["true_tau"] = mean_tau(similarity, true_labels(split))
    # JSON has no NaN: undefined metrics are left out.
    finite = {key: float(value) for key, value in metrics.items() if np.isfinite(value)}
    return finite, query_ranks(similarity, owner)


def on_device(similarity: NDArray[Any], device: str) -> Any:
    """Move scores to the GPU, where metrics are computed faster, if there is one and it may be used.

    Args:
        similarity: ``(N, C)`` scores.
        device: ``auto``, ``cpu`` or ``cuda``.
    """
    return torch.from_numpy(similarity).cuda() if device != "cpu" and torch.cuda.is_available() else similarity


def other_label_metrics(
    similarity: NDArray[Any], labels: Mapping[str, NDArray[np.float32]], device: str = "auto"
) -> dict[str, float]:
    """Compute agreement with labels that nothing was trained on.

    Args:
        similarity: ``(N, C)`` scores.
        labels: ``(N, C)`` labels by name.
        device: As in :func:`on_device`.

    Returns:
        ``{name}_tau_b`` and ``{name}_ndcg``, each the mean of both directions; undefined metrics are left out.
    """
    scores, metrics = on_device(similarity, device), dict[str, float]()
    for name, relevance in labels.items():
        found = kendall(scores, relevance) | ndcg(scores, relevance, negative="clip")
        metrics |= _means(found, {f"{name}_{key}": key for key in ("tau_b", "ndcg")})
    return {key: value for key, value in metrics.items() if np.isfinite(value)}


def mean_tau(similarity: NDArray[Any], relevance: NDArray[Any]) -> float:
    """Kendall's tau-a of scores with labels, mean of both directions."""
    return _means(kendall(similarity, relevance), {"tau": "tau_a"})["tau"]


def _means(metrics: Mapping[str, float], keys: Mapping[str, str]) -> dict[str, float]:
    """Means of both directions by their new names, of the metrics that were computed."""
    present = {name: key for name, key in keys.items() if f"i2t_{key}" in metrics}
    return {name: (metrics[f"i2t_{key}"] + metrics[f"t2i_{key}"]) / 2 for name, key in present.items()}


def caption_vectors(split: Dataset, encoder: str) -> NDArray[np.float32]:
    """``(C, d)`` unit rows from the cache in the dataset's folder, which has float16, not exactly of unit length."""
    return unit_or_zero(cached_embeddings(split, encoder).astype(np.float32))


def true_labels(split: Dataset) -> NDArray[np.float32]:
    """``(N, C)`` true relevance of a split of synthetic scenes."""
    scenes, wanted = load(split.folder), [int(image_id) for image_id in split.image_ids]
    captions = [caption for caption in scenes.captions if caption.image in set(wanted)]
    return true_relevance([scenes.scenes[image] for image in wanted], captions)


def training_history(folder: Path) -> dict[str, Any]:
    """Read training loss and validation metrics of every epoch from ``metrics.jsonl``.

    Args:
        folder: The run's folder.

    Returns:
        ``history``, a mapping for each epoch with ``loss``, ``validation_loss``, ``rsum`` and ``tau`` where available;
        ``best_epoch``; ``epochs``; and ``seconds`` of training.
    """
    sums: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    validations: dict[int, dict[str, Any]] = {}
    before, seconds = 0, 0.0
    for line in read_metrics(folder):
        epoch = line["epoch"]
        if line["kind"] == "validation":
            validations[epoch] = line
        elif line["kind"] == "step":  # with the mean loss over the steps since the previous line
            sums[epoch] += line["loss"] * (line["step"] - before)
            counts[epoch] += line["step"] - before
            before, seconds = line["step"], line["seconds"]
    history = []
    for epoch in sorted(sums):
        found = validations.get(epoch, {})
        metrics = {name: found[key] for key, name in _HISTORY.items() if key in found}
        history.append({"epoch": epoch, "loss": sums[epoch] / counts[epoch], **metrics})
    best = max((epoch for epoch, found in validations.items() if found["best"]), default=len(history))
    return {"history": history, "best_epoch": best, "epochs": len(history), "seconds": seconds}


@dataclass(frozen=True)
class Judgements:
    """Human ratings of image-caption pairs, with the photos and captions.

    Attributes:
        ratings: Ratings by ``expert`` and ``crowd``.
        photos: All rated photos.
        caption_ids: All rated captions, as named in the files.
        texts: Their texts.
        choice: The photos that settings may be chosen on.
    """

    ratings: Mapping[str, HumanRatings]
    photos: tuple[str, ...]
    caption_ids: tuple[str, ...]
    texts: tuple[str, ...]
    choice: frozenset[str]

    def fitting_pairs(self) -> set[tuple[str, str]]:
        """Photos with their own captions, and those rated at least 3 by experts (mean) or as fitting by a majority."""
        photos = set(self.photos)
        pairs = {(photo, one) for one in self.caption_ids if (photo := one.rpartition("#")[0]) in photos}
        for name, least in (("expert", 3.0), ("crowd", 0.5 + 1e-9)):
            rated = self.ratings[name]
            found = defaultdict(list)
            for photo, caption, rating in zip(rated.photos, rated.caption_ids, rated.ratings, strict=True):
                found[str(photo), str(caption)].append(float(rating))
            pairs |= {pair for pair, ratings in found.items() if sum(ratings) / len(ratings) >= least}
        return pairs


def read_judgements(folder: str | Path, dataset: Dataset, choice: Path | None) -> Judgements:
    """Read the human ratings of Flickr8k.

    Args:
        folder: With ``ExpertAnnotations.txt`` and ``CrowdFlowerAnnotations.txt``.
        dataset: The whole of Flickr8k, since rated captions come from all splits.
        choice: List of file names, one per line, of the photos to choose settings on.

    Raises:
        ValueError: If a file is missing or damaged, or the ratings are of another dataset.
        OSError: If the list cannot be read.
    """
    for file, _, _ in _FILES.values():
        if not (Path(folder) / file).is_file():
            fail("--judgements", f"the folder with Flickr8k's {file}", repr(str(folder)), "check the path")
    found = {name: read(Path(folder) / file) for name, (file, read, _) in _FILES.items()}
    captions: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for caption in dataset.captions:
        captions[f"{caption.image_id}#{seen[caption.image_id]}"] = caption.text
        seen[caption.image_id] += 1
    photos = sorted({photo for rows in found.values() for photo in rows.photos.tolist()})
    ids = sorted({caption for rows in found.values() for caption in rows.caption_ids.tolist()})
    unknown = [one for one in photos if one not in seen] + [one for one in ids if one not in captions]
    if unknown:
        got = f"{len(unknown)} of others, such as {unknown[0]!r}"
        fail("--judgements", f"judgements of {dataset.name}", got, "give those of the dataset")
    listed = frozenset() if choice is None else frozenset(choice.read_text(encoding="utf-8").split())
    if choice is not None and not listed:
        fail(str(choice), "names of rated photos, one per line", "an empty file", "create the list again")
    unrated = sorted(listed - set(photos))
    if unrated:
        fail(str(choice), "photos that were judged", repr(unrated[0]), "create the list again")
    return Judgements(found, tuple(photos), tuple(ids), tuple(captions[one] for one in ids), listed)


def human_agreement(
    judgements: Judgements,
    scores: Callable[[Sequence[str], Sequence[str]], NDArray[np.floating]],
    parts: Sequence[str] = PARTS,
    by_photo: dict[str, NDArray[np.float64]] | None = None,
) -> dict[str, float]:
    """Compute Kendall's tau of a model's scores with human ratings, and retrieval of what people found to fit.

    Tau is in the protocol of CLIPScore. Retrieval is as in ECCV Caption, among the photos of the part and all rated
    captions: mAP@R, R-precision and R@1 with the relevant items of :meth:`Judgements.fitting_pairs`. Pairs that were
    not rated count as not fitting.

    Args:
        judgements: The ratings.
        scores: Returns the ``(N, C)`` scores of photos, given by name, with texts.
        parts: Which of :data:`PARTS`; only the photos of these parts are scored.
        by_photo: If given, gets the values of each photo for the last part's agreement with experts, see
            :func:`bcls.evaluation.statistics.jackknife_values`.

    Returns:
        ``judged_expert_tau_c``, ``judged_crowd_tau_b``, ``judged_map_at_r_i2t`` and so on, and the same for the other
        parts; without a list of photos to choose on, only those of all rated photos. Undefined metrics are left out.
    """
    wanted = [part for part in parts if judgements.choice or part == "judged"]
    photos = [one for one in judgements.photos if any(_in_part(judgements, part, one) for part in wanted)]
    if not photos:
        return {}
    matrix = scores(photos, judgements.texts)
    row = {photo: number for number, photo in enumerate(photos)}
    column = {caption: number for number, caption in enumerate(judgements.caption_ids)}
    fitting = sorted(judgements.fitting_pairs())
    metrics: dict[str, float] = {}
    for part in wanted:
        inside = [photo for photo in photos if _in_part(judgements, part, photo)]
        place = {photo: number for number, photo in enumerate(inside)}
        pairs = np.array([(place[photo], column[caption]) for photo, caption in fitting if photo in place], np.int64)
        of_part = matrix[[row[photo] for photo in inside]]
        for direction, ends in (("i2t", pairs), ("t2i", pairs[..., ::-1])) if pairs.size else ():
            found = precisions(of_part, ends[:, 0], ends[:, 1], direction)
            metrics |= {f"{part}_{key}": value for key, value in found.items()}
        for name, rated in judgements.ratings.items():
            keep = [_in_part(judgements, part, photo) for photo in rated.photos.tolist()]
            images = [row[photo] for photo in rated.photos[keep].tolist()]
            captions = [column[caption] for caption in rated.caption_ids[keep].tolist()]
            tau = _FILES[name][2]
            values, ratings = matrix[images, captions], rated.ratings[keep]
            agreement = human_correlation(values, ratings, resamples=0)[tau]
            if np.isnan(agreement):  # all scores are equal; JSON has no NaN
                continue
            metrics[f"{part}_{name}_{tau}"] = agreement
            if by_photo is not None and (part, name) == (wanted[-1], "expert"):
                by_photo[f"{part}_{name}_{tau}"] = jackknife_values(values, ratings, rated.photos[keep], tau)
    return metrics


def _in_part(judgements: Judgements, part: str, photo: str) -> bool:
    return part == "judged" or (photo in judgements.choice) == (part == "choice")


def draw_scenes(folder: str | Path, images: int) -> None:
    """Generate a dataset of synthetic scenes, unless the folder has a dataset already.

    70 % of the scenes are for training, 15 % for validation and 15 % for the test.

    Args:
        folder: Folder of the dataset.
        images: Number of scenes.
    """
    folder = Path(folder)
    if (folder / MANIFEST_FILE).exists():
        return
    train, val = images * 7 // 10, images * 3 // 20
    splits = ["train"] * train + ["val"] * val + ["test"] * (images - train - val)
    save(make_scenes(images), folder, splits=splits, size=_SCENE_SIDE)
    write_manifest(folder, Manifest("scenes", images=(ImageFiles("images"),)))
