"""Page of two configurations of a sweep on the queries where they differ most, as Figures 6 and 7 of the paper."""

from functools import partial
from typing import TYPE_CHECKING

from bcls._core.config import read_yaml
from bcls._core.errors import check_choice, fail
from bcls.evaluation.evaluator import compare
from bcls.evaluation.pages import PairLabels, comparison_page
from bcls.evaluation.recall import query_ranks
from bcls.evaluation.scores import score_model
from bcls.experiments.results import RUNS
from bcls.experiments.run import SharedData
from bcls.experiments.summary import Summary, SummaryRow
from bcls.models import load
from bcls.training.config import TrainConfig
from bcls.training.run_folder import BEST, CHECKPOINTS, CONFIG

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bcls.data.dataset import Dataset


def gallery(summary: Summary, names: list[str], data: str, *, count: int = 20) -> str:
    """Render the page of two configurations of a sweep, from their first seeds.

    The queries are those of the test split if the sweep was tested, else those of the validation split.

    Args:
        summary: The sweep, whose folder contains its runs.
        names: Two of its configurations.
        data: Folder of the dataset.
        count: Number of queries of each direction.

    Returns:
        One HTML file.

    Raises:
        ValueError: There are no such configurations, or their models are missing.
    """
    rows = {row.name: row for row in summary.rows if row.keys and not row.ensemble}
    for name in names:
        check_choice("--gallery", name, rows)
    if len(names) != 2:
        fail("--gallery", "two configurations of the sweep", f"{len(names)}", "for example --gallery Triplet-HN BCLS")
    shared = SharedData(data, summary.folder / "shared")
    chosen = [rows[name] for name in names]
    config = _config(summary, chosen[0])
    split = shared.split(summary.metadata["test_split"] if summary.split == "test" else str(config.val_split), config)
    scores = [partial(_scores, summary, row, shared, split) for row in chosen]
    ranks = [query_ranks(load_scores(), split.image_of_caption) for load_scores in scores]
    captions = shared.captions(split, config.labels)
    labels = None if captions is None else PairLabels(config.labels, captions.vectors, split.image_of_caption)
    metrics = compare(split, ranks[0], ranks[1])
    return comparison_page(names, split, scores, ranks, metrics, labels=labels, count=count)


def _config(summary: Summary, row: SummaryRow) -> TrainConfig:
    path = summary.folder / RUNS / row.keys[min(row.keys)] / CONFIG
    if not path.is_file():
        fail("--gallery", f"the runs of {summary.folder}", f"no {path}", "use the folder that the sweep wrote")
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        fail(str(path), "the settings of a run", repr(settings), "use the folder that the sweep wrote")
    return TrainConfig(**settings)


def _scores(summary: Summary, row: SummaryRow, shared: SharedData, split: "Dataset") -> "NDArray[np.float32]":
    model = load(str(summary.folder / RUNS / row.keys[min(row.keys)] / CHECKPOINTS / BEST))
    return score_model(shared.lend(model), split, split.texts, _config(summary, row).features)
