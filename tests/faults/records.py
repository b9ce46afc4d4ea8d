"""What the suite tried and what came of it, for the table in ``docs/faults.md``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """A row of the table; it is written only after everything in it has been checked."""

    fault: str
    target: str
    tries: int
    outcome: str


RECORDS: list[Record] = []


def tried(fault, target, tries, outcome):
    """Note that a fault was tried so often on something, and what was true after each try."""
    assert tries > 0, "nothing was tried"
    RECORDS.append(Record(fault, target, tries, outcome))
