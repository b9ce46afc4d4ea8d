"""Writes ``docs/faults.md`` from the records of the fault-injection suite.

``BCLS_FAULTS=results/faults.json pytest tests/faults`` makes the records, ``python scripts/faults_page.py`` the page.
"""

import json
from pathlib import Path
from typing import Any

from bcls._core.files import write_whole

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "results" / "faults.json", ROOT / "docs" / "faults.md"

_ABOUT = {
    "clock jumps": "Dates of files in the far future and the far past, and a clock that goes back while work is done.",
    "cut at every byte": "Each file is cut after each of its bytes, as a broken-off copy leaves it, and read.",
    "death at every step": "From one step on, nothing more reaches the disk, as when a process is killed: no file is "
    "opened for writing, renamed, removed or forced to the disk. Done once for every step there is.",
    "full disk": "The kernel lets no file grow beyond some bytes, from none up to what is needed.",
    "killed workers": "A helper process is killed with SIGKILL.",
    "lost network": "The server is killed while a client is connected.",
    "read-only folder": "Another user, who owns nothing, writes into a folder without the right to.",
    "two processes": "Another process holds what is asked for, and is then killed.",
}
_HEAD = """# Faults

What happens when the disk is full, a process dies or two of them meet. Each row was tried by `tests/faults`, which
checked after every single try that nothing was lost: the older version or the newer one is there, whole, and the next
run goes on. This page is written by `scripts/faults_page.py` from the suite's own records.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for fault in sorted({row["fault"] for row in rows}):
        parts.append(f"## {fault.capitalize()}\n\n{_ABOUT[fault]}\n")
        table = ["| what | tries | what was there afterwards |", "|---|---:|---|"]
        table += [f"| {row['target']} | {row['tries']} | {row['outcome']} |" for row in rows if row["fault"] == fault]
        parts.append("\n".join(table) + "\n")
    tries = sum(row["tries"] for row in rows)
    parts.append(f"{tries} tries in all; lost: nothing.\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    write_whole(PAGE, page(json.loads(RECORDS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
