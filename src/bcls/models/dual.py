"""The dual encoder: an image branch, a text branch, and the cosine between them; optionally with LoRA adapters."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import bcls.models.base as base
from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.data.vocabulary import Vocabulary
from bcls.features.backbones import hash_state
from bcls.losses.soft_labels import soft_label_kl
from bcls.models.config import DualConfig, check_feature_shape
from bcls.models.dual_encoders import Encoders, TransformerText, make_encoders
from bcls.models.layers import GPO, Head, Padded, joined, pool, unit, xavier_linear
from bcls.models.open_vocabulary import OpenImages, OpenTexts

#: Part of the names of adapter parameters, by peft's convention.
_ADAPTER = ".lora_"


class DualModel(base.RetrievalModel):
    r"""Any image encoder with any text encoder, a head for each, cosine similarity.

    .. math:: s(V, T) = \frac{h_V(f_V(V))^\top h_T(f_T(T))}{\|h_V(f_V(V))\| \, \|h_T(f_T(T))\|}

    If an encoder f is frozen, its features can be computed once and passed instead of images or token ids:
    :attr:`frozen_images`, :meth:`image_vectors_of`, :attr:`frozen_text`, :meth:`text_vectors_of`.

    Args:
        config: See :class:`bcls.models.DualConfig`.
        vocabulary: With ``text: gru``, turns strings into token ids.
        folder: Folder with the files of :meth:`files`: encoders are then made from these with random weights, for a
            state that is loaded later. By default they are read from the sources in the config.

    Raises:
        ValueError: An encoder does not exist, does not fit the config, or is not the one that adapters belong to.
        MissingExtraError: A package that an encoder needs is not installed.
    """

    config: DualConfig
    groups: ClassVar = {"image backbone": "image.encoder.", "text encoder": "text.encoder.", "heads": ""}

    def __init__(self, config: DualConfig, *, vocabulary: Vocabulary | None = None, folder: Path | None = None) -> None:
        super().__init__()
        encoders = make_encoders(config, vocabulary, folder)
        self.vocabulary = vocabulary
        tuned = {"image": config.tune_image, "text": config.tune_text and config.text != "gru"}
        adapted = [side for side in tuned if tuned[side] and config.lora_rank]
        self._adapted = tuple(f"{side}.encoder." for side in adapted)
        sha256 = _add_all_adapters(config, encoders, adapted) if adapted else None
        self.image = Branch("images", encoders.image, config, tuned=config.tune_image)
        self.text = Branch("texts", encoders.text, config, tuned=config.tune_text or config.text == "gru")
        sides = {"image": self.image, "text": self.text}
        if config.checkpointing:
            enable_checkpointing([branch.encoder for branch in sides.values() if branch.tuned])
        width, other = (side.encoder.width if side.head.linear is None else config.width for side in sides.values())
        if width != other:
            expected = f"heads with one output width, such as {config.width}"
            fail("image_head", expected, f"{width} and {other}", "add a head")
        self.config = replace(config, width=width, base_sha256=sha256)
        # Frozen encoders that are rebuilt from their source when the model is loaded.
        frozen = {side: branch.encoder for side, branch in sides.items() if not branch.tuned}
        self.frozen = tuple(f"{side}.encoder." for side in frozen if frozen[side].packaged or config.lora_rank > 0)
        if config.unimodal:
            self.unimodal = UnimodalHeads(width, config.unimodal)
        if config.open_vocabulary:
            self.image.open_vocabulary, self.text.open_vocabulary = OpenImages(encoders.image), OpenTexts()
        self.register_buffer("logit_scale", encoders.logit_scale)
        self.register_buffer("logit_bias", encoders.logit_bias)

    @property
    def initial_temperature(self) -> float | None:
        """Temperature of the CLIP or SigLIP checkpoint, from which a loss can start; ``None`` for other encoders."""
        return None if self.logit_scale is None else float(torch.exp(-self.get_buffer("logit_scale")))

    @property
    def initial_bias(self) -> float | None:
        """Bias that SigLIP adds to its scaled similarities; ``None`` for other encoders."""
        return None if self.logit_bias is None else float(self.get_buffer("logit_bias"))

    @property
    def frozen_images(self) -> bool:
        """Whether :meth:`image_vectors_of` can replace the image encoder in training."""
        return not self.image.tuned

    @property
    def frozen_text(self) -> bool:
        """Whether :meth:`text_vectors_of` can replace the text encoder in training."""
        return not self.text.tuned

    @property
    def reads_strings(self) -> bool:
        """Whether captions may be strings."""
        return self.config.text != "gru" or self.vocabulary is not None

    def prepare_images(self, images: base.ImageInputs) -> Padded:
        """Pixels ``(N, 3, S, S)`` uint8 of images; features ``(N, d)`` or ``(N, R, d)`` as float32."""
        return self.image.prepare(images)

    def prepare_texts(self, texts: base.TextInputs) -> Padded:
        """Token ids ``(C, W)`` with lengths; features ``(C, d)`` or ``(C, W, d)`` as float32."""
        return self.text.prepare(texts)

    def image_codes(self, images: Padded) -> Padded:
        """Unit vectors ``(N, D)`` of pixels or features."""
        return Padded(self.image(images))

    def text_codes(self, texts: Padded) -> Padded:
        """Unit vectors ``(C, D)`` of token ids or features."""
        return Padded(self.text(texts))

    def image_vectors_of(self, images: base.ImageInputs) -> Padded:
        """Features of a frozen image encoder as input of :meth:`image_codes`: computed once, used in every epoch.

        Returns:
            ``(N, d)`` float32 on the CPU; with GPO ``(N, L, d)``.

        Raises:
            ValueError: The image encoder is trained.
        """
        return self._features_of(self.image, images)

    def text_vectors_of(self, texts: base.TextInputs) -> Padded:
        """Features of a frozen text encoder as input of :meth:`text_codes`: computed once, used in every epoch.

        Returns:
            ``(C, d)`` float32 on the CPU; with GPO ``(C, W, d)`` with lengths.

        Raises:
            ValueError: The text encoder is trained.
        """
        return self._features_of(self.text, texts)

    def for_queries(self) -> "DualModel":
        """A copy whose text encoder computes in bfloat16, if the processor supports it: about twice as fast.

        Everything but the text encoder is shared. Its vectors are float32 of unit norm, and their cosine with this
        model's vectors is above 0.999.
        """
        encoder = self.text.encoder
        supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        if self.device.type != "cpu" or not isinstance(encoder, TransformerText) or not supported or not supported():
            return self
        twin, branch = copy.copy(self), copy.copy(self.text)
        twin._modules, branch._modules = dict(self._modules), dict(self.text._modules)
        branch.encoder = copy.deepcopy(encoder).bfloat16().eval()  # the rest is shared, and keeps its mode
        twin.text = branch
        return twin

    def trained_state(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, without encoders that are rebuilt from their source.

        These are frozen packaged encoders and, with LoRA, all frozen ones; of adapted encoders only the adapters are
        kept.
        """
        state = super().trained_state()
        return {name: value for name, value in state.items() if not name.startswith(self._adapted) or _ADAPTER in name}

    def files(self) -> dict[str, bytes]:
        """Files with which the state can be loaded without the original checkpoints.

        Configs and tokenizers as ``"encoder/..."``; none for packaged encoders and with LoRA, where the original is
        needed anyway. Image backbones are found by their name.
        """
        if self.config.lora_rank or self.text.encoder.packaged or self.config.text == "gru":
            return {}
        return {f"encoder/{name}": data for name, data in self.text.encoder.files().items()}

    def _features_of(self, branch: "Branch", items: Any) -> Padded:
        if branch.tuned:
            fail(branch.side, "a frozen encoder", "one that is trained", "its features change with every step")
        with base.eval_mode(self):
            batches = (branch.prepare(part).to(self.device) for part in base.split_batches(items))
            return joined([branch.features(batch).to("cpu").float() for batch in batches])


