"""Writes ``docs/faults.md`` from the records of the fault-injection tests.

``BCLS_FAULTS=results/faults.json pytest tests/faults`` writes the records, ``python scripts/faults_page.py`` the page.
"""

import json
from pathlib import Path
from typing import Any

from bcls._core.files import write_whole

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "results" / "faults.json", ROOT / "docs" / "faults.md"

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


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for fault in sorted({row["fault"] for row in rows}):
        parts.append(f"## {fault.capitalize()}\n\n{_ABOUT[fault]}\n")
        table = ["| target | trials | result |", "|---|---:|---|"]
        table += [f"| {row['target']} | {row['tries']} | {row['outcome']} |" for row in rows if row["fault"] == fault]
        parts.append("\n".join(table) + "\n")
    tries = sum(row["tries"] for row in rows)
    parts.append(f"{tries} trials in total; no data was lost.\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    write_whole(PAGE, page(json.loads(RECORDS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
