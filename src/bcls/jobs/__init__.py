"""Long work in blocks, in this process or spread over a cluster."""

from bcls.jobs.run import ENGINES, Ahead, Start, Worker, run_blocks
from bcls.jobs.threads import torch_threads

__all__ = ["ENGINES", "Ahead", "Start", "Worker", "run_blocks", "torch_threads"]
