"""Features and labels on a Ray cluster of two nodes, one of which is killed halfway."""

import functools
import os
import time
from pathlib import Path

import numpy as np
import pytest

from bcls.data.dataset import open_dataset
from bcls.features.array_cache import ArrayCache
from bcls.features.extraction import FeatureSettings, extract
from bcls.features.jobs import run_blocks
from bcls.labels import cache as label_cache
from bcls.labels.cache import cache_folder, cached_embeddings
from tests.features.factories import digests, draw_dataset, tiny_backbone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Nodes:
    """A head node and a second node, each with its own raylet, on this machine."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        # A dead node is noticed after 3 s instead of half a minute.
        health = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
        head = {"num_cpus": 2, "include_dashboard": False, "_system_config": health}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second = self.cluster.add_node(num_cpus=1)
        self.killed = False

    def kill_second(self):
        """Kill the raylet of the second node with SIGKILL, and its actors with it."""
        import psutil

        raylet = psutil.Process(self.second.all_processes["raylet"][0].process.pid)
        assert any("RayActor" in child.cmdline()[0] for child in raylet.children()), "the node computes nothing"
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.killed = not raylet.is_running()


@pytest.fixture
def nodes(monkeypatch):
    # Imported here, since that takes long and the default run collects this file.
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    pytest.importorskip("psutil")
    # Both actors are ready before the first block is computed.
    monkeypatch.setattr(ray.data.DataContext.get_current(), "wait_for_min_actors_s", 300)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(__file__).parents[2] / part) for part in ("src", "")))
    made = Nodes()
    yield made
    made.cluster.shutdown()


def start_waiting(folder):
    """Build a worker whose later blocks wait until a worker was restarted."""
    import ray

    restarted = folder / "restarted"
    if ray.get_runtime_context().was_current_actor_reconstructed:
        restarted.touch()

    def work(block):
        deadline = time.monotonic() + 200
        while block >= 30 and not restarted.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return np.array([block, os.getpid()])

    return work


def test_lost_node_is_replaced(nodes, tmp_path):
    results = {}
    start = functools.partial(start_waiting, tmp_path)
    for number, result in run_blocks(range(60), start, engine="ray", address=nodes.cluster.address, workers=2):
        results[number] = result
        if len(results) == 10:
            nodes.kill_second()
    assert nodes.killed
    assert (tmp_path / "restarted").exists()
    assert [int(results[number][0]) for number in range(60)] == list(range(60))
    assert len({int(process) for _, process in results.values()}) == 3


@pytest.fixture
def kill_halfway(nodes, monkeypatch):
    """Kill the second node when a dozen blocks of a Ray job are written."""
    import ray

    written, write = [], ArrayCache.write

    def counted(cache, number, *more):
        write(cache, number, *more)
        if ray.is_initialized():
            written.append(number)
            if len(written) == 12:
                nodes.kill_second()

    monkeypatch.setattr(ArrayCache, "write", counted)
    return written


def test_features_have_the_bytes_of_the_local_engine(nodes, kill_halfway, tmp_path, monkeypatch):
    monkeypatch.setattr("bcls.features.extraction.BLOCK", 2)
    folder = draw_dataset(tmp_path / "data", images=80, splits=["train"] * 60 + ["test"] * 20)
    backbone = tiny_backbone(tmp_path / "tiny")
    local = extract(open_dataset(folder), FeatureSettings(backbone, "4", name="local"))
    settings = FeatureSettings(backbone, "4", name="ray", engine="ray", address=nodes.cluster.address, workers=2)
    spread = extract(open_dataset(folder), settings)
    assert nodes.killed
    assert len(kill_halfway) == 40
    assert digests(spread.folder) == digests(local.folder)


def test_labels_have_the_bytes_of_the_local_engine(nodes, kill_halfway, tmp_path, monkeypatch):
    monkeypatch.setattr(label_cache, "BLOCK", 4)
    files = []
    for name, job in (("local", {}), ("ray", {"address": nodes.cluster.address, "workers": 2})):
        dataset = open_dataset(draw_dataset(tmp_path / name, images=40))
        cached_embeddings(dataset, "minilm", engine=name, **job)
        files.append((cache_folder(dataset.folder, "minilm") / "embeddings.npy").read_bytes())
    assert nodes.killed
    assert len(kill_halfway) >= 40
    assert files[0] == files[1]
