"""A model, a loss and the metrics of ``bcls`` in a LightningModule.

Run it: ``python examples/lightning_module.py``
"""

from typing import Any

import numpy as np
import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bcls import BCLSLoss, RetrievalLoss, build_model, load_text_encoder
from bcls.data.synthetic import make_scenes, render_all
from bcls.data.vocabulary import Vocabulary
from bcls.evaluation import RetrievalMetrics
from bcls.models.base import RetrievalModel
from bcls.training.batch_labels import BatchLabels


class RetrievalModule(lightning.LightningModule):
    """Trains a model of ``bcls.models`` with one vector an item; a batch holds indices of captions.

    Args:
        model: The model.
        features: ``(N, d)`` features of the images.
        texts: Captions.
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
        self.vectors, self.metrics, self.lr = torch.from_numpy(vectors), RetrievalMetrics(), lr
        self.loss = BCLSLoss() if loss is None else loss

    def codes(self, indices: Tensor) -> list[Tensor]:
        """Embeddings of the images and captions of a batch, ``(b, D)`` each."""
        rows = indices.cpu().numpy()
        images = self.model.prepare_images(self.features[self.images[rows]]).to(self.device)
        texts = self.model.prepare_texts([self.texts[row] for row in rows]).to(self.device)
        return [code.values for code in self.model(images, texts)]

    def training_step(self, indices: Tensor) -> Tensor:
        """The loss over the pairs of all processes, since negatives and windows depend on the batch size."""
        images, texts = (self.all_gather(code, sync_grads=True).flatten(0, -2) for code in self.codes(indices))
        captions = self.all_gather(indices).flatten().cpu().numpy()  # (W, b) with W processes
        ids, labels = torch.from_numpy(self.images[captions]), self.labels(captions)
        terms = self.loss.terms(images @ texts.T, labels.to(self.device), image_ids=ids.to(self.device))
        self.log_dict(terms, prog_bar=True)
        return sum(terms.values())

    def validation_step(self, indices: Tensor) -> None:
        """Collect a batch of any size."""
        rows = indices.cpu()
        self.metrics.update(*self.codes(indices), torch.from_numpy(self.images)[rows], rows, self.vectors[rows])

    def on_validation_epoch_end(self) -> None:
        """Recall and Kendall's tau of the whole split, gathered from all processes."""
        self.log_dict(self.metrics.compute(), sync_dist=True)
        self.metrics.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102 - as Lightning documents it
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)


def main(epochs: int = 30, **options: Any) -> dict[str, Any]:
    """Train VSE++ on the pixels of synthetic scenes; returns metrics of 30 other scenes before and after."""
    lightning.seed_everything(0, verbose=False)
    data = make_scenes(150, seed=0)  # each has five captions
    pixels = torch.from_numpy(render_all(data.scenes, size=32)).flatten(1).float() / 255 - 0.5
    vocabulary = Vocabulary.build(data.texts[:600], threshold=1)
    model = build_model({"name": "vsepp", "features": pixels.shape[1], "width": 64}, vocabulary=vocabulary)
    vectors = load_text_encoder("minilm").encode(data.texts)
    module = RetrievalModule(model, pixels, data.texts, data.image_of_caption, vectors)
    options |= dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", gradient_clip_val=2.0, **options)
    train, other = DataLoader(range(600), batch_size=100, shuffle=True), DataLoader(range(600, 750), batch_size=64)
    (before,) = trainer.validate(module, other, verbose=False)
    trainer.fit(module, train, other)
    return {"before": before, "after": {name: float(value) for name, value in trainer.callback_metrics.items()}}


if __name__ == "__main__":
    print(main())