class Branch(nn.Module):
    """One side of a dual encoder: an encoder, frozen or not, then pooling and a head; returns unit vectors ``(N, D)``.

    Inputs are those of the encoder (token ids, pixels), or precomputed features of a frozen encoder: ``(N, d)`` or
    ``(N, L, d)``, recognized by their dtype and shape. Mean, max and the like pool before the head, so that the
    features of a frozen encoder are one vector an item; GPO pools after it, as in VSE-infinity.

    With P heads a vector is P unit vectors of width D / P, concatenated, each times the square root of its share of
    the weights, so that the product of two vectors is the weighted mean of P cosines.

    Args:
        side: ``"images"`` or ``"texts"``.
        encoder: See :mod:`bcls.models.dual_encoders`.
        config: Pooling, head, dropout and head weights.
        tuned: Whether the encoder is trained.
    """

    shares: Tensor

    def __init__(self, side: str, encoder: Any, config: DualConfig, *, tuned: bool) -> None:
        super().__init__()
        image = side == "images"
        kind = config.image_head if image else config.text_head
        dropout = 0.0 if kind == "none" else config.dropout_images if image else config.dropout_texts
        self.side, self.tuned, self.encoder = side, tuned, encoder
        self.pooling = config.image_pooling if image else config.text_pooling
        weights = torch.tensor(config.head_weights or (1.0,) * config.heads, dtype=torch.float64)
        self.register_buffer("shares", (weights / weights.sum()).sqrt().float()[:, None], persistent=False)
        self.head = Head(kind, encoder.width, config.width, dropout, config.heads)
        self.gpo = GPO() if self.pooling == "gpo" else None
        self.open_vocabulary: nn.Module | None = None
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
        """Check items and convert them to the input of the branch, on the CPU.

        Raises:
            ValueError: Features of another width, with wrong lengths or NaN, or features for a trained encoder.
        """
        batch = base.as_padded(items)
        if not isinstance(batch, Padded) or not self._are_features(batch.values):
            prepared: Padded = self.encoder.prepare(items)
            return prepared
        self._check_features(batch.values)
        return base.feature_batch(batch, self.encoder.width, argument=self.side)

    def features(self, inputs: Padded) -> Padded:
        """The input of the head: ``(N, d)``, or ``(N, L, d)`` with lengths for GPO."""
        if self._are_features(inputs.values):
            self._check_features(inputs.values)
        elif inputs.values.shape[0] == 0:  # transformers cannot encode an empty batch
            return Padded(torch.zeros(0, self.encoder.width, device=inputs.values.device))
        else:
            with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
                inputs = self.encoder(inputs)
        if inputs.values.ndim == 3 and self.gpo is None:
            return Padded(pool(self.pooling, inputs))
        return inputs

    def forward(self, inputs: Padded) -> Tensor:
        """See the class."""
        features = self.features(inputs)
        vectors: Tensor = self.head(features.values)
        if self.gpo is not None and vectors.ndim == 3:
            vectors = self.gpo(Padded(vectors, features.lengths))
        vectors = vectors.float()  # also under autocast
        if len(self.shares) == 1:
            vectors = unit(vectors)
        else:
            parts = unit(vectors.view(*vectors.shape[:-1], len(self.shares), vectors.shape[-1] // len(self.shares)))
            vectors = (parts * self.shares).flatten(-2)
        if self.open_vocabulary is not None:
            vectors = self.open_vocabulary(features.values.float(), vectors)
        return vectors

    def _are_features(self, values: Tensor) -> bool:
        # Integers are token ids on the text side; pixels have four axes.
        return (values.is_floating_point() or self.side == "images") and values.ndim != 4

    def _check_features(self, values: Tensor) -> None:
        check_feature_shape(self.side, values.shape, self.encoder.width)
        if self.tuned:
            expected, got = "inputs of the encoder, since it is trained", "precomputed features"
            fail(self.side, expected, got, "pass images or captions")


class UnimodalHeads(nn.Module):
    r"""A second head on each side, and the loss between items of one modality: USA, the uni-modal half of CUSA.

    .. math::
        \mathcal{L} = \frac{1}{2 B} \sum_i \left[
            \mathrm{KL}\!\left(\mathrm{softmax}(q^V_i) \,\|\, \mathrm{softmax}(V v_i / t_V)\right) +
            \mathrm{KL}\!\left(\mathrm{softmax}(q^T_i) \,\|\, \mathrm{softmax}(T t_i / t_T)\right)
        \right]

    The rows :math:`v_i` of V and :math:`t_i` of T are the unit vectors of the second heads; :math:`q^V_i` and
    :math:`q^T_i` are the similarities of image i to all images and of caption i to all captions, see
    :meth:`bcls.training.batch_labels.BatchLabels.unimodal`. The temperatures are learned, from 0.45 and within
    [0.1, 1].

    A second head is a linear layer on the vectors of the retrieval space. The authors train the encoders, and put both
    heads on their output. Here encoders may be frozen, and two heads on their output would then share no weights, so
    that the loss of one would not change the other.

    Args:
        width: Width of the vectors of the retrieval space, D.
        size: Width of the second heads.

    Inputs:
        images: ``(B, D)`` vectors of images.
        texts: ``(B, D)`` vectors of captions.
        image_labels: ``(B, B)``, :math:`q^V`.
        text_labels: ``(B, B)``, :math:`q^T`.

    Returns:
        The loss.

    Reference: CUSA (Huang et al., AAAI 2024).
    """

    bounds: ClassVar[tuple[float, float]] = (0.1, 1.0)

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.image, self.text = xavier_linear(width, size), xavier_linear(width, size)
        self.temperatures = nn.Parameter(torch.full((2,), 0.45))

    def forward(self, images: Tensor, texts: Tensor, image_labels: Tensor, text_labels: Tensor) -> Tensor:
        """See the class."""
        with torch.no_grad():
            self.temperatures.clamp_(*self.bounds)
        rows = []
        labels = image_labels, text_labels
        for number, vectors in enumerate((self.image(images), self.text(texts))):
            projected = unit(vectors)
            rows.append(soft_label_kl(projected @ projected.T, labels[number], self.temperatures[number]))
        return torch.cat(rows).mean()


def add_adapters(encoder: nn.Module, side: str, rank: int, alpha: float, targets: Sequence[str]) -> None:
    r"""Add LoRA adapters to linear layers of an encoder, in place; everything else in it is frozen.

    A layer ``W x`` becomes ``W x + (alpha / rank) B A x`` with A ``(rank, in)`` and B ``(out, rank)``. B starts at
    zero, so that nothing changes before training.

    Args:
        encoder: The encoder.
        side: ``"image"`` or ``"text"``, for the message.
        rank: Rank of the adapters.
        alpha: Scale of their output.
        targets: Name endings of the layers, such as ``q_proj`` and ``v_proj``.

    Raises:
        ValueError: No layer has such a name.
        MissingExtraError: peft is not installed.

    Reference: Hu et al., LoRA, ICLR 2022.
    """
    peft = require("peft", "lora", "training with LoRA")
    linear = {name for name, layer in encoder.named_modules() if isinstance(layer, nn.Linear)}
    chosen = sorted(name for name in linear if any(name == end or name.endswith(f".{end}") for end in targets))
    if not chosen:
        ends = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in linear})) or "no linear layers"
        expected = f"names of linear layers of the {side} encoder"
        fail("lora_targets", expected, ", ".join(targets), f"it has {ends}")
    peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=chosen), encoder)
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(_ADAPTER in name)


