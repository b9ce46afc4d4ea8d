"""BCLS as a loss of sentence-transformers, for its trainer with text models and CLIP models.

The dataset has two columns of inputs, then ``label``. The first column has images for CLIP, or texts on the same
subject for a text model. The second has captions. ``label`` is one of

- floats, ``[image, r_0, r_1, ...]``: the index of the row's image, then the relevance of the caption to every image;
- an integer, the index of the caption in ``captions``: labels of a batch are then computed from sentence embeddings.

Run it: ``python examples/sentence_transformers_loss.py``
"""

import tempfile
from collections.abc import Iterable

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from tiny_clip import scenes, tiny_clip
from torch import Tensor, nn
from torch.nn import functional

from bcls.data.synthetic import true_relevance
from bcls.evaluation.recall import recalls
from bcls.labels.encoders import load_text_encoder
from bcls.losses import BCLSLoss, RetrievalLoss
from bcls.training.batch_labels import BatchLabels


class BCLS(nn.Module):
    """A loss for ``SentenceTransformerTrainer``, which logs ``binary`` and ``continuous`` beside their sum.

    Args:
        model: The model that is trained.
        loss: Any loss of ``bcls.losses``.
        captions: All captions; not needed if ``label`` holds floats.
        image_of_caption: Index of the image of each caption.
        encoder: Label encoder: a name for ``load_text_encoder``, or any object with ``encode(texts)``.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        loss: RetrievalLoss | None = None,
        captions: list[str] | None = None,
        image_of_caption: np.ndarray | None = None,
        encoder: object = "minilm",
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = BCLSLoss() if loss is None else loss
        self.images = self.labels = None
        if captions is not None:
            reader = load_text_encoder(encoder) if isinstance(encoder, str) else encoder
            self.images = np.asarray(image_of_caption)
            # The largest cosine over all captions of an image, also those outside the batch.
            self.labels = BatchLabels(reader.encode(captions), self.images, "max", torch.device("cpu"))

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> dict[str, Tensor]:
        """Terms of the loss of a batch; the trainer adds them up."""
        images, texts = (
            functional.normalize(self.model(column)["sentence_embedding"], dim=1) for column in sentence_features
        )
        if self.labels is None:
            image_ids = labels[:, 0].long()
            relevance = labels[:, 1:].T[image_ids]  # row i is the image of row i, column j the caption of row j
        else:
            indices = labels.cpu().numpy()
            image_ids, relevance = torch.from_numpy(self.images[indices]), self.labels(indices)
        # Captions of the same image, known from image_ids, are not negatives of each other.
        return self.loss.terms(images @ texts.T, relevance.to(images.device), image_ids=image_ids.to(images.device))


def main(epochs: int = 30) -> dict[str, float]:
    """Train a tiny CLIP on synthetic scenes with their true labels; returns RSUM before and after."""
    data, drawings = scenes(40)
    images = data.image_of_caption
    truth = true_relevance(data.scenes, data.captions)  # (images, captions), in [0, 1]
    labels = [[float(image), *truth[:, index].tolist()] for index, image in enumerate(images)]
    rows = {"image": [drawings[image] for image in images], "caption": data.texts, "label": labels}
    with tempfile.TemporaryDirectory() as folder:
        model = SentenceTransformer(tiny_clip(folder, data.texts), device="cpu")

        def rsum() -> float:
            return recalls(model.similarity(model.encode(drawings), model.encode(data.texts)), images)["rsum"]

        before = rsum()
        sizes = {"per_device_train_batch_size": 40, "num_train_epochs": epochs, "learning_rate": 1e-3}
        quiet = {"report_to": "none", "save_strategy": "no", "logging_steps": 25, "disable_tqdm": True, "use_cpu": True}
        arguments = SentenceTransformerTrainingArguments(folder, **sizes, **quiet)
        SentenceTransformerTrainer(model, arguments, Dataset.from_dict(rows), loss=BCLS(model)).train()
        return {"before": before, "after": rsum()}


if __name__ == "__main__":
    print(main())
