import numpy as np
import pytest
import torch
from torch.nn import functional

from bcls.labels.relevance import relevance
from bcls.losses import BCLSLoss

pytest.importorskip("datasets", reason='needs pip install "bcls[dev]"')

IMAGES = np.array([0, 1, 1, 2])


@pytest.fixture
def module(example):
    return example("sentence_transformers_loss")


class Towers(torch.nn.Module):
    """Stands for a SentenceTransformer: columns in, ``sentence_embedding`` out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = torch.nn.Linear(5, 4), torch.nn.Linear(3, 4)

    def forward(self, column):
        ((kind, values),) = column.items()
        return {"sentence_embedding": getattr(self, kind)(values)}


class Words:
    """An encoder of labels: the first caption is close to the last one."""

    def encode(self, texts):
        rows = np.array([[1, 0, 0], [0, 1, 0], [0, 0.6, 0.8], [0.9, 0.1, 0]], dtype=np.float32)
        return rows[: len(texts)]


def batch():
    generator = torch.Generator().manual_seed(1)
    return [{"image": torch.randn(4, 5, generator=generator)}, {"text": torch.randn(4, 3, generator=generator)}]


def expected(towers, columns, labels):
    images, texts = (functional.normalize(towers(column)["sentence_embedding"], dim=1) for column in columns)
    return BCLSLoss()(images @ texts.T, labels, image_ids=torch.from_numpy(IMAGES))


def table():
    vectors = Words().encode(["a"] * 4)
    return torch.from_numpy(relevance(vectors, vectors, IMAGES, caption_image=IMAGES))


def test_floats_of_the_dataset_are_the_labels_of_the_batch(module):
    towers, columns = Towers(), batch()
    rows = torch.cat([torch.from_numpy(IMAGES)[:, None].float(), table().T], dim=1)
    terms = module.BCLS(towers)(columns, rows)
    assert sorted(terms) == ["binary", "continuous"]
    torch.testing.assert_close(sum(terms.values()), expected(towers, columns, table()[IMAGES]))


def test_labels_made_on_the_fly_are_those_of_all_captions(module):
    towers, columns = Towers(), batch()
    loss = module.BCLS(towers, captions=["a"] * 4, image_of_caption=IMAGES, encoder=Words())
    value = sum(loss(columns, torch.arange(4)).values())
    torch.testing.assert_close(value, expected(towers, columns, table()[IMAGES]))
    value.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in towers.parameters())


def test_captions_of_one_image_are_no_negatives(module):
    """Two rows of one image alone in a batch leave nothing to push apart and nothing to order."""
    columns = [{name: values[1:3] for name, values in column.items()} for column in batch()]
    loss = module.BCLS(Towers(), captions=["a"] * 4, image_of_caption=IMAGES, encoder=Words())
    assert sum(loss(columns, torch.tensor([1, 2])).values()).item() == 0


def test_a_clip_learns_in_the_trainer(module):
    metrics = module.main()
    assert metrics["after"] > 2 * metrics["before"]
