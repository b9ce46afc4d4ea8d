"""``bcls bench``: how fast the losses are here, and what they take."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bcls._core.errors import check_choice
from bcls.cli.arguments import parse

#: In their order on the page; what each varies.
SUBJECTS = {
    "losses": "losses on a matrix against the batch",
    "windows": "the window loss against the number of windows",
    "streaming": "BCLS from embeddings against the batch",
    "width": "BCLS from embeddings against their width",
}
ABOUT = (
    "Measures time and memory of a step of the losses, forward and backward, on the GPU where there is one: every path "
    "of ours, what one would write without it, and a copy of the matrix, which nothing can beat. SUBJECT is one or "
    "more of " + ", ".join(f"{name} ({what})" for name, what in SUBJECTS.items()) + "; all of them without it. Writes "
    "bench-SUBJECT.json, bench-SUBJECT.svg and the page bench.md. Minutes; seconds with --quick."
)


@dataclass(frozen=True)
class BenchSettings:
    """Settings of ``bcls bench``."""

    out: str
    """Folder to write into."""
    quick: bool = False
    """Few sizes and few steps: to see that it works, not to quote."""
    device: str = "auto"
    """cuda, cpu, or auto for a GPU where there is one."""
    json: bool = False
    """Print the results as JSON."""
    subjects: list[str] = field(default_factory=list)
    """What to measure; everything when left out."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("bench", ABOUT, BenchSettings, arguments, positional={"subjects": "SUBJECT"})
    for name in settings.subjects:
        check_choice("SUBJECT", name, SUBJECTS)
    check_choice("--device", settings.device, ("auto", "cuda", "cpu"))
    # Here, not above: `--help` need not wait for them.
    from bcls.experiments.bench_report import run_all

    results = run_all(settings.subjects or list(SUBJECTS), Path(settings.out), settings.device, quick=settings.quick)
    if settings.json:
        print(json.dumps(results))
    else:
        print((Path(settings.out) / "bench.md").read_text(encoding="utf-8"))
        print(f"written to {settings.out}")
    return 0
