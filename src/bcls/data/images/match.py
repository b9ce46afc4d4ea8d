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
    """

    files: tuple[str | None, ...]
    notes: tuple[str, ...]


def match_names(wanted: Sequence[str], available: Iterable[str]) -> Match:
    """Find a file for each wanted name.

    A file matches by its whole name, else by its name without folders, else by its stem: its name without folders and
    ending. Names that several files share, such as ``a/1.jpg`` and ``b/1.jpg`` for ``1.jpg``, match none of them, and
    neither do several names that one file is left for: one of them at most would get its own picture.

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
    # Otherwise than by its whole name, a file goes to one name only, and not where its own is wanted as well.
    guesses = {name: _guess(name, by_base, by_stem) for name in wanted if name not in exact}
    claims = Counter(file for file, _ in guesses.values())
    taken = exact.intersection(wanted)
    files: list[str | None] = []
    endings: Counter[str] = Counter()
    for name in wanted:
        file, ending = (name, "") if name in exact else guesses[name]
        if name not in exact and (file in taken or claims[file] > 1):
            file = None
        if file is not None and ending:
            endings[ending] += 1
        files.append(file)
    return Match(tuple(files), _notes(endings))


def _guess(name: str, by_base: dict[str, str], by_stem: dict[str, str]) -> tuple[str | None, str]:
    """The file that a name may mean, and how their endings differ, if they do."""
    path = PurePosixPath(name)
    if path.name in by_base:
        return by_base[path.name], ""
    # The name may have no ending and a dot of its own, so it is looked up whole first.
    whole = by_stem.get(path.name)
    file = whole or by_stem.get(path.stem)
    if file is None:
        return None, ""
    return file, f"{PurePosixPath(file).suffix} for {'none' if whole else path.suffix or 'none'}"


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
