"""Writes the notebooks, with the outputs that are stored in them, as pages of the documentation."""

import base64
import json
from pathlib import Path
from typing import Any


def write_pages(source: Path, target: Path) -> None:
    """Write a Markdown page and its images into ``target`` for each notebook in ``source``."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        parts = [part for number, cell in enumerate(cells) for part in _parts(cell, f"{path.stem}-{number}", target)]
        parts.insert(1, f"This page is a notebook: {{download}}`{path.name} <../notebooks/{path.name}>`.")
        (target / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _parts(cell: dict[str, Any], name: str, target: Path) -> list[str]:
    text = "".join(cell["source"]).replace(".ipynb)", ".md)")  # links to the other notebooks
    if cell["cell_type"] == "markdown":
        # The first paragraph of a notebook is its title.
        return text.split("\n\n", 1)
    parts = [f"```python\n{text}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            (target / f"{name}.png").write_bytes(base64.b64decode("".join(data["image/png"])))
            parts.append(f"![{cell['metadata']['alt']}]({name}.png)")
        else:
            lines = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
            parts.append(f"```text\n{lines}\n```")
    return parts
