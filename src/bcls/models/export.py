"""ONNX export: a folder with both towers of a model for ONNX Runtime, checked against torch, with a README.

The folder is also a saved model that :func:`bcls.models.load` reads: the graphs refer to the weights in its
safetensors files, so every weight is stored once.
"""

import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import bcls.models.folder as files
from bcls._core.errors import check_choice, fail
from bcls._core.extras import require
from bcls._core.files import beside, replace_folder, sync_tree, user_path, write_whole
from bcls.data.text_files import read_json
from bcls.features.image_processing import Resize
from bcls.features.regions import VIEWS
from bcls.models.base import RetrievalModel
from bcls.models.config import DualConfig, VseppConfig, name_of
from bcls.models.layers import Padded, trimmed
from bcls.models.light import IMAGE_WEIGHTS, IMAGES, TEXT_WEIGHTS, TEXTS, TOKENIZER, Exported
from bcls.models.loading import run_settings
from bcls.models.onnx_weights import move_weights, run_graph, stored_values

#: Largest allowed difference between onnxruntime and torch in an entry of a unit vector, both in float32 on the CPU.
TOLERANCE = 1e-4
#: Largest allowed cosine distance if weights are stored in half precision, or layers of the text tower in int8.
HALF_TOLERANCE, INT8_TOLERANCE = 1e-3, 5e-3
PRECISIONS = ("float16", "float32", "int8")
#: Files of an export, and files that may be there as well.
_REQUIRED = {IMAGES, TEXTS, files.CONFIG}
_OPTIONAL = {*files.OPTIONAL, files.WEIGHTS, TOKENIZER, IMAGE_WEIGHTS, TEXT_WEIGHTS}
#: ONNX files are limited to 2 GB; the weights of a larger model are written to a separate file first.
_MAX_BYTES = 1_800_000_000
#: Captions for the check if none are given.
_EXAMPLE_TEXTS = (
    "A brown dog runs along the beach.",
    "Two people are eating lunch at a small table outside a restaurant while a child looks at them.",
    "a red car",
    "Snow.",
)


def export_onnx(
    model: RetrievalModel,
    out: str | Path,
    *,
    images: Any = None,
    texts: Any = None,
    regions: bool = False,
    features: str | None = None,
    precision: str = "float16",
) -> Exported:
    """Write ``image.onnx``, ``text.onnx``, weights, ``config.json``, the tokenizer or vocabulary, and a ``README.md``.

    Both towers are run by onnxruntime and by torch, on all check inputs together and on the first alone; the folder
    is written only if they agree to :data:`TOLERANCE` with the model's own weights and if the cosine distance of the
    stored ones to torch is at most :data:`HALF_TOLERANCE`, with int8 :data:`INT8_TOLERANCE`.

    Args:
        model: A model with one vector an item, ``vsepp`` or ``dual``.
        out: A new or empty folder, or an earlier export, which is replaced as a whole.
        images: Images or features for the check; random ones if not given.
        texts: Captions for the check; a few English ones if not given.
        regions: The image tower takes regions ``(N, R, d)`` with lengths, not vectors; for models without a backbone.
        features: Name of the features with which the model was trained, for the README; see :func:`trained_features`.
        precision: ``"float16"`` stores large weights in half precision (and large tables of word embeddings as int8
            with a scale for each word); ``"float32"`` stores them unchanged. Both compute in float32. ``"int8"`` is
            float16, and linear layers of the text encoder compute in int8, with a scale for each token and each column;
            this halves the time of a text.

    Raises:
        ValueError: The model does not have two towers, ``out`` holds something else, the results differ, or there are
            no layers for int8.
        MissingExtraError: The packages of the extra ``onnx`` are not installed.
    """
    check_choice("precision", precision, PRECISIONS)
    inputs = _check_inputs(model, images, texts, regions)
    folder = Path(out).absolute()
    if not files.is_replaceable(folder, _REQUIRED, _OPTIONAL, lambda content: files.ONNX in content):
        expected = "a new or empty folder, or an earlier export and nothing else"
        fail("out", expected, str(out), "choose another name: nothing is overwritten")
    written: list[Exported] = []
    try:
        replace_folder(folder, lambda new: written.append(_write(new, model, *inputs, features, precision)))
    finally:
        shutil.rmtree(beside(folder)[0], ignore_errors=True)
    return written[0]