def enable_checkpointing(encoders: Sequence[nn.Module]) -> None:
    """Make the transformers among some trained encoders recompute the activations of their layers, in place.

    Raises:
        ValueError: There is none that can.

    Reference: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """
    parts = [part for encoder in encoders for part in encoder.modules()]
    able = [part for part in parts if getattr(part, "supports_gradient_checkpointing", False)]
    if not able:
        hint = "set `tune_text` or `tune_image`, or leave it out"
        fail("checkpointing", "a transformers encoder that is trained and supports it", "none", hint)
    for part in able:
        part.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        if hasattr(part.config, "use_cache"):  # of generated text; transformers would warn
            part.config.use_cache = False


def _add_all_adapters(config: DualConfig, encoders: Encoders, adapted: Sequence[str]) -> str:
    """Add adapters to some of the encoders; returns the hash of both encoders before that."""
    sides = {"image": encoders.image, "text": encoders.text}
    hashed = [side for side in sides if side == "image" or config.text != "gru"]
    state = {f"{side}.{name}": value for side in hashed for name, value in sides[side].state_dict().items()}
    sha256 = hash_state(state)
    if config.base_sha256 not in (None, sha256):
        source = config.model if config.model is not None else f"{config.image} and {config.text}"
        expected = f"the encoders with which the adapters were trained, sha256 {config.base_sha256}"
        fail("base_sha256", expected, f"{source} with {sha256}", "restore the original weights")
    for side in adapted:
        add_adapters(sides[side], side, config.lora_rank, config.lora_alpha, config.lora_targets)
    return sha256
