"""The base class of retrieval models, and the preparation of their inputs: features, images and captions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls.data.vocabulary import Vocabulary
from bcls.features.image_processing import read_image
from bcls.models.config import check_feature_shape
from bcls.models.folder import load_folder, save_folder
from bcls.models.layers import Padded, cosine

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Images (paths or PIL images), or their features.
ImageInputs: TypeAlias = "Sequence[str | Path | Image.Image] | Tensor | np.ndarray[Any, Any] | Padded"
#: Captions as strings, or as ``(token ids, lengths)``.
TextInputs: TypeAlias = "Sequence[str] | tuple[Tensor, Tensor] | Padded"

#: Batch size of the encoders outside of training.
ENCODE_BATCH = 64


class RetrievalModel(nn.Module, ABC):
    """A model that scores images against captions; rows are images, columns are captions.

    Training uses the first five methods on batches, with gradients. :meth:`encode_images`, :meth:`encode_texts` and
    :meth:`similarity` take files and strings and return float32 tensors on the CPU.

    Attributes:
        config: The configuration from which :func:`bcls.models.build` makes the same model.
        vocabulary: Turns strings into token ids, where the model needs one; saved with the model.
        frozen: Name prefixes of parameters that are never trained and come from an installed package;
            :meth:`trained_state` leaves them out.
        groups: Groups of :meth:`parameter_groups`, and the prefix of the parameter names in each; the longest prefix
            of a name counts. One group by default.
    """

    config: "DataclassInstance"
    vocabulary: Vocabulary | None = None
    frozen: tuple[str, ...] = ()
    groups: ClassVar[Mapping[str, str]] = {"all": ""}

    @abstractmethod
    def prepare_images(self, images: ImageInputs) -> Padded:
        """Check images or features and convert them to the input of :meth:`image_codes`, on the CPU."""

    @abstractmethod
    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Check captions and convert them to the input of :meth:`text_codes`, on the CPU: token ids with lengths."""

    @abstractmethod
    def image_codes(self, images: Padded) -> Padded:
        """Encode images: ``(N, D)`` unit vectors, or ``(N, R, D)`` regions."""

    @abstractmethod
    def text_codes(self, texts: Padded) -> Padded:
        """Encode captions: ``(C, D)`` unit vectors, or ``(C, W, D)`` words with lengths."""

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Score all pairs of encoded images and captions, ``(N, C)``, with gradients; by default the cosine."""
        return cosine(images.values, texts.values)

    def forward(self, images: Padded, texts: Padded) -> tuple[Padded, Padded]:
        """Encode both sides. Scores are computed after the codes of all processes have been gathered."""
        return self.image_codes(images), self.text_codes(texts)

    def image_vectors(self, codes: Padded) -> Tensor:
        """``(N, D)`` unit vectors from image codes: the codes themselves, unless they are regions."""
        return codes.values

    def text_vectors(self, codes: Padded) -> Tensor:
        """``(C, D)`` unit vectors from caption codes."""
        return codes.values

    def encode_images(self, images: ImageInputs) -> Tensor:
        """Encode images into ``(N, D)`` float32 unit rows on the CPU, in eval mode and without gradient.

        Args:
            images: Paths or PIL images if the model reads images, else features ``(N, d)`` or ``(N, R, d)``.
        """
        return self._encode_images(images).cpu()

    def encode_texts(self, texts: TextInputs) -> Tensor:
        """Encode captions into ``(C, D)`` float32 unit rows on the CPU, in eval mode and without gradient.

        Args:
            texts: Strings, or ``(token ids, lengths)``.
        """
        return self._encode_texts(texts).cpu()

    def similarity(self, images: ImageInputs, texts: TextInputs) -> Tensor:
        """Score every image against every caption, ``(N, C)`` float32 on the CPU, without gradient.

        Args:
            images: As for :meth:`encode_images`.
            texts: As for :meth:`encode_texts`.
        """
        return self.similarity_on_device(images, texts).cpu()

    def similarity_on_device(self, images: ImageInputs, texts: TextInputs) -> Tensor:
        """Same as :meth:`similarity`, with the result on the model's device."""
        if type(self).similarity is not RetrievalModel.similarity:  # scores that are not products of vectors
            return self.similarity(images, texts).to(self.device)
        rows, columns = self._encode_images(images), self._encode_texts(texts)
        with torch.autocast(self.device.type, enabled=False):
            return rows @ columns.T

    def for_queries(self) -> Self:
        """A model for encoding single queries with low latency: this one, unless a subclass has a faster form."""
        return self

    def trained_state(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, without those of frozen packaged encoders."""
        state: dict[str, Tensor] = self.state_dict()
        return {name: value for name, value in state.items() if not name.startswith(self.frozen)}

    def load_trained_state(self, state: dict[str, Tensor]) -> None:
        """Load the result of :meth:`trained_state`.

        Raises:
            ValueError: A tensor is missing or unknown, or a shape differs; the message names it.
        """
        own = self.trained_state()
        for name in sorted(own.keys() - state.keys()):
            fail("state", f"a tensor {name!r}", "none", "the checkpoint is of another model or truncated")
        for name, value in sorted(state.items()):
            if name not in own:
                fail("state", f"the {len(own)} tensors of this model", f"also {name!r}", "use the config saved with it")
            if own[name].shape != value.shape:
                expected, got = tuple(own[name].shape), tuple(value.shape)
                fail("state", f"shape {expected} for {name!r}", got, "config and weights are of different models")
        self.load_state_dict(state, strict=False)

    def files(self) -> dict[str, bytes]:
        """Additional files of a saved model, by name; none by default."""
        return {}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Trained parameters by group, without empty groups; learning-rate factors are given by group name."""
        found: dict[str, list[nn.Parameter]] = {group: [] for group in self.groups}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                matching = [group for group, prefix in self.groups.items() if name.startswith(prefix)]
                found[max(matching, key=lambda group: len(self.groups[group]))].append(parameter)
        return {group: parameters for group, parameters in found.items() if parameters}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config, weights, vocabulary and a model card into a folder, which is replaced as a whole.

        Raises:
            ValueError: The folder exists and holds something other than a saved model.
        """
        save_folder(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Read a model that :meth:`save_pretrained` wrote, on the CPU and in eval mode.

        Raises:
            ValueError: The files are damaged, do not fit together, or hold another kind of model.
        """
        model: Self = load_folder(folder, cls)
        return model

    def as_dict(self) -> dict[str, Any]:
        """The configuration as plain values, for JSON and YAML."""
        return asdict(self.config)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    def _encode_images(self, images: ImageInputs) -> Tensor:
        return self._encode(self.prepare_images, lambda batch: self.image_vectors(self.image_codes(batch)), images)

    def _encode_texts(self, texts: TextInputs) -> Tensor:
        return self._encode(self.prepare_texts, lambda batch: self.text_vectors(self.text_codes(batch)), texts)

    def _encode(self, prepare: Callable[[Any], Padded], encode: Callable[[Padded], Tensor], items: Any) -> Tensor:
        """Apply an encoder to batches, ``(N, D)`` float32 on the model's device."""
        # Items that need no preparation on the CPU are sent to a GPU in large batches.
        prepared = self.device.type == "cuda" and isinstance(items, Padded) and items.values.ndim == 2
        size = ENCODE_BATCH * 16 if prepared else ENCODE_BATCH
        with eval_mode(self):
            return torch.cat([encode(prepare(part).to(self.device)).float() for part in split_batches(items, size)])


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; restores the previous mode on exit."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        # Not inference mode, so that the results can be used in later computations with gradients.
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def split_batches(items: Any, size: int | None = None) -> Iterator[Any]:
    """Split inputs of any accepted type into batches of at most ``size`` items; one empty batch if there are none."""
    items, step = as_padded(items) if isinstance(items, tuple) else items, size or ENCODE_BATCH
    if not hasattr(items, "__len__") or not hasattr(items, "__getitem__") or isinstance(items, Mapping):
        yield items  # not a sequence: the preparation raises an error that says what is expected
        return
    take = items.take if isinstance(items, Padded) else items.__getitem__
    for start in range(0, max(1, len(items)), step):
        yield take(slice(start, start + step))


def as_padded(items: Any) -> Any:
    """A tensor, an array of numbers, or a pair of values and lengths as :class:`Padded`; anything else unchanged."""
    if isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], Tensor):
        return Padded(*items)
    values, lengths = (items.values, items.lengths) if isinstance(items, Padded) else (items, None)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = torch.from_numpy(np.ascontiguousarray(values))
    return Padded(values, lengths) if isinstance(values, Tensor) else items


