"""What every retrieval model is: two encoders and a score for each pair.

Images as features: vectors, or regions side by side.

Pictures as pixels, for models that see them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls.data.images import decode, upright_rgb
from bcls.models.padded import Padded

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from bcls.data.vocabulary import Vocabulary

#: Pictures (files, or opened), or their features.
ImageInputs: TypeAlias = "Sequence[str | Path | Image.Image] | Tensor | np.ndarray[Any, Any] | Padded"
#: Captions, or ``(token numbers, lengths)``.
TextInputs: TypeAlias = "Sequence[str] | tuple[Tensor, Tensor] | Padded"

#: Items that go through an encoder at a time, outside of training.
ENCODE_BATCH = 64


class RetrievalModel(nn.Module, ABC):
    """A model that scores images against captions; rows are images, columns are captions.

    Training works with the first five methods on batches and keeps gradients; people use :meth:`encode_images`,
    :meth:`encode_texts` and :meth:`similarity`, which take files and strings and give float32 CPU tensors.

    Attributes:
        config: The dataclass that :func:`bcls.models.build` makes the same model from.
        vocabulary: What turns strings into token numbers, where the model has such a one; saved with it.
        frozen: Beginnings of the names of parameters that are never trained and come from an installed package;
            :meth:`trained_state` leaves them out.
    """

    config: "DataclassInstance"
    vocabulary: "Vocabulary | None" = None
    frozen: tuple[str, ...] = ()

    @abstractmethod
    def prepare_images(self, images: ImageInputs) -> Padded:
        """Turn what a person has into what :meth:`image_codes` takes, on the CPU: one item after another."""

    @abstractmethod
    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Turn captions into what :meth:`text_codes` takes, token numbers with lengths, on the CPU."""

    @abstractmethod
    def image_codes(self, images: Padded) -> Padded:
        """Encode images: ``(N, D)`` unit vectors, or ``(N, R, D)`` regions."""

    @abstractmethod
    def text_codes(self, texts: Padded) -> Padded:
        """Encode captions: ``(C, D)`` unit vectors, or ``(C, W, D)`` words with lengths."""

    @abstractmethod
    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Score all pairs of codes, ``(N, C)``, with gradients."""

    def forward(self, images: Padded, texts: Padded) -> tuple[Padded, Padded]:
        """Codes of both sides. Scores come after the codes of all processes have been gathered."""
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
            images: Paths or PIL images where the model sees pixels, else features as ``(N, d)`` or ``(N, R, d)``.
        """
        return self._in_batches(self.prepare_images, self.image_codes, self.image_vectors, images).cpu()

    def encode_texts(self, texts: TextInputs) -> Tensor:
        """Encode captions into ``(C, D)`` float32 unit rows on the CPU, in eval mode and without gradient.

        Args:
            texts: Strings, or ``(token numbers, lengths)``.
        """
        return self._in_batches(self.prepare_texts, self.text_codes, self.text_vectors, texts).cpu()

    def similarity(self, images: ImageInputs, texts: TextInputs) -> Tensor:
        """Score every image against every caption, ``(N, C)`` float32 on the CPU, without gradient.

        Args:
            images: As for :meth:`encode_images`.
            texts: As for :meth:`encode_texts`.
        """
        return self.similarity_on_device(images, texts).cpu()

    def similarity_on_device(self, images: ImageInputs, texts: TextInputs) -> Tensor:
        """As :meth:`similarity`, on the model's device."""
        if type(self).similarity is not RetrievalModel.similarity:  # scores that are no products of vectors
            return self.similarity(images, texts).to(self.device)
        rows = self._in_batches(self.prepare_images, self.image_codes, self.image_vectors, images)
        columns = self._in_batches(self.prepare_texts, self.text_codes, self.text_vectors, texts)
        with torch.autocast(self.device.type, enabled=False):
            return rows @ columns.T

    def for_queries(self) -> Self:
        """The same model for those who wait for the vector of a text: itself, unless a kind knows a faster form."""
        return self

    def trained_state(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, without those of frozen packaged parts."""
        state: dict[str, Tensor] = self.state_dict()
        return {name: value for name, value in state.items() if not name.startswith(self.frozen)}

    def load_trained_state(self, state: dict[str, Tensor]) -> None:
        """Take over what :meth:`trained_state` gave.

        Raises:
            ValueError: A name is missing or unknown, or a shape differs; the message says which.
        """
        own = self.trained_state()
        for name in sorted(own.keys() - state.keys()):
            fail("state", f"a tensor {name!r}", "none", "the checkpoint is of another model or cut off")
        for name, value in sorted(state.items()):
            if name not in own:
                fail("state", f"the {len(own)} tensors of this model", f"{name!r} beside them", "use its own config")
            if own[name].shape != value.shape:
                expected, got = tuple(own[name].shape), tuple(value.shape)
                fail("state", f"shape {expected} for {name!r}", got, "the config and the weights are of two models")
        self.load_state_dict(state, strict=False)

    def files(self) -> dict[str, bytes]:
        """Files that a saved model needs beside config, weights and vocabulary, by name; none by default."""
        return {}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """What is trained, by the name that a learning-rate factor is given for; one group unless a model says more."""
        return {"all": [one for one in self.parameters() if one.requires_grad]}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config, weights, vocabulary and a model card into a folder, which is replaced whole.

        Raises:
            ValueError: Something else than a saved model has that name.
        """
        from bcls.models.folder import save_folder

        save_folder(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Read a model that :meth:`save_pretrained` wrote, in eval mode.

        Raises:
            ValueError: Its files are damaged, do not belong together, or hold another kind of model.
        """
        from bcls.models.folder import load_folder

        model = load_folder(folder)
        if not isinstance(model, cls):
            fail(str(folder), f"a {cls.__name__}", f"a {type(model).__name__}", "`bcls.models.load` reads any model")
        return model

    def as_dict(self) -> dict[str, Any]:
        """The config as plain values, for JSON and YAML."""
        return asdict(self.config)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def _in_batches(
        self,
        prepare: Callable[[Any], Padded],
        encode: Callable[[Padded], Padded],
        vectors: Callable[[Padded], Tensor],
        items: Any,
    ) -> Tensor:
        # What needs no preparation on the host goes to a GPU in few large parts.
        ready = self.device.type == "cuda" and isinstance(items, Padded) and items.values.ndim == 2
        size = ENCODE_BATCH * 16 if ready else ENCODE_BATCH
        with judging(self):
            blocks = [vectors(encode(prepare(part).to(self.device))).float() for part in parts(items, size)]
            return torch.cat(blocks)


@contextmanager
def judging(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the model's own mode comes back afterwards, whatever happens."""
    training = model.training
    # Looking is cheaper than switching, and a model that serves queries is in eval mode already.
    switches = any(module.training for module in model.modules())
    if switches:
        model.eval()
    try:
        # Not inference mode: people go on computing with what comes out, in place and with gradients.
        with torch.no_grad():
            yield
    finally:
        if switches:
            model.train(training)


def parts(items: Any, size: int) -> Iterator[Any]:
    """Cut inputs of any accepted kind into parts of at most ``size`` items; one empty part where there are none."""
    if isinstance(items, Padded):
        yield from (items.take(slice(start, start + size)) for start in range(0, max(1, len(items)), size))
    elif isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], Tensor):
        yield from parts(Padded(*items), size)
    elif not hasattr(items, "__len__") or not hasattr(items, "__getitem__") or isinstance(items, Mapping):
        yield items  # no collection: whoever prepares it says what it should be
    else:
        yield from (items[start : start + size] for start in range(0, max(1, len(items)), size))


