"""What a run would take, of very little data too."""

import pytest

from bcls.training.estimate import estimate
from tests.training.factories import captions_of, make_data, settings


@pytest.mark.parametrize(("images", "each"), [(2, 1), (3, 1), (8, 3)])
def test_datasets_of_any_size(tmp_path, images, each):
    data = make_data(tmp_path / "data", rows=captions_of(images, each, splits=("train",)))
    config = settings(data, tmp_path / "run", batch=2, val_split=None, word_threshold=1, model={"name": "vsepp"})
    found = estimate(config)
    assert found["captions"] == images * each
    assert found["step_bytes"] > 0
