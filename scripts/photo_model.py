"""Train the photo models: ``python scripts/photo_model.py --data DIR --judgements DIR --outside DIR --out WORK``.

First extract features: ``bcls data features DIR --backbone efficientnet-lite0+efficientnet-lite1+efficientnet-lite2
--regions global --name lite012``. Then, for ``photo`` and, with ``--fast``, for ``photo-fast``:

1. trains heads on frozen features (``photo_heads.py``) and merges them, with different weights of a part that predicts
   the embedding of the label encoder (:func:`bcls.models.combine.label_space_part`). Of those whose RSUM on the
   validation split is at least ``LEAST``, the one that agrees best with people on the 200 selection photos is chosen;
2. adds the classes of the image network (:mod:`bcls.models.open_vocabulary`);
3. fits the calibration (``photo_calibration.py``) on the validation split, the 200 selection photos and absent queries
   that are not in ``configs/photo/absent.json``;
4. with ``--final``, evaluates on the test split, the other 300 rated photos, the 200 absent queries and the outside
   photos (``configs/photo/outside.json``, in the unpacked wheels of scikit-image and scikit-learn), once.

``results/photo.json`` records everything. Heads that are in ``--out`` already are not trained again.
"""

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from photo_calibration import evaluate_calibration, fit_calibration, outside_ranks, read_queries
from photo_heads import LAYERS, Flickr, HeadSettings, trained_heads
from torch import Tensor

from bcls._core.files import replace_folder, write_whole
from bcls.data import open_dataset
from bcls.evaluation.evaluator import CaptionVectors
from bcls.experiments.metrics import PARTS, human_agreement, read_judgements, split_metrics
from bcls.labels import load_text_encoder
from bcls.models import load
from bcls.models.combine import add_open_vocabulary, label_space_part, merge
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.export import export_onnx
from bcls.models.folder import CARD, WEIGHTS, write_files
from bcls.models.open_vocabulary import centroids
from bcls.training.run_folder import describe

