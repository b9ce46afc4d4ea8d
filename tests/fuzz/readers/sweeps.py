"""Sweeps: the files that `bcls report` reads, and the page it writes."""

import io
import json
import tempfile
import zlib
from functools import cache, partial
from pathlib import Path

import numpy as np

from bcls.experiments.report import as_html, as_markdown, build
from bcls.experiments.results import summarize
from tests.experiments.sweep_factory import line, ranks, sweep
from tests.fuzz.damage import damage_json, or_plain
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put


@cache
def whole():
    lines = [
        line(row, seed, 300.0 + seed, test={"rsum": 200.0 + seed, "tau": 0.3})
        for row in ("bcls", "triplet-hn")
        for seed in (1, 2)
    ]
    lines.append(line("bcls", 1, 290.0, phase="trial", key="tried", trial={"rsum": 290.0}))
    space = {"bcls": {"lr": [0.1, 0.2]}, "triplet-hn": {"lr": [0.1]}}
    chosen = {"bcls": {"lr": 0.1}, "triplet-hn": {"lr": 0.1}}
    counts = {"bcls": 2, "triplet-hn": 1}
    search = {"measure": "rsum", "method": "grid", "spaces": space, "sizes": counts, "tried": counts, "chosen": chosen}
    with tempfile.TemporaryDirectory() as place:
        folder = sweep(Path(place) / "made", lines, search=search)
        for one in lines[:4]:
            ranks(folder, one["key"], 0, images=4, kind="test")
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


RANKS = next(name for name in whole() if name.endswith(".npz"))


def read(name, content, folder):
    for other, kept in whole().items():
        put((folder / "made" / other).parent, Path(other).name, kept)
    put((folder / "made" / name).parent, Path(name).name, content)
    page = build([summarize(folder / "made")])
    as_markdown(page)
    if zlib.crc32(content) % 16 == 0:  # drawing the charts takes a tenth of a second
        as_html(page)


def damage_arrays(draw, seeds):
    """Return the archive with an array of another type or length."""
    with np.load(io.BytesIO(draw.choice(seeds))) as arrays:
        found = dict(arrays)
    name = draw.choice(sorted(found))
    change = draw.choice(
        (
            lambda array: array[:-1],
            lambda array: array.astype(draw.choice((np.float32, np.int8, "<U3", bool))),
            lambda array: array - 1,
            lambda array: array[None],
            lambda array: np.zeros(0, array.dtype),
        )
    )
    found[name] = change(found[name])
    if draw.random() < 0.2:
        del found[name]
    packed = io.BytesIO()
    np.savez_compressed(packed, **found)
    return packed.getvalue()


GRID = b"".join(
    json.dumps(line("bcls", 1, 300.0 + 10 * alpha, point={"loss.alpha": alpha})).encode() + b"\n"
    for alpha in (0.1, 0.2)
)
NOISE = b"".join(
    json.dumps(
        line(
            "noisy",
            1,
            300.0,
            name=f"alpha {alpha}",
            noise=0.1,
            figures={"true_tau": 0.2},
            settings={"model": {"name": "dual"}, "loss": {"name": "bcls", "alpha": alpha}},
        )
    ).encode()
    + b"\n"
    for alpha in (0.0, 0.2)
)

READERS = (
    Reader(
        "sweep results", lambda: [whole()["results.jsonl"], GRID, NOISE], partial(read, "results.jsonl"), damage_json
    ),
    Reader("sweep about", lambda: [whole()["sweep.json"]], partial(read, "sweep.json"), damage_json),
    Reader("sweep ranks", lambda: [whole()[RANKS]], partial(read, RANKS), or_plain(damage_arrays)),
)
