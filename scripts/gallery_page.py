"""Writes docs/evidence-gallery.md, results of two losses for the same queries, as in the paper's Figures 6 and 7.

``python -m scripts.gallery_page SWEEP --data DIR`` first evaluates the runs of a sweep with their first seed on the
test split and stores the results in ``results/flickr8k/gallery.json``. Without arguments, the page is written from that
file. Photos and captions of Flickr8k are not part of this repository, so both are represented by their ids.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bcls._core.files import write_whole
from bcls.data.dataset import Dataset, open_dataset
from bcls.evaluation.evaluator import CaptionVectors
from bcls.evaluation.pages import DIRECTIONS, Direction, most_different, ranking
from bcls.evaluation.recall import query_ranks
from bcls.evaluation.scores import load_similarity
from bcls.experiments.report import gallery_runs
from bcls.experiments.results import summarize
from bcls.reports.blocks import markdown_table

ROOT = Path(__file__).parents[1]
STORED, PAGE = ROOT / "results" / "flickr8k" / "gallery.json", ROOT / "docs" / "evidence-gallery.md"
#: Queries drawn at random, queries with the largest difference in rank, and results of each, for each direction.
RANDOM, DIFFERENT, SHOWN = 4, 2, 5
_HEADINGS = {"i2t": "Captions of an image (Figure 6)", "t2i": "Images of a caption (Figure 7)"}


def collect(sweep: Path, losses: Sequence[str], data: Path, encoder: str) -> dict[str, Any]:
    """Rank the queries of the gallery by two configurations of a sweep.

    Args:
        sweep: A folder that ``bcls sweep`` wrote, with its runs.
        losses: Names of the two configurations.
        data: Folder of the dataset.
        encoder: Text encoder of the labels that are shown.
    """
    summary = summarize(sweep)
    runs, _ = gallery_runs(summary, losses)
    split = open_dataset(data).split("test")
    owner = split.image_of_caption
    scores = [load_similarity([str(run)], split) for run in runs]
    ranks = [query_ranks(one, owner) for one in scores]
    labels = CaptionVectors(split, encoder)
    generator = np.random.default_rng(0)
    queries = []
    for direction, count in zip(DIRECTIONS, (len(split.images), len(split.captions)), strict=True):
        drawn = generator.choice(count, RANDOM, replace=False).tolist()
        apart = most_different(ranks[0], ranks[1], direction, DIFFERENT)
        for origin, chosen in (("random", drawn), ("largest difference", apart)):
            for query in chosen:
                results = [
                    _results(split, labels, ranking(score, owner, own, direction, query, SHOWN))
                    for score, own in zip(scores, ranks, strict=True)
                ]
                places = [int(getattr(own, direction)[query]) for own in ranks]
                described = {"direction": direction, "origin": origin, "query": _id(split, direction, query)}
                queries.append({**described, "ranks": places, "results": results})
    return {"sweep": summary.metadata["name"], "losses": list(losses), "labels": encoder, "queries": queries}


def _id(split: Dataset, direction: Direction, query: int) -> str:
    """Id of a query: an image or a caption."""
    return split.image_ids[query] if direction == "i2t" else split.captions[query].caption_id


def _results(split: Dataset, labels: CaptionVectors, found: Any) -> list[dict[str, Any]]:
    results = []
    for item in found.items:
        image, caption = (found.query, item) if found.direction == "i2t" else (item, found.query)
        name = _id(split, "t2i" if found.direction == "i2t" else "i2t", item)
        match = bool(split.image_of_caption[caption] == image)
        label = labels.label(image, caption)
        assert label is not None  # noqa: S101 - only an image without captions has none
        results.append({"id": name, "match": match, "label": round(label, 2)})
    return results


def render(stored: dict[str, Any]) -> str:
    """Return the page in Markdown."""
    first, second = stored["losses"]
    parts = [
        "# Evidence: gallery",
        f"Results of {first} and {second} (`{stored['sweep']}`, first seed) for queries of the Flickr8k test split, as "
        f"in Figures 6 and 7 of the paper. In each direction {RANDOM} queries were drawn at random, and {DIFFERENT} "
        "are those with the largest difference in rank. Matches are bold; the other results have their label by "
        f"{stored['labels']} in brackets. Photos and captions are represented by their ids in Flickr8k; "
        "`bcls report SWEEP --gallery A B --data DIR --html page.html` shows them.",
    ]
    for direction, heading in _HEADINGS.items():
        parts.append(f"## {heading}")
        for query in (one for one in stored["queries"] if one["direction"] == direction):
            parts.append(f"`{query['query']}` ({query['origin']})")
            columns = [[_cell(result) for result in results] for results in query["results"]]
            heads = [
                f"{name}, first match at rank {rank}"
                for name, rank in zip((first, second), query["ranks"], strict=True)
            ]
            rows = [[str(place), *cells] for place, cells in enumerate(zip(*columns, strict=True), start=1)]
            parts.append(markdown_table(["", *heads], rows, [False, True, True]))
    return "\n\n".join(parts) + "\n"


def _cell(result: dict[str, Any]) -> str:
    return f"**{result['id']}**" if result["match"] else f"{result['id']} [{result['label']:.2f}]"


def main() -> None:
    """Evaluate the runs if a sweep is given, and write the page."""
    parser = argparse.ArgumentParser(description="Write docs/evidence-gallery.md.")
    parser.add_argument("sweep", nargs="?", type=Path, help="folder that `bcls sweep` wrote, with its runs")
    parser.add_argument("--data", type=Path, help="folder of the dataset")
    parser.add_argument("--losses", nargs=2, default=["Triplet-HN", "BCLS"], help="two configurations of the sweep")
    parser.add_argument("--labels", default="minilm", help="text encoder of the labels")
    arguments = parser.parse_args()
    if arguments.sweep is not None:
        if arguments.data is None:
            parser.error("--data: expected the folder of the dataset, got none")
        stored = collect(arguments.sweep, arguments.losses, arguments.data, arguments.labels)
        write_whole(STORED, json.dumps(stored, indent=1) + "\n")
    write_whole(PAGE, render(json.loads(STORED.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
