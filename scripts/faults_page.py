"""Writes ``docs/faults.md`` from the records of the fault-injection tests and the counts of random kills.

``BCLS_FAULTS=results/faults.json pytest tests/faults`` writes the records, ``python -m benchmarks.resume --kills 100
--json results/kills-training.json`` and ``python -m tests.search.kill_rounds --kills 1000 --json
results/kills-index.json`` the counts, ``python scripts/faults_page.py`` the page.
"""

import json
from pathlib import Path
from typing import Any

from bcls._core.files import write_whole

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "results" / "faults.json", ROOT / "docs" / "faults.md"
TRAINING, INDEX = (ROOT / "results" / f"kills-{name}.json" for name in ("training", "index"))

_ABOUT = {
    "clock jumps": "Files with dates in the far future and the far past, and a clock that goes back during the work.",
    "truncated at every byte": "Each file is truncated after each byte, as after an interrupted copy, and read.",
    "killed at every step": "From one step on, nothing more is written to disk, as if the process were killed: no file "
    "is opened for writing, renamed, removed or flushed. Repeated for every step.",
    "full disk": "The kernel limits the size of files, from zero bytes up to the size that is needed.",
    "lost network": "The server is killed while a client is connected.",
    "read-only folder": "An unprivileged user writes into a folder without permission.",
    "two processes": "Another process holds the lock, and is then killed.",
}
_HEAD = """# Faults

Behaviour with a full disk, killed processes and concurrent processes. `tests/faults` injects each fault and checks
after every trial that no data is lost: the older or the newer version is complete, and the next run continues. This
page is written by `scripts/faults_page.py` from the records of these tests.
"""


_KILLS = """## Killed at random

Processes that are ended with SIGKILL. `python -m benchmarks.resume` trains, kills the run after a random step or before
a random disk operation of the replacement of a checkpoint, resumes it, and compares the complete run with an
uninterrupted one, bit for bit. `python -m tests.search.kill_rounds` indexes photos that are added, changed and removed
between the kills, kills the process after a random time, and compares the entries before and after each kill, and the
last index with a fresh one.

| target | kills | result |
|---|---:|---|
"""


def _random_kills(training: dict[str, int], index: dict[str, int]) -> str:
    """Return the section about random kills."""
    training_result = (
        f"{training['after a step']} after a step, {training['while a checkpoint was replaced']} while a checkpoint "
        f"was replaced; {training['resumed from a checkpoint']} resumed from a checkpoint, the others from the start; "
        f"{training['different']} of {training['runs']} complete runs differ"
    )
    index_result = (
        f"{index['after which entries differ']} after entries were written; {index['lost']} photos lost; "
        "the last index equals a fresh one"
    )
    rows = (("training", training["kills"], training_result), ("index of photos", index["kills"], index_result))
    return _KILLS + "".join(f"| {target} | {kills} | {result} |\n" for target, kills, result in rows)


def page(rows: list[dict[str, Any]], training: dict[str, int], index: dict[str, int]) -> str:
    """Return the page as Markdown.

    Args:
        rows: Records of the fault-injection tests.
        training: Counts of ``benchmarks/resume.py``.
        index: Counts of ``tests/search/kill_rounds.py``.
    """
    parts = [_HEAD]
    for fault in sorted({row["fault"] for row in rows}):
        parts.append(f"## {fault.capitalize()}\n\n{_ABOUT[fault]}\n")
        table = ["| target | trials | result |", "|---|---:|---|"]
        table += [f"| {row['target']} | {row['tries']} | {row['outcome']} |" for row in rows if row["fault"] == fault]
        parts.append("\n".join(table) + "\n")
    parts.append(_random_kills(training, index))
    tries = sum(row["tries"] for row in rows) + training["kills"] + index["kills"]
    parts.append(f"{tries} trials in total; no data was lost.\n")
    return "\n".join(parts)


def current_page() -> str:
    """Return the page of the stored records and counts."""
    return page(*(json.loads(path.read_text(encoding="utf-8")) for path in (RECORDS, TRAINING, INDEX)))


def main() -> None:
    """Write the page."""
    write_whole(PAGE, current_page())


if __name__ == "__main__":
    main()