def feature_batch(
    images: Any, width: int, *, shapes: str, dimensions: tuple[int, ...], argument: str = "images"
) -> Padded:
    """Features of images, checked; of captions as well, where their encoder is frozen.

    Args:
        images: ``(N, d)`` or ``(N, R, d)`` as a tensor or an array; regions with ``(N,)`` lengths as a pair of tensors
            or as :class:`Padded`.
        width: d.
        shapes: What is expected, for the message.
        dimensions: How many axes are allowed.
        argument: What the caller calls them.

    Raises:
        ValueError: Something else than features, of another width, with wrong lengths, or not finite.
    """
    if isinstance(images, tuple) and len(images) == 2 and all(isinstance(one, Tensor) for one in images):
        images = Padded(*images)
    lengths = images.lengths if isinstance(images, Padded) else None
    values = images.values if isinstance(images, Padded) else images
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = torch.from_numpy(np.ascontiguousarray(values))
    if isinstance(values, list | tuple) and not values:
        values = torch.zeros(0, *[1] * (dimensions[0] - 2), width)
    if not isinstance(values, Tensor):
        got = (
            f"{type(values).__name__} of {type(values[0]).__name__}"
            if isinstance(values, list | tuple)
            else type(values).__name__
        )
        fail(argument, shapes, got, "this model takes features; one with a `backbone` sees pictures")
    if values.ndim not in dimensions or values.shape[-1] != width:
        fail(argument, shapes, tuple(values.shape), f"the model was made for features of width {width}")
    values = values.float()
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
        fail(argument, "finite features", f"NaN or infinity in row {row}", "make the features of this item again")
    if lengths is not None:
        lengths = _checked_lengths(argument, lengths, values)
    return Padded(values, lengths)


def _checked_lengths(argument: str, lengths: Any, values: Tensor) -> Tensor:
    if not isinstance(lengths, Tensor) or values.ndim != 3 or lengths.shape != values.shape[:1]:
        told = tuple(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
        got = f"{told} for {tuple(values.shape)}"
        fail(argument, "lengths (N,), as a tensor, for items (N, L, d)", got, "one each")
    if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= values.shape[1]:
        wrong = int(lengths.min()) if int(lengths.min()) < 1 else int(lengths.max())
        fail(argument, f"lengths from 1 to {values.shape[1]}", wrong, "an item has at least one region or word")
    return lengths.long()


def pixel_batch(images: Any, prepare: Callable[[Image.Image], Tensor], side: int) -> Padded:
    """Pixels of pictures, ``(N, 3, side, side)``.

    Args:
        images: Paths or PIL images; or pixels, which stay as they are.
        prepare: From a picture to its pixels, ``(3, side, side)``.
        side: The side of the square that the backbone sees.

    Raises:
        ValueError: Something that is no picture, a file that is missing or damaged, or pixels of another shape.
    """
    values = images.values if isinstance(images, Padded) else images
    if isinstance(values, Tensor):
        if values.ndim != 4 or values.shape[1:] != (3, side, side):
            expected = f"pictures, or pixels (N, 3, {side}, {side})"
            fail("images", expected, tuple(values.shape), "this model sees pixels, not features")
        return Padded(values)
    if not isinstance(values, list | tuple):
        fail("images", "a list of paths or PIL images", type(values).__name__, "put pictures, also one alone, in []")
    pixels = [prepare(_opened(one)) for one in values]
    return Padded(torch.stack(pixels) if pixels else torch.zeros(0, 3, side, side, dtype=torch.uint8))


def _opened(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return upright_rgb(image, "images")
    if not isinstance(image, str | Path):
        fail("images", "paths or PIL images", type(image).__name__, "open or convert them first")
    try:
        content = Path(image).read_bytes()
    except OSError as error:
        fail(str(image), "a picture", error.strerror or "a file that does not open", "check the path")
    return decode(content, str(image))
