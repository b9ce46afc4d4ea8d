"""Files that end at any byte: read as they were, or refused in words; never taken for something else."""

import pytest

from tests.faults.records import tried
from tests.faults.targets import Checkpoint, IndexFile, SavedModel, Words


@pytest.mark.parametrize(
    ("kind", "place"),
    [(Checkpoint, "last"), (IndexFile, "."), (Words, "."), pytest.param(SavedModel, "model", marks=pytest.mark.slow)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_cut_at_every_byte(tmp_path, kind, place):
    target = kind(tmp_path)
    target.write(1)
    refused = same = 0
    for path in sorted((tmp_path / place).iterdir()):
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            try:
                assert target.read() == 1
                same += 1
            except ValueError as error:
                if ": expected " not in str(error):
                    raise
                refused += 1
        path.write_bytes(whole)
    assert target.read() == 1
    assert refused
    outcome = (
        f"{refused} times refused in words, {same} times read as it was (an end of line, or a file that is not needed)"
    )
    tried("cut at every byte", kind.name, refused + same, outcome)


def test_what_is_not_needed_is_little(tmp_path):
    """The files of a checkpoint that may be cut without a word are those that going on does not read."""
    target = Checkpoint(tmp_path)
    target.write(1)
    silent = set()
    for path in (tmp_path / "last").iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        try:
            target.read()
            silent.add(path.name)
        except ValueError:
            pass
        path.write_bytes(whole)
    assert silent == {"config.json"}
