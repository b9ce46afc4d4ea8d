import numpy as np
import pytest
import torch

from bcls.losses import BCLSLoss, TripletSoftLoss


@pytest.fixture
def module(example):
    return example("hugging_face_trainer")


@pytest.fixture
def trainer(module, tmp_path):
    data, drawings = module.scenes(3)
    images = data.image_of_caption[:12]
    folder = module.tiny_clip(tmp_path, data.texts)
    rows = [
        {"pixels": drawings[image], "text": data.texts[place], "caption": place, "image": int(image)}
        for place, image in enumerate(images)
    ]
    vectors = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    labels = module.BatchLabels(vectors, images, "max", torch.device("cpu"))
    arguments = module.TrainingArguments(
        str(tmp_path / "out"), remove_unused_columns=False, report_to="none", use_cpu=True
    )
    model = module.CLIPModel.from_pretrained(folder)
    return module.RetrievalTrainer(model, arguments, module.Collator(folder), rows, labels=labels), rows


def test_the_loss_is_that_of_the_library(trainer):
    made, rows = trainer
    chosen = [rows[place] for place in (0, 1, 6, 11)]  # two captions of one image among them
    inputs = made.data_collator(chosen)
    pixels = {name: value for name, value in inputs.items() if name not in {"caption", "image"}}
    loss, outputs = made.compute_loss(made.model, dict(inputs), return_outputs=True)
    again = made.model(**pixels)
    similarity = again.image_embeds @ again.text_embeds.T
    labels = made.labels(np.array([0, 1, 6, 11]))
    ids = torch.tensor([0, 0, 1, 2])
    torch.testing.assert_close(loss, BCLSLoss()(similarity, labels, image_ids=ids))
    torch.testing.assert_close(outputs.image_embeds, again.image_embeds)
    made.loss = TripletSoftLoss()
    other = made.compute_loss(made.model, dict(inputs))
    torch.testing.assert_close(other, TripletSoftLoss()(similarity, labels, image_ids=ids))


def test_gradients_reach_both_towers(trainer):
    made, rows = trainer
    made.compute_loss(made.model, made.data_collator(rows)).backward()
    for tower in (made.model.vision_model, made.model.text_model):
        assert sum(weights.grad.abs().sum() for weights in tower.parameters() if weights.grad is not None) > 0


def test_accumulated_batches_are_averaged(trainer):
    """Two batches before a step have the gradient of the mean of their losses."""
    made, rows = trainer
    halves = [made.data_collator(rows[:6]), made.data_collator(rows[6:])]
    made.current_gradient_accumulation_steps = 2  # as the trainer sets it in its loop
    for half in halves:
        made.training_step(made.model, dict(half), num_items_in_batch=6)
    found = {name: weights.grad.clone() for name, weights in made.model.named_parameters() if weights.grad is not None}
    made.model.zero_grad()
    (sum(made.compute_loss(made.model, dict(half)) for half in halves) / 2).backward()
    assert len(found) > 10
    for name, weights in made.model.named_parameters():
        if weights.grad is not None:
            torch.testing.assert_close(found[name], weights.grad)


def test_a_clip_learns(module):
    metrics = module.main()
    assert metrics["after"] > 2 * metrics["before"]
