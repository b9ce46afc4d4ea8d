"""``bcls train``: train a model from a file of settings and flags."""

import json
import os
from dataclasses import asdict, dataclass, fields

from bcls.cli.arguments import parse
from bcls.training.config import Result, TrainConfig


@dataclass(frozen=True)
class TrainSettings(TrainConfig):
    """Train a model on a dataset folder.

    Settings come from --config FILE (presets are in configs/) and from flags, which win over the file;
    `--model.KEY` and `--loss.KEY` set the arguments of model and loss; `--import MODULE` loads losses and models of
    your own. Several GPUs: torchrun --nproc_per_node 4 -m bcls train ...

    Attributes:
        dry_run: Show sizes, steps, parameters and memory, and train nothing.
        json: Print the result as JSON.
    """

    dry_run: bool = False
    json: bool = False


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("train", TrainSettings, arguments, imports=True)
    config = TrainConfig(**{one.name: getattr(settings, one.name) for one in fields(TrainConfig)})
    if settings.dry_run:
        from bcls.training.estimate import as_text, estimate

        sizes = estimate(config)
        print(json.dumps(sizes) if settings.json else as_text(sizes))
        return 0
    from bcls.training.distributed import shutdown_distributed
    from bcls.training.train import train

    result = train(config)
    shutdown_distributed()
    if os.environ.get("RANK", "0") == "0":  # the other processes have nothing to print
        print(json.dumps({**asdict(result), "folder": str(result.folder)}) if settings.json else _text(result))
    return 0


def _text(result: Result) -> str:
    epochs = f"{result.epochs} epoch{'s' * (result.epochs != 1)}"
    lines = [f"{epochs}; the run is in {result.folder}, its curves in {result.folder / 'report.html'}"]
    if result.best:
        metrics = ", ".join(f"{key} {value:.4g}" for key, value in result.best.items())
        lines.append(f"best on the validation split, after epoch {result.best_epoch}: {metrics}")
    return "\n".join(lines)
