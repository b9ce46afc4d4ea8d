"""Run by ``test_distributed.py`` in one process or in several: loss and gradients of one batch, and a short training.

``python -m tests.training.distributed_job DATA OUT``; several processes have RANK, WORLD_SIZE and so on set.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from bcls.data.dataset import open_dataset
from bcls.losses import from_name
from bcls.models import build
from bcls.training.batch_labels import BatchLabels
from bcls.training.distributed import average_gradients, shutdown_distributed
from bcls.training.gradients import accumulate_gradients, encode, gather, score_pairs
from bcls.training.optimization import make_streaming_loss
from bcls.training.setup import set_up
from bcls.training.train import train
from tests.training.factories import WIDTH, TinyModel, WordModel, settings

#: Model, loss, and the dataset with the features that it takes.
CASES = (
    ("vsepp", "bcls", "vectors"),
    ("dual", "infonce", "vectors"),
    ("unimodal", "infonce", "vectors"),
    ("words", "triplet-sn", "regions"),
    ("sgr", "bcls", "regions"),
    ("saf", "bcls", "regions"),
)
WORDS = 15  # numbers of words, 0 for padding


class WithNumbers:
    """Captions as the tiny model numbers them, so that models of the library need no vocabulary."""

    def prepare_texts(self, texts):
        return TinyModel.prepare_texts(self, texts)


def make(name):
    torch.manual_seed(3)
    if name == "tiny":
        return TinyModel()
    if name == "words":
        return WordModel()
    plain = {"name": name, "words": WORDS, "features": WIDTH, "width": 8, "word_width": 6}
    if name in {"dual", "unimodal"}:
        plain |= {"image": "features", "text": "gru", "states": 8, "dropout_images": 0.0, "dropout_texts": 0.0}
        plain |= {"name": "dual", "unimodal": 5 if name == "unimodal" else 0}
    if name in {"sgr", "saf"}:
        plain |= {"similarity_width": 8, "regions": 4, "dropout": 0.0}
    model = build(plain)
    return type(type(model).__name__, (WithNumbers, type(model)), {})(model.config)


def gradients(data, out, name, loss):
    start = {"name": "infonce", "learn_temperature": True} if loss == "infonce" else {"name": "triplet-sn"}
    owner = open_dataset(data).split("train").image_of_caption
    vectors = np.random.default_rng(0).standard_normal((len(owner), 4))
    labels = BatchLabels(vectors, owner, "max", torch.device("cpu"))
    more = {"labels": "minilm", "val_split": None, "unimodal_weight": 0.5} if name == "unimodal" else {}
    run = set_up(settings(data, out, batch=7, loss=start, **more), make(name), labels=labels)
    criterion = run.learner.loss if loss == "infonce" else from_name(loss)
    captions = run.plan(0)[0][0]
    batch = next(run.loader.batches([captions], 0))
    codes = gather(run, encode(run, batch.images, batch.texts), batch.pairs)
    similarity = score_pairs(run, codes)
    value = criterion(similarity, labels(captions), image_ids=torch.from_numpy(owner[captions]))
    if name == "unimodal":
        value = value + run.model.unimodal(*(one.values for one in codes), *batch.unimodal)
    run.accelerator.backward(value)
    average_gradients(criterion, run.accelerator.num_processes)
    found = {"value": value.detach(), "similarity": similarity.detach()}
    found |= {name: one.grad for name, one in run.model.named_parameters()}
    found |= {f"loss.{name}": one.grad for name, one in criterion.named_parameters()}
    if run.accelerator.is_main_process:
        save_file({name: one.contiguous() for name, one in found.items()}, out)


def accumulated(data, out, *, streaming=False):
    """The gradients of the case `vsepp` with micro batches, and with the streaming loss."""
    run = set_up(settings(data, out, batch=7, micro_batch=2), make("vsepp"))
    owner, processes = run.train.image_of_caption, run.accelerator.num_processes
    vectors = np.random.default_rng(0).standard_normal((len(owner), 4))
    labels = BatchLabels(vectors, owner, "max", torch.device("cpu"))
    loader = replace(run.loader, labels=labels, streaming=streaming)
    group = dist.group.WORLD if processes > 1 else None
    loss = make_streaming_loss({"name": "bcls"}, group) if streaming else from_name("bcls")
    values = accumulate_gradients(run, loss, list(loader.batches(run.plan(0)[0], 0)))
    found = {"value": values["binary"] + values["continuous"], "spread": values["spread"]}
    found |= {name: one.grad for name, one in run.model.named_parameters()}
    if run.accelerator.is_main_process:
        save_file({name: one.contiguous() for name, one in found.items()}, out)


if __name__ == "__main__":
    data, out = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    out.mkdir(exist_ok=True)
    for name, loss, kind in CASES:
        gradients(data / kind, out / name, name, loss)
    accumulated(data / "vectors", out / "micro")
    accumulated(data / "vectors", out / "streaming", streaming=True)
    for name, micro in (("run", 0), ("micro-run", 1)):
        changes = {"loss": {"name": "triplet-sn"}, "accumulate": 2, "micro_batch": micro, "warm_negatives": 1}
        train(settings(data / "vectors", out / name, **changes), model=make("tiny"))
    shutdown_distributed()
