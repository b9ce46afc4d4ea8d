"""Train the photo models: ``python scripts/photo_model.py --data DIR --judgements DIR --stamps DIR --out WORK``.

First extract features: ``bcls data features DIR --backbone efficientnet-lite0+efficientnet-lite1+efficientnet-lite2
--regions global --name lite012``. Then, for ``photo`` or, with ``--name photo-fast``, for ``photo-fast``:

1. trains heads on frozen features (``photo_heads.py``), merges them, and adds the classes of the image networks with
   different settings (:mod:`bcls.models.open_vocabulary`). Of those that do not lower the RSUM on the validation split,
   the one that finds the most stamps (``photo_stamps.py``) is chosen;
2. adds a part that predicts the embedding of MiniLM (:func:`photo_parts.label_space_part`) with different
   weights. Of those with an RSUM of at least ``least`` on the validation split, the one that agrees best with people on
   the 200 selection photos is chosen;
3. fits the calibration (``photo_calibration.py``) on the validation split, the 200 selection photos and absent queries
   that are not in ``configs/photo/absent.json``;
4. with ``--final``, evaluates the written folder (``photo_shipped.py``) on the test split, the other 300 rated photos,
   the 200 absent queries and the outside photos.

``results/photo.json`` records everything. Heads that are in ``--out`` already are not trained again.
"""

import argparse
import json
import shutil
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from photo_calibration import fit_calibration, read_queries
from photo_heads import LAYERS, Flickr, HeadSettings, trained_heads
from photo_parts import add_open_vocabulary, centroids, label_space_part
from photo_shipped import CHOICE, card, evaluate
from photo_stamps import read_stamps
from safetensors.numpy import load_file
from torch import Tensor

from bcls._core.extras import sha256_of
from bcls._core.files import replace_folder, write_whole
from bcls.data import open_dataset
from bcls.experiments.metrics import human_agreement, read_judgements
from bcls.labels import load_text_encoder
from bcls.models import load
from bcls.models.combine import merge
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.export import export_onnx
from bcls.models.folder import CARD, CONFIG, ONNX, SHA256, WEIGHTS, write_files
from bcls.models.light import IMAGE_WEIGHTS, IMAGES, TEXT_WEIGHTS, TEXTS, TOKENIZER
from bcls.models.onnx_weights import tensor_offsets
from bcls.training.run_folder import describe

ROOT = Path(__file__).parents[1]
#: Inputs, outputs and scores of the exported model, for programs in other languages.
FORMAT = "ONNX.md"
CLASSES = ROOT / "src/bcls/models/photo/classes.json"
FEATURES, NETWORK = "lite012", 1280
#: Networks of each model, settings of its heads, and the least RSUM on the validation split.
#: That of ``photo`` was 336 at first and 337 for the second model: they had 334.6 and 336.3 on the test split.
MODELS: dict[str, Any] = {
    "photo": {
        "networks": (0, 1, 2),
        "heads": (
            HeadSettings(1),
            HeadSettings(7, dropout=0.6, ema=0.998),
            HeadSettings(8, batch=256, lr=3e-3, dropout=0.6, ema=0.998),
        ),
        "least": 338.0,
    },
    "photo-fast": {
        "networks": (0, 1),
        "heads": (HeadSettings(1, dropout=0.6), HeadSettings(3, batch=256, lr=3e-3, dropout=0.6)),
        "least": 318.0,
    },
}
#: Tried weights of the label space part, relative to the heads, and its ridge.
SHARES, RIDGE = (0.0, 0.025, 0.05, 0.075, 0.1, 0.125), 4.0
#: Tried settings of the classes: middle of the gate, sharpness of the probabilities, and length. The width is fixed.
MIDDLES, SHARPNESSES, LENGTHS, GATE_WIDTH = (0.38, 0.43, 0.48), (0.5, 0.7), (0.35, 0.5, 0.7), 0.04


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--judgements", required=True)
    parser.add_argument("--stamps", default="/usr/share/tuxpaint/stamps", help="folder of Tux Paint's stamps")
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

    def opened(share: float, options: dict[str, float]) -> DualModel:
        parts, weights = ([*heads, part], [*(1.0 for _ in heads), share * len(heads)]) if share else (heads, [])
        return add_open_vocabulary(merge(parts, weights, image=backbone), names, near, **options)

    names, near = class_vectors(), centroids(flickr.sentences[flickr.captions_of("train")])
    stamps = read_stamps(Path(given.stamps), backbone)
    tried: dict[str, dict[str, float]] = {}
    for middle, sharpness, length in product(MIDDLES, SHARPNESSES, LENGTHS):
        options = {"middle": middle, "width": GATE_WIDTH, "sharpness": sharpness, "length": length}
        model = opened(0.0, options)
        found = (model.encode_texts(stamps.texts) @ model.encode_images(stamps.images).T).numpy()
        tried[json.dumps(options)] = {"stamps": stamps.first_three(found), **evaluate_selection(model, flickr)}
    alone = evaluate_selection(merge(heads, image=backbone), flickr)["rsum"]
    options = json.loads(_best(tried, alone, "stamps"))
    shares = {str(one): evaluate_selection(opened(one, options), flickr, judgements) for one in SHARES}
    share = float(_best(shares, settings["least"], "choice_expert_tau_c"))
    best = opened(share, options)
    write_model(best, folder)
    best = load(folder)  # the float16 weights
    queries = read_queries(flickr, best)
    gate = (best.config.width, best.config.width + 384, options["middle"], GATE_WIDTH)
    about: dict[str, Any] = {
        "name": given.name,
        "networks": backbone,
        "layers": LAYERS,
        "head_settings": [vars(one) for one in settings["heads"]],
        "rsum_of_heads": alone,
        "tried": tried,
        "shares": shares,
        "chosen": {"share": share, **options},
        "selection": shares[str(share)] | {"stamps": tried[json.dumps(options)]["stamps"]},
        "stamps": len(stamps.texts),
        "ridge": RIDGE,
        "heads": len(heads),
        "calibration": fit_calibration(flickr, queries, Path(given.judgements), gate, folder),
    }
    if given.final:
        about |= evaluate(given.name, data, Path(given.judgements), given.outside)
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
    """``(1000, 384)`` vectors of the classes: their first name and definition."""
    classes = json.loads(CLASSES.read_text(encoding="utf-8"))
    texts = [f"{one['names'][0]}: {one['definition']}" for one in classes]
    return torch.from_numpy(load_text_encoder("minilm").encode(texts))


