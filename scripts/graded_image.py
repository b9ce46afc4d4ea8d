"""Draw the image at the top of the README: ``python -m scripts.graded_image DEMO_FOLDER``.

DEMO_FOLDER is the output of ``bcls demo``. The image shows the first results of the BCLS model for one caption of the
test split, each with its label from MiniLM.
"""

import argparse
import io
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

import bcls.experiments  # noqa: F401 - registers the model of the demo
from bcls import open_dataset, relevance
from bcls._core.files import write_whole
from bcls.evaluation import load_similarity
from bcls.labels import cached_embeddings

OUT = Path(__file__).parents[1] / "docs" / "images" / "graded.png"
SHOWN = 5


def main() -> None:
    """Choose a caption and draw its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="folder that `bcls demo` wrote")
    demo = parser.parse_args().demo
    split = open_dataset(demo / "scenes").split("test")
    scores = np.asarray(load_similarity([str(demo / "runs" / "bcls-seed0")], split))
    vectors, owner = np.asarray(cached_embeddings(split, "minilm")), split.image_of_caption
    labels = relevance(vectors, vectors, owner, caption_image=owner)
    caption = choose(scores, labels, owner)
    order = np.argsort(-scores[:, caption], kind="stable")[:SHOWN]
    images = [split.read_image(split.image_ids[image]) for image in order]
    draw(split.texts[caption], images, [float(labels[image, caption]) for image in order])


def choose(scores: np.ndarray, labels: np.ndarray, owner: np.ndarray) -> int:
    """The caption whose own image is first and whose next results have labels that decrease over the widest range."""
    best, widest = 0, -1.0
    for caption in range(scores.shape[1]):
        order = np.argsort(-scores[:, caption], kind="stable")[:SHOWN]
        found = labels[order, caption]
        decreasing = order[0] == owner[caption] and np.all(np.diff(found) < 0) and found[1] < 0.95
        if decreasing and found[0] - found[-1] > widest:
            best, widest = caption, found[0] - found[-1]
    return best


def draw(text: str, images: list[Image.Image], labels: list[float]) -> None:
    """Write the image."""
    figure = Figure(figsize=(10, 2.9), dpi=110)
    figure.text(0.5, 0.93, "“" + textwrap.shorten(text, 120) + "”", ha="center", va="top", size=14)
    for position, (image, label) in enumerate(zip(images, labels, strict=True)):
        axes = figure.add_axes((0.02 + position * 0.196, 0.16, 0.18, 0.66))
        axes.imshow(image)
        axes.set_axis_off()
        match = label == 1
        color = "#12803c" if match else "#5f6b7a"
        axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, edgecolor=color, linewidth=3))
        axes.set_title("match, label 1" if match else f"label {label:.2f}", y=-0.19, color=color, size=12)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    write_whole(OUT, content.getvalue())


if __name__ == "__main__":
    main()
