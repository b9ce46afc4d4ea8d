from importlib import import_module
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Import an example by its name, as ``python examples/name.py`` finds its neighbors."""
    pytest.importorskip("sentence_transformers", reason='needs pip install "bcls[text]"')
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module
