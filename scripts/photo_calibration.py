"""Fit and evaluate the calibration of a photo model, and rank photos outside Flickr8k; used by ``photo_model.py``."""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from photo_heads import Flickr
from PIL import Image
from safetensors.numpy import save
from sklearn.linear_model import LogisticRegression

from bcls._core.files import write_whole
from bcls.data.judgements import flickr8k_expert
from bcls.models.dual import DualModel
from bcls.search.score_model import BACKGROUND, SETTINGS, ModelCalibration, query_terms, read_calibration

ROOT = Path(__file__).parents[1]
CLASSES, ABSENT = ROOT / "src/bcls/models/photo/classes.json", ROOT / "configs/photo/absent.json"
OUTSIDE = ROOT / "configs/photo/outside.json"
#: Background photos, fragments of captions, training captions that are far from the validation photos, and the share
#: of validation captions that may be answered with "nothing fits".
PHOTOS, FRAGMENTS, FAR, LOST = 256, 600, 150, 0.12
#: An expert mean from here on counts as fitting; bins of the reliability diagram.
FITTING, BINS = 3.0, 10
#: Random pairs with a label below this do not fit.
UNRELATED = 0.4
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Queries:
    """Vectors of texts.

    Attributes:
        images: Of all photos of Flickr8k.
        captions: Of all its captions.
        mentioned: Of names of classes that validation captions mention.
        fragments: Of parts of validation captions.
        absent_names: Of names of classes in no caption, without those of the list.
        absent_captions: Of training captions far from the validation photos, without those of the list.
        listed: Of the absent queries of the list: classes, captions.
    """

    images: Array
    captions: Array
    mentioned: Array
    fragments: Array
    absent_names: Array
    absent_captions: Array
    listed: dict[str, Array]


def read_queries(flickr: Flickr, model: DualModel) -> Queries:
    """Encode all texts of fit and evaluation."""
    listed = json.loads(ABSENT.read_text(encoding="utf-8"))
    classes = json.loads(CLASSES.read_text(encoding="utf-8"))
    texts = [one.text for one in flickr.data.captions]
    everything = _words(" . ".join(texts))
    validation = _words(" . ".join(texts[one] for one in flickr.captions_of("val")))
    mentioned = [one[0] for one in classes if any(_occurs(lemma, validation) for lemma in one)]
    missing = [one[0] for one in classes if not any(_occurs(lemma, everything) for lemma in one)]
    train, val = flickr.captions_of("train"), flickr.captions_of("val")
    largest = (flickr.sentences[train] @ flickr.sentences[val].T).amax(1).argsort()
    far = [train[one] for one in largest.tolist() if texts[train[one]] not in listed["captions"]][:FAR]
    generator = random.Random(0)
    fragments = []
    for caption in generator.sample(val.tolist(), FRAGMENTS):
        words, count = texts[caption].replace(".", "").split(), generator.choice([2, 3, 4])
        start = generator.choice([0, 0, max(0, len(words) - count)])
        fragments.append(" ".join(words[start : start + count]) or texts[caption])
    captions = model.encode_texts(flickr.texts).numpy().astype(np.float64)

    def encode(some: list[str]) -> Array:
        return np.asarray(model.encode_texts(some).numpy(), dtype=np.float64)

    return Queries(
        model.encode_images(flickr.images).numpy().astype(np.float64),
        captions,
        encode(mentioned),
        encode(fragments),
        encode([one for one in missing if one not in listed["classes"]]),
        captions[far],
        {name: encode(listed[name]) for name in ("classes", "captions")},
    )


