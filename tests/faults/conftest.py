import json
import os
from dataclasses import asdict
from pathlib import Path

from bcls._core.files import write_whole
from tests.faults.records import RECORDS


def pytest_sessionfinish(session, exitstatus):
    """Save the records of a successful run to the file in ``BCLS_FAULTS``, if it is set."""
    place = os.environ.get("BCLS_FAULTS")
    if place and exitstatus == 0:
        rows = sorted((asdict(one) for one in RECORDS), key=lambda row: (row["fault"], row["target"]))
        write_whole(Path(place), json.dumps(rows, indent=1) + "\n")
