"""Two rows side by side on the queries where they differ most: the paper's Figures 6 and 7."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from bcls._core.config import read_yaml
from bcls._core.errors import check_choice, fail
from bcls.evaluation.evaluator import compare
from bcls.evaluation.pages import PairLabels, comparison_page
from bcls.evaluation.recall import query_ranks
from bcls.experiments.metrics import scores_of
from bcls.experiments.results import RUNS
from bcls.experiments.run import Shared
from bcls.experiments.summary import Summary, SummaryRow
from bcls.models import load
from bcls.training.config import TrainConfig
from bcls.training.run_folder import BEST, CHECKPOINTS, CONFIG

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bcls.data.dataset import Dataset


def gallery(summary: Summary, names: list[str], data: str, *, count: int = 20) -> str:
    """Make the page of two rows of a sweep, from their first seed.

    Test queries are shown where the sweep was tested, else those of the validation split.

    Args:
        summary: The sweep, with its runs.
        names: Two of its rows.
        data: Folder of the dataset.
        count: Queries of each direction.

    Returns:
        One HTML file.

    Raises:
        ValueError: There are no such rows, or their models are not there.
    """
    rows = {row.name: row for row in summary.rows if row.keys and not row.ensemble}
    for name in names:
        check_choice("--gallery", name, rows)
    if len(names) != 2:
        fail("--gallery", "two rows of the sweep", f"{len(names)}", "such as --gallery Triplet-HN BCLS")
    shared = Shared(data, summary.folder / "shared")
    with ThreadPoolExecutor(4, "bcls-read") as pool:
        chosen = [rows[name] for name in names]
        config = _config(summary, chosen[0])
        split = shared.split(summary.about["test_split"] if summary.split == "test" else str(config.val_split), config)
        scores = [partial(_scores, summary, row, shared, split, pool) for row in chosen]
        ranks = [query_ranks(load_scores(), split.image_of_caption) for load_scores in scores]
        labels = None
        if config.labels != "none":
            labels = PairLabels(config.labels, shared.captions(split, config.labels).vectors, split.image_of_caption)
        figures = compare(split, ranks[0], ranks[1])
        return comparison_page(names, split, scores, ranks, figures, labels=labels, count=count)


def _config(summary: Summary, row: SummaryRow) -> TrainConfig:
    path = summary.folder / RUNS / row.keys[min(row.keys)] / CONFIG
    if not path.is_file():
        fail("--gallery", f"the runs of {summary.folder}", f"no {path}", "use the folder that the sweep wrote")
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        fail(str(path), "the settings of a run", repr(settings), "use the folder that the sweep wrote")
    return TrainConfig(**settings)


def _scores(
    summary: Summary, row: SummaryRow, shared: Shared, split: "Dataset", pool: ThreadPoolExecutor
) -> "NDArray[np.float32]":
    model = load(str(summary.folder / RUNS / row.keys[min(row.keys)] / CHECKPOINTS / BEST))
    return scores_of(shared.lend(model), _config(summary, row), split, split.texts, pool)
