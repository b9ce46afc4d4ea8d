"""The demo's result in words, computed from the figures: true whatever they are."""

import math
from collections.abc import Mapping, Sequence

from bcls.demo.results import LOSSES, Run, Spread, summary

# With hard negatives and a mean over the batch, a model that scores all pairs alike pays the margin in both directions.
_STALLED = 2 * 0.2


def findings(runs: Sequence[Run]) -> list[str]:
    """Say in words what the table says, whatever it says."""
    figures = summary(runs)
    # BCLS is Triplet-SN with a second term, so that comparison comes first.
    ahead, *others = [loss for loss in ("bcls", "triplet-sn", "triplet-hn") if loss in figures]
    found = [_comparison(ahead, other, figures) for other in others]
    if not others:
        found.append(f"Only {LOSSES[ahead]} was trained, so there is nothing to compare it with.")
    elif len({(run.loss, run.seed) for run in runs}) == len(figures):
        found.append("With one seed for each loss there is no telling how much of this is chance.")
    hard = [run.train_loss[-1] for run in runs if run.loss == "triplet-hn" and run.train_loss]
    stalled = [last for last in hard if abs(last - _STALLED) <= 0.05 * _STALLED]
    if stalled:
        found.append(
            f"Triplet-HN stalled in {len(stalled)} of {len(hard)} {'seed' if len(hard) == 1 else 'seeds'}: its "
            f"training loss ended at {Spread.of(stalled).mean:.3f}, close to twice the margin ({_STALLED:.1f}), which "
            "is what a model pays that scores all pairs alike. Many captions here fit several pictures, so the "
            "hardest negative is often a false one, and pushing it away undoes what the match has taught."
        )
    return found


def _comparison(one: str, other: str, figures: Mapping[str, Mapping[str, Spread]]) -> str:
    tau, base = figures[one]["tau_true"], figures[other]["tau_true"]
    how = _difference(tau, base, 3, "closer to", "further from")
    how = f"{how} the true relevance than" if how else "as close to the true relevance as"
    order = f"{LOSSES[one]} ranks {how} {LOSSES[other]} (τ true {_against(tau, base, 3)})"
    rsum, base = figures[one]["rsum"], figures[other]["rsum"]
    change = _difference(rsum, base, 1, "higher", "lower") or "the same"
    return f"{order}; its RSUM is {change} ({_against(rsum, base, 1)})."


def _difference(one: Spread, other: Spread, digits: int, more: str, less: str) -> str:
    """Say how far apart two means are, in percent of the second; nothing where they print the same."""
    if f"{one.mean:.{digits}f}" == f"{other.mean:.{digits}f}":
        return ""
    word = more if one.mean > other.mean else less
    # Percent of next to nothing, or of less than nothing, tell nobody anything.
    share = abs(one.mean - other.mean) / other.mean * 100 if other.mean > 0 else math.inf
    if share > 100:
        return f"far {word}"
    return f"{share:.0f}\u00a0% {word}" if share >= 1 else f"less than 1\u00a0% {word}"


def _against(one: Spread, other: Spread, digits: int) -> str:
    text = f"{_number(one, digits)} against {_number(other, digits)}"
    known = one.deviation > 0 and other.deviation > 0
    close = known and abs(one.mean - other.mean) <= one.deviation + other.deviation
    return text + (", within the spread of the seeds" if close else "")


def _number(spread: Spread, digits: int) -> str:
    deviation = f"\u00a0±\u00a0{spread.deviation:.{digits}f}" if spread.deviation > 0 else ""
    return f"{spread.mean:.{digits}f}{deviation}"