ROOT = Path(__file__).parents[1]
CHOICE, CLASSES = ROOT / "configs/flickr8k/judged_choice.txt", ROOT / "src/bcls/models/photo/classes.json"
FEATURES, NETWORK = "lite012", 1280
#: Networks of each model, settings of its heads, and the least RSUM on the validation split.
MODELS: dict[str, Any] = {
    "photo": {
        "networks": (0, 1, 2),
        "heads": (HeadSettings(1), HeadSettings(3, batch=256, lr=3e-3), HeadSettings(0, last=2.0)),
        "least": 335.0,
    },
    "photo-fast": {
        "networks": (0, 1),
        "heads": (HeadSettings(1, dropout=0.6), HeadSettings(3, batch=256, lr=3e-3, dropout=0.6)),
        "least": 318.0,
    },
}
#: Tried weights of the label space part, relative to the heads, and its ridge.
SHARES, RIDGE = (0.0, 0.05, 0.075, 0.1, 0.15), 4.0
#: Tried middles of the gate between heads and classes, and its width.
MIDDLES, GATE_WIDTH = (0.34, 0.38, 0.42), 0.03
#: Largest losses of RSUM and of tau-c with people by the gate: the largest middle within both is chosen.
GATE_LOSS = {"rsum": 0.5, "choice_expert_tau_c": 0.0015}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--judgements", required=True)
    parser.add_argument("--outside", help="folder with the unpacked wheels of scikit-image and scikit-learn")
    parser.add_argument("--out", required=True, help="folder of heads and text features")
    parser.add_argument("--name", choices=list(MODELS), default="photo")
    parser.add_argument("--final", action="store_true", help="evaluate the model on the test split")
    given = parser.parse_args()
    out, settings = Path(given.out) / given.name, MODELS[given.name]
    out.mkdir(parents=True, exist_ok=True)
    folder = ROOT / "src/bcls/models" / given.name
    torch.manual_seed(0)
    data = open_dataset(given.data)
    columns = [column for one in settings["networks"] for column in range(one * NETWORK, (one + 1) * NETWORK)]
    images = torch.from_numpy(data.features(FEATURES).take(range(len(data.images)))).float()[:, columns]
    flickr = Flickr(data, images, text_features([one.text for one in data.captions], out.parent / "captions.npy"))
    judgements = read_judgements(given.judgements, data, CHOICE)
    heads = trained_heads(flickr, settings["heads"], out)
    train = flickr.rows["train"]
    part = label_space_part(
        heads[0],
        images[train],
        flickr.texts[flickr.captions_of("train")],
        torch.from_numpy(np.repeat(np.arange(len(train)), 5)),
        ridge=RIDGE,
    )
    backbone = "+".join(f"efficientnet-lite{one}" for one in settings["networks"])
    names = class_vectors()
    near = centroids(flickr.sentences[flickr.captions_of("train")])
    tried, models = {}, {}
    for share in SHARES:
        weights = [*(1.0 for _ in heads), share * len(heads)]
        merged = merge([*heads, part], weights, image=backbone) if share else merge(heads, image=backbone)
        tried[str(share)] = evaluate_selection(merged, flickr, judgements)
        models[str(share)] = merged
        print(share, tried[str(share)], flush=True)
    enough = [one for one in tried if tried[one]["rsum"] >= settings["least"]] or list(tried)
    chosen = max(enough, key=lambda one: tried[one]["choice_expert_tau_c"])
    gates, best = {}, None
    for middle in MIDDLES:
        model = add_open_vocabulary(models[chosen], names, near, middle=middle, width=GATE_WIDTH)
        gates[str(middle)] = evaluate_selection(model, flickr, judgements)
        print("gate", middle, gates[str(middle)], flush=True)
        kept = all(gates[str(middle)][key] >= tried[chosen][key] - loss for key, loss in GATE_LOSS.items())
        if best is None or kept:
            best, middle_chosen = model, middle
    write_model(best, folder)
    best = load(folder)  # the float16 weights
    queries = read_queries(flickr, best)
    gate = (best.config.width, best.config.width + 384, middle_chosen, GATE_WIDTH)
    about: dict[str, Any] = {
        "name": given.name,
        "networks": backbone,
        "layers": LAYERS,
        "head_settings": [vars(one) for one in settings["heads"]],
        "tried": tried,
        "chosen": chosen,
        "gates": gates,
        "gate": middle_chosen,
        "ridge": RIDGE,
        "heads": len(heads),
        "calibration": fit_calibration(best, flickr, queries, Path(given.judgements), CHOICE, gate, folder),
    }
    if given.final:
        about["test"] = final_metrics(best, flickr, judgements)
        about["held_out"] = evaluate_calibration(best, flickr, queries, Path(given.judgements), CHOICE, folder)
        if given.outside:
            about["outside"] = outside_ranks(best, flickr, Path(given.outside))
    world = describe(1)
    about |= {key: world[key] for key in ("bcls", "revision", "python", "packages", "gpus")}
    write_whole(ROOT / f"results/{given.name}.json", json.dumps(about, indent=1) + "\n")
    write_whole(folder / CARD, card(about))
    print(json.dumps({key: about.get(key) for key in ("calibration", "test", "held_out", "outside")}, indent=1))


def text_features(texts: list[str], path: Path) -> Tensor:
    """Mean states of both layers of MiniLM, cached."""
    if not path.exists():
        model = DualModel(DualConfig(image="features", features=1, text_layers=LAYERS))
        order = sorted(range(len(texts)), key=lambda one: len(texts[one]))
        found = np.empty((len(texts), model.text.encoder.width), np.float16)
        for start in range(0, len(order), 512):
            some = order[start : start + 512]
            found[some] = model.text_vectors_of([texts[one] for one in some]).values.half().numpy()
        np.save(path, found)
    return torch.from_numpy(np.load(path)).float()


def class_vectors() -> Tensor:
    """``(1000, 384)`` vectors of the class names: the mean over the lemmas, bare and as "a photo of a ..."."""
    classes = json.loads(CLASSES.read_text(encoding="utf-8"))
    lemmas = [lemma for one in classes for lemma in one]
    owner = torch.tensor([number for number, one in enumerate(classes) for _ in one])
    encoder = load_text_encoder("minilm")
    both = torch.from_numpy(encoder.encode(lemmas) + encoder.encode([f"a photo of a {one}" for one in lemmas]))
    both = torch.nn.functional.normalize(both, dim=1)
    return torch.zeros(len(classes), both.shape[1]).index_add_(0, owner, both)


def vectors(model: DualModel, flickr: Flickr) -> tuple[Tensor, Tensor]:
    """Vectors of all photos and captions."""
    return model.encode_images(flickr.images), model.encode_texts(flickr.texts)