def feature_batch(
    features: Any, width: int, *, axes: tuple[int, ...] = (2, 3), regions: int | None = None, argument: str = "images"
) -> Padded:
    """Check image features, or features of captions from a frozen encoder.

    Args:
        features: ``(N, d)`` or ``(N, R, d)`` as a tensor or an array; regions with ``(N,)`` lengths as a pair of
            tensors or as :class:`Padded`.
        width: Required width, d.
        axes: Allowed numbers of axes.
        regions: Number of regions, see :func:`bcls.models.config.check_feature_shape`.
        argument: Name of the features in error messages.

    Raises:
        ValueError: Not features, or of another width, with wrong lengths, or not finite.
    """
    if isinstance(features, list | tuple) and not features:
        features = torch.zeros(0, *[1] * (axes[0] - 2), width)
    batch = as_padded(features)
    if not isinstance(batch, Padded) or not isinstance(batch.values, Tensor):
        got = type(features).__name__
        if isinstance(features, list | tuple):
            got += f" of {type(features[0]).__name__}"
        hint = "this model takes features; models with a backbone take images"
        fail(argument, f"features (N, {width}) or (N, R, {width})", got, hint)
    values, lengths = batch.values, batch.lengths
    check_feature_shape(argument, values.shape, width, axes=axes, regions=regions)
    values = values.float()
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
        fail(argument, "finite features", f"NaN or infinity in row {row}", "extract the features of this item again")
    if lengths is None:
        return Padded(values)
    if not isinstance(lengths, Tensor) or values.ndim != 3 or lengths.shape != values.shape[:1]:
        shape = tuple(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
        expected = "lengths (N,), as a tensor, for items (N, L, d)"
        fail(argument, expected, f"{shape} for {tuple(values.shape)}", "give one length for each item")
    _check_range(argument, "lengths", lengths, 1, values.shape[1], "an item has at least one region or word")
    return Padded(values, lengths.long())


def _check_range(argument: str, what: str, values: Tensor, low: int, high: int, hint: str) -> None:
    if values.numel() and not low <= int(values.min()) <= int(values.max()) <= high:
        wrong = int(values.min()) if int(values.min()) < low else int(values.max())
        fail(argument, f"{what} from {low} to {high}", wrong, hint)


def pixel_batch(images: Any, prepare: Callable[[Image.Image], Tensor], side: int) -> Padded:
    """Read images into pixels ``(N, 3, side, side)``.

    Args:
        images: Paths or PIL images; or pixels, which are returned unchanged.
        prepare: Converts a PIL image to pixels ``(3, side, side)``.
        side: Side of the square input of the backbone.

    Raises:
        ValueError: Not images, a missing or damaged file, or pixels of another shape.
    """
    values = images.values if isinstance(images, Padded) else images
    if isinstance(values, Tensor):
        if values.ndim != 4 or values.shape[1:] != (3, side, side):
            expected = f"images, or pixels (N, 3, {side}, {side})"
            fail("images", expected, tuple(values.shape), "this model reads images, not features")
        return Padded(values)
    if not isinstance(values, list | tuple):
        fail("images", "a list of paths or PIL images", type(values).__name__, "put a single image in []")
    pixels = [prepare(read_image(image)) for image in values]
    return Padded(torch.stack(pixels) if pixels else torch.zeros(0, 3, side, side, dtype=torch.uint8))


def caption_tokens(texts: Any, vocabulary: Vocabulary | None, words: int) -> Padded:
    """Token ids of captions, checked.

    Args:
        texts: Strings, ``(token ids (C, W), lengths (C,))``, or these as :class:`Padded`.
        vocabulary: Encodes strings; without one, strings are an error.
        words: Size of the vocabulary.

    Raises:
        ValueError: Strings without a vocabulary, an id outside the vocabulary, an empty caption, or a wrong length.
    """
    if isinstance(texts, tuple):
        texts = as_padded(texts)
    if not isinstance(texts, Padded):
        check_strings(texts)
        if vocabulary is None:
            hint = "build the model with its `vocabulary` to use strings"
            fail("texts", "token ids with lengths", "strings", hint)
        if not len(texts):
            return Padded(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        tokens, counts = (torch.from_numpy(part) for part in vocabulary.encode_all(list(texts)))
        return Padded(tokens, counts)
    values, lengths = texts.values, texts.lengths
    shape = tuple(lengths.shape) if isinstance(lengths, Tensor) else lengths
    if values.ndim != 2 or values.is_floating_point() or lengths is None or shape != values.shape[:1]:
        got = f"{values.dtype} {tuple(values.shape)} with lengths {shape}"
        fail("texts", "integers (C, W) with lengths (C,)", got, "see `Vocabulary.encode_all`")
    _check_range("texts", "lengths", lengths, 1, values.shape[1], "a caption has at least one word")
    _check_range("texts", "token ids", values, 0, words - 1, "encode with the vocabulary of this model")
    return Padded(values.long(), lengths.long())


def check_strings(texts: Any) -> None:
    """Check for a collection of strings; a single string is an error.

    Raises:
        ValueError: Anything else.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        fail("texts", "a list of strings, or (token ids, lengths)", type(texts).__name__, "put a single string in []")


def vocabulary_size(words: int | None, vocabulary: object) -> int:
    """Size of the vocabulary from the configuration and the vocabulary, which must agree.

    Args:
        words: From the configuration; ``None`` if not set.
        vocabulary: The vocabulary; ``None`` if there is none.

    Raises:
        ValueError: Neither is given, they differ, or ``vocabulary`` is not a vocabulary.
    """
    if vocabulary is None:
        return words if words is not None else fail("words", "a number", None, "set it, or pass a `vocabulary`")
    if not isinstance(vocabulary, Vocabulary):
        got = type(vocabulary).__name__
        fail("vocabulary", "a bcls.data.Vocabulary", got, "make one with `Vocabulary.build(captions)`")
    if words is not None and words != len(vocabulary):
        fail("words", f"{len(vocabulary)}, the size of `vocabulary`", words, "use the vocabulary of this model")
    return len(vocabulary)
