"""Free memory: the file cache counts as free, and a container has its limit."""

import os

import pytest
import torch

from bcls.training import memory

CPU = torch.device("cpu")
MEMINFO = "MemTotal:       16000 kB\nMemFree:          100 kB\nMemAvailable:    8000 kB\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    def make(meminfo, limit):
        for name, content in (("_MEMINFO", meminfo), ("_LIMIT", limit)):
            path = tmp_path / name
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_text(content, encoding="ascii")
            monkeypatch.setattr(memory, name, path)

    return make


@pytest.mark.parametrize(
    ("limit", "free"), [(None, 8_192_000), ("max\n", 8_192_000), ("9000000\n", 8_192_000), ("5000\n", 5000)]
)
def test_the_file_cache_counts_as_free_and_a_container_has_its_limit(machine, limit, free):
    machine(MEMINFO, limit)
    assert memory.free_bytes(CPU) == free
    assert memory.fits_in_memory(free // 4 - 1, CPU)
    assert not memory.fits_in_memory(free // 4 + 1, CPU)


def test_without_kernel_files_it_is_half_of_all_memory(machine):
    machine(None, None)
    assert memory.free_bytes(CPU) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
