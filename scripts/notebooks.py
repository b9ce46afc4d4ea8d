"""Executes the notebooks of the documentation and stores their outputs in them: ``make notebooks``.

The committed notebooks have their outputs, so that building the documentation does not need to execute them. Plots are
reduced to 128 colors to keep the files small.
"""

import argparse
import base64
import io
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a folder, where it writes its files.

    Raises:
        CellExecutionError: A cell raised an error.
    """
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=None, kernel_name="python3", resources=resources).execute()
    return notebook


def clean(notebook: nbformat.NotebookNode) -> None:
    """Remove progress messages, times and versions, which differ between runs, and reduce the plots."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        outputs, cell.outputs = cell.outputs, []
        for output in outputs:
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = _reduce(data["image/png"])
                data.pop("text/plain", None)
            if output.get("name") == "stdout" and cell.outputs and cell.outputs[-1].get("name") == "stdout":
                cell.outputs[-1].text += output.text  # there was a progress message in between
            elif output.get("name") != "stderr":
                cell.outputs.append(output)


def _reduce(encoded: str) -> str:
    image = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB").quantize(128)
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main() -> None:
    """Execute all notebooks, or those that are named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    for path in parser.parse_args().notebooks:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="bcls-notebook-") as folder:
            notebook = execute(path, Path(folder))
        clean(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - started:.0f} s, {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
