import copy

import numpy as np
import pytest
import torch

from bcls.features.backbones import load_backbone
from bcls.features.regions import RandomViews
from bcls.features.worker import PictureWorker, start_worker
from tests.features.made import draw, opened, tiny

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    where = tmp_path_factory.mktemp("worker")
    return opened(draw(where / "data", images=40)), load_backbone(tiny(where / "tiny"))


WHOLE = RandomViews(0, 0.5)


def worker(parts, lanes=1, view="whole", regions=(2, 2), views=WHOLE):
    return PictureWorker(parts[1], parts[0], view, regions, "cpu", torch.float32, lanes, views)


@pytest.mark.parametrize("view", ["whole", "ten-crop"])
def test_lanes_and_what_was_begun_do_not_show(parts, view):
    ids = parts[0].image_ids
    plain = worker(parts, view=view)(ids)
    early = worker(parts, lanes=3, view=view)
    early.ahead(ids)
    early.ahead(ids[:7])
    assert early(ids).tobytes() == plain.tobytes()
    assert early(ids[:7]).shape == (7, 4, 16)
    early.close()


@pytest.mark.parametrize("regions", [(2, 2), None])
def test_whole_pictures_come_first_with_the_bytes_they_have_alone(parts, regions):
    ids = parts[0].image_ids[:20]
    rows = worker(parts, lanes=2, regions=regions, views=RandomViews(3, 0.5))(ids)
    alone = worker(parts, regions=regions)(ids)
    rows = rows.reshape(20, 4, *alone.shape[1:])
    assert rows[:, 0].tobytes() == alone.tobytes()
    fewer = worker(parts, regions=regions, views=RandomViews(1, 0.5))(ids).reshape(20, 2, *alone.shape[1:])
    assert rows[:, :2].tobytes() == fewer.tobytes()


def test_views_of_pictures_that_cannot_be_read_are_nan(parts, tmp_path):
    dataset = opened(draw(tmp_path / "data"))
    (tmp_path / "data" / "images" / f"{dataset.image_ids[1]}.png").write_bytes(b"no picture")
    rows = worker((dataset, parts[1]), regions=None, views=RandomViews(2, 0.5))(dataset.image_ids[:3])
    assert np.isnan(rows).any(1).tolist() == [False] * 3 + [True] * 3 + [False] * 3


def test_a_batch_alone_gives_its_rows(parts):
    """Batches are cut from a block's beginning, so a block that begins with another gives the same rows."""
    ids = parts[0].image_ids
    one = worker(parts)
    assert one(ids[:16]).tobytes() == one(ids)[:16].tobytes()


def test_unreadable_pictures_are_nan_and_the_rest_is_not(parts, tmp_path):
    dataset = opened(draw(tmp_path / "data"))
    (tmp_path / "data" / "images" / f"{dataset.image_ids[2]}.png").unlink()
    rows = worker((dataset, parts[1]), regions=None)(dataset.image_ids[:5])
    assert np.isnan(rows[2]).all()
    assert np.isfinite(rows[[0, 1, 3, 4]]).all()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_lower_precision_is_near(parts, precision):
    ids = parts[0].image_ids[:6]
    exact = worker(parts)(ids).astype(np.float32)
    low = PictureWorker(copy.deepcopy(parts[1]), parts[0], "whole", (2, 2), "cpu", precision, 1, WHOLE)(ids)
    assert low.dtype == np.float16
    assert 0 < np.abs(low - exact).max() < 0.1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_but_for_rounding(parts):
    ids = parts[0].image_ids
    exact = worker(parts)(ids).astype(np.float32)
    there = PictureWorker(copy.deepcopy(parts[1]), parts[0], "whole", (2, 2), "cuda", torch.float32, 3, WHOLE)(ids)
    np.testing.assert_allclose(there, exact, atol=2e-2)


def test_other_weights_elsewhere_are_refused(parts):
    with pytest.raises(ValueError, match=r"`backbone`: expected .* with weights 00"):
        start_worker(parts[1].name, "00")
