"""Results of the fault-injection tests, for the tables in ``docs/faults.md``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FaultRecord:
    """A row of a table; recorded after all of its assertions have passed."""

    fault: str
    target: str
    tries: int
    outcome: str


RECORDS: list[FaultRecord] = []


def tried(fault, target, tries, outcome):
    """Record that a fault was injected ``tries`` times, and the result."""
    assert tries > 0, "no fault was injected"
    RECORDS.append(FaultRecord(fault, target, tries, outcome))
