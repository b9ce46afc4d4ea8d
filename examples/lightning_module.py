"""A model and a loss of ``bcls`` as a LightningModule, with metrics on the validation split.

Run it: ``python examples/lightning_module.py``
"""

from typing import Any

import numpy as np
import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bcls.data.synthetic import make_scenes, render_all
from bcls.data.vocabulary import Vocabulary
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.labels.encoders import load_text_encoder
from bcls.labels.relevance import relevance
from bcls.losses import BCLSLoss, RetrievalLoss
from bcls.models import build
from bcls.models.base import RetrievalModel
from bcls.training.batch_labels import BatchLabels


class RetrievalModule(lightning.LightningModule):
    """Trains a model of ``bcls.models`` with one vector an item; a batch holds indices of captions.

    Args:
        model: The model.
        features: ``(N, d)`` features of the images.
        texts: The captions.
        image_of_caption: ``(C,)``, index of the image of each caption.
        vectors: ``(C, d)`` sentence embeddings of the captions, from which labels are computed.
        loss: Any loss of ``bcls.losses``; BCLS by default.
        lr: Learning rate of Adam.
    """

    def __init__(
        self,
        model: RetrievalModel,
        features: Tensor,
        texts: list[str],
        image_of_caption: np.ndarray,
        vectors: np.ndarray,
        loss: RetrievalLoss | None = None,
        lr: float = 1e-3,
    ) -> None:
        super().__init__()
        self.model, self.features, self.texts, self.images = model, features, texts, image_of_caption
        self.labels = BatchLabels(vectors, image_of_caption, "max", torch.device("cpu"))
        self.vectors, self.loss, self.lr = vectors, BCLSLoss() if loss is None else loss, lr

    def training_step(self, indices: Tensor) -> Tensor:
        """The loss over the pairs of all processes, since negatives and windows depend on the batch size."""
        own = indices.cpu().numpy()
        images = self.model.prepare_images(self.features[self.images[own]]).to(self.device)
        texts = self.model.prepare_texts([self.texts[index] for index in own]).to(self.device)
        codes = (code.values for code in self.model(images, texts))
        # (W, b, D) with W processes, (b, D) with one.
        image_codes, text_codes = (self.all_gather(code, sync_grads=True).flatten(0, -2) for code in codes)
        captions = self.all_gather(indices).flatten().cpu().numpy()
        ids, labels = torch.from_numpy(self.images[captions]), self.labels(captions)
        terms = self.loss.terms(image_codes @ text_codes.T, labels.to(self.device), image_ids=ids.to(self.device))
        self.log_dict(terms, prog_bar=True)
        return sum(terms.values())

    def validation_step(self, indices: Tensor) -> None:
        """Recall and Kendall's tau of the split, which is one batch."""
        captions = indices.cpu().numpy()
        shown, image_of_caption = np.unique(self.images[captions], return_inverse=True)
        scores = self.model.similarity(self.features[shown], [self.texts[index] for index in captions])
        labels = relevance(self.vectors[captions], self.vectors[captions], image_of_caption, image_of_caption)
        self.log_dict(recalls(scores, image_of_caption) | kendall(scores, labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102 - as Lightning documents it
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)


def main(epochs: int = 30) -> dict[str, Any]:
    """Train VSE++ on the pixels of synthetic scenes; returns metrics of 30 other scenes before and after."""
    data = make_scenes(150, seed=0)
    pixels = torch.from_numpy(render_all(data.scenes, size=32)).flatten(1).float() / 255 - 0.5
    train, other = range(600), range(600, 750)  # captions; each scene has five
    vocabulary = Vocabulary.build([data.texts[index] for index in train], threshold=1)
    lightning.seed_everything(0, verbose=False)
    model = build({"name": "vsepp", "features": pixels.shape[1], "width": 64}, vocabulary=vocabulary)
    vectors = load_text_encoder("minilm").encode(data.texts)
    module = RetrievalModule(model, pixels, data.texts, data.image_of_caption, vectors)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", gradient_clip_val=2.0, **quiet)
    validation = DataLoader(other, batch_size=len(other))
    (before,) = trainer.validate(module, validation, verbose=False)
    trainer.fit(module, DataLoader(train, batch_size=100, shuffle=True), validation)
    return {"before": before, "after": {name: float(value) for name, value in trainer.callback_metrics.items()}}


if __name__ == "__main__":
    print(main())
