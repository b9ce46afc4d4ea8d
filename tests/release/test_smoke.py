"""Every command of the installed wheel runs with a small input, outside the repository."""

import pytest

from scripts.release_smoke import COMMANDS, smoke


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_of_the_wheel(python, tmp_path):
    assert len(list(smoke(python.with_name("bcls"), tmp_path))) == len(COMMANDS) + 1
