"""LoRA: small trained matrices beside the frozen ones of an encoder.

One side of a dual encoder: encoder, pooling, head.

The encoders that a config names.

The dual encoder: two branches and the cosine between them.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls._core.extras import minilm_folder, require
from bcls.data.vocabulary import Vocabulary
from bcls.features.backbones import hash_state, load_backbone
from bcls.models.base import ENCODE_BATCH, ImageInputs, RetrievalModel, TextInputs, feature_batch, judging, parts
from bcls.models.config import DualConfig
from bcls.models.dual_encoders import (
    FeatureImages,
    GruText,
    PixelImages,
    TransformerText,
    load_text,
    load_towers,
    values_of,
)
from bcls.models.dual_heads import GPO, Head, pool
from bcls.models.padded import Padded, joined
from bcls.models.scoring import cosine, unit
from bcls.models.text import WordReader, word_count

#: What the names of the adapters' parameters contain, after peft's convention.
MARK = ".lora_"


def add_adapters(encoder: nn.Module, side: str, rank: int, alpha: float, targets: Sequence[str]) -> None:
    r"""Put adapters beside linear layers of an encoder, in place; everything else in it is frozen.

    A layer ``W x`` becomes ``W x + (alpha / rank) B A x`` with A ``(rank, in)`` and B ``(out, rank)``, B zero at first,
    so that nothing changes until training begins.

    Args:
        encoder: The encoder.
        side: ``"image"`` or ``"text"``, for the message.
        rank: Rank of the adapters.
        alpha: Scale of what they add.
        targets: Ends of the names of the layers, such as ``q_proj`` and ``v_proj``.

    Raises:
        ValueError: No layer has such a name.
        MissingExtraError: peft is not installed.

    Reference: Hu et al., LoRA, ICLR 2022.
    """
    peft = require("peft", "lora", "training with LoRA")
    linear = {name for name, layer in encoder.named_modules() if isinstance(layer, nn.Linear)}
    chosen = sorted(name for name in linear if any(name == end or name.endswith(f".{end}") for end in targets))
    if not chosen:
        ends = sorted({name.rsplit(".", 1)[-1] for name in linear}) or ["no linear layers"]
        fail(
            "lora_targets",
            f"names of linear layers of the {side} encoder",
            ", ".join(targets),
            f"it has {', '.join(ends)}",
        )
    settings = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=chosen)
    peft.inject_adapter_in_model(settings, encoder)
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(MARK in name)


class Branch(nn.Module):
    """An encoder, frozen or not, then pooling and a head; gives unit vectors ``(N, D)``.

    Inputs are what the encoder takes (token numbers, pixels), or features that a frozen encoder gave before: ``(N, d)``
    or ``(N, L, d)``, of captions as floats, which are told apart by their type and shape. Mean, max and the like come
    before the head, so that the features of a frozen encoder are one vector an item; GPO comes after it, as in
    VSE-infinity.

    Args:
        side: ``"images"`` or ``"texts"``, for messages.
        encoder: A module that gives features, with their ``width``, whether it is ``packaged``, and ``prepare(items)``,
            from what a person has to what it takes.
        pooling: See :func:`pool`; ``"gpo"``; anything where the encoder gives vectors.
        head: The head.
        tuned: Whether the encoder is trained.
        weights: Of heads side by side, P of them: a vector is then P unit vectors of D / P in a row, each times the
            root of its share of the weights, so that a product of two is the weighted mean of P cosines.
    """

    shares: Tensor

    def __init__(
        self, side: str, encoder: Any, pooling: str, head: Head, *, tuned: bool, weights: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__()
        self.side, self.tuned, self.kind = side, tuned, pooling
        shares = torch.tensor(weights, dtype=torch.float64)
        self.register_buffer("shares", (shares / shares.sum()).sqrt().float()[:, None], persistent=False)
        self.encoder = encoder
        self.head = head
        self.gpo = GPO() if pooling == "gpo" else None
        if not tuned:
            self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Branch":
        """Set the mode; a frozen encoder stays in eval mode, so that its dropout is off and its statistics stay."""
        super().train(mode)
        if not self.tuned:
            self.encoder.eval()
        return self

    def prepare(self, items: Any) -> Padded:
        """From what a person has to what the branch takes, on the CPU.

        Raises:
            ValueError: Features of another width, with wrong lengths or with NaN in them, or features where the encoder
                is trained.
        """
        values = values_of(items)
        if values is None or not self._is_features(values):
            prepared: Padded = self.encoder.prepare(items)
            return prepared
        self._check(values)
        width = self.encoder.width
        return feature_batch(items, width, shapes=self._shapes, dimensions=(2, 3), argument=self.side)

    def features(self, inputs: Padded) -> Padded:
        """What the head takes: ``(N, d)``, or ``(N, L, d)`` with lengths under GPO."""
        if not self._is_features(inputs.values):
            if inputs.values.shape[0] == 0:  # transformers cannot encode nothing
                return Padded(torch.zeros(0, self.encoder.width, device=inputs.values.device))
            with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
                inputs = self.encoder(inputs)
        else:
            self._check(inputs.values)
        if inputs.values.ndim == 3 and self.gpo is None:
            return Padded(pool(self.kind, inputs))
        return inputs

    def forward(self, inputs: Padded) -> Tensor:
        """See the class."""
        features = self.features(inputs)
        vectors: Tensor = self.head(features.values)
        if self.gpo is not None and vectors.ndim == 3:
            vectors = self.gpo(Padded(vectors, features.lengths))
        # In float32 also under autocast; a zero vector stays one and passes no gradient.
        vectors = vectors.float()
        if len(self.shares) == 1:
            return unit(vectors)
        side_by_side = vectors.view(*vectors.shape[:-1], len(self.shares), -1)
        joined: Tensor = (unit(side_by_side) * self.shares).flatten(-2)
        return joined

    def _is_features(self, values: Tensor) -> bool:
        # Whole numbers are token numbers on the side of the texts; pixels have four axes.
        return (values.is_floating_point() or self.side == "images") and values.ndim != 4

    @property
    def _shapes(self) -> str:
        return f"features (N, {self.encoder.width}) or (N, L, {self.encoder.width})"

    def _check(self, values: Tensor) -> None:
        if values.ndim not in (2, 3) or values.shape[-1] != self.encoder.width:
            fail(self.side, self._shapes, tuple(values.shape), "they are of another encoder")
        if self.tuned:
            got = "features that were made before"
            fail(self.side, "what the encoder reads, since it is trained", got, "they would pass it by")


@dataclass(frozen=True)
class Encoders:
    """Both encoders of a model, pretrained where they can be."""

    image: nn.Module
    text: nn.Module
    logit_scale: Tensor | None = None
    logit_bias: Tensor | None = None


def make_encoders(config: DualConfig, vocabulary: Vocabulary | None, folder: Path | None) -> Encoders:
    """Make the encoders.

    Args:
        config: What to make.
        vocabulary: With ``text: gru``.
        folder: Where the files of :meth:`DualModel.files` lie; then their weights are drawn.
    """
    kept = folder / "encoder" if folder is not None and (folder / "encoder").is_dir() else None
    if config.image == "clip":
        towers = load_towers(kept if kept is not None else str(config.model), weights=kept is None)
        return Encoders(towers.image, towers.text, towers.logit_scale, towers.logit_bias)
    image: nn.Module
    if config.image == "features":
        image = FeatureImages(config.features or 0)
    else:
        image = PixelImages(load_backbone(config.image), config.image_view)
    if config.text == "gru":
        words = word_count(config.words, vocabulary)
        reader = WordReader(
            words, config.word_width, config.states, bidirectional=config.bidirectional, dropout=config.dropout_words
        )
        return Encoders(image, GruText(reader, config.states, words, vocabulary, config.text_pooling == "last"))
    if config.text == "minilm":
        return Encoders(image, _minilm(frozen=not config.tune_text))
    return Encoders(image, load_text(kept if kept is not None else config.text, weights=kept is None))


#: A frozen encoder that some model in this process has: copying it is faster than reading it again for each of a sweep.
_IN_USE: WeakValueDictionary[str, nn.Module] = WeakValueDictionary()


def _minilm(*, frozen: bool) -> nn.Module:
    found = _IN_USE.get("minilm") if frozen else None
    if found is not None and all(one.dtype == torch.float32 for one in found.parameters()):
        # A copy, on the CPU as a new one is: the other model may be moved, and this one must not go with it.
        return copy.deepcopy(found).to("cpu")
    made = load_text(minilm_folder(), packaged=True)
    if frozen:
        _IN_USE["minilm"] = made
    return made


class DualModel(RetrievalModel):
    r"""Any image encoder with any text encoder, a head for each, cosine.

    .. math:: s(V, T) = \frac{h_V(f_V(V))^\top h_T(f_T(T))}{\|h_V(f_V(V))\| \, \|h_T(f_T(T))\|}

    Where an encoder f is frozen, its features can be made once and given in place of pixels or token numbers:
    :attr:`frozen_images`, :meth:`image_vectors_of`, :attr:`frozen_text`, :meth:`text_vectors_of`.

    Args:
        config: See :class:`DualConfig`.
        vocabulary: With ``text: gru``, what turns strings into token numbers.
        folder: Folder with the files that :meth:`files` gave: encoders are then made from these, with weights drawn,
            for a state that is loaded afterwards. Left out, they are read from where the config says.

    Attributes:
        initial_temperature: What CLIP and SigLIP divide their similarities by; ``None`` for the others. A loss with a
            temperature starts from it.
        initial_bias: What SigLIP adds to them then; ``None`` for the others.

    Raises:
        ValueError: An encoder is not there, does not fit the config, or is not the one that adapters belong to.
        MissingExtraError: A package that an encoder needs is not installed.
    """

    config: DualConfig

    def __init__(self, config: DualConfig, *, vocabulary: Vocabulary | None = None, folder: Path | None = None) -> None:
        super().__init__()
        encoders = make_encoders(config, vocabulary, folder)
        self.vocabulary = vocabulary
        sha256 = _adapt(config, encoders)
        self.image = _branch("images", encoders.image, config, config.tune_image)
        self.text = _branch("texts", encoders.text, config, config.tune_text or config.text == "gru")
        widths = [_width(config.image_head, config, encoders.image), _width(config.text_head, config, encoders.text)]
        if widths[0] != widths[1]:
            fail("image_head", f"heads to one width, such as {config.width}", f"{widths[0]} and {widths[1]}", "add one")
        self.config = replace(config, width=widths[0], base_sha256=sha256)
        self.frozen = tuple(f"{side}.encoder." for side in ("image", "text") if self._is_rebuilt(side))
        self.register_buffer("logit_scale", encoders.logit_scale)
        self.register_buffer("logit_bias", encoders.logit_bias)

    @property
    def initial_temperature(self) -> float | None:
        """What the checkpoint divides its similarities by."""
        return None if self.logit_scale is None else float(torch.exp(-self.get_buffer("logit_scale")))

    @property
    def initial_bias(self) -> float | None:
        """What the checkpoint adds to its similarities after that."""
        return None if self.logit_bias is None else float(self.get_buffer("logit_bias"))

    @property
    def frozen_images(self) -> bool:
        """Whether :meth:`image_vectors_of` may stand in for the image encoder in training."""
        return not self.image.tuned

    @property
    def frozen_text(self) -> bool:
        """Whether :meth:`text_vectors_of` may stand in for the text encoder in training."""
        return not self.text.tuned

    @property
    def reads_strings(self) -> bool:
        """Whether captions may be strings."""
        return self.config.text != "gru" or self.vocabulary is not None

    def prepare_images(self, images: ImageInputs) -> Padded:
        """Pixels ``(N, 3, S, S)`` uint8 from pictures; features ``(N, d)`` or ``(N, R, d)`` as float32."""
        return self.image.prepare(images)

    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Token numbers ``(C, W)`` with lengths; features ``(C, d)`` or ``(C, W, d)`` as float32."""
        return self.text.prepare(texts)

    def image_codes(self, images: Padded) -> Padded:
        """Unit vectors ``(N, D)`` of pixels or features."""
        return Padded(self.image(images))

    def text_codes(self, texts: Padded) -> Padded:
        """Unit vectors ``(C, D)`` of token numbers or features."""
        return Padded(self.text(texts))

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Cosines of all pairs, ``(N, C)``."""
        return cosine(images.values, texts.values)

    def image_vectors_of(self, images: ImageInputs) -> Padded:
        """What a frozen image encoder gives, for :meth:`image_codes`: made once, used in every epoch.

        Returns:
            ``(N, d)`` float32 on the CPU; under GPO ``(N, L, d)``.

        Raises:
            ValueError: The image encoder is trained.
        """
        return self._features_of("images", self.image, images)

    def text_vectors_of(self, texts: TextInputs) -> Padded:
        """What a frozen text encoder gives, for :meth:`text_codes`: made once, used in every epoch.

        Returns:
            ``(C, d)`` float32 on the CPU; under GPO ``(C, W, d)`` with lengths.

        Raises:
            ValueError: The text encoder is trained.
        """
        return self._features_of("texts", self.text, texts)

    def for_queries(self) -> "DualModel":
        """A twin that reads texts in bfloat16, where the processor has instructions for it: in half the time.

        Everything but the text encoder is shared. Its vectors are float32 of length 1, and their cosine with this
        model's is above 0.999.
        """
        encoder = self.text.encoder
        fast = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        if self.device.type != "cpu" or not isinstance(encoder, TransformerText) or fast is None or not fast():
            return self
        twin, branch = copy.copy(self), copy.copy(self.text)
        twin._modules, branch._modules = dict(self._modules), dict(self.text._modules)
        branch.encoder = copy.deepcopy(encoder).bfloat16().eval()  # the rest is shared, and keeps its mode
        twin.text = branch
        return twin

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """What is trained: ``"image backbone"``, ``"text encoder"`` and ``"heads"``, those that are not empty."""
        groups: dict[str, list[nn.Parameter]] = {"image backbone": [], "text encoder": [], "heads": []}
        for name, parameter in self.named_parameters():
            beginning = {"image.encoder": "image backbone", "text.encoder": "text encoder"}
            group = beginning.get(".".join(name.split(".")[:2]), "heads")
            if parameter.requires_grad:
                groups[group].append(parameter)
        return {name: group for name, group in groups.items() if group}

    def trained_state(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, without encoders that are rebuilt from where they came from.

        Those are frozen packaged ones and, with LoRA, all that are frozen; of the adapted ones the adapters are kept.
        """
        adapted = tuple(f"{side}.encoder." for side in ("image", "text") if _is_adapted(self.config, side))
        state = super().trained_state()
        return {name: value for name, value in state.items() if not name.startswith(adapted) or MARK in name}

    def files(self) -> dict[str, bytes]:
        """Files that must lie beside the state so that it can be loaded without the original checkpoints.

        Configs and tokenizers by name, ``"encoder/..."``; none for packaged encoders and with LoRA, where the original
        is needed anyway. Image backbones are found again by their name.
        """
        if self.config.lora_rank or self.text.encoder.packaged or self.config.text == "gru":
            return {}
        return {f"encoder/{name}": data for name, data in self.text.encoder.files().items()}

    def _is_rebuilt(self, side: str) -> bool:
        branch: Branch = getattr(self, side)
        return not branch.tuned and (branch.encoder.packaged or self.config.lora_rank > 0)

    def _features_of(self, side: str, branch: Branch, items: Any) -> Padded:
        if branch.tuned:
            fail(side, "a frozen encoder", "one that is trained", "its features change with every step")
        with judging(self):
            blocks = [branch.features(branch.prepare(part).to(self.device)) for part in parts(items, ENCODE_BATCH)]
        return joined(
            [Padded(one.values.float().cpu(), None if one.lengths is None else one.lengths.cpu()) for one in blocks]
        )


