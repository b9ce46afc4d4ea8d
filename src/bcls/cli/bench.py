"""``bcls bench``: time and memory of the losses on this machine."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from bcls._core.errors import check_choice
from bcls.cli.arguments import parse


@dataclass(frozen=True)
class BenchSettings:
    """Measure time and memory of one step of the losses, forward and backward, on the GPU if there is one.

    Every implementation is compared with a straightforward one, and with a copy of the matrix as the lower bound.
    SUBJECT is one or more of losses (losses on a matrix by batch size), names (every loss that has a name by batch
    size), windows (the window loss by the number of windows), streaming (BCLS from embeddings by batch size) and
    width (BCLS from embeddings by their width); default: all. Writes bench-SUBJECT.json, bench-SUBJECT.svg and
    bench.md. Takes minutes; seconds with --quick.

    Attributes:
        out: Folder for the results.
        quick: Few sizes and few steps, to check that it works; not for comparison.
        device: cuda, cpu, or auto: a GPU if there is one.
        json: Print the results as JSON.
        subjects: What to measure. Default: everything.
    """

    out: str
    quick: bool = False
    device: str = "auto"
    json: bool = False
    subjects: list[str] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("bench", BenchSettings, arguments, positional={"subjects": "SUBJECT"})
    check_choice("--device", settings.device, ("auto", "cuda", "cpu"))
    from bcls.experiments.bench import run_all

    results = run_all(settings.subjects, Path(settings.out), settings.device, quick=settings.quick)
    if settings.json:
        print(json.dumps(results))
    else:
        print((Path(settings.out) / "bench.md").read_text(encoding="utf-8"))
        print(f"written to {settings.out}")
    return 0
