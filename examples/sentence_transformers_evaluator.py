"""The metrics of ``bcls.evaluation`` as an evaluator of sentence-transformers, during training or on its own.

It takes any model of sentence-transformers: images and captions for CLIP, texts on both sides for a text model.

Run it: ``python examples/sentence_transformers_evaluator.py``
"""

import tempfile

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers_loss import BCLS
from tiny_clip import scenes, tokenizer

from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.labels.encoders import load_text_encoder
from bcls.labels.relevance import relevance


class RetrievalEvaluator(BaseEvaluator):
    """R@1, R@5 and R@10 in both directions, RSUM, and Kendall's tau if labels are given.

    A query succeeds if any caption of the image is found, as usual in image-text retrieval. The library's
    ``InformationRetrievalEvaluator`` calls this accuracy; its recall divides by the number of captions.

    Args:
        images: Images, or texts in their place.
        captions: All captions.
        image_of_caption: ``(C,)``, index of each caption's image in ``images``.
        labels: ``(N, C)`` relevance of each caption to each image; adds ``i2t_tau_a`` and so on.
        name: Prefix of each metric.
        batch_size: Batch size of the encoder.
    """

    def __init__(
        self,
        images: list,
        captions: list[str],
        image_of_caption: np.ndarray,
        labels: np.ndarray | None = None,
        name: str = "",
        batch_size: int = 64,
    ) -> None:
        super().__init__()
        self.images, self.captions, self.image_of_caption = images, captions, image_of_caption
        self.labels, self.name, self.batch_size = labels, name, batch_size
        self.primary_metric = f"{name}_rsum" if name else "rsum"

    def __call__(
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """All metrics by name; ``metric_for_best_model="eval_rsum"`` selects the best checkpoint."""
        images, captions = (
            model.encode(side, batch_size=self.batch_size, convert_to_tensor=True, normalize_embeddings=True)
            for side in (self.images, self.captions)
        )
        similarity = images @ captions.T
        metrics = recalls(similarity, self.image_of_caption)
        if self.labels is not None:
            metrics |= kendall(similarity, self.labels)
        metrics = self.prefix_name_to_metrics(metrics, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics


def main(epochs: int = 20) -> dict[str, dict[str, float]]:
    """Train a text model to find the other captions of a scene from its first; returns metrics before and after."""
    data, _ = scenes(60)
    images, texts = data.image_of_caption, np.array(data.texts)
    first = np.unique(images, return_index=True)[1]
    others = np.setdiff1d(np.arange(len(texts)), first)
    vectors = load_text_encoder("minilm").encode(data.texts)
    labels = relevance(vectors, vectors[others], images, caption_image=images[others])
    evaluator = RetrievalEvaluator(texts[first].tolist(), texts[others].tolist(), images[others], labels)

    rows = {"title": texts[first][images[others]].tolist(), "caption": texts[others].tolist(), "label": others.tolist()}
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        words = StaticEmbedding(tokenizer(folder, data.texts), embedding_dim=64)
        model = SentenceTransformer(modules=[words], device="cpu")
        before = evaluator(model)
        sizes = {"per_device_train_batch_size": 48, "num_train_epochs": epochs, "learning_rate": 1e-2}
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
        arguments = SentenceTransformerTrainingArguments(folder, eval_strategy="epoch", **sizes, **quiet)
        # Labels are computed for each batch: `label` is the index of the caption in data.texts.
        loss = BCLS(model, captions=data.texts, image_of_caption=images, encoder="minilm")
        SentenceTransformerTrainer(model, arguments, Dataset.from_dict(rows), loss=loss, evaluator=evaluator).train()
        return {"before": before, "after": evaluator(model)}


if __name__ == "__main__":
    print(main())