def vectors(model: DualModel, flickr: Flickr) -> tuple[Tensor, Tensor]:
    """Vectors of all photos and captions."""
    return model.encode_images(flickr.images), model.encode_texts(flickr.texts)


def evaluate_selection(model: DualModel, flickr: Flickr, judgements: Any = None) -> dict[str, float]:
    """RSUM of the validation split and, with judgements, agreement with people on the selection photos."""
    images, texts = vectors(model, flickr)
    found = {"rsum": flickr.rsum(images, texts)["rsum"]}
    if judgements is not None:
        agreement = human_agreement(judgements, pair_scores(flickr, images, texts), ("choice",))
        found |= {name: agreement[name] for name in ("choice_expert_tau_c", "choice_crowd_tau_b")}
    return found


def _best(tried: dict[str, dict[str, float]], least: float, metric: str) -> str:
    """The settings with the highest metric among those with an RSUM of at least ``least``."""
    for key, found in tried.items():
        print(key, found, flush=True)
    enough = {key: found[metric] for key, found in tried.items() if found["rsum"] >= least}
    return max(enough, key=lambda key: enough[key])


def pair_scores(flickr: Flickr, images: Tensor, texts: Tensor) -> Any:
    """Scores of photos and texts, given by name and text."""
    row = {one: number for number, one in enumerate(flickr.data.image_ids)}
    column: dict[str, int] = {}
    for number, one in enumerate(flickr.data.captions):
        column.setdefault(one.text, number)
    return lambda photos, captions: (
        images[[row[one] for one in photos]] @ texts[[column[one] for one in captions]].T
    ).numpy()


def write_model(model: DualModel, folder: Path) -> None:
    """Write a model as float16 with its graphs for ONNX Runtime; the names of the classes stay."""
    classes = CLASSES.read_text(encoding="utf-8")

    def files(new: Path) -> None:
        write_files(model, new, lambda value: value.half())
        if CLASSES.parent == folder:
            write_whole(new / CLASSES.name, classes)

    replace_folder(folder, files)
    with TemporaryDirectory() as temporary:
        export = Path(temporary) / "export"
        export_onnx(load(folder), export, precision="int8")
        if CLASSES.parent != folder:
            share_weights(export, CLASSES.parent)
        for file in export.iterdir():
            shutil.copy(file, folder / (file.name if file.name != CARD else FORMAT))
    print(f"{folder / WEIGHTS}: {(folder / WEIGHTS).stat().st_size / 1e6:.1f} MB", flush=True)


def share_weights(folder: Path, other: Path) -> None:
    """Let an export read the tokenizer and weights of frozen encoders from another one; weights that it lacks stay."""
    text = (folder / CARD).read_text(encoding="utf-8")
    note = f"The graphs read tokenizer and weights from the folder `{other.name}` beside this one.\n\n"
    write_whole(folder / CARD, text.replace("## Images\n", note + "## Images\n", 1))
    if sha256_of(folder / TOKENIZER) == sha256_of(other / TOKENIZER):
        (folder / TOKENIZER).unlink()
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    for name, weights in ((IMAGES, IMAGE_WEIGHTS), (TEXTS, TEXT_WEIGHTS)):
        own, found, offsets = load_file(folder / weights), load_file(other / weights), tensor_offsets(other / weights)
        graph = onnx.load(str(folder / name), load_external_data=False)
        for tensor in graph.graph.initializer:
            entries = {one.key: one for one in tensor.external_data}
            if not entries or entries["location"].value != weights:
                continue
            if np.array_equal(own[tensor.name], found.get(tensor.name, ())):
                entries["offset"].value = str(offsets[tensor.name])
            else:
                tensor.CopyFrom(onnx.numpy_helper.from_array(own[tensor.name], tensor.name))
        write_whole(folder / name, graph.SerializeToString())
        (folder / weights).unlink()
        config[SHA256] |= {name: sha256_of(folder / name), weights: sha256_of(other / weights)}
    config[ONNX]["shared"] = other.name
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
