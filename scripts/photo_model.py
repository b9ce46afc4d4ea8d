"""Train the photo model: ``python scripts/photo_model.py --data DIR --judgements DIR --out SWEEP``.

Trains heads on frozen EfficientNet-Lite0, 1 and 2 and MiniLM from three seeds (``configs/flickr8k/sweeps/photo.yaml``)
and merges them, with different weights of a part that predicts the embedding of the label encoder
(:func:`bcls.models.combine.label_space_part`). Of the merged models whose RSUM on the validation split is at most
``SLACK`` below the best, the one that agrees best with people on the 200 selection photos is chosen. It is stored as
float16. With ``--final`` it is evaluated on the test split, once; ``results/photo.json`` records the selection.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bcls._core.files import replace_folder, write_whole
from bcls.data.dataset import Dataset
from bcls.evaluation.recall import recalls
from bcls.experiments import read_sweep
from bcls.experiments.metrics import PARTS, human_agreement, read_judgements, split_metrics
from bcls.experiments.plan import plan_runs
from bcls.experiments.results import run_folder
from bcls.experiments.run import SharedData
from bcls.experiments.sweep import run_sweep
from bcls.experiments.sweep_file import SweepSettings
from bcls.models import load
from bcls.models.combine import label_space_part, merge
from bcls.models.folder import CARD, WEIGHTS, write_files
from bcls.training.run_folder import describe

ROOT = Path(__file__).parents[1]
SWEEP, CHOICE = ROOT / "configs/flickr8k/sweeps/photo.yaml", ROOT / "configs/flickr8k/judged_choice.txt"
BACKBONE = "efficientnet-lite0+efficientnet-lite1+efficientnet-lite2"
FEATURES, VIEW = "lite012-four", "four-crop"
SLACK, RIDGE = 5.0, 4.0
#: Tried weights of the label space part, relative to the heads.
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--judgements", required=True)
    parser.add_argument("--out", required=True, help="folder of the sweep")
    parser.add_argument("--to", default=str(ROOT / "src/bcls/models/photo"), help="folder of the model")
    parser.add_argument("--graph", action="store_true", help="on a GPU: use CUDA graphs")
    parser.add_argument("--final", action="store_true", help="evaluate the model on the test split")
    given = parser.parse_args()
    run_sweep(SWEEP, SweepSettings(given.data, given.out, graph=given.graph))
    shared = SharedData(given.data, Path(given.out) / "shared")
    judgements = read_judgements(given.judgements, shared.dataset, CHOICE)
    heads = [load(run_folder(Path(given.out), run)) for run in plan_runs(read_sweep(SWEEP))]
    train = shared.dataset.split("train")
    part = label_space_part(
        heads[0],
        _features(train),
        shared.lend(heads[0]).text_vectors_of(train.texts).values,
        torch.from_numpy(train.image_of_caption),
        ridge=RIDGE,
    )
    validation = shared.dataset.split("val")
    tried = {}
    for share in SHARES:
        merged = shared.lend(_merged(heads, part, share))
        found = recalls(_scores(merged, validation, validation.texts), validation.image_of_caption)
        people = human_agreement(judgements, lambda a, b, m=merged: _pairs(m, shared, a, b), ("choice",))
        tried[share] = {"rsum": found["rsum"], **people}
        print(share, tried[share], flush=True)
    least = max(one["rsum"] for one in tried.values()) - SLACK
    chosen = max(
        (one for one in tried if tried[one]["rsum"] >= least), key=lambda one: tried[one]["choice_expert_tau_c"]
    )
    _write(_merged(heads, part, chosen, BACKBONE), Path(given.to))
    about: dict[str, Any] = {
        "tried": {str(share): one for share, one in tried.items()},
        "chosen": str(chosen),
        "slack": SLACK,
        "ridge": RIDGE,
        "heads": len(heads),
    }
    if given.final:
        about["test"] = _test(Path(given.to), _merged(heads, part, chosen), shared, judgements)
    world = describe(1)
    about |= {key: world[key] for key in ("bcls", "revision", "python", "packages", "gpus")}
    write_whole(ROOT / "results/photo.json", json.dumps(about, indent=1) + "\n")
    write_whole(Path(given.to) / CARD, card(about))
    print(json.dumps(about, indent=1))


def _merged(heads: Sequence[Any], part: Any, share: float, image: str | None = None) -> Any:
    if not share:
        return merge(heads, image=image, image_view=VIEW)
    return merge([*heads, part], [*(1.0 for _ in heads), share * len(heads)], image=image, image_view=VIEW)


def card(about: dict[str, Any]) -> str:
    """The model card, from the results."""
    test, tried = about.get("test"), about["tried"][about["chosen"]]
    metrics = "It has not been tested."
    if test is not None:
        rows = {
            "RSUM, 1,000 test photos": f"{test['rsum']:.1f}",
            "R@1, R@5, R@10 image to text": " / ".join(f"{test[f'i2t_r{k}']:.1f}" for k in (1, 5, 10)),
            "R@1, R@5, R@10 text to image": " / ".join(f"{test[f't2i_r{k}']:.1f}" for k in (1, 5, 10)),
            "Kendall's tau with the labels": f"{test['tau']:.3f}",
            "Kendall's tau-c with experts, all 500 rated photos": f"{test['judged_expert_tau_c']:.3f}",
            "the same, the 300 photos not used for model selection": f"{test['report_expert_tau_c']:.3f}",
            "Kendall's tau-b with the crowd": f"{test['judged_crowd_tau_b']:.3f}",
        }
        table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
        metrics = f"| Flickr8k | |\n|---|---:|\n{table}"
    return _CARD.format(rsum=tried["rsum"], chosen=about["chosen"], heads=about["heads"], metrics=metrics.rstrip())


_CARD = """---
library_name: bcls
pipeline_tag: feature-extraction
tags: [image-text-retrieval, dual]
---

