"""A CLIP of transformers trained with BCLS by the Hugging Face ``Trainer``.

Rows of the dataset have an image, a caption, and two indices: that of the caption among all captions, from which its
labels are computed, and that of its image, so that captions of the same image are not negatives of each other.

Run it: ``python examples/hugging_face_trainer.py``
"""

import tempfile
from typing import Any

import torch
from tiny_clip import scenes, tiny_clip
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel, Trainer, TrainingArguments

from bcls.evaluation.recall import recalls
from bcls.labels.encoders import load_text_encoder
from bcls.losses import BCLSLoss, RetrievalLoss
from bcls.training.batch_labels import BatchLabels


class RetrievalTrainer(Trainer):
    """``Trainer`` with a loss over the whole batch instead of the model's own.

    Args:
        *arguments: Arguments of ``Trainer``.
        labels: Computes the ``(B, B)`` labels of a batch from the indices of the captions.
        loss: Any loss of ``bcls.losses``; BCLS by default.
        **others: Arguments of ``Trainer``. The training arguments must have ``remove_unused_columns=False``.
    """

    loss_is_scaled_for_ga = False  # the trainer divides by the number of accumulated batches

    def __init__(self, *arguments: Any, labels: BatchLabels, loss: RetrievalLoss | None = None, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.labels = labels
        self.loss = BCLSLoss() if loss is None else loss

    def compute_loss(
        self, model: CLIPModel, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """The loss of a batch; ``image_embeds`` and ``text_embeds`` are unit vectors, their products cosines."""
        captions, images = inputs.pop("caption"), inputs.pop("image")
        outputs = model(**inputs)
        similarity = outputs.image_embeds @ outputs.text_embeds.T
        relevance = self.labels(captions.cpu().numpy()).to(similarity.device)
        loss = self.loss(similarity, relevance, image_ids=images)
        return (loss, outputs) if return_outputs else loss


class Collator:
    """Makes a batch from rows: images and captions preprocessed for the checkpoint."""

    def __init__(self, folder: str) -> None:
        self.words = AutoTokenizer.from_pretrained(folder)
        self.pixels = AutoImageProcessor.from_pretrained(folder)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pixels, token ids with their mask, and indices of captions and images."""
        batch = dict(self.words([row["text"] for row in rows], padding=True, truncation=True, return_tensors="pt"))
        batch["pixel_values"] = self.pixels([row["pixels"] for row in rows], return_tensors="pt")["pixel_values"]
        return batch | {name: torch.tensor([row[name] for row in rows]) for name in ("caption", "image")}


def main(epochs: int = 30) -> dict[str, float]:
    """Train a tiny CLIP on synthetic scenes with labels from their captions; returns RSUM before and after."""
    data, drawings = scenes(40)
    images = data.image_of_caption
    vectors = load_text_encoder("minilm").encode(data.texts)
    rows = [
        {"pixels": drawings[image], "text": text, "caption": index, "image": int(image)}
        for index, (image, text) in enumerate(zip(images, data.texts, strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder:
        model = CLIPModel.from_pretrained(tiny_clip(folder, data.texts))
        collate = Collator(folder)

        @torch.no_grad()
        def rsum() -> float:
            outputs = model.eval()(**{key: value for key, value in collate(rows).items() if key not in rows[0]})
            first = [images.tolist().index(image) for image in range(len(drawings))]  # each image once
            return recalls(outputs.image_embeds[first] @ outputs.text_embeds.T, images)["rsum"]

        before = rsum()
        sizes = {"per_device_train_batch_size": 40, "num_train_epochs": epochs, "learning_rate": 1e-3}
        quiet = {"report_to": "none", "save_strategy": "no", "logging_steps": 25, "disable_tqdm": True, "use_cpu": True}
        arguments = TrainingArguments(folder, remove_unused_columns=False, **sizes, **quiet)
        labels = BatchLabels(vectors, images, "max", torch.device("cpu"))
        RetrievalTrainer(model, arguments, collate, rows, labels=labels).train()
        return {"before": before, "after": rsum()}


if __name__ == "__main__":
    print(main())
