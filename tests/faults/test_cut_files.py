"""Files truncated at any byte are read unchanged or give an error message, never other contents."""

import pytest

from tests.faults.records import tried
from tests.faults.targets import Checkpoint, IndexFile, SavedModel, Words


@pytest.mark.parametrize(
    ("kind", "place"),
    [(Checkpoint, "last"), (IndexFile, "."), (Words, "."), pytest.param(SavedModel, "model", marks=pytest.mark.slow)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_truncated_at_every_byte(tmp_path, kind, place):
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
    outcome = f"{refused} errors, {same} times read unchanged (a final newline, or a file that is not needed)"
    tried("truncated at every byte", kind.name, refused + same, outcome)


def test_only_the_config_of_a_checkpoint_may_be_truncated(tmp_path):
    """Resuming reads all other files of a checkpoint."""
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
