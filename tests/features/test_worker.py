"""The worker that computes features of blocks of images."""

import copy

import numpy as np
import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.features.backbones import load_backbone
from bcls.features.settings import FeatureSettings
from bcls.features.worker import FeatureWorker, start_worker
from tests.features.factories import draw_dataset, tiny_backbone

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    where = tmp_path_factory.mktemp("worker")
    return open_dataset(draw_dataset(where / "data", images=40)), load_backbone(tiny_backbone(where / "tiny"))


def worker(parts, lanes=1, view="whole", regions="2x2", views=0, readers=1, **options):
    settings = FeatureSettings("", regions, view, views, workers=readers, **{"device": "cpu", **options})
    return FeatureWorker(parts[1], parts[0], settings, lanes)


@pytest.mark.parametrize("view", ["whole", "ten-crop"])
def test_result_does_not_depend_on_lanes_and_prefetching(parts, view):
    ids = parts[0].image_ids
    plain = worker(parts, view=view)(ids)
    early = worker(parts, lanes=3, view=view, readers=4)
    early.prefetch(ids)
    early.prefetch(ids[:7])
    assert early(ids).tobytes() == plain.tobytes()
    assert early(ids[:7]).shape == (7, 4, 16)
    early.close()


@pytest.mark.parametrize("regions", ["2x2", "global"])
def test_rows_of_images_come_first_and_do_not_depend_on_crops(parts, regions):
    ids = parts[0].image_ids[:20]
    rows = worker(parts, lanes=2, regions=regions, views=3)(ids)
    alone = worker(parts, regions=regions)(ids)
    rows = rows.reshape(20, 4, *alone.shape[1:])
    assert rows[:, 0].tobytes() == alone.tobytes()
    fewer = worker(parts, regions=regions, views=1)(ids).reshape(20, 2, *alone.shape[1:])
    assert rows[:, :2].tobytes() == fewer.tobytes()


def test_crops_of_unreadable_images_are_nan(parts, tmp_path):
    dataset = open_dataset(draw_dataset(tmp_path / "data"))
    (tmp_path / "data" / "images" / f"{dataset.image_ids[1]}.png").write_bytes(b"no image")
    rows = worker((dataset, parts[1]), regions="global", views=2)(dataset.image_ids[:3])
    assert np.isnan(rows).any(1).tolist() == [False] * 3 + [True] * 3 + [False] * 3


def test_rows_do_not_depend_on_later_batches(parts):
    """Batches are cut from a block's beginning, so a block that begins with another gives the same rows."""
    ids = parts[0].image_ids
    one = worker(parts)
    assert one(ids[:16]).tobytes() == one(ids)[:16].tobytes()


def test_unreadable_images_are_nan(parts, tmp_path):
    dataset = open_dataset(draw_dataset(tmp_path / "data"))
    (tmp_path / "data" / "images" / f"{dataset.image_ids[2]}.png").unlink()
    rows = worker((dataset, parts[1]), regions="global")(dataset.image_ids[:5])
    assert np.isnan(rows[2]).all()
    assert np.isfinite(rows[[0, 1, 3, 4]]).all()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_is_close(parts, precision):
    ids = parts[0].image_ids[:6]
    exact = worker(parts)(ids).astype(np.float32)
    low = worker((parts[0], copy.deepcopy(parts[1])), precision=precision)(ids)
    assert low.dtype == np.float16
    assert 0 < np.abs(low - exact).max() < 0.1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("view", "regions"), [("whole", "2x2"), ("six-crop", "global"), ("mirrored", "crops-36")])
def test_gpu_agrees_up_to_rounding(parts, view, regions):
    ids = parts[0].image_ids
    exact = worker(parts, view=view, regions=regions)(ids).astype(np.float32)
    there = worker((parts[0], copy.deepcopy(parts[1])), 3, view, regions, device="cuda")(ids)
    np.testing.assert_allclose(there, exact, atol=2e-2)


def test_different_weights_raise(parts):
    with pytest.raises(ValueError, match=r"`backbone`: expected .* with weights 00"):
        start_worker(parts[1].name, "00", parts[0], FeatureSettings(), 1)
