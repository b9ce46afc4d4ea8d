"""BCLS as a training task of open_clip's main branch (4.x), where a task has the model, the loss and the step.

With a teacher no class is needed: ``DistillCLIPTask(model, teacher, loss=BCLSClipLoss())`` passes the teacher's caption
features to the loss. ``BCLSTask`` is for labels without a teacher: batches have the embeddings of a text encoder.

Run it: ``python examples/open_clip_task.py``
"""

from typing import Any

import torch
from open_clip.task import CLIPTask
from open_clip_loss import BCLSClipLoss
from torch import Tensor, nn
from torch.nn import functional

from bcls.data.synthetic import make_scenes, render_all
from bcls.evaluation.recall import recalls
from bcls.labels.encoders import load_text_encoder


class BCLSTask(CLIPTask):
    """A ``CLIPTask`` whose batches have two keys more; a dataset's ``__getitem__`` returns them beside image and text.

    ``caption_vector`` is the embedding of the caption by a text encoder, ``image_id`` an integer per image. Other tasks
    that pass ``**batch`` to the model, gradient accumulation (``--accum-freq``) among them, do not accept these keys.

    Args:
        model: The model, as ``create_model_and_transforms`` returns it, with ``output_dict=True``.
        loss: A loss with the signature of ``ClipLoss``; BCLS by default.
        world_size: Number of processes.
        **others: Other arguments of ``CLIPTask``.
    """

    def __init__(self, model: nn.Module, *, loss: nn.Module | None = None, world_size: int = 1, **others: Any) -> None:
        loss = BCLSClipLoss(world_size=world_size) if loss is None else loss
        super().__init__(model, loss=loss, world_size=world_size, **others)

    def training_forward(self, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Terms of the loss with their sum as ``loss``, and values to log."""
        model_out = self.trainable_module(image=batch["image"], text=batch["text"])
        labels = {"dist_text_features": batch["caption_vector"], "image_ids": batch["image_id"]}
        losses = self.loss(**model_out, **labels, output_dict=True)
        return losses | {"loss": sum(losses.values())}, self._report(model_out)


class LinearClip(nn.Module):
    """Stands for a model of open_clip: the same inputs and outputs, with linear towers."""

    def __init__(self, image_width: int, text_width: int, width: int = 64) -> None:
        super().__init__()
        self.visual, self.text = nn.Linear(image_width, width), nn.Linear(text_width, width)
        self.logit_scale = nn.Parameter(torch.tensor(2.7))

    def forward(self, image: Tensor, text: Tensor) -> dict[str, Tensor]:  # noqa: D102 - as open_clip's models
        codes = {"image_features": self.visual(image), "text_features": self.text(text)}
        unit = {name: functional.normalize(rows, dim=1) for name, rows in codes.items()}
        return unit | {"logit_scale": self.logit_scale.exp()}


def main(steps: int = 60) -> dict[str, float]:
    """Train on synthetic scenes with the calls of open_clip's training loop; returns RSUM before and after."""
    data = make_scenes(60, seed=0)
    images = torch.from_numpy(data.image_of_caption)
    pixels = torch.from_numpy(render_all(data.scenes, size=32)).flatten(1).float() / 255 - 0.5
    vectors = torch.from_numpy(load_text_encoder("minilm").encode(data.texts))
    torch.manual_seed(0)
    task = BCLSTask(LinearClip(pixels.shape[1], vectors.shape[1]))

    @torch.no_grad()
    def rsum() -> float:
        task.eval()
        codes = task({"image": pixels, "text": vectors})
        return recalls(codes["image_features"] @ codes["text_features"].T, images)["rsum"]

    before = rsum()
    optimizer = torch.optim.Adam(task.trainable_module.parameters(), lr=1e-3)
    task.train()
    for _ in range(steps):
        rows = torch.randperm(len(images))[:64]  # of 60 scenes, so that some occur twice
        batch = {"image": pixels[images[rows]], "text": vectors[rows], "caption_vector": vectors[rows]}
        batch = task.prepare_batch(batch | {"image_id": images[rows]}, torch.device("cpu"))
        optimizer.zero_grad()
        losses, _ = task(batch)
        losses["loss"].backward()
        optimizer.step()
        task.clamp_logit_scale()
    return {"before": before, "after": rsum()}


if __name__ == "__main__":
    print(main())