def trained_features(model: str | Path) -> str | None:
    """The features with which a run was trained, from its ``config.yaml``; ``None`` if ``model`` is not a run folder.

    Returns:
        Such as ``"lite2 of the dataset flickr8k"``, followed by how `bcls data features` computed them if the dataset
        is still there.
    """
    settings = run_settings(user_path(model))
    name, data = settings.get("features"), user_path(str(settings.get("data")))
    if not name:
        return None
    described = f"{name} of the dataset {data.name}"
    manifest = data / "features" / str(name) / "manifest.json"
    content = read_json(manifest) if manifest.is_file() else None
    made = content.get("settings") if isinstance(content, dict) else None
    if not isinstance(made, dict):
        return described
    known = [f"{key} {made[key]}" for key in ("backbone", "side", "view", "regions") if key in made]
    return f"{described} ({', '.join(known)})"


def _write(
    folder: Path, model: RetrievalModel, images: Padded, texts: Padded, features: str | None, precision: str
) -> Exported:
    half = precision != "float32"
    tolerance = INT8_TOLERANCE if precision == "int8" else HALF_TOLERANCE
    files.write_files(model, folder, lambda tensor: torch.from_numpy(stored_values(tensor.numpy(), half)))
    differences = []
    for file, weights, side, given, name, encode in (
        (IMAGES, IMAGE_WEIGHTS, "image", images, "images", model.encode_images),
        (TEXTS, TEXT_WEIGHTS, "text", texts, "numbers", model.encode_texts),
    ):
        _write_tower(folder / file, model, side, given, name)
        checks = [trimmed(given.take(rows)) for rows in (slice(None), slice(0, 1))]
        expected = torch.cat([encode(check) for check in checks])
        found = torch.cat([_run_tower(folder / file, check, name) for check in checks])
        difference = float((found - expected).abs().max())
        if not difference <= TOLERANCE:
            got = f"{difference:.2g} in {file}"
            fail("model", f"vectors that differ from torch by at most {TOLERANCE:g}", got, "report it as a bug")
        int8 = given if precision == "int8" and side == "text" else None
        move_weights(folder / file, folder / weights, half=half, int8=int8)
        stored = torch.cat([_run_tower(folder / file, check, name) for check in checks])
        distance = float((1 - (stored * expected).sum(1)).max())
        if not distance <= tolerance:
            got, hint = f"{distance:.2g} in {file}", "export it with precision float32"
            fail("precision", f"vectors with a cosine distance to torch of at most {tolerance:g}", got, hint)
        differences.append(float((stored - expected).abs().max()))
    text_files = _write_tokenizer(folder, model)
    shape = images.values.shape
    kind = "pixels" if len(shape) == 4 else "vectors" if len(shape) == 2 else "regions"
    free: tuple[str | int, ...] = ("N", "R") if kind == "regions" else ("N",)
    config: Any = model.config
    exported = Exported(
        model=name_of(config),
        width=stored.shape[1],
        images=kind,
        image_shape=(*free, *shape[len(free) :]),
        resize=_resize(model) if kind == "pixels" else None,
        crops=VIEWS[getattr(config, "image_view", "whole")],
        text_files=text_files,
        max_tokens=getattr(getattr(getattr(model, "text", None), "encoder", None), "longest", None),
        precision=precision,
        image_difference=differences[0],
        text_difference=differences[1],
        tolerance=tolerance if half else TOLERANCE,
    )
    write_whole(folder / files.CARD, _readme(exported, features))
    sync_tree(folder)  # torch wrote the towers without waiting for the disk
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    hashed = [name for name in names if name not in {files.CONFIG, files.CARD}]
    files.write_config(folder, {**files.plain_config(model), files.ONNX: asdict(exported)}, hashed)
    return exported


