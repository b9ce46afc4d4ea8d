"""``bcls train``: train a model from a file of settings and flags."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from bcls.cli.arguments import parse
from bcls.training.config import TrainConfig
from bcls.training.run_folder import Result

_ABOUT = (
    "Trains a model on a dataset folder. Settings come from --config FILE (presets lie in configs/) and from flags "
    "behind it; `--model.KEY` and `--loss.KEY` set what model and loss take. Several GPUs: "
    "torchrun --nproc_per_node 4 -m bcls train ..."
)


@dataclass(frozen=True)
class TrainSettings(TrainConfig):
    """Settings of ``bcls train``: those of the run, and what is done with them."""

    dry_run: bool = False
    """Show sizes, steps, parameters and memory, and train nothing."""
    json: bool = False
    """Print the result as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("train", _ABOUT, TrainSettings, arguments, imports=True)
    config = TrainConfig(**{one.name: getattr(settings, one.name) for one in fields(TrainConfig)})
    if settings.dry_run:
        from bcls.training.estimate import estimate

        sizes = estimate(config)
        print(json.dumps(asdict(sizes)) if settings.json else sizes.as_text())
        return 0
    from bcls.training.distributed import hang_up
    from bcls.training.start import train

    result = train(config)
    hang_up()
    if os.environ.get("RANK", "0") == "0":  # the others have nothing to add
        print(json.dumps(_plain(result)) if settings.json else _text(result))
    return 0


def _plain(result: Result) -> dict[str, object]:
    return {**asdict(result), "folder": str(result.folder)}


def _text(result: Result) -> str:
    lines = [f"{result.epochs} epochs; the run is in {result.folder}, its curves in {result.folder / 'report.html'}"]
    if result.best:
        figures = ", ".join(f"{key} {value:.4g}" for key, value in result.best.items())
        lines.append(f"best on the validation split, after epoch {result.best_epoch}: {figures}")
    return "\n".join(lines)
