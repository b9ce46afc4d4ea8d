"""The dual encoder: two branches and the cosine between them."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bcls._checks import fail
from bcls._padded import Padded
from bcls.backbones.base import hash_state
from bcls.data.vocabulary import Vocabulary
from bcls.models.base import ENCODE_BATCH, ImageInputs, RetrievalModel, TextInputs, judging, parts
from bcls.models.batches import joined
from bcls.models.dual.adapters import MARK, add_adapters
from bcls.models.dual.branch import Branch
from bcls.models.dual.config import DualConfig
from bcls.models.dual.encoders import Encoders, make_encoders
from bcls.models.dual.heads import Head
from bcls.models.dual.texts import TransformerText
from bcls.similarity import cosine


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
