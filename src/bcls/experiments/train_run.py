"""Training for a sweep: the loop of ``bcls train``, without the page that it draws for each single run."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bcls._checks import fail
from bcls._files import recover
from bcls.experiments.noise import NoisyLabels
from bcls.labels import cached_embeddings
from bcls.training.checkpoint import read_state
from bcls.training.config import TrainConfig, write_yaml
from bcls.training.loop import run_epochs
from bcls.training.run_folder import BEST, CHECKPOINTS, CONFIG, LAST, locked
from bcls.training.setup import Run, set_up

if TYPE_CHECKING:
    from bcls.data import Dataset
    from bcls.models.base import RetrievalModel


def train_run(config: TrainConfig, model: "RetrievalModel", dataset: "Dataset", noise: float = 0.0) -> None:
    """Train a run of a sweep, or go on with it from its last checkpoint; the same weights as ``bcls train`` gives.

    Args:
        config: Settings. What lies in ``config.out`` was begun with the same ones: the folder is named after them.
        model: Trained in place.
        dataset: Images and captions.
        noise: Standard deviation of noise in the training labels, see :class:`NoisyLabels`.

    Raises:
        ValueError: Settings, data and model do not fit together; or training diverged.
        KeyboardInterrupt: It was stopped; a checkpoint was written.
    """
    folder = Path(config.out)
    with ExitStack() as stack:
        stack.enter_context(locked(folder))
        run = set_up(config, model, dataset)
        stack.callback(run.pool.shutdown)
        (folder / CHECKPOINTS).mkdir(exist_ok=True)
        kept = {name: recover(folder / CHECKPOINTS / name) for name in (LAST, BEST)}
        write_yaml(folder / CONFIG, run.config)
        if noise:
            run = replace(run, labels=_noisy(run, noise))
        try:
            run_epochs(run, folder, read_state(folder / CHECKPOINTS / LAST) if kept[LAST] else None)
        finally:
            run.accelerator.unwrap_model(run.parallel, keep_fp32_wrapper=False)


def _noisy(run: Run, noise: float) -> NoisyLabels:
    config = run.config
    if config.labels == "none":
        fail("noise", "a run with labels", "labels: none", "name a text encoder, such as minilm")
    vectors, owner = np.asarray(cached_embeddings(run.train, config.labels)), run.train.image_of_caption
    return NoisyLabels(vectors, owner, config.aggregate, run.accelerator.device, noise=noise)
