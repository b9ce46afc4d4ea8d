"""Output of metrics: tables on a terminal, table rows in Markdown or LaTeX, and JSON."""

import json
import math
import re
from collections.abc import Mapping
from itertools import groupby

from bcls._core.errors import check_choice
from bcls.reports.blocks import Table

#: Metrics of a table row, in the order of the paper's tables.
ROW = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
ROW_KINDS = ("markdown", "latex")
DIRECTION_NAMES = {"i2t": "image to text", "t2i": "text to image"}
_NAMES = {
    "rsum": "RSUM",
    "tau_a": "tau-a",
    "tau_b": "tau-b",
    "ndcg": "nDCG",
    "ndcg_exp": "nDCG, exponential gain",
    "empty": "queries without nDCG",
    "undefined": "queries without CS",
    "qbnorm_rsum": "QB-Norm RSUM",
    "qbnorm_share": "QB-Norm changed, %",
}
_PATTERNS = (
    (r"skew(\d+)", r"hubness: skewness of first \1"),
    (r"most(\d+)", r"hubness: highest count in first \1"),
    (r"never(\d+)", r"hubness: never in first \1, %"),
    (r"qbnorm_r(\d+)", r"QB-Norm R@\1"),
    (r"r(\d+)", r"R@\1"),
    (r"cs(\d+)", r"CS@\1"),
)
#: Names of the metrics that share a section of the table.
_SECTIONS = (r"tau_|ndcg|empty|cs\d|undefined", r"eccv_|coco_|cxc_", r"skew|most|never", r"qbnorm_")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def as_json(values: Mapping[str, str | float]) -> str:
    """Format a flat JSON object; values that are not finite become null, since JSON has no NaN.

    Example:
        >>> as_json({"name": "vsepp", "rsum": 512.5, "i2t_skew10": math.nan})
        '{"name": "vsepp", "rsum": 512.5, "i2t_skew10": null}'
    """
    finite = {key: value for key, value in values.items() if not isinstance(value, float) or math.isfinite(value)}
    return json.dumps(dict.fromkeys(values) | finite)


def as_row(kind: str, name: str, metrics: Mapping[str, float]) -> str:
    r"""Format one table row: name, R@1, R@5, R@10 image to text, the same text to image, RSUM.

    Args:
        kind: ``"markdown"`` or ``"latex"``.
        name: First cell; special characters are escaped.
        metrics: The result of :func:`bcls.evaluation.evaluate`.

    Raises:
        ValueError: If ``kind`` is unknown.

    Example:
        >>> metrics = dict.fromkeys(ROW, 50.0) | {"rsum": 300.0}
        >>> as_row("markdown", "a|b", metrics)
        '| a\\|b | 50.0 | 50.0 | 50.0 | 50.0 | 50.0 | 50.0 | 300.0 |'
        >>> as_row("latex", "my_model", metrics)
        'my\\_model & 50.0 & 50.0 & 50.0 & 50.0 & 50.0 & 50.0 & 300.0 \\\\'
    """
    cells = [f"{metrics[key]:.1f}" for key in ROW]
    if check_choice("--row", kind, ROW_KINDS) == "markdown":
        return "| " + " | ".join([re.sub(r"([\\|])", r"\\\1", name), *cells]) + " |"
    escaped = re.sub(r"[\\~^]|[&%$#_{}]", lambda match: _LATEX.get(match[0], f"\\{match[0]}"), name)
    return " & ".join([escaped, *cells]) + r" \\"


def metric_table(metrics: Mapping[str, float]) -> Table:
    """Arrange metrics as rows of a name and a cell for each direction, in groups of related metrics.

    Metrics of both directions together are in the first cell.

    Example:
        >>> print(metric_table({"i2t_r1": 50.0, "t2i_r1": 40.0, "rsum": 90.0}).as_markdown())
        | metric | image to text | text to image |
        |---|---:|---:|
        | R@1 | 50.0 | 40.0 |
        | RSUM | 90.0 |  |
    """
    rows: dict[str, dict[str, str]] = {}
    for key in metrics:
        if not key.endswith(("_low", "_high")):
            name, direction = _split_key(key)
            rows.setdefault(name, {})[direction] = _cell(key, metrics)
    texts = [(_spell(name), cells.get("i2t", cells.get("", "")), cells.get("t2i", "")) for name, cells in rows.items()]
    groups = [len(list(group)) for _, group in groupby(rows, key=_section)]
    return Table.of_texts(["metric", *DIRECTION_NAMES.values()], texts, groups)


def comparison_table(metrics: Mapping[str, float]) -> Table:
    """Arrange the result of :func:`bcls.evaluation.compare`: two models side by side, with differences and p-values."""
    rows: list[tuple[str, ...]] = []
    for key in ROW:
        name, direction = _split_key(key)
        low, high = (metrics.get(f"difference_{key}_{end}") for end in ("low", "high"))
        p_value = metrics.get(f"p_{key}")
        interval = "" if low is None or high is None else f"{low:+.1f} to {high:+.1f}"
        label = " ".join(part for part in (_spell(name), direction) if part)
        values = (f"{metrics[f'a_{key}']:.1f}", f"{metrics[f'b_{key}']:.1f}", f"{metrics[f'difference_{key}']:+.1f}")
        rows.append((label, *values, interval, "" if p_value is None else f"{p_value:.4f}"))
    return Table.of_texts(["metric", "A", "B", "A - B", "95 % interval", "p"], rows)


def disagreement_lines(metrics: Mapping[str, float]) -> list[str]:
    """Format the number of queries that only one of two models ranks correctly first."""
    lines = []
    for direction, words in (("i2t", "images"), ("t2i", "captions")):
        both, only_a, only_b = (int(metrics[f"{direction}_{key}"]) for key in ("disagree", "only_a", "only_b"))
        lines.append(f"{words} that only one model ranks correctly first: {both:,} (A {only_a:,}, B {only_b:,})")
    return lines


def _section(name: str) -> str:
    return next((pattern for pattern in _SECTIONS if re.match(pattern, name)), "")


def _split_key(key: str) -> tuple[str, str]:
    """Split a key into name and direction, which is a prefix or a suffix.

    Example:
        >>> _split_key("i2t_r1"), _split_key("eccv_r1_t2i"), _split_key("rsum")
        (('r1', 'i2t'), ('eccv_r1', 't2i'), ('rsum', ''))
    """
    for direction in ("i2t", "t2i"):
        if key.startswith(f"{direction}_") or key.endswith(f"_{direction}"):
            return key.removeprefix(f"{direction}_").removesuffix(f"_{direction}"), direction
    return key, ""


def _spell(name: str) -> str:
    """Format the name of a metric as it is usually printed.

    Example:
        >>> _spell("r1"), _spell("cs100"), _spell("qbnorm_r5"), _spell("median_rank")
        ('R@1', 'CS@100', 'QB-Norm R@5', 'median rank')
    """
    if name in _NAMES:
        return _NAMES[name]
    for pattern, spelling in _PATTERNS:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(spelling)
    return name.replace("_", " ")


def _cell(key: str, metrics: Mapping[str, float]) -> str:
    value = metrics[key]
    digits = 4 if re.search(r"tau_|ndcg|_cs\d", key) else 1
    if re.search(r"_most\d+|_empty|_undefined", key):
        digits = 0
    if not math.isfinite(value):
        return "-"
    low, high = metrics.get(f"{key}_low"), metrics.get(f"{key}_high")
    interval = "" if low is None or high is None else f" ({low:.1f} to {high:.1f})"
    return f"{value:.{digits}f}{interval}"