def _resize(model: RetrievalModel) -> Resize:
    image: Any = getattr(getattr(model, "image", None), "encoder", None)
    resize: Resize | None = getattr(getattr(image, "preprocessing", None), "resize", None)
    if resize is not None:
        return resize
    backbone: Any = getattr(image, "backbone", None) or model.backbone
    return Resize(backbone.side, backbone.side, (), backbone.resample.name.lower())


def _readme(exported: Exported, features: str | None) -> str:
    """How to prepare the inputs: in words, and as Python code that needs neither bcls nor torch."""
    jinja2 = require("jinja2", "onnx", "the README of an exported model")
    template = (Path(__file__).parent / "templates" / "onnx_readme.md").read_text(encoding="utf-8")
    resize: dict[str, Any] = {}
    if exported.resize is not None:
        resize = {**asdict(exported.resize), "resample": Image.Resampling[exported.resize.resample.upper()]}
    facts = {"keep_ratio": resize.get("width") == 0, "tokenizer": TOKENIZER in exported.text_files, **resize}
    page = jinja2.Template(template, keep_trailing_newline=True).render(onnx=exported, features=features, **facts)
    return str(page)


def _write_tokenizer(folder: Path, model: RetrievalModel) -> tuple[str, ...]:
    """Write the tokenizer or vocabulary of a model and return the file name; none if it accepts token ids only.

    A tokenizer is written with its maximum length and without padding, so that readers need not set them.
    """
    if model.vocabulary is not None:
        model.vocabulary.write(folder / files.VOCABULARY)
        return (files.VOCABULARY,)
    encoder: Any = getattr(getattr(model, "text", None), "encoder", None)
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None:
        return ()
    from tokenizers import Tokenizer

    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    plain.no_padding()
    plain.enable_truncation(encoder.longest)
    write_whole(folder / TOKENIZER, plain.to_str(pretty=True))
    return (TOKENIZER,)


def _check_inputs(model: RetrievalModel, images: Any, texts: Any, regions: bool) -> tuple[Padded, Padded]:
    """Prepared images and captions of a model with two towers, to export and check it with."""
    config = model.config
    if not isinstance(config, DualConfig | VseppConfig):
        fail("model", "a vsepp or dual model", type(model).__name__, "`--format folder` exports every model")
    pixels = config.backbone is not None if isinstance(config, VseppConfig) else config.image != "features"
    if pixels and regions:
        fail("regions", "a model that takes features", "one that reads images", "leave --regions out")
    random = torch.Generator().manual_seed(0)
    if images is None and pixels:
        images = _example_images()
    elif images is None:
        features = torch.randn(*((3, 5) if regions else (3,)), config.features or 0, generator=random)
        images = Padded(features, torch.tensor([5, 2, 3]) if regions else None)
    prepared = model.prepare_images(images)
    if prepared.values.ndim == 3:
        prepared = Padded(prepared.values, prepared.full_lengths)
    if texts is None and getattr(model, "reads_strings", model.vocabulary is not None):
        texts = list(_EXAMPLE_TEXTS)
    elif texts is None:
        texts = Padded(torch.randint(0, config.words or 0, (4, 9), generator=random), torch.tensor([9, 1, 4, 6]))
    return prepared, model.prepare_texts(texts)


def _example_images() -> list[Image.Image]:
    coarse = np.random.default_rng(0).integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
    pairs = zip(coarse, ((320, 240), (200, 300), (224, 224)), strict=True)
    return [Image.fromarray(one).resize(size, Image.Resampling.BICUBIC) for one, size in pairs]


class _Tower(nn.Module):
    """One side of a model: inputs, with lengths where items have them, to unit vectors ``(N, D)``."""

    def __init__(self, model: RetrievalModel, side: str) -> None:
        super().__init__()
        self.model, self.side = model, side

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        batch = Padded(values, lengths)
        if self.side == "image":
            return self.model.image_vectors(self.model.image_codes(batch))
        return self.model.text_vectors(self.model.text_codes(batch))


