"""Copies results of sweeps and writes docs/evidence.md: ``python scripts/evidence_page.py [SWEEP ...]``.

Metrics, settings and ranks (no weights) of the given folders of ``bcls sweep`` are first copied to
``results/flickr8k``. The page is always written from that folder, with the values of the paper for comparison.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from bcls._core.files import write_whole
from bcls.experiments.claims import read_paper
from bcls.experiments.report import as_markdown, build
from bcls.experiments.results import RANKS, RESULTS, SWEEP, read_results
from bcls.experiments.summary import summarize

ROOT = Path(__file__).parents[1]
KEPT, PAPER, PAGE = ROOT / "results" / "flickr8k", ROOT / "results" / "paper.json", ROOT / "docs" / "evidence.md"
#: Explanations by claim: the part of the page that is written by hand.
REMARKS = KEPT / "remarks.json"


def keep(sweep: Path, kept: Path) -> Path:
    """Copy metrics, settings and ranks of a sweep, without paths of the machine.

    Args:
        sweep: A folder that ``bcls sweep`` wrote.
        kept: Folder that contains one folder for each sweep.

    Returns:
        The folder of the copy.
    """
    metadata, lines = read_results(sweep)
    folder = kept / metadata["name"]
    if folder.resolve() == sweep.resolve():
        sys.exit(f"{sweep}: expected a folder that `bcls sweep` wrote, got the copy of it")
    (folder / RANKS).mkdir(parents=True, exist_ok=True)
    needed = {f"{line['key']}-test.npz" for line in lines if "test" in line}
    for file in (sweep / RANKS).glob("*-test.npz"):
        if file.name in needed:
            shutil.copyfile(file, folder / RANKS / file.name)
    for file in (folder / RANKS).iterdir():
        if file.name not in needed:  # of a configuration that the sweep no longer has
            file.unlink()
    for line in lines:
        line["command"] = re.sub(r"(?<!\S)\S*/(\S+)", r"\1", line["command"])
    write_whole(folder / SWEEP, json.dumps(metadata, indent=1) + "\n")
    write_whole(folder / RESULTS, "".join(json.dumps(line) + "\n" for line in lines))
    return folder


def main(sweeps: list[str]) -> None:
    """Copy sweeps and write the page."""
    for sweep in sweeps:
        keep(Path(sweep), KEPT)
    folders = sorted(path.parent for path in KEPT.glob(f"*/{SWEEP}"))
    if not folders:
        sys.exit(f"{KEPT} contains no sweep: name folders that `bcls sweep` wrote")
    remarks = json.loads(REMARKS.read_text(encoding="utf-8"))
    page = as_markdown(build([summarize(folder) for folder in folders], read_paper(PAPER), remarks))
    write_whole(PAGE, page.replace("# Experiments\n", "# Evidence\n", 1))


if __name__ == "__main__":
    main(sys.argv[1:])
