"""BCLS with the signature of open_clip's ``ClipLoss``: terms by name if ``output_dict`` is set.

open_clip's training step calls ``loss(**model_out, output_dict=True)`` and adds up the returned terms. With
``--distill-model`` it also passes the teacher's features, ``dist_text_features`` among them: their cosines are the
labels, and the loop needs no change. In your own loop, pass embeddings of any text encoder under that name.

Run it: ``python examples/open_clip_loss.py``
"""

import torch
from torch import Tensor, nn
from torch.distributed.nn import all_gather
from torch.nn import functional

from bcls.data.synthetic import make_scenes, render_all
from bcls.evaluation.recall import recalls
from bcls.labels.encoders import load_text_encoder
from bcls.losses import BCLSLoss, RetrievalLoss


class BCLSClipLoss(nn.Module):
    """A loss for open_clip.

    Args:
        loss: Any loss of ``bcls.losses``; BCLS by default.
        world_size: Number of processes. Features are gathered with gradients, as with ``--gather-with-grad``.
    """

    def __init__(self, loss: RetrievalLoss | None = None, world_size: int = 1) -> None:
        super().__init__()
        self.loss = BCLSLoss() if loss is None else loss
        self.world_size = world_size

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of all processes, in the order of their ranks."""
        return rows if self.world_size == 1 else torch.cat(all_gather(rows.contiguous()))

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        dist_text_features: Tensor | None = None,
        image_ids: Tensor | None = None,
        **_: Tensor,  # the teacher's other outputs
    ) -> Tensor | dict[str, Tensor]:
        """The loss of a batch; features are unit rows ``(b, D)``.

        ``logit_scale`` and ``logit_bias`` are not used, since the losses are designed for cosines.
        ``dist_text_features`` are ``(b, d)`` embeddings of the captions from a frozen text encoder. ``image_ids``
        ``(b,)`` tell which rows have the same image; needed if an image may occur twice in a batch.
        """
        similarity, labels = self.gather(image_features) @ self.gather(text_features).T, None
        ids = None if image_ids is None else self.gather(image_ids)
        if dist_text_features is not None:
            vectors = functional.normalize(self.gather(dist_text_features.detach()).float(), dim=1)
            ids = torch.arange(len(vectors), device=vectors.device) if ids is None else ids
            labels = (vectors @ vectors.T).clamp(-1, 1).masked_fill(ids[:, None] == ids, 1.0)
        terms = self.loss.terms(similarity, labels, image_ids=ids)
        # A parameter without gradient is an error in DistributedDataParallel.
        terms[next(iter(terms))] += sum(0 * x.sum() for x in (logit_scale, logit_bias) if x is not None)
        return {f"{name}_loss": term for name, term in terms.items()} if output_dict else sum(terms.values())


def main(steps: int = 60) -> dict[str, float]:
    """Train two linear towers on synthetic scenes as open_clip does; returns RSUM before and after."""
    data = make_scenes(60, seed=0)
    images = torch.from_numpy(data.image_of_caption)
    pixels = torch.from_numpy(render_all(data.scenes, size=32)).flatten(1).float() / 255 - 0.5
    vectors = torch.from_numpy(load_text_encoder("minilm").encode(data.texts))  # the teacher's
    torch.manual_seed(0)
    image_tower, text_tower = nn.Linear(pixels.shape[1], 64), nn.Linear(vectors.shape[1], 64)
    log_scale, loss = nn.Parameter(torch.tensor(2.7)), BCLSClipLoss()

    def model(images: Tensor, texts: Tensor) -> dict[str, Tensor]:
        codes = {"image_features": image_tower(images), "text_features": text_tower(texts)}
        return {name: functional.normalize(rows, dim=1) for name, rows in codes.items()}

    def rsum() -> float:
        image_features, text_features = model(pixels, vectors).values()
        return recalls((image_features @ text_features.T).detach(), images)["rsum"]

    before, weights = rsum(), [*image_tower.parameters(), *text_tower.parameters(), log_scale]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    for _ in range(steps):
        captions = torch.randperm(len(images))[:64]  # of 60 scenes, so that some occur twice
        model_out = model(pixels[images[captions]], vectors[captions])
        model_out |= {"logit_scale": log_scale.exp(), "dist_text_features": vectors[captions]}
        losses = loss(**model_out, image_ids=images[captions], output_dict=True)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    return {"before": before, "after": rsum()}


if __name__ == "__main__":
    print(main())
