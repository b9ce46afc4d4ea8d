"""``manifest.json`` beside the features: what they are, what made them, which splits are finished."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bcls._checks import fail, shortened
from bcls._files import take, write_whole
from bcls.data.manifest import FeatureFile, add_features
from bcls.data.text_files import read_json

FILE = "manifest.json"
FORMAT = "bcls-features"


def check_name(argument: str, name: str) -> str:
    """A name that can be a folder or a file."""
    if not re.fullmatch(r"\w[\w.+-]*", name):
        fail(argument, "letters, digits, '.', '+', '-' and '_'", repr(name), "choose a plain name")
    return name


def finished_splits(folder: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The splits of these features that are finished, with what is recorded of each; none where there are none.

    Raises:
        ValueError: They were made with other settings, or the file is not what this library writes.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", "choose another name")
    made, splits = content.get("settings"), content.get("splits")
    if not isinstance(made, dict) or not isinstance(splits, dict) or not all(map(_is_split, splits.values())):
        fail(str(path), "settings and splits as bcls writes them", "something else", f"remove {folder}")
    other = difference(made, settings)
    if other is not None:
        key, before, now = other
        remedy = f"choose another name for these, or remove {folder}"
        fail(key, f"{before}, as in the finished features {folder.name!r}", now, remedy)
    return splits


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The first setting that differs from a recorded one, with both of its values; ``None`` where all are the same.

    Example:
        >>> difference({"side": 224, "views": 4}, {"side": 224})
        ('views', '4', 'none')
    """
    now = json.loads(json.dumps(now))
    for key in {**now, **before}:  # also what only one of them has
        if (key in before, before.get(key)) != (key in now, now.get(key)):
            then, here = (shortened(repr(one[key])) if key in one else "none" for one in (before, now))
            return shortened(key), then, here
    return None


def _is_split(made: Any) -> bool:
    return isinstance(made, dict) and "images" in made and isinstance(made.get("zero_rows"), list)


def record_split(
    dataset: Path, name: str, split: str, settings: Mapping[str, Any], made: Mapping[str, Any], views: int
) -> None:
    """Note that a split is finished, beside the features and then in the dataset's manifest."""
    folder = dataset / "features" / name
    splits = {**finished_splits(folder, settings), split: dict(made)}
    # In one order, whichever was finished first.
    content = {"format": FORMAT, "version": 1, "settings": dict(settings), "splits": dict(sorted(splits.items()))}
    write_whole(folder / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    enter(dataset, name, split, views)


def enter(dataset: Path, name: str, split: str, views: int) -> None:
    """Enter a finished split, with so many rows a picture, in the dataset's manifest, where it is not there yet."""
    with alone(dataset / "features", wait=True):
        add_features(dataset, name, split, FeatureFile(f"features/{name}/{split}.npy", every=views, views=views))


@contextmanager
def alone(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes out of a folder of features.

    Args:
        folder: The folder; made if it is not there.
        wait: Wait until the other one is done.

    Raises:
        ValueError: Another one is there, and we do not wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        owner = take(file, wait=wait)
        if owner is not None:
            got = f"{folder}, in use by {owner}"
            fail("name", "features that no other process makes now", got, "wait for it, or end it")
        yield
