"""CLIP through transformers: its text tower as a text encoder, and its score of a photo against a text."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._extras import require
from bcls._progress import no_bars
from bcls.labels._distinct import Part, encode_distinct, unit_or_zero
from bcls.labels._grouping import group_by_length
from bcls.labels.encoder import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

# Photos that go through the image tower together.
_PHOTOS = 32


class ClipEncoder:
    """A CLIP model of transformers; see :class:`bcls.labels.TextEncoder`. Models alike, such as SigLIP, work as well.

    Args:
        name: What to call it.
        source: The model's folder, a path, or its name on the hub, a string.
        precision: ``"float32"`` or ``"bfloat16"``.

    Raises:
        MissingExtraError: If transformers is not installed.
        OSError: If there is no such model, or it cannot be reached.
        ValueError: If the model has no text tower of that kind.
    """

    def __init__(self, name: str, source: str | Path, precision: str = "float32") -> None:
        library = require("transformers", "text", f"the text encoder {name!r}")
        self.name = name
        self._source, self._precision = source, precision
        local = isinstance(source, Path)
        with no_bars(require("transformers.utils.logging", "text", "text encoders")) if local else nullcontext():
            self._tokeniser = library.AutoTokenizer.from_pretrained(str(source), local_files_only=local)
            self._model = library.AutoModel.from_pretrained(str(source), local_files_only=local).eval()
        if not hasattr(self._model, "get_text_features"):
            fail("name", "a model with an image and a text tower", type(self._model).__name__, "give a CLIP model")
        self.dimension = self._texts(["a text"]).shape[1]

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode texts into unit rows, each different text once; see :meth:`bcls.labels.TextEncoder.encode`."""
        return encode_distinct(texts, self.dimension, self._parts, progress)

    def encode_photos(self, photos: Iterable["Image"], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode photos into ``(n, d)`` unit rows of the same space.

        Args:
            photos: Pictures in mode RGB; read one after another.
            progress: Called now and then with how many are done, twice.
        """
        import torch

        # The PIL version: the other one needs torchvision.
        library = require("transformers", "text", f"the photos of {self.name!r}")
        local = isinstance(self._source, Path)
        prepare = library.AutoImageProcessor.from_pretrained(
            str(self._source), local_files_only=local, **_pil_only(library)
        )
        parts, done = [np.empty((0, self.dimension), dtype=np.float32)], 0
        source = iter(photos)
        while batch := list(islice(source, _PHOTOS)):
            with torch.inference_mode(), self._cast():
                pixels = prepare(images=batch, return_tensors="pt")["pixel_values"].to(self._model.device)
                parts.append(_rows(self._model.get_image_features(pixel_values=pixels)))
            done += len(batch)
            if progress is not None:
                progress(done, done)
        return unit_or_zero(np.concatenate(parts))

    def _parts(self, texts: Sequence[str]) -> Iterator[Part]:
        for rows in group_by_length(np.array([len(text.split()) + 2 for text in texts], dtype=np.int64)):
            yield rows, self._texts([texts[row] for row in rows])

    def _texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import torch

        # SigLIP was trained on texts padded to full length; CLIP does not see what follows a text.
        padding = "max_length" if "siglip" in self._model.config.model_type else True
        with torch.inference_mode(), self._cast():
            tokens = self._tokeniser(list(texts), padding=padding, truncation=True, return_tensors="pt")
            return _rows(self._model.get_text_features(**tokens.to(self._model.device)))

    def _cast(self) -> AbstractContextManager[Any]:
        import torch

        if self._precision == "float32":
            return nullcontext()
        return torch.autocast(self._model.device.type, torch.bfloat16)


def _rows(output: Any) -> NDArray[np.float32]:
    """The vectors themselves; since release 5 of transformers they come inside an output."""
    rows: NDArray[np.float32] = getattr(output, "pooler_output", output).float().cpu().numpy()
    return rows


def _pil_only(library: Any) -> dict[str, Any]:
    """What asks for the processor that needs no torchvision: ``backend`` since release 5, ``use_fast`` before."""
    return {"backend": "pil"} if int(library.__version__.split(".")[0]) >= 5 else {"use_fast": False}
