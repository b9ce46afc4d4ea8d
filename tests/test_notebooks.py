"""The notebooks of the documentation: they execute, have their outputs, are small, and become pages."""

import json
from pathlib import Path

import pytest

from docs import notebook_pages

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["losses_explained", "search_your_photos", "train_on_your_captions"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_complete_and_small(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert 8 <= len(notebook["cells"]) <= 15
    cells = code_cells(notebook)
    # Executed from top to bottom in one kernel.
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert path.stat().st_size < 400_000


def test_pages_have_text_code_outputs_and_images(tmp_path):
    notebook_pages.write_pages(NOTEBOOKS[0].parent, tmp_path)
    for path in NOTEBOOKS:
        page = (tmp_path / f"{path.stem}.md").read_text(encoding="utf-8")
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert page.startswith("# ")
        assert page.count("```python\n") == len(code_cells(notebook))
        assert "```text\n" in page
        images = sorted(file.name for file in tmp_path.glob(f"{path.stem}-*.png"))
        assert len(images) >= 3
        for image in images:
            (alternative,) = [line for line in page.splitlines() if line.endswith(f"]({image})")]
            assert len(alternative) > len(f"![]({image})") + 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_executes(path, tmp_path):
    """Without an error, and with the same kinds of outputs that are stored."""
    pytest.importorskip("nbclient", reason='needs pip install "bcls[dev]"')
    from scripts.notebooks import clean, execute

    notebook = execute(path, tmp_path)
    clean(notebook)
    stored = json.loads(path.read_text(encoding="utf-8"))
    for found, expected in zip(code_cells(notebook), code_cells(stored), strict=True):
        assert [one["output_type"] for one in found["outputs"]] == [one["output_type"] for one in expected["outputs"]]
