"""Two processes with half a batch each learn what one with the whole batch learns."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.distributed_job import CASES
from tests.training.factories import make_data

ROOT = Path(__file__).parents[2]


def launch(ranks, *words):
    """Run the job in so many processes that talk through gloo, and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jobs = []
    for rank in range(ranks):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        if ranks > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "ACCELERATE_USE_CPU": "true"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(ranks)}
        command = [sys.executable, "-m", "tests.training.distributed_job", *map(str, words)]
        jobs.append(subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    for job in jobs:
        _, printed = job.communicate(timeout=120)
        assert job.returncode == 0, printed


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Where one process and two have left their results."""
    folder = tmp_path_factory.mktemp("ranks")
    make_data(folder / "data" / "vectors")
    make_data(folder / "data" / "regions", regions=4)
    launch(1, folder / "data", folder / "one")
    launch(2, folder / "data", folder / "two")
    return folder / "one", folder / "two"


@pytest.mark.parametrize("model", [model for model, _, _ in CASES])
def test_value_and_gradient_equal_those_of_one_process(ended, model):
    one, two = (load_file(folder / model) for folder in ended)
    assert one.keys() == two.keys()
    assert one["value"] > 0
    assert any(name not in {"value", "similarity"} and value.abs().max() > 1e-4 for name, value in one.items())
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", ["micro", "streaming"])
def test_micro_batches_and_streaming_give_the_gradients_of_one_process(ended, name):
    expected, found = load_file(ended[0] / "vsepp"), load_file(ended[1] / name)
    expected["spread"] = expected.pop("similarity").std()
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(
            found[key], expected[key], rtol=1e-5, atol=1e-6, msg=lambda text, k=key: f"{k}: {text}"
        )


def test_a_run_of_two_processes_has_the_weights_of_one_process(ended):
    for run in ("run", "micro-run"):
        for name in ("last", "best"):
            one = load_file(ended[0] / "run" / "checkpoints" / name / "model.safetensors")
            two = load_file(ended[1] / run / "checkpoints" / name / "model.safetensors")
            for key in one:
                torch.testing.assert_close(two[key], one[key], rtol=1e-4, atol=1e-5)
    lines = [(folder / "run" / "metrics.jsonl").read_text().count("\n") for folder in ended]
    assert lines[0] == lines[1]


def test_torchrun_on_a_machine_without_a_gpu_needs_no_device(tmp_path):
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "bcls"]
    command += ["train", "--data", data, "--out", out, "--features", "made", "--labels", "none", "--epochs", "1"]
    command += ["--loss.name", "triplet-sn", "--model.width", "8", "--word-threshold", "1", "--batch", "8", "--json"]
    ended = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["epochs"] == 1  # printed by one of them
    environment = json.loads((out / "environment.json").read_text())
    assert [part["processes"] for part in environment["parts"]] == [2]


def torchrun(processes, data, out, *more):
    """The command of a run that is long enough to be killed in the middle."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes]
    command += ["-m", "bcls", "train", "--data", data, "--out", out, "--features", "made", "--labels", "none"]
    command += ["--loss.name", "infonce", "--loss.learn_temperature", "true", "--model.width", "16", "--ema", "0.9"]
    command += ["--word-threshold", "1", "--batch", "12", "--epochs", "12", "--save-every", "2", "--log-every", "3"]
    return list(map(str, [*command, *more]))


def position(out):
    """Optimizer steps of the last checkpoint; 0 without one, and while it is replaced."""
    try:
        return json.loads((out / "checkpoints" / "last" / "training.json").read_text())["progress"]["done"]
    except FileNotFoundError:
        return 0


def state(folder):
    """Weights and optimizer of the last and the best checkpoint, and the metrics without times."""
    files = sorted((folder / "checkpoints").rglob("*.safetensors"))
    tensors = {f"{path.parent.name} {key}": value for path in files for key, value in load_file(path).items()}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return tensors, [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def worker(process, rank):
    """The process id of a worker of torchrun."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    environments = {int(child): Path(f"/proc/{child}/environ").read_bytes().split(b"\0") for child in children}
    return next(child for child, words in environments.items() if f"RANK={rank}".encode() in words)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize(("processes", "rank"), [(2, 1), (2, 0), (4, 3)])
def test_torchrun_resumes_after_a_worker_was_killed(tmp_path, processes, rank):
    data = make_data(tmp_path / "data", images=64, each=4)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    options = {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    whole = subprocess.run(torchrun(processes, data, tmp_path / "whole"), timeout=250, check=False, **options)
    assert whole.returncode == 0, whole.stderr
    steps, out = position(tmp_path / "whole"), tmp_path / "run"
    with subprocess.Popen(torchrun(processes, data, out), start_new_session=True, **options) as run:
        try:
            while position(out) < steps // 2:
                assert run.poll() is None, run.stderr.read()
                time.sleep(0.005)
            os.kill(worker(run, rank), signal.SIGKILL)
            _, printed = run.communicate(timeout=100)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode != 0
    assert "Signal 9" in printed
    assert steps // 2 <= position(out) < steps
    resumed = subprocess.run(torchrun(processes, data, out, "--resume"), timeout=250, check=False, **options)
    assert resumed.returncode == 0, resumed.stderr
    (states, metrics), (expected, expected_metrics) = state(out), state(tmp_path / "whole")
    if processes == 2:
        assert all(torch.equal(states[key], expected[key]) for key in expected)
        assert metrics == expected_metrics
    # DistributedDataParallel reorders its buckets after the first backward pass of a process. With more than two
    # processes gloo then adds the same numbers in another order in that step.
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-5)
    assert [line["step"] for line in metrics] == [line["step"] for line in expected_metrics]
    assert len(json.loads((out / "environment.json").read_text())["parts"]) == 2
