"""Recorded steps: the same run, started with one call a step."""

import pytest
import torch
from safetensors.torch import load_file

from bcls._padded import Padded
from bcls.training import TrainConfig, train
from bcls.training.batch import Batch
from bcls.training.graph import why_not
from tests.training.made import TinyModel, make_data, settings

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_reasons_against_recording():
    gpu = torch.device("cuda")
    assert why_not(TrainConfig(), gpu, 1) is None
    assert "one process" in why_not(TrainConfig(), gpu, 2)
    assert "accumulate" in why_not(TrainConfig(accumulate=2), gpu, 1)
    assert "scaler" in why_not(TrainConfig(precision="fp16"), gpu, 1)


def test_a_cpu_is_refused_before_the_data_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"`graph`: expected .*it needs a CUDA device; leave --graph out"):
        train(settings(tmp_path / "none", tmp_path / "run", graph=True), model=TinyModel())


def test_a_batch_is_copied_part_by_part():
    batch = Batch(2, Padded(torch.ones(2, 3)), Padded(torch.ones(2, 4), torch.ones(2)), torch.arange(2), None)
    doubled = batch.map(lambda part: 2 * part)
    assert [part.sum().item() for part in doubled.tensors()] == [12, 16, 4, 2]
    assert len(list(batch.tensors())) == 4


@pytest.mark.cuda
@GPU
@pytest.mark.parametrize("name", ["vsepp", "dual"])
@pytest.mark.parametrize("more", [{}, {"ema": 0.9}, {"precision": "bf16"}, {"warm_negatives": 1}])
def test_a_recorded_run_ends_where_an_ordinary_one_does(name, more, tmp_path):
    data = make_data(tmp_path / "data", images=60)
    loss = {"name": "infonce", "learn_temperature": True} if name == "dual" else {"name": "triplet-sn"}
    model = {
        "vsepp": {"name": "vsepp", "width": 16, "word_width": 8, "features": 6, "dropout_words": 0.2},
        "dual": {"name": "dual", "image": "features", "text": "gru", "width": 16, "features": 6},
    }[name]
    ends = {}
    for graph in (False, True):
        out = tmp_path / f"run-{graph}"
        asked = settings(
            data, out, model=model, loss=loss, graph=graph, device="cuda", epochs=6, word_threshold=1, **more
        )
        train(asked)
        ends[graph] = load_file(out / "checkpoints" / "last" / "model.safetensors")
    for key, value in ends[False].items():
        torch.testing.assert_close(
            ends[True][key], value, rtol=2e-2, atol=2e-3, msg=lambda text, key=key: f"{key}: {text}"
        )
