"""Figures of a trained model on a split: retrieval, agreement with the labels, and with the truth where it is known."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bcls.assess import Options, evaluate
from bcls.evaluation import QueryRanks, kendall, query_ranks, recalls
from bcls.training.images import Pictures, feature_images

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from bcls.data import Dataset
    from bcls.experiments.shared import Shared
    from bcls.models.base import RetrievalModel
    from bcls.training import TrainConfig


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