def evaluate_selection(model: DualModel, flickr: Flickr, judgements: Any) -> dict[str, float]:
    """RSUM of the validation split and agreement with people on the selection photos."""
    images, texts = vectors(model, flickr)
    rsum = flickr.rsum(images, texts)["rsum"]
    return {"rsum": rsum, **human_agreement(judgements, pair_scores(flickr, images, texts), ("choice",))}


def pair_scores(flickr: Flickr, images: Tensor, texts: Tensor) -> Any:
    """Scores of photos and texts, given by name and text."""
    row = {one: number for number, one in enumerate(flickr.data.image_ids)}
    column: dict[str, int] = {}
    for number, one in enumerate(flickr.data.captions):
        column.setdefault(one.text, number)
    return lambda photos, captions: (
        images[[row[one] for one in photos]] @ texts[[column[one] for one in captions]].T
    ).numpy()


def final_metrics(model: DualModel, flickr: Flickr, judgements: Any) -> dict[str, float]:
    """Metrics of the test split and of all rated photos."""
    images, texts = vectors(model, flickr)
    test = flickr.data.split("test")
    scores = (images[flickr.rows["test"]] @ texts[flickr.captions_of("test")].T).numpy()
    captions = CaptionVectors(test, "minilm", flickr.sentences[flickr.captions_of("test")].numpy())
    metrics, _ = split_metrics(test, scores, captions)
    return metrics | human_agreement(judgements, pair_scores(flickr, images, texts), PARTS)


def write_model(model: DualModel, folder: Path) -> None:
    """Write a model as float16; ``photo`` also with its graphs for ONNX Runtime, the names of the classes stay."""
    classes = CLASSES.read_text(encoding="utf-8")

    def files(new: Path) -> None:
        write_files(model, new, lambda value: value.half())
        if CLASSES.parent == folder:
            write_whole(new / CLASSES.name, classes)

    replace_folder(folder, files)
    if CLASSES.parent == folder:
        with TemporaryDirectory() as temporary:
            export_onnx(load(folder), Path(temporary) / "export")
            for file in (Path(temporary) / "export").iterdir():
                if file.name != CARD:
                    shutil.copy(file, folder)
    print(f"{folder / WEIGHTS}: {(folder / WEIGHTS).stat().st_size / 1e6:.1f} MB", flush=True)


def card(about: dict[str, Any]) -> str:
    """The model card, from the results."""
    test, chosen = about.get("test"), about["gates"][str(about["gate"])]
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
        table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
        metrics = f"| Flickr8k | |\n|---|---:|\n{table}"
    intro = {"photo": "The model that ships with bcls.", "photo-fast": "A faster and less precise model than `photo`."}
    return _CARD.format(
        name=about["name"],
        intro=intro[about["name"]],
        networks=about["networks"],
        threshold=about["calibration"]["threshold"],
        rsum=chosen["rsum"],
        share=about["chosen"],
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
binary and continuous label supervision and merged, with a part that predicts the embedding of the label encoder at a
weight of {share}; float16. The heads read the last layer of MiniLM and its word embeddings. The 1,000 ImageNet classes
of the image network are further coordinates (`bcls.models.open_vocabulary`), which texts use the more the farther they
are from the training captions. `classes.json` has the names of the classes.

**Scores.** `calibration.json` turns a similarity into the probability that a photo fits a text; photos from
{threshold:.2f} on count as fitting.

**Data.** The 6,000 training photos of Flickr8k with five captions each (Hodosh, Young and Hockenmaier, 2013); its 1,000
validation photos and 200 photos with human judgements for model selection. RSUM of the validation split: {rsum:.1f}.

{metrics}

**Licence.** The heads are under the licence of bcls. EfficientNet-Lite and MiniLM are under Apache-2.0;
`image.safetensors` and `text.safetensors` of `photo` hold their weights, converted to float16 and int8. The class names
are lemmas of WordNet 3.0, under the WordNet licence. The photos and captions of Flickr8k are for research and
education; they are not part of this model, but it was trained on them.

**Limits.** The heads were trained on 6,000 photos of everyday scenes: people, dogs, sport, beaches, streets. Of other
things it knows the 1,000 ImageNet classes and what is similar to them. It does not know names of people and places,
does not read text in photos, counts poorly, and has the biases of photos from Flickr, of captions by a few
annotators, and
of networks trained on ImageNet and on web text. Do not use it to assess people.

**Reproduce** with `make photo DATA=flickr8k JUDGEMENTS=folder`; metrics in `results/{name}.json`.
"""


if __name__ == "__main__":
    main()
