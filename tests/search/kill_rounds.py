"""Kills indexing repeatedly, and checks each time that no photo is lost and no vector is without an entry.

``python -m tests.search.kill_rounds --kills 1000``. Child processes are forked from one process that has imported
everything, and are killed with SIGKILL after a random time. Between rounds, photos are added, changed and removed. A
round whose process ended before does not count; there are rounds until there were enough kills.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from bcls._core.files import write_whole
from bcls.search import build as run
from bcls.search.build import IndexSettings, build_index
from bcls.search.catalog import Catalog
from bcls.search.index import FILE, open_engine, read_index_manifest
from tests.search.factories import NAMES, photo, tiny_model


def child(work):
    """Run in a forked process without output; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    run._TOGETHER = 3
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def mix(folder, chance):
    """Change a few photos."""
    there = sorted(folder.glob("*.png"))
    for _ in range(chance.randint(1, 4)):
        photo(folder / f"{chance.randrange(40):02}.png", [chance.choice(NAMES)], seed=chance.randrange(10**6), side=16)
    for path in chance.sample(there, min(2, len(there))):
        path.with_suffix(".txt").write_text(f"{chance.choice(NAMES)} thing {chance.randrange(100)}")
    if len(there) > 12:
        there[0].unlink()
        there[1].rename(folder / f"moved{chance.randrange(40):02}.png")


def is_set_up(folder):
    """Whether a run created the last file of an index with its tables; others may have been killed before."""
    last = folder / "captions" / "rows.sqlite"
    if not (folder / FILE).exists() or not last.exists():
        return False
    with closing(sqlite3.connect(last)) as connection:
        return connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'facts'").fetchone()[0] == 1


def entries(folder):
    """Hash and captions of the photos that have a vector, by name; fails if a vector has no entry."""
    if not is_set_up(folder):
        return {}
    manifest = read_index_manifest(folder)
    catalog = Catalog(folder / "catalog.sqlite", read_only=True)
    found = {}
    for what in ("photos", "captions"):
        engine = open_engine("faiss", folder / what, "", "", manifest.dimension, read_only=True)
        numbers = engine.numbers()
        ghosts = np.setdiff1d(numbers, catalog.numbers(what))
        assert not len(ghosts), f"{what} without an entry: {ghosts}"
        if what == "photos":
            for number, one in catalog.photos(numbers.tolist()).items():
                texts = tuple(caption.text for caption in catalog.captions_of([number]).values())
                found[one.name] = one.sha256, texts
            assert len(engine.vectors(numbers.tolist())) == len(found)
        engine.close()
    catalog.close()
    return found


def everything(folder):
    """Name, hash, captions and vectors of all photos."""
    manifest = read_index_manifest(folder)
    catalog = Catalog(folder / "catalog.sqlite", read_only=True)
    engines = {w: open_engine("faiss", folder / w, "", "", manifest.dimension) for w in ("photos", "captions")}
    found = []
    for number, one in catalog.photos(catalog.numbers().tolist()).items():
        captions = catalog.captions_of([number])
        vectors = [engines["photos"].vectors([number]), engines["captions"].vectors(list(captions))]
        texts = tuple(caption.text for caption in captions.values())
        found.append((one.name, one.sha256, texts, np.concatenate(vectors).round(5).tolist()))
    counts = engines["photos"].count(), engines["captions"].count()
    return sorted(found), counts


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_rounds(kills, place, model, seed=0):
    """Kill that many runs; returns the counts of kills, those after which entries differ, and other rounds."""
    chance = random.Random(seed)
    source, out = place / "photos", place / "index"
    settings = IndexSettings(out=str(out), model=str(model), workers=2)
    longest, killed, changing, ended = 0.3, 0, 0, 0
    while killed < kills:
        mix(source, chance)
        before = entries(out)
        pid = child(lambda: build_index(source, settings))
        time.sleep(chance.uniform(0, longest))
        os.kill(pid, signal.SIGKILL)
        code = wait(pid)
        assert code in {0, -signal.SIGKILL}, f"a run ended with {code}"
        after = entries(out)
        if code == 0:
            ended += 1
            longest = max(0.02, longest * 0.9)
        else:
            killed += 1
            changing += after != before
            longest = min(10.0, longest * 1.05)  # two of three rounds are killed, on a slow machine as well
        changed = {name for name, entry in before.items() if not is_same(source / name, entry)}
        lost = before.keys() - after.keys() - changed
        assert not lost, f"after {killed} kills: lost {sorted(lost)}"
        if code and killed % 100 == 0:
            print(f"{killed} killed, {ended} ended before", file=sys.stderr, flush=True)
    assert wait(child(lambda: build_index(source, settings))) == 0
    fresh = IndexSettings(out=str(place / "fresh"), model=str(model))
    assert wait(child(lambda: build_index(source, fresh))) == 0
    assert everything(out) == everything(place / "fresh"), "the index differs from a fresh one"
    return {"kills": killed, "after which entries differ": changing, "rounds that ended before": ended}


def is_same(path, entry):
    """Whether a photo and its captions match an entry; otherwise it may be without a vector while it is replaced."""
    beside = path.with_suffix(".txt")
    texts = (beside.read_text(),) if beside.exists() else ()
    return path.exists() and (hashlib.sha256(path.read_bytes()).hexdigest(), texts) == entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    place = Path(tempfile.mkdtemp())
    try:
        with pytest.MonkeyPatch.context() as patch:
            model = tiny_model(patch, place / "model")
            (place / "photos").mkdir()
            counts = kill_rounds(arguments.kills, place, model, arguments.seed)
        print(json.dumps({**counts, "lost": 0}))
        if arguments.json:
            write_whole(arguments.json, json.dumps({**counts, "lost": 0}, indent=1) + "\n")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