def fit_calibration(
    model: DualModel,
    flickr: Flickr,
    queries: Queries,
    judgements: Path,
    choice: Path,
    gate: tuple[float, ...],
    folder: Path,
) -> dict[str, Any]:
    """Fit both factors and the threshold of :class:`bcls.search.score_model.ModelCalibration`, and write the files."""
    generator = np.random.default_rng(0)
    chosen = np.sort(generator.choice(flickr.rows["train"], PHOTOS, replace=False))
    background = queries.images[chosen].astype(np.float16)
    photos = queries.images[flickr.rows["val"]]

    def terms(texts: Array) -> Array:
        best = (texts @ photos.T).max(1)
        return np.column_stack([best, query_terms(texts, background.astype(np.float64), gate)])

    val = flickr.captions_of("val")
    groups = [  # texts, whether something fits, weight of the group
        (queries.captions[val], 1, 0.4),
        (queries.fragments, 1, 0.3),
        (queries.mentioned, 1, 0.2),
        (queries.absent_names, 0, 0.5),
        (queries.absent_captions, 0, 0.5),
    ]
    found = [terms(texts) for texts, _, _ in groups]
    query = _logistic(
        np.concatenate(found),
        np.concatenate([np.full(len(one), fits) for one, (_, fits, _) in zip(found, groups, strict=True)]),
        np.concatenate([np.full(len(one), 1000 * w / len(one)) for one, (_, _, w) in zip(found, groups, strict=True)]),
    )
    similarity, fits = expert_pairs(flickr, queries, judgements, choice, selection=True)[:2]
    own = (queries.captions[val] * queries.images[flickr.owner[val]]).sum(1)
    other = generator.choice(flickr.rows["val"], len(val))
    labels = (flickr.sentences[flickr.captions[other]] * flickr.sentences[val][:, None]).sum(2).amax(1).numpy()
    wrong = (queries.captions[val] * queries.images[other]).sum(1)[labels < UNRELATED]
    pair = _logistic(
        np.concatenate([similarity, own, wrong])[:, None],
        np.concatenate([fits, np.ones(len(own)), np.zeros(len(wrong))]),
        np.concatenate([np.ones(len(fits)), *(np.full(len(one), 0.1 * len(fits) / len(one)) for one in (own, wrong))]),
    )
    calibration = ModelCalibration(pair, query, 0.5, gate, background.astype(np.float32))
    best = [best_scores(calibration, texts, photos) for texts, _, _ in groups]
    threshold = round(float(np.quantile(best[0], LOST)), 4)
    settings = {"pair": pair, "query": query, "gate": gate, "threshold": threshold}
    write_whole(folder / SETTINGS, json.dumps(settings, indent=1) + "\n")
    write_whole(folder / BACKGROUND, save({"background": background}))
    names = ("captions", "fragments", "mentioned_classes", "absent_classes", "absent_captions")
    shares = {name: float((one >= threshold).mean()) for name, one in zip(names, best, strict=True)}
    return settings | {"validation_shares_with_a_fit": shares}


def best_scores(calibration: ModelCalibration, texts: Array, photos: Array) -> Array:
    """Largest probability of a photo for each text."""
    return np.array(
        [calibration(similarity, text)[()] for similarity, text in zip((texts @ photos.T).max(1), texts, strict=True)]
    )


def expert_pairs(
    flickr: Flickr, queries: Queries, judgements: Path, choice: Path, *, selection: bool
) -> tuple[Array, Array, Array]:
    """Similarities, whether the pair fits, and text vectors of rated pairs, of the selection photos or the others."""
    rated = flickr8k_expert(judgements / "ExpertAnnotations.txt")
    listed = set(choice.read_text(encoding="utf-8").split())
    row = {one: number for number, one in enumerate(flickr.data.image_ids)}
    marks: dict[tuple[int, int], list[float]] = {}
    for photo, caption, mark in zip(
        rated.photos.tolist(), rated.caption_ids.tolist(), rated.ratings.tolist(), strict=True
    ):
        if (photo in listed) == selection:
            image, number = caption.rsplit("#", 1)
            marks.setdefault((row[photo], int(flickr.captions[row[image]][int(number)])), []).append(mark)
    photos, captions = np.array(list(marks)).T
    fits = np.array([float(np.mean(one) >= FITTING) for one in marks.values()])
    texts = queries.captions[captions]
    return (texts * queries.images[photos]).sum(1), fits, texts


