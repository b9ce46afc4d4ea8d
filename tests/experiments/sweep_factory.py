"""Writes results of sweeps with known metrics, without training."""

import json

import numpy as np


def line(row, seed, rsum, tau=0.3, **changes):
    """One line of ``results.jsonl``."""
    metrics = {"rsum": rsum, "tau": tau, **changes.pop("metrics", {})}
    plain = {
        "row": row,
        "name": row,
        "phase": "run",
        "seed": seed,
        "point": {},
        "noise": 0.0,
        "paper": {},
        "ensemble": [],
        "key": f"{row}-{seed}-{changes.get('point')}",
        "dataset": "made",
        "revision": "0123456789abcdef",
        "seconds": 60.0,
        "validation": metrics,
        "history": [{"epoch": epoch, "loss": 1 / epoch, "rsum": rsum * epoch / 4} for epoch in (1, 2, 3, 4)],
        "settings": {"model": {"name": "dual"}, "loss": {"name": row}},
    }
    return {**plain, **changes}


def sweep(folder, lines, **about):
    """Write the folder of a sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {
        "name": folder.name,
        "about": "",
        "dataset": "made",
        "captions": 10,
        "paper": [],
        "columns": "Flickr30K",
        "rows": list(dict.fromkeys(one["row"] for one in lines)),
        "grid": {},
        "seeds": sorted({one["seed"] for one in lines}),
        "file": "made.yaml",
    }
    (folder / "sweep.json").write_text(json.dumps({**plain, **about}), encoding="utf-8")
    (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return folder


def ranks(folder, key, seed, images=30, each=2, kind="validation"):
    """Write random ranks of a run."""
    draw = np.random.default_rng(seed)
    (folder / "ranks").mkdir(exist_ok=True)
    arrays = {
        "i2t": draw.integers(1, 20, images).astype(np.uint32),
        "t2i": draw.integers(1, 20, images * each).astype(np.uint32),
        "owner": np.repeat(np.arange(images), each).astype(np.uint32),
    }
    np.savez_compressed(folder / "ranks" / f"{key}-{kind}.npz", **arrays)
    return arrays
