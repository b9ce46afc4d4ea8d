"""Evaluate a photo model as users run it: ``PhotoIndex`` on ONNX Runtime, over the test photos of Flickr8k.

``python scripts/photo_shipped.py --name photo --data DIR --judgements DIR --outside DIR`` builds indexes with the model
folder of the package, and replaces these parts of ``results/NAME.json`` and the model card:

- ``test``: recalls and Kendall's tau on the test split, and Kendall's tau with people;
- ``held_out``: reliability of the scores on the rated photos that nothing was chosen on, and how many test captions and
  absent queries (``configs/photo/absent.json``) get a fitting photo;
- ``operators``: the same for queries with operators: both halves of a caption, added, and two absent classes, added;
  how many captions get a fitting photo with an absent class subtracted, and alone;
- ``duplicates``: similarities of changed copies of photos, and of each photo with the most similar other one; the share
  that counts as similar to the image of a query;
- ``outside``: ranks of photos outside Flickr8k (``configs/photo/outside.json``, in the unpacked wheels of scikit-image
  and scikit-learn) for queries that were written before the first run: among themselves, and with the test photos.
"""

import argparse
import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._core.files import write_whole
from bcls.data import open_dataset
from bcls.data.dataset import Dataset
from bcls.data.images import decode
from bcls.data.judgements import flickr8k_expert
from bcls.evaluation.evaluator import CaptionVectors
from bcls.experiments.metrics import PARTS, human_agreement, read_judgements, split_metrics
from bcls.labels import load_text_encoder
from bcls.models.light import LightModel
from bcls.search import PhotoIndex
from bcls.search.embedding import text_vectors
from bcls.search.score_model import SIMILAR
from bcls.search.service import Hit, ServiceSettings
from bcls.training.run_folder import describe

ROOT = Path(__file__).parents[1]
CHOICE, ABSENT = ROOT / "configs/flickr8k/judged_choice.txt", ROOT / "configs/photo/absent.json"
OUTSIDE = ROOT / "configs/photo/outside.json"
#: An expert mean from here on counts as fitting; bins of the reliability diagram.
FITTING, BINS = 3.0, 10
#: Photos that are changed, and tried thresholds of near-duplicates.
COPIES, DUPLICATES = 200, (0.9, 0.925, 0.95, 0.975)
#: Queries at the same time: they share passes through the model.
CLIENTS = 32
Array = npt.NDArray[np.float64]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=("photo", "photo-fast"), default="photo")
    parser.add_argument("--data", required=True)
    parser.add_argument("--judgements", required=True)
    parser.add_argument("--outside", help="folder with the unpacked wheels of scikit-image and scikit-learn")
    given = parser.parse_args()
    path = ROOT / f"results/{given.name}.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    found = evaluate(given.name, open_dataset(given.data), Path(given.judgements), given.outside)
    about |= found
    world = describe(1)
    about |= {key: world[key] for key in ("bcls", "revision", "python", "packages", "gpus")}
    write_whole(path, json.dumps(about, indent=1) + "\n")
    write_whole(ROOT / "src/bcls/models" / given.name / "README.md", card(about))
    print(json.dumps(found, indent=1))


def evaluate(name: str, data: Dataset, judgements: Path, outside: str | None) -> dict[str, Any]:
    """All parts; see the module."""
    test = data.split("test")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        with zipfile.ZipFile(place / "test.zip", "w") as archive:
            for one in test.image_ids:
                archive.writestr(one, test.read_bytes(one))
        with PhotoIndex.build(place / "test.zip", place / "index", model=name) as index:
            if not isinstance(index.service.model, LightModel):
                raise ValueError(f"{name} is not exported to ONNX")
        settings = ServiceSettings(timeout=600)
        with PhotoIndex(place / "index", settings=settings) as index:
            rated = read_judgements(judgements, data, CHOICE)
            images = {one: row for row, one in enumerate(test.image_ids)}
            photos = _photo_vectors(index, list(images))
            texts = list(dict.fromkeys([*test.texts, *rated.texts]))
            vectors = dict(zip(texts, text_vectors(index.service.model, texts), strict=True))
            scores = photos @ np.stack([vectors[one] for one in test.texts]).T
            captions = CaptionVectors(test, "minilm", load_text_encoder("minilm").encode(test.texts))
            metrics, _ = split_metrics(test, scores, captions)
            agreement = human_agreement(
                rated,
                lambda names, some: photos[[images[one] for one in names]] @ np.stack([vectors[one] for one in some]).T,
                PARTS,
            )
            result: dict[str, Any] = {
                "test": metrics | agreement,
                "held_out": reliability(index, data, judgements, photos, images) | answers(index, test),
                "operators": reliability(index, data, judgements, photos, images, halves=True) | sums(index, test),
                "duplicates": near_duplicates(index, test, photos),
            }
        if outside is not None:
            result["outside"] = outside_ranks(name, Path(outside), place)
    return result


