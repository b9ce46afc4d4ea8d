"""What a run has to do: compares the photos that are there with those in the index."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from bcls.index.source import Item


class Plan(NamedTuple):
    """What to do.

    Attributes:
        read: Photos that are new or may have changed.
        gone: Numbers of photos in the index that are no longer there.
        unchanged: How many need nothing.
    """

    read: list[Item]
    gone: list[int]
    unchanged: int


def compare(items: Sequence[Item], looks: Mapping[str, tuple[int, str]], lacking: Collection[int]) -> Plan:
    """Compare photos with the index by a quick look at their files.

    Args:
        items: The photos that are there.
        looks: Number and quick look of the photos in the index, by name.
        lacking: Numbers in the index that have no vector yet, because a run was killed.

    Example:
        >>> compare([Item("a", "1"), Item("b", "2")], {"a": (1, "1"), "c": (2, "5")}, set())
        Plan(read=[Item(name='b', look='2')], gone=[2], unchanged=1)
    """
    lacks = set(lacking)
    read = []
    for item in items:
        number, look = looks.get(item.name, (None, ""))
        if number is None or look != item.look or number in lacks:
            read.append(item)
    there = {item.name for item in items}
    gone = [number for name, (number, _) in looks.items() if name not in there]
    return Plan(read, gone, len(items) - len(read))
