"""CLIP and SigLIP as they are: both towers of one transformers checkpoint, with its own preprocessing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from bcls._checks import fail
from bcls._padded import Padded
from bcls.models.dual.preprocess import Preprocessing, read_preprocessing
from bcls.models.dual.source import read_config, read_json_part, read_tokenizer, read_weights, transformers
from bcls.models.dual.texts import config_and_tokenizer, tokens
from bcls.models.pictures import pixel_batch

_KINDS = {"clip": "CLIPModel", "siglip": "SiglipModel"}


class ImageTower(nn.Module):
    """The vision tower with its projection: pixels ``(N, 3, S, S)`` to vectors ``(N, d)``."""

    packaged = False

    def __init__(self, model: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model, self.preprocessing = model.vision_model, preprocessing
        self.projection = getattr(model, "visual_projection", None)
        self.side: int = model.config.vision_config.image_size
        self.width: int = (
            model.config.vision_config.hidden_size if self.projection is None else self.projection.out_features
        )

    def prepare(self, images: Any) -> Padded:
        """Pictures resized and cropped as the checkpoint's processor does, ``(N, 3, S, S)`` uint8."""
        return pixel_batch(images, self.preprocessing.prepare, self.side)

    def forward(self, images: Padded) -> Padded:
        """See the class."""
        pooled: Tensor = self.model(pixel_values=self.preprocessing.normalise(images.values)).pooler_output
        return Padded(pooled if self.projection is None else self.projection(pooled))


class TextTower(nn.Module):
    """The text tower with its projection: token numbers to vectors ``(C, d)``.

    It keeps the tokenizer, the checkpoint's config and what its preprocessor is told, for :meth:`files`.
    """

    packaged = False

    def __init__(self, model: Any, tokenizer: Any, preprocessor: dict[str, Any]) -> None:
        super().__init__()
        self.whole_config, self.preprocessor = model.config, preprocessor
        config = model.config.text_config
        self.model, self.tokenizer = model.text_model, tokenizer
        self.projection = getattr(model, "text_projection", None)
        self.longest: int = config.max_position_embeddings
        self.words: int = config.vocab_size
        self.padding: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        # SigLIP has learnt from texts filled up to the full length, and reads its answer off the last place.
        self.fill: bool = model.config.model_type == "siglip"
        self.width: int = (
            getattr(config, "projection_size", config.hidden_size)
            if self.projection is None
            else self.projection.out_features
        )

    def prepare(self, texts: Any) -> Padded:
        """Token numbers, the special ones included."""
        return tokens(texts, self.tokenizer, self.words, self.longest)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        numbers = texts.values.masked_fill(~texts.mask, self.padding)
        if self.fill:
            numbers = functional.pad(numbers, (0, self.longest - numbers.shape[1]), value=self.padding)
        # No attention mask: CLIP reads forwards and stops at the end mark, SigLIP reads the filling as well.
        pooled: Tensor = self.model(input_ids=numbers).pooler_output
        return Padded(pooled if self.projection is None else self.projection(pooled))

    def files(self) -> dict[str, bytes]:
        """What it takes to make both towers without weights, by file name."""
        found = config_and_tokenizer(self.whole_config, self.tokenizer)
        return {**found, "preprocessor_config.json": json.dumps(self.preprocessor).encode()}


@dataclass(frozen=True)
class Towers:
    """Both towers of a checkpoint, and what its similarities are multiplied by and shifted by."""

    image: ImageTower
    text: TextTower
    logit_scale: Tensor
    logit_bias: Tensor | None


def load_towers(source: str | Path, *, weights: bool = True) -> Towers:
    """Read a CLIP or SigLIP checkpoint.

    Args:
        source: Folder or hub name.
        weights: Read them; without, they are drawn, for a state that is loaded later.

    Raises:
        ValueError: There is no such checkpoint, or it is of another kind.
    """
    library = transformers()
    config = read_config("model", source)
    if config.model_type not in _KINDS:
        naflex = config.model_type == "siglip2"
        remedy = "of SigLIP 2, take a checkpoint of one size, not NaFlex" if naflex else "use one of these"
        fail("model", f"a checkpoint of {' or '.join(_KINDS.values())}", f"a {config.model_type}", remedy)
    kind = getattr(library, _KINDS[config.model_type])
    model = read_weights("model", source, kind) if weights else kind(config)
    tokenizer = read_tokenizer("model", source)
    content = read_json_part(source, "preprocessor_config.json")
    if not content:
        content = read_json_part(source, "processor_config.json").get("image_processor", {})
    if "image_processor_type" not in content and config.model_type == "siglip":
        content = {"image_processor_type": "SiglipImageProcessor", **content}
    preprocessing = read_preprocessing(str(source), content, config.vision_config.image_size)
    bias = getattr(model, "logit_bias", None)
    return Towers(
        ImageTower(model.eval(), preprocessing),
        TextTower(model, tokenizer, content),
        model.logit_scale.detach().reshape(()).clone(),
        None if bias is None else bias.detach().reshape(()).clone(),
    )
