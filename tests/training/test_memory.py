"""Free memory: the file cache counts as free, and a container has its limit."""

import psutil
import pytest
import torch

from bcls.training import memory

CPU = torch.device("cpu")


@pytest.mark.parametrize("limit", [None, "max\n", f"{2**60}\n", "5000\n"])
def test_the_file_cache_counts_as_free_and_a_container_has_its_limit(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(memory, "_LIMIT", tmp_path / "memory.max")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit, encoding="ascii")
    free = memory.free_bytes(CPU)
    if limit == "5000\n":
        assert free == 5000
        assert memory.fits_in_memory(1249, CPU)
        assert not memory.fits_in_memory(1251, CPU)
    else:
        machine = psutil.virtual_memory()
        assert abs(free - machine.available) < 0.2 * machine.total