# photo: offline search in your own photos

The model that ships with bcls. It scores photos against English sentences:

```python
from bcls.models import load

model = load("photo")
scores = model.similarity(["beach.jpg"], ["a dog runs on the beach"])
```

**Components.** Frozen EfficientNet-Lite0, 1 and 2 and MiniLM (the extras `photos` and `text`), with heads
trained under binary and continuous label supervision from {heads} seeds and merged, with a part that predicts
the embedding of the label encoder at a weight of {chosen}; float16. The networks encode four crops of a photo: the
whole photo, its centre, and the mirror images of both.

**Data.** The 6,000 training photos of Flickr8k with five captions each (Hodosh, Young and Hockenmaier, 2013); its 1,000
validation photos and 200 photos with human judgements for model selection. RSUM of the validation split: {rsum:.1f}.

{metrics}

**Licence.** The heads are under the licence of bcls. EfficientNet-Lite and MiniLM are under Apache-2.0. The photos and
captions of Flickr8k are for research and education; they are not part of this model, but it was trained on them.

**Limits.** It was trained on 6,000 photos of everyday scenes: people, dogs, sport, beaches, streets. It does not know
names, does not read text in photos, counts poorly, and has the biases of photos from Flickr, of captions by a few
annotators, and of networks trained on ImageNet and on web text. Do not use it to assess people.

**Reproduce** with `make photo DATA=flickr8k JUDGEMENTS=folder`; metrics in `results/photo.json`.
"""


def _write(model: Any, folder: Path) -> None:
    def files(new: Path) -> None:
        from safetensors.torch import save

        write_files(model, new)
        state = {name: value.half().contiguous() for name, value in model.trained_state().items()}
        write_whole(new / WEIGHTS, save(state))

    replace_folder(folder, files)
    size = (folder / WEIGHTS).stat().st_size
    print(f"{folder / WEIGHTS}: {size / 1e6:.1f} MB", flush=True)


def _test(folder: Path, model: Any, shared: SharedData, judgements: Any) -> dict[str, float]:
    """Metrics of the test split and of all rated photos, with the float16 weights."""
    from safetensors.torch import load_file

    model.load_trained_state({name: value.float() for name, value in load_file(folder / WEIGHTS).items()})
    model = shared.lend(model)
    test = shared.dataset.split("test")
    figures, _ = split_metrics(test, _scores(model, test, test.texts), shared.captions(test, "minilm"))
    return figures | human_agreement(judgements, lambda a, b: _pairs(model, shared, a, b), PARTS)


def _scores(model: Any, images: Dataset, texts: Sequence[str]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return model.similarity(_features(images), model.text_vectors_of(list(texts))).numpy()


def _features(images: Dataset) -> torch.Tensor:
    return torch.from_numpy(images.features(FEATURES).take(range(len(images.images)))).float()


def _pairs(model: Any, shared: SharedData, photos: Sequence[str], texts: Sequence[str]) -> Any:
    images = shared.dataset.of_images(photos)
    order = {image: row for row, image in enumerate(images.image_ids)}
    return _scores(model, images, texts)[[order[photo] for photo in photos]]


if __name__ == "__main__":
    main()
