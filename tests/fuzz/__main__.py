"""``python -m tests.fuzz --cases 100000``: fuzz every reader and write ``results/fuzz.json``; resumes an old run."""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from bcls._core.files import write_whole
from tests.fuzz.engine import Outcome, Reader, make_case, run
from tests.fuzz.readers import READERS

#: Number of cases after which the results are saved.
_PART = 5000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=100_000, help="cases for each reader, including those of earlier runs"
    )
    parser.add_argument("--readers", nargs="+", choices=sorted(READERS), default=list(READERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/fuzz.json"))
    parser.add_argument("--restart", action="store_true", help="discard earlier results of these readers")
    parser.add_argument(
        "--show", type=int, metavar="NUMBER", help="write the bytes of one case of one reader, and exit"
    )
    given = parser.parse_args()
    if given.show is not None:
        reader = READERS[given.readers[0]]
        sys.stdout.buffer.write(make_case(reader, list(reader.seeds()), given.seed, given.show))
        return 0
    known = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    if known.get("seed", given.seed) != given.seed:
        parser.error(f"{given.out} has results for seed {known['seed']}: use another --out")
    outcomes = {name: Outcome(**kept) for name, kept in known.get("readers", {}).items()}
    for name in given.readers if given.restart else ():
        outcomes.pop(name, None)
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    for name in given.readers:
        outcome = outcomes.setdefault(name, Outcome())
        while outcome.cases < given.cases:
            count = min(_PART, given.cases - outcome.cases)
            outcome.add(run(READERS[name], first=outcome.cases, count=count, seed=given.seed))
            outcome.commit = git.stdout.strip()
            given.out.parent.mkdir(parents=True, exist_ok=True)
            kept = {one: asdict(outcomes[one]) for one in READERS if one in outcomes}
            write_whole(given.out, json.dumps({"seed": given.seed, "readers": kept}, indent=1) + "\n")
        _print_outcome(READERS[name], outcome)
    return any(outcomes[name].findings for name in given.readers)


def _print_outcome(reader: Reader, outcome: Outcome) -> None:
    rate = outcome.cases / max(outcome.seconds, 1e-9)
    print(
        f"{reader.name:<22} {outcome.cases:>8} cases {outcome.read / max(1, outcome.cases):>6.1%} read "
        f"{len(outcome.findings):>3} findings {rate:>7.0f} per second {outcome.peak / 2**20:>6.0f} MB more",
        flush=True,
    )
    for kind, numbers in outcome.findings.items():
        print(f"    {kind}: cases {', '.join(map(str, numbers))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