def _adapt(config: DualConfig, encoders: Encoders) -> str | None:
    if not config.lora_rank:
        return None
    state = {
        f"{side}.{name}": value
        for side, encoder in (("image", encoders.image), ("text", encoders.text))
        if side == "image" or config.text != "gru"
        for name, value in encoder.state_dict().items()
    }
    sha256 = hash_state(state)
    if config.base_sha256 not in (None, sha256):
        source = config.model if config.model is not None else f"{config.image} and {config.text}"
        expected = f"the encoders that the adapters were trained with, sha256 {config.base_sha256}"
        fail("base_sha256", expected, f"{source} with {sha256}", "put the original weights there")
    for side, encoder in (("image", encoders.image), ("text", encoders.text)):
        if _is_adapted(config, side):
            add_adapters(encoder, side, config.lora_rank, config.lora_alpha, config.lora_targets)
    return sha256


def _is_adapted(config: DualConfig, side: str) -> bool:
    tuned = config.tune_image if side == "image" else config.tune_text and config.text != "gru"
    return tuned and config.lora_rank > 0


def _branch(side: str, encoder: Any, config: DualConfig, tuned: bool) -> Branch:
    image = side == "images"
    kind = config.image_head if image else config.text_head
    dropout = config.dropout_images if image else config.dropout_texts
    head = Head(kind, encoder.width, config.width, 0.0 if kind == "none" else dropout, config.heads)
    pooling = config.image_pooling if image else config.text_pooling
    weights = config.head_weights or (1.0,) * config.heads
    return Branch(side, encoder, pooling, head, tuned=tuned, weights=weights)


def _width(kind: str, config: DualConfig, encoder: Any) -> int:
    width: int = encoder.width
    return width if kind == "none" else config.width
