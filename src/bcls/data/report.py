"""Tables for the terminal."""

from typing import TYPE_CHECKING

from bcls.data.manifest import Manifest

if TYPE_CHECKING:
    from bcls.data.stats import Stats


def print_splits(manifest: Manifest) -> None:
    """Print the numbers of images and captions of each split."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("split", title=escape(manifest.name))
    for column in ("images", "captions"):
        table.add_column(column, justify="right")
    for split, (images, captions) in manifest.splits.items():
        table.add_row(escape(split), f"{images:,}", f"{captions:,}")
    Console().print(table)


def print_stats(name: str, stats: "list[Stats]") -> None:
    """Print the numbers of each split, as ``low / median / high``: the 5th, 50th and 95th percentile."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("split", title=escape(name), caption="5th / 50th / 95th percentile")
    columns = ("captions_per_image", "words_per_caption", "width", "height")
    for column in (
        "images",
        "captions",
        *(column.replace("_per_", " an " if "image" in column else " a ") for column in columns),
    ):
        table.add_column(column, justify="right")
    for one in stats:
        row = one.as_json()
        cells = [_cell(row[column]) for column in columns]
        table.add_row(escape(one.split), f"{row['images']:,}", f"{row['captions']:,}", *cells)
    Console().print(table)


def _cell(summary: dict[str, float] | None) -> str:
    return "" if summary is None else " / ".join(f"{summary[key]:g}" for key in ("p5", "median", "p95"))
