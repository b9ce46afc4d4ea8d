"""Keeps the results of sweeps and writes docs/evidence.md: ``python scripts/evidence_page.py [SWEEP ...]``.

With folders that ``bcls sweep`` wrote, what is worth keeping of them is first copied to ``results/flickr8k``: figures,
settings and ranks, no weights. The page is always made from that folder, with the paper's figures beside.
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
from bcls.experiments.summary import summarise

ROOT = Path(__file__).parents[1]
KEPT, PAPER, PAGE = ROOT / "results" / "flickr8k", ROOT / "results" / "paper.json", ROOT / "docs" / "evidence.md"
#: Why a claim does not hold, by claim: the part of the page that is written by hand.
REMARKS = KEPT / "remarks.json"


def keep(sweep: Path, kept: Path) -> Path:
    """Copy what is worth keeping of a sweep; where it lay on the machine is not.

    Args:
        sweep: A folder that ``bcls sweep`` wrote.
        kept: Folder with one folder for each sweep.

    Returns:
        The folder of the copy.
    """
    about, lines = read_results(sweep)
    folder = kept / about["name"]
    if folder.resolve() == sweep.resolve():
        sys.exit(f"{sweep}: expected a folder that `bcls sweep` wrote, got the one that is kept of it")
    (folder / RANKS).mkdir(parents=True, exist_ok=True)
    needed = {f"{line['key']}-test.npz" for line in lines if "test" in line}
    for file in (sweep / RANKS).glob("*-test.npz"):
        if file.name in needed:
            shutil.copyfile(file, folder / RANKS / file.name)
    for file in (folder / RANKS).iterdir():
        if file.name not in needed:  # a sweep whose rows changed has other runs than before
            file.unlink()
    for line in lines:
        line["command"] = re.sub(r"(?<!\S)\S*/(\S+)", r"\1", line["command"])
    write_whole(folder / SWEEP, json.dumps(about, indent=1) + "\n")
    write_whole(folder / RESULTS, "".join(json.dumps(line) + "\n" for line in lines))
    return folder


def main(sweeps: list[str]) -> None:
    """Keep sweeps and write the page."""
    for sweep in sweeps:
        keep(Path(sweep), KEPT)
    folders = sorted(path.parent for path in KEPT.glob(f"*/{SWEEP}"))
    if not folders:
        sys.exit(f"{KEPT} holds no sweep: give folders that `bcls sweep` wrote")
    remarks = json.loads(REMARKS.read_text(encoding="utf-8"))
    page = as_markdown(build([summarise(folder) for folder in folders], read_paper(PAPER), remarks))
    write_whole(PAGE, page.replace("# Experiments\n", "# Evidence\n", 1))


if __name__ == "__main__":
    main(sys.argv[1:])