def evaluate_calibration(
    model: DualModel, flickr: Flickr, queries: Queries, judgements: Path, choice: Path, folder: Path
) -> dict[str, Any]:
    """Reliability on the rated photos that nothing was chosen on, and answers on an index of the test photos."""
    calibration = read_calibration(folder)
    if calibration is None:
        raise FileNotFoundError(folder / SETTINGS)
    similarity, fits, texts = expert_pairs(flickr, queries, judgements, choice, selection=False)
    scores = np.array([calibration(one, text)[()] for one, text in zip(similarity, texts, strict=True)])
    numbers = np.minimum((scores * BINS).astype(int), BINS - 1)
    bins = [
        {"pairs": int(mask.sum()), "score": float(scores[mask].mean()), "fitting": float(fits[mask].mean())}
        for mask in (numbers == one for one in range(BINS))
        if mask.any()
    ]
    error = sum(one["pairs"] * abs(one["score"] - one["fitting"]) for one in bins) / len(scores)
    photos = queries.images[flickr.rows["test"]]
    kept = best_scores(calibration, queries.captions[flickr.captions_of("test")], photos)
    absent = {name: best_scores(calibration, one, photos) for name, one in queries.listed.items()}
    both = np.concatenate(list(absent.values()))
    return {
        "ece": error,
        "pairs": len(scores),
        "fitting": float(fits.mean()),
        "bins": bins,
        "captions_kept": float((kept >= calibration.threshold).mean()),
        "absent_rejected": float((both < calibration.threshold).mean()),
        **{f"absent_{name}_rejected": float((one < calibration.threshold).mean()) for name, one in absent.items()},
        "largest_absent_score": float(both.max()),
        "captions_above_0.9": float((kept > 0.9).mean()),
    }


def outside_ranks(model: DualModel, flickr: Flickr, folder: Path) -> dict[str, Any]:
    """Ranks of photos outside Flickr8k for their queries: among themselves, and with the 1,000 test photos."""
    listed = json.loads(OUTSIDE.read_text(encoding="utf-8"))
    names = list(listed["photos"])
    photos = []
    for name in names:
        with Image.open(folder / name) as image:
            photos.append(image.convert("RGB"))
    answers: dict[str, set[int]] = {}
    for number, name in enumerate(names):
        for query in listed["photos"][name]:
            answers.setdefault(query, set()).add(number)
    for query, others in listed["also"].items():
        answers[query] |= {names.index(name) for name in others}
    outside = model.encode_images(photos)
    everything = torch.cat([outside, model.encode_images(flickr.images[flickr.rows["test"]])])
    texts = model.encode_texts(list(answers))
    result: dict[str, Any] = {"queries": len(answers), "photos": len(names)}
    for name, vectors in (("among_themselves", outside), ("with_test_photos", everything)):
        scores = (texts @ vectors.T).numpy()
        ranks = {}
        for row, (query, right) in enumerate(answers.items()):
            best = max(scores[row][one] for one in right)
            ranks[query] = int((scores[row] > best).sum()) + 1
        result[name] = {"first_three": float(np.mean([one <= 3 for one in ranks.values()])), "ranks": ranks}
    return result


def _logistic(values: Array, fits: Array, weights: Array) -> tuple[float, ...]:
    """Intercept and coefficients of a logistic regression."""
    scale = values.std(0)
    model = LogisticRegression(C=100, max_iter=5000).fit(values / scale, fits, sample_weight=weights)
    return (float(model.intercept_[0]), *(float(one) for one in model.coef_[0] / scale))


def _words(text: str) -> str:
    return " " + " ".join(re.findall(r"[a-z]+", text.lower())) + " "


def _occurs(lemma: str, text: str) -> bool:
    words = _words(lemma).rstrip()
    return any(f"{words}{ending} " in text for ending in ("", "s", "es"))