def _photo_vectors(index: PhotoIndex, names: Sequence[str]) -> npt.NDArray[np.float32]:
    numbers = [index.service.number_of(name) for name in names]
    return index.service.index.photos.vectors([number for number in numbers if number is not None])


def _best(index: PhotoIndex, texts: Sequence[str]) -> list[Hit]:
    """The best photo for each text."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        return [hits[0] for hits in pool.map(lambda text: index.search(text, k=1), texts)]


def reliability(
    index: PhotoIndex,
    data: Dataset,
    judgements: Path,
    photos: npt.NDArray[np.float32],
    images: dict[str, int],
    *,
    halves: bool = False,
) -> dict[str, Any]:
    """Scores of rated pairs against people, on the photos that nothing was chosen on; of added halves of captions."""
    calibration = index.service.calibration
    if calibration is None:
        raise ValueError("the model has no calibration")
    pairs = [one for one in expert_pairs(data, judgements) if one[0] not in chosen_photos()]
    model = index.service.model
    texts = text_vectors(model, [text for _, text, _ in pairs])
    if halves:
        both = zip(*(split(text) for _, text, _ in pairs), strict=True)
        texts = sum(text_vectors(model, [calibration.prompt(one) for one in some]) for some in both)
        texts = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    scores = np.array(
        [float(calibration(photos[images[pair[0]]] @ text, text)) for pair, text in zip(pairs, texts, strict=True)]
    )
    return expected_error(scores, np.array([fits for _, _, fits in pairs]))


def chosen_photos() -> set[str]:
    """The rated photos that settings are chosen on."""
    return set(CHOICE.read_text(encoding="utf-8").split())


def expert_pairs(data: Dataset, judgements: Path) -> list[tuple[str, str, float]]:
    """Photo, text, and whether the photo fits by the mean of the experts."""
    rated = flickr8k_expert(judgements / "ExpertAnnotations.txt")
    texts: dict[str, list[str]] = {}
    for one in data.captions:
        texts.setdefault(one.image_id, []).append(one.text)
    marks: dict[tuple[str, str], list[float]] = {}
    for photo, caption, mark in zip(
        rated.photos.tolist(), rated.caption_ids.tolist(), rated.ratings.tolist(), strict=True
    ):
        marks.setdefault((photo, caption), []).append(mark)
    found = []
    for (photo, caption), values in marks.items():
        owner, number = caption.rsplit("#", 1)
        found.append((photo, texts[owner][int(number)], float(np.mean(values) >= FITTING)))
    return found


def expected_error(scores: Array, fits: Array) -> dict[str, Any]:
    """Expected calibration error, and the bins of the reliability diagram."""
    numbers = np.minimum((scores * BINS).astype(int), BINS - 1)
    bins = [
        {"pairs": int(mask.sum()), "score": float(scores[mask].mean()), "fitting": float(fits[mask].mean())}
        for mask in (numbers == one for one in range(BINS))
        if mask.any()
    ]
    error = sum(one["pairs"] * abs(one["score"] - one["fitting"]) for one in bins) / len(scores)
    return {"ece": error, "pairs": len(scores), "fitting": float(fits.mean()), "bins": bins}


def answers(index: PhotoIndex, test: Dataset) -> dict[str, Any]:
    """Share of the test captions that get a fitting photo, and of absent queries that get none."""
    listed = json.loads(ABSENT.read_text(encoding="utf-8"))
    kept = _best(index, test.texts)
    absent = {name: _best(index, listed[name]) for name in ("classes", "captions")}
    both = [hit for hits in absent.values() for hit in hits]
    return {
        "threshold": index.service.threshold,
        "captions_kept": float(np.mean([hit.fits for hit in kept])),
        "absent_rejected": float(np.mean([not hit.fits for hit in both])),
        **{f"absent_{name}_rejected": float(np.mean([not hit.fits for hit in hits])) for name, hits in absent.items()},
        "largest_absent_score": max(hit.score for hit in both),
        "captions_above_0.9": float(np.mean([hit.score > 0.9 for hit in kept])),
    }


def split(text: str) -> tuple[str, str]:
    """Both halves of a caption."""
    words = text.replace(" .", "").rstrip(".").split()
    half = (len(words) + 1) // 2
    return " ".join(words[:half]), " ".join(words[half:] or words)


def sums(index: PhotoIndex, test: Dataset) -> dict[str, Any]:
    """Shares of fitting photos for sums of both halves of test captions, of two absent classes, and for differences."""
    absent = json.loads(ABSENT.read_text(encoding="utf-8"))["classes"]
    kept = _best(index, [" + ".join(split(text)) for text in test.texts[::5]])
    others = _best(index, [f"{first} + {second}" for first, second in zip(absent[::2], absent[1::2], strict=True)])
    some = test.texts[:: len(test.texts) // len(absent)]
    minus = _best(index, [f"{text} - {thing}" for text, thing in zip(some, absent, strict=True)])
    return {
        "subtracted_kept": float(np.mean([hit.fits for hit in minus])),
        "alone_kept": float(np.mean([hit.fits for hit in _best(index, some)])),
        "captions_kept": float(np.mean([hit.fits for hit in kept])),
        "absent_rejected": float(np.mean([not hit.fits for hit in others])),
    }


def near_duplicates(index: PhotoIndex, test: Dataset, photos: npt.NDArray[np.float32]) -> dict[str, dict[str, float]]:
    """Shares of similarities that reach a threshold: of changed copies with their photo, and of the closest photos."""
    model, calibration = index.service.model, index.service.calibration
    if calibration is None:
        raise ValueError("the model has no calibration")
    rows = range(0, len(photos), len(photos) // COPIES)
    found: dict[str, list[float]] = {
        kind: [] for kind in ("half size", "JPEG quality 40", "cropped to 90 %", "brighter")
    }
    for row in rows:
        image = decode(test.read_bytes(test.image_ids[row]), test.image_ids[row])
        width, height = image.size
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=40)
        copies = [
            image.resize((width // 2, height // 2), Image.Resampling.LANCZOS),
            Image.open(buffer),
            image.crop((width // 20, height // 20, width - width // 20, height - height // 20)),
            image.point(lambda value: min(255, int(1.2 * value))),
        ]
        for kind, similarity in zip(found, model.encode_images(copies) @ photos[row], strict=True):
            found[kind].append(float(similarity))
    others = photos @ photos.T
    np.fill_diagonal(others, -1)
    found["another photo"] = others.max(1).tolist()
    result = {}
    for kind, values in found.items():
        scores = calibration.score_similar(values, np.zeros(photos.shape[1]))
        shares = {str(one): float(np.mean(np.array(values) >= one)) for one in DUPLICATES}
        result[kind] = shares | {"median_score": float(np.median(scores)), "fits": float(np.mean(scores >= SIMILAR))}
    return result


def outside_ranks(name: str, folder: Path, place: Path) -> dict[str, Any]:
    """Ranks of photos outside Flickr8k for their queries: among themselves, and with the 1,000 test photos."""
    listed = json.loads(OUTSIDE.read_text(encoding="utf-8"))
    with zipfile.ZipFile(place / "outside.zip", "w") as archive:
        for one in listed["photos"]:
            archive.write(folder / one, one)
    answers: dict[str, set[str]] = {}
    for photo, queries in listed["photos"].items():
        for query in queries:
            answers.setdefault(query, set()).add(photo)
    for query, others in listed["also"].items():
        answers[query] |= set(others)
    result: dict[str, Any] = {"queries": len(answers), "photos": len(listed["photos"])}
    for kind, sources, out in (
        ("among_themselves", [place / "outside.zip"], place / "outside"),
        ("with_test_photos", [place / "test.zip", place / "outside.zip"], place / "index"),
    ):
        with PhotoIndex.build(sources, out, model=name) as index:
            ranks = {}
            for query, right in answers.items():
                names = [hit.name for hit in index.search(query, k=min(1000, len(index)))]
                places = [names.index(one) for one in names if one.removeprefix("outside.zip/") in right]
                ranks[query] = min(places, default=len(index)) + 1
        result[kind] = {"first_three": float(np.mean([one <= 3 for one in ranks.values()])), "ranks": ranks}
    return result


def card(about: dict[str, Any]) -> str:
    """The model card, from the results."""
    test = about.get("test")
    metrics = "It has not been tested."
    if test is not None:
        held = about["held_out"]
        rows = {
            "RSUM, 1,000 test photos": f"{test['rsum']:.1f}",
            "R@1, R@5, R@10 image to text": " / ".join(f"{test[f'i2t_r{k}']:.1f}" for k in (1, 5, 10)),
            "R@1, R@5, R@10 text to image": " / ".join(f"{test[f't2i_r{k}']:.1f}" for k in (1, 5, 10)),
            "Kendall's tau with the labels": f"{test['tau']:.3f}",
            "Kendall's tau-c with experts, all 500 rated photos": f"{test['judged_expert_tau_c']:.3f}",
            "the same, the 300 photos not used for model selection": f"{test['report_expert_tau_c']:.3f}",
            "Kendall's tau-b with the crowd": f"{test['judged_crowd_tau_b']:.3f}",
            "expected calibration error, experts on those 300 photos": f"{held['ece']:.3f}",
            "200 absent queries answered with nothing fits": f"{100 * held['absent_rejected']:.1f} %",
            "test captions that are not": f"{100 * held['captions_kept']:.1f} %",
        }
        if "outside" in about:
            found = about["outside"]["among_themselves"]["first_three"]
            rows["object of the query among the first three of 22 outside photos"] = f"{100 * found:.1f} %"
        table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
        metrics = f"| Flickr8k | |\n|---|---:|\n{table}"
    intro = {"photo": "The model that ships with bcls.", "photo-fast": "A faster and less precise model than `photo`."}
    return _CARD.format(
        name=about["name"],
        intro=intro[about["name"]],
        networks=about["networks"],
        threshold=about["calibration"]["threshold"],
        rsum=about["selection"]["rsum"],
        stamps=about["stamps"],
        share=about["chosen"]["share"],
        heads=about["heads"],
        metrics=metrics.rstrip(),
    )


_CARD = """---
library_name: bcls
pipeline_tag: feature-extraction
tags: [image-text-retrieval, dual]
---