class _OnnxGru(nn.Module):
    """A :class:`torch.nn.GRU` of one layer and direction, batch first, as ONNX's operator ``GRU``.

    The exporter unrolls torch's own layer over the length of the example, which would be wrong for other lengths. This
    module can only be exported, not run, since torch does not have the operator.
    """

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__()
        if gru.num_layers != 1 or gru.bidirectional or not gru.batch_first or not gru.bias:
            fail("model", "GRUs of one layer and direction, batch first, with bias", repr(gru), "export another model")
        self.states = gru.hidden_size
        bias = [_reorder_gates(gru.get_parameter(f"bias_{kind}_l0")) for kind in ("ih", "hh")]
        self.register_buffer("weight", _reorder_gates(gru.get_parameter("weight_ih_l0"))[None])
        self.register_buffer("recurrent", _reorder_gates(gru.get_parameter("weight_hh_l0"))[None])
        self.register_buffer("bias", torch.cat(bias)[None])

    def forward(self, vectors: Tensor) -> tuple[Tensor, None]:
        """States ``(C, W, D)`` of vectors ``(C, W, d)``; torch's second result, the last state, is left out."""
        inputs = (vectors.transpose(0, 1), *(self.get_buffer(name) for name in ("weight", "recurrent", "bias")))
        attributes: dict[str, Any] = {"hidden_size": self.states, "linear_before_reset": 1}
        shape = (vectors.shape[1], 1, vectors.shape[0], self.states)
        states = torch.onnx.ops.symbolic("GRU", inputs, attrs=attributes, dtype=vectors.dtype, shape=shape)
        return states[:, 0].transpose(0, 1), None


def _reorder_gates(gates: Tensor) -> Tensor:
    # torch: reset, update, new; ONNX: update, reset, hidden.
    reset, update, new = gates.detach().chunk(3)
    return torch.cat((update, reset, new))


def _write_tower(path: Path, model: RetrievalModel, side: str, inputs: Padded, name: str) -> None:
    """Write a tower as an ONNX file; the number of items, and their length if there is one, are free.

    Args:
        path: The file.
        model: The model; a copy of it is exported.
        side: ``"image"`` or ``"text"``.
        inputs: An example.
        name: Name of the first input; the second is ``lengths``, the output ``vectors``.
    """
    require("onnxscript", "onnx", "exporting a model to ONNX")
    tower = _Tower(deepcopy(model).cpu().eval().requires_grad_(False), side).eval()
    for module in list(tower.modules()):
        for child_name, child in module.named_children():
            if isinstance(child, nn.GRU):
                setattr(module, child_name, _OnnxGru(child))
    # Repeated, since sizes of 1 would become constants.
    example = [part.repeat(2, *[1] * (part.ndim - 1)) for part in (inputs.values, inputs.lengths) if part is not None]
    free = torch.export.Dim.DYNAMIC
    shapes = [{0: free}] if len(example) == 1 else [{0: free, 1: free}, {0: free}]
    large = sum(tensor.nbytes for tensor in (*tower.parameters(), *tower.buffers())) > _MAX_BYTES
    names = [name, "lengths"][: len(example)]
    with _quiet_exporter(), torch.no_grad():
        # In two steps: the exporter alone would try other ways of tracing, which take longer and fix sizes.
        program = torch.export.export(tower, tuple(example), dynamic_shapes=tuple(shapes), strict=False)
        torch.onnx.export(
            program, (), str(path), input_names=names, output_names=["vectors"], verbose=False, external_data=large
        )


def _run_tower(path: Path, inputs: Padded, name: str) -> Tensor:
    """Vectors of an exported tower from onnxruntime, on the CPU."""
    return torch.from_numpy(run_graph(str(path), inputs, name, ["vectors"])[0])


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Suppress the exporter's log messages and warnings, which do not concern users."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
