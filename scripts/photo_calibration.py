"""Fit the calibration of a photo model; used by ``photo_model.py``."""

import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from photo_heads import Flickr
from photo_shipped import ABSENT, chosen_photos, expert_pairs
from safetensors.numpy import save
from sklearn.linear_model import LogisticRegression

from bcls.models.dual import DualModel
from bcls.models.folder import write_calibration
from bcls.search.score_model import BACKGROUND, SETTINGS, ModelCalibration, query_terms

ROOT = Path(__file__).parents[1]
CLASSES = ROOT / "src/bcls/models/photo/classes.json"
#: Background photos, fragments of captions, training captions that are far from the validation photos, and the share
#: of validation captions that may be answered with "nothing fits". That was 0.135 in the first evaluation of the model,
#: which answered 91.0 % of the absent queries and 11.8 % of the test captions so.
PHOTOS, FRAGMENTS, FAR, LOST = 256, 600, 150, 0.1
#: Tried templates of a query of one word.
TEMPLATES = ("{}", "a {}", "the {}", "a photo of {}", "a photo of a {}")
#: Last words of captions that are no things.
OTHERS = {"another", "around", "away", "background", "down", "front", "her", "him", "off", "other", "out", "them"}
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
        word: How a query of one word is encoded.
        words: Mean average precision of the tried templates for words that end validation captions, on the validation
            photos; a photo is relevant if one of its captions has the word.
    """

    images: Array
    captions: Array
    mentioned: Array
    fragments: Array
    absent_names: Array
    absent_captions: Array
    word: str
    words: dict[str, float]


def read_queries(flickr: Flickr, model: DualModel) -> Queries:
    """Encode all texts of fit and evaluation."""
    listed = json.loads(ABSENT.read_text(encoding="utf-8"))
    classes = [one["names"] for one in json.loads(CLASSES.read_text(encoding="utf-8"))]
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

    images = model.encode_images(flickr.images).numpy().astype(np.float64)
    tried = word_precision(flickr, model, images[flickr.rows["val"]])
    word = max(tried, key=lambda one: tried[one])

    def encode(some: list[str]) -> Array:
        prompts = [one if " " in one else word.format(one) for one in some]
        return np.asarray(model.encode_texts(prompts).numpy(), dtype=np.float64)

    return Queries(
        images,
        captions,
        encode(mentioned),
        encode(fragments),
        encode([one for one in missing if one not in listed["classes"]]),
        captions[far],
        word,
        tried,
    )


def word_precision(flickr: Flickr, model: DualModel, photos: Array) -> dict[str, float]:
    """Mean average precision of each template; see :class:`Queries`."""
    words = [
        [set(_words(flickr.data.captions[one].text).split()) for one in flickr.captions[photo]]
        for photo in flickr.rows["val"]
    ]
    last = Counter(_words(flickr.data.captions[one].text).split()[-1] for one in flickr.captions_of("val"))
    chosen = [one for one, count in last.items() if count >= 3 and len(one) > 2 and one not in OTHERS]
    relevant = np.array([[any(one in caption for caption in photo) for photo in words] for one in chosen])
    result = {}
    for template in TEMPLATES:
        texts = model.encode_texts([template.format(one) for one in chosen]).numpy()
        hits = np.take_along_axis(relevant, np.argsort(-(texts @ photos.T), 1), 1)
        precision = hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
        result[template] = float(((precision * hits).sum(1) / hits.sum(1)).mean())
    return result


def fit_calibration(
    flickr: Flickr,
    queries: Queries,
    judgements: Path,
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
    row = {one: number for number, one in enumerate(flickr.data.image_ids)}
    column = {one.text: number for number, one in enumerate(flickr.data.captions)}
    rated = [one for one in expert_pairs(flickr.data, judgements) if one[0] in chosen_photos()]
    pairs = queries.images[[row[one] for one, _, _ in rated]] * queries.captions[[column[one] for _, one, _ in rated]]
    similarity, fits = pairs.sum(1), np.array([one for _, _, one in rated])
    own = (queries.captions[val] * queries.images[flickr.owner[val]]).sum(1)
    other = generator.choice(flickr.rows["val"], len(val))
    labels = (flickr.sentences[flickr.captions[other]] * flickr.sentences[val][:, None]).sum(2).amax(1).numpy()
    wrong = (queries.captions[val] * queries.images[other]).sum(1)[labels < UNRELATED]
    pair = _logistic(
        np.concatenate([similarity, own, wrong])[:, None],
        np.concatenate([fits, np.ones(len(own)), np.zeros(len(wrong))]),
        np.concatenate([np.ones(len(fits)), *(np.full(len(one), 0.1 * len(fits) / len(one)) for one in (own, wrong))]),
    )
    calibration = ModelCalibration(pair, query, 0.5, gate, background.astype(np.float64))
    best = [best_scores(calibration, texts, photos) for texts, _, _ in groups]
    threshold = round(float(np.quantile(best[0], LOST)), 4)
    settings = {"pair": pair, "query": query, "gate": gate, "threshold": threshold, "word": queries.word}
    files = {SETTINGS: (json.dumps(settings, indent=1) + "\n").encode(), BACKGROUND: save({"background": background})}
    write_calibration(folder, files)
    names = ("captions", "fragments", "mentioned_classes", "absent_classes", "absent_captions")
    shares = {name: float((one >= threshold).mean()) for name, one in zip(names, best, strict=True)}
    return settings | {"validation_shares_with_a_fit": shares, "words": queries.words}


def best_scores(calibration: ModelCalibration, texts: Array, photos: Array) -> Array:
    """Largest probability of a photo for each text."""
    return np.array(
        [calibration(similarity, text)[()] for similarity, text in zip((texts @ photos.T).max(1), texts, strict=True)]
    )


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
