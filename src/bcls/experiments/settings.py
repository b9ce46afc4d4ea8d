"""What ``bcls sweep`` can be told beside the file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SweepSettings:
    """Settings of ``bcls sweep FILE``."""

    data: str
    """Folder of the dataset."""
    out: str
    """Folder of the sweep: results.jsonl and the runs. The same folder goes on where it was stopped."""
    final: bool = False
    """Also test: figures of the test split and, with --judgements, of human judgements. For the last table only."""
    judgements: str | None = None
    """Folder with ExpertAnnotations.txt and CrowdFlowerAnnotations.txt of Flickr8k."""
    processes: int = 1
    """Processes side by side, for CPUs; on a GPU a few help where NVIDIA's MPS is on, else one is faster."""
    together: int = 1
    """Runs that take turns in one process, step by step: on a GPU, with --graph, 8 small models take little longer than
    one."""
    threads: int | None = None
    """Threads of each process; the cores shared out among them when left out."""
    shard: str | None = None
    """The part of the runs that this machine does, such as 1/4."""
    minutes: float | None = None
    """Stop after so many minutes, with a checkpoint of the run in work."""
    device: str = "auto"
    """auto, cpu or cuda."""
    graph: bool = False
    """Record steps as CUDA graphs, see `bcls train --help`."""
    dry_run: bool = False
    """List the runs with their keys and what is finished, and train nothing."""
    json: bool = False
    """Print the outcome as JSON."""