# {name}: offline search in your own photos

{intro} It scores photos against English sentences:

```python
from bcls.models import load

model = load("{name}")
scores = model.similarity(["beach.jpg"], ["a dog runs on the beach"])
```

**Components.** Frozen {networks} and MiniLM (the extras `photos` and `text`), with {heads} heads trained under
binary and continuous label supervision with labels of MiniLM and WordLlama, and merged, with a part that predicts the
embedding of MiniLM at a weight of {share}; float16. The heads read the last layer of MiniLM and its word embeddings.
The 1,000 ImageNet classes of the image networks are further coordinates (`bcls.models.open_vocabulary`), which texts
use the more the farther they are from the training captions. `classes.json` in the folder of `photo` has their names
and definitions.

**Scores.** `calibration.json` turns a similarity into the probability that a photo fits a text; photos from
{threshold:.2f} on count as fitting. `ONNX.md` describes inputs, outputs and scores for programs in other languages.

**Data.** The 6,000 training photos of Flickr8k with five captions each (Hodosh, Young and Hockenmaier, 2013); its 1,000
validation photos and 200 photos with human judgements for model selection. RSUM of the validation split: {rsum:.1f}.
The settings of the classes were selected on {stamps} photos among the stamps of Tux Paint; no weight was trained on
them.

{metrics}

**License.** The heads are under the license of bcls. EfficientNet-Lite and MiniLM are under Apache-2.0;
`image.safetensors` and `text.safetensors` of `photo` hold their weights, converted to float16 and int8. The names and
definitions of the classes are from WordNet 3.0, under the WordNet license. The photos and captions of Flickr8k are for
research and education; they are not part of this model, but it was trained on them.

**Limits.** The heads were trained on 6,000 photos of everyday scenes: people, dogs, sport, beaches, streets. Of other
things it knows the 1,000 ImageNet classes and what is similar to them. It does not know names of people and places,
does not read text in photos, counts poorly, and has the biases of photos from Flickr, of captions by a few
annotators, and
of networks trained on ImageNet and on web text. Do not use it to assess people.

**Reproduce** with `make photo DATA=flickr8k JUDGEMENTS=folder`; metrics in `results/{name}.json`.
"""


if __name__ == "__main__":
    main()
