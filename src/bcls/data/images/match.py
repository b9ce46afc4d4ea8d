"""Finds the file of each image that a caption file names, where endings or folders differ."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Match:
    """What was found.

    Attributes:
        files: The name of each wanted file, or ``None``.
        notes: What a user should be told, one line a kind of difference.
        unused: How many of the available files nobody wanted.
    """

    files: tuple[str | None, ...]
    notes: tuple[str, ...]
    unused: int


def match_names(wanted: Sequence[str], available: Iterable[str]) -> Match:
    """Find a file for each wanted name.

    A file matches by its whole name, else by its name without folders, else by its stem: its name without folders and
    ending. Names that several files share, such as ``a/1.jpg`` and ``b/1.jpg`` for ``1.jpg``, match none of them.

    Args:
        wanted: Names as a caption file has them.
        available: Names of the files that are there.

    Example:
        >>> found = match_names(["1.jpg", "2", "3.jpg"], ["images/1.webp", "images/2.webp"])
        >>> found.files
        ('images/1.webp', 'images/2.webp', None)
        >>> found.notes
        ('2 images have another file ending than in the captions (.webp for .jpg, .webp for none)',)
    """
    there = tuple(available)
    exact = set(there)
    by_base = _unique((PurePosixPath(name).name, name) for name in there)
    by_stem = _unique((PurePosixPath(name).stem, name) for name in there)
    files: list[str | None] = []
    endings: Counter[str] = Counter()
    for name in wanted:
        path = PurePosixPath(name)
        file = name if name in exact else by_base.get(path.name)
        if file is None:
            # The name may have no ending and a dot of its own, so it is looked up whole first.
            whole = by_stem.get(path.name)
            file = whole or by_stem.get(path.stem)
            if file is not None:
                endings[f"{PurePosixPath(file).suffix} for {'none' if whole else path.suffix or 'none'}"] += 1
        files.append(file)
    unused = len(exact.difference(file for file in files if file is not None))
    return Match(tuple(files), _notes(endings), unused)


def _notes(endings: Counter[str]) -> tuple[str, ...]:
    total = endings.total()
    if not total:
        return ()
    have = "image has" if total == 1 else "images have"
    return (f"{total} {have} another file ending than in the captions ({', '.join(sorted(endings))})",)


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    shared = set()
    for key, name in pairs:
        if found.setdefault(key, name) != name:
            shared.add(key)
    return {key: name for key, name in found.items() if key not in shared}
