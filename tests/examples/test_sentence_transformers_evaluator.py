import numpy as np
import pytest

from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls

pytest.importorskip("datasets", reason='needs pip install "bcls[dev]"')


@pytest.fixture
def module(example):
    return example("sentence_transformers_evaluator")


class Model:
    """Stands for a SentenceTransformer that gives fixed vectors and keeps what the evaluator stores."""

    def __init__(self):
        self.model_card_data = self
        self.stored = []

    def encode(self, items, convert_to_tensor, normalize_embeddings, batch_size):
        import torch

        assert convert_to_tensor
        assert normalize_embeddings
        return torch.nn.functional.normalize(torch.tensor([[len(item), 3.0, item.count("a")] for item in items]), dim=1)

    def set_evaluation_metrics(self, evaluator, metrics, epoch, steps):
        self.stored.append((evaluator, metrics, epoch, steps))


def test_metrics_equal_those_of_the_library(module):
    images, captions, owner = ["aaa", "b"], ["aa", "aab", "bbbb"], np.array([0, 0, 1])
    labels = np.array([[1, 1, 0.2], [0.1, 0.3, 1]])
    model = Model()
    scores = np.asarray(model.encode(images, True, True, 1) @ model.encode(captions, True, True, 1).T)
    plain = module.RetrievalEvaluator(images, captions, owner)
    assert plain(model) == recalls(scores, owner)
    assert plain.primary_metric == "rsum"
    named = module.RetrievalEvaluator(images, captions, owner, labels, name="val")
    metrics = named(model, epoch=2, steps=7)
    assert metrics == {f"val_{key}": value for key, value in (recalls(scores, owner) | kendall(scores, labels)).items()}
    assert named.primary_metric in metrics
    assert model.stored[-1] == (named, metrics, 2, 7)


def test_a_text_model_learns_with_labels_made_on_the_fly(module):
    metrics = module.main()
    for name in ("rsum", "i2t_tau_a", "t2i_tau_a"):
        assert metrics["after"][name] > 1.5 * metrics["before"][name]


def test_a_clip_learns_from_image_files_and_keeps_its_best_checkpoint(module, tmp_path):
    """Loss and evaluator together in the trainer, with images that are decoded on demand."""
    import datasets
    from sentence_transformers import SentenceTransformer
    from tiny_clip import tiny_clip

    data, drawings = module.scenes(20)
    images, files = data.image_of_caption, [str(tmp_path / f"{number}.png") for number in range(20)]
    for drawing, file in zip(drawings, files, strict=True):
        drawing.save(file)
    rows = {"image": [files[image] for image in images], "caption": data.texts, "label": list(range(len(images)))}
    pairs = module.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    model = SentenceTransformer(tiny_clip(tmp_path / "clip", data.texts), device="cpu")
    vectors = module.load_text_encoder("minilm").encode(data.texts)
    labels = module.relevance(vectors, vectors, images, caption_image=images)
    evaluator = module.RetrievalEvaluator(drawings, data.texts, images, labels)
    before = evaluator(model)
    arguments = module.SentenceTransformerTrainingArguments(
        str(tmp_path / "out"),
        num_train_epochs=8,
        per_device_train_batch_size=25,
        learning_rate=2e-3,
        logging_steps=4,
        eval_strategy="epoch",
        save_strategy="best",
        load_best_model_at_end=True,
        metric_for_best_model="eval_rsum",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    loss = module.BCLS(model, captions=data.texts, image_of_caption=images)
    trainer = module.SentenceTransformerTrainer(model, arguments, pairs, loss=loss, evaluator=evaluator)
    trainer.train()
    found = [entry["eval_rsum"] for entry in trainer.state.log_history if "eval_rsum" in entry]
    assert len(found) == 8
    assert max(found) > 1.5 * before["rsum"]
    assert evaluator(model)["rsum"] == pytest.approx(max(found))
    assert any({"binary", "continuous"} <= entry.keys() for entry in trainer.state.log_history)
