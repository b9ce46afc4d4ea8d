"""Draws the images of the documentation with the functions that they explain.

``python docs/figures.py`` writes them to ``docs/_generated``; building the site does the same.
"""

import json
import textwrap
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from bcls.data.synthetic import SceneDataset, make_scenes, render, render_all, true_relevance
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.losses import (
    LOSSES,
    BCLSLoss,
    KendallWindowLoss,
    RetrievalLoss,
    TripletHardLoss,
    TripletSoftLoss,
    from_name,
    kendall_window_loss,
    triplet_hard_loss,
    triplet_soft_loss,
)

# Distinguishable with most kinds of color vision (Okabe and Ito).
POSITIVE, NEGATIVE, NEITHER, DARK = "#0072b2", "#d55e00", "#999999", "#222222"
ALPHA, BETA = 0.2, 0.1
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
    "svg.hashsalt": "bcls",  # the same ids in the file every time
}


def draw_all(folder: Path) -> None:
    """Draw all images into ``folder``; the same code and libraries give the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        windows().savefig(folder / "windows.svg", metadata={"Date": None})
        stride().savefig(folder / "stride.svg", metadata={"Date": None})
        gamma().savefig(folder / "gamma.svg", metadata={"Date": None})
        reliability().savefig(folder / "reliability.svg", metadata={"Date": None})
        gradients().savefig(folder / "gradients.svg", metadata={"Date": None})
        all_gradients().savefig(folder / "all-gradients.svg", metadata={"Date": None})
        embeddings().savefig(folder / "embeddings.png", dpi=150, metadata={"Software": None})
        contact_sheet().savefig(folder / "scenes.png", dpi=150, metadata={"Software": None})
        ranked_scenes().savefig(folder / "ranked.png", dpi=150, metadata={"Software": None})


def one_anchor() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return labels and scores of one anchor: 14 candidates, ranked roughly by their labels."""
    labels = np.array([-0.22, -0.08, 0.03, 0.09, 0.17, 0.28, 0.36, 0.47, 0.55, 0.63, 0.70, 0.78, 0.86, 1.00])
    scores = np.array([-0.05, 0.08, 0.02, 0.16, 0.44, 0.10, 0.22, 0.30, 0.38, 0.50, 0.21, 0.55, 0.47, 0.68])
    return labels, scores


def anchor_loss(labels: NDArray[np.float64], scores: NDArray[np.float64], beta: float) -> float:
    """Compute L_K-SW-HS of one anchor, in a batch where the loss of all other anchors is zero.

    All rows share the labels, so the labels of a column are equal; all other rows have equal scores.
    """
    relevance = torch.from_numpy(np.tile(labels, (labels.size, 1)))
    similarity = torch.zeros_like(relevance)
    similarity[0] = torch.from_numpy(scores)
    return float(kendall_window_loss(similarity, relevance, alpha=ALPHA, beta=beta, reduction="sum"))


def reliability() -> Figure:
    """How often people found a photo fitting, against the score of the photo model; from ``results/photo.json``."""
    path = Path(__file__).parents[1] / "results" / "photo.json"
    bins = json.loads(path.read_text(encoding="utf-8"))["held_out"]["bins"]
    figure = Figure(figsize=(4.2, 4))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=NEITHER, linestyle="--", label="perfectly calibrated")
    axes.plot([one["score"] for one in bins], [one["fitting"] for one in bins], "o-", color=POSITIVE, label="photo")
    for one in bins:
        axes.annotate(
            str(one["pairs"]), (one["score"], one["fitting"]), (4, -11), textcoords="offset points", fontsize=8
        )
    axes.set(xlabel="mean score", ylabel="share of pairs that experts call fitting", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left")
    return figure


def windows() -> Figure:
    """Draw all windows over the labels of one anchor, with the positives, negatives and hard pair of one window."""
    labels, scores = one_anchor()
    lower = -1 + 14 * BETA
    upper = lower + ALPHA
    positive, negative = labels >= upper - 1e-6, labels < lower - 1e-6
    figure = Figure(figsize=(7.4, 5.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axes in (top, bottom):
        axes.axvspan(lower, upper, color=NEITHER, alpha=0.2, linewidth=0)
    for chosen, color, name in (
        (positive, POSITIVE, "positives"),
        (negative, NEGATIVE, "negatives"),
        (~positive & ~negative, NEITHER, "neither"),
    ):
        top.scatter(labels[chosen], scores[chosen], 45, color, label=name, zorder=2)
    _mark_hard_pair(top, labels, scores, positive, negative)
    top.set_ylabel("similarity to the anchor")
    top.legend(loc="upper left")

    for m in range(1, 19):
        start = -1 + m * BETA
        bottom.plot((start, start + ALPHA), (m, m), color=DARK if m == 14 else NEITHER, linewidth=3)
    bottom.set(xlim=(-1.02, 1.04), ylim=(-2, 19), yticks=(1, 6, 12, 18))
    bottom.set(xlabel="label r of the candidate", ylabel="window m")
    _measure(bottom, -0.9, -0.7, -0.8, r" width $\alpha$")
    _measure(bottom, 0.7, 0.8, 14.6, r" stride $\beta$")
    return figure


def _measure(axes: Axes, start: float, stop: float, height: float, text: str) -> None:
    arrow = {"arrowstyle": "<->", "color": DARK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (start, height), (stop, height), arrowprops=arrow)
    axes.text(stop, height, text, va="center", fontsize=9)


def _mark_hard_pair(
    axes: Axes,
    labels: NDArray[np.float64],
    scores: NDArray[np.float64],
    positive: NDArray[np.bool_],
    negative: NDArray[np.bool_],
) -> None:
    low = np.flatnonzero(positive)[scores[positive].argmin()]
    high = np.flatnonzero(negative)[scores[negative].argmax()]
    for one in (low, high):
        axes.scatter(labels[one], scores[one], 170, facecolors="none", edgecolors=DARK, linewidths=1.4)
    place = {"textcoords": "offset points", "fontsize": 9}
    axes.annotate("hardest positive", (labels[low], scores[low]), (10, -12), **place)
    axes.annotate("hardest negative", (labels[high], scores[high]), (-8, 9), ha="right", **place)
    middle = (labels[low] + labels[high]) / 2
    axes.plot((labels[high], middle), (scores[high],) * 2, ":", color=DARK, linewidth=1)
    axes.plot((labels[low], middle), (scores[low],) * 2, ":", color=DARK, linewidth=1)
    arrow = {"arrowstyle": "<->", "color": DARK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (middle, scores[low]), (middle, scores[high]), arrowprops=arrow)
    axes.text(middle, (scores[low] + scores[high]) / 2, "hinge ", ha="right", va="center", fontsize=9)


def stride() -> Figure:
    """Draw the loss of one anchor over the stride, and its limit."""
    labels, scores = one_anchor()
    # Strides that divide the range of window positions, as the paper's does.
    counts = np.unique(np.geomspace(4, 1800, 60).round().astype(int))
    values = [anchor_loss(labels, scores, (2 - ALPHA) / count) for count in counts]
    figure = Figure(figsize=(7.4, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(anchor_loss(labels, scores, 0), color=NEGATIVE, label=r"the limit, $\beta = 0$")
    axes.plot((2 - ALPHA) / counts, values, "o-", color=POSITIVE, markersize=3.5, linewidth=1, label=r"stride $\beta$")
    axes.axvline(BETA, color=NEITHER, linestyle=":", label=r"the paper's $\beta = 0.1$")
    axes.set(xscale="log", xlabel=r"stride $\beta$", ylabel="K-SW-HS of one anchor")
    axes.invert_xaxis()
    axes.legend()
    return figure


def gamma() -> Figure:
    """Draw Triplet-SN of one batch over gamma, and Triplet-HN."""
    generator = torch.Generator().manual_seed(0)
    similarity = 0.12 * torch.randn(32, 32, generator=generator, dtype=torch.float64)
    similarity += 0.35 * torch.eye(32, dtype=torch.float64)
    gammas = np.geomspace(4, 1000, 60)
    figure = Figure(figsize=(7.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for lse, color in (("sum", POSITIVE), ("mean", NEGATIVE)):
        values = [float(triplet_soft_loss(similarity, gamma=value, lse=lse)) for value in gammas]
        axes.plot(gammas, values, color=color, label=f'Triplet-SN, lse="{lse}"')
    axes.axhline(float(triplet_hard_loss(similarity)), color=DARK, linestyle="--", label="Triplet-HN")
    axes.axvline(50, color=NEITHER, linestyle=":", label=r"the paper's $\gamma = 50$")
    axes.set(xscale="log", xlabel=r"$\gamma$", ylabel="loss, mean over B = 32", ylim=(0, None))
    axes.legend()
    return figure


def anchor_gradient(loss: RetrievalLoss) -> NDArray[np.float64]:
    """Compute the negative gradient of ``loss`` with respect to the scores of :func:`one_anchor`.

    The anchor is the first row of a batch, its match in the first column. Labels are equal within a column and other
    matches are far ahead, so that no other anchor pulls at this row.
    """
    labels, scores = (torch.from_numpy(values[::-1].copy()) for values in one_anchor())
    similarity = torch.full((len(labels), len(labels)), -10.0, dtype=torch.float64).fill_diagonal_(10)
    similarity[0] = scores
    similarity.requires_grad_()
    loss(similarity, labels.expand(len(labels), -1)).backward()
    return -similarity.grad[0].numpy()[::-1]


def gradients() -> Figure:
    """Draw how four losses move the scores of one anchor's candidates."""
    labels, scores = one_anchor()
    chosen: list[tuple[str, RetrievalLoss]] = [
        ("Triplet-HN", TripletHardLoss(reduction="sum")),
        ("Triplet-SN", TripletSoftLoss(reduction="sum")),
        ("K-SW-HS", KendallWindowLoss(reduction="sum")),
        ("BCLS", BCLSLoss(reduction="sum")),
    ]
    figure = Figure(figsize=(7.4, 5.4), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, (name, loss) in zip(panels.flat, chosen, strict=True):
        moves = anchor_gradient(loss)
        # The square root keeps small moves visible beside large ones.
        lengths = 0.3 * np.sign(moves) * np.sqrt(np.abs(moves))
        moved = np.abs(lengths) > 0.01
        for label, score, length in zip(labels[moved], scores[moved], lengths[moved], strict=True):
            arrow = {"arrowstyle": "->", "color": POSITIVE if length > 0 else NEGATIVE, "linewidth": 1.6}
            axes.annotate("", (label, score + length), (label, score), arrowprops=arrow)
        axes.scatter(labels, scores, 26, np.where(moved, DARK, NEITHER), zorder=2)
        axes.set(title=name, ylim=(-0.25, 1.05))
    for axes in panels[1]:
        axes.set_xlabel("label r of the candidate")
    for axes in panels[:, 0]:
        axes.set_ylabel("similarity to the anchor")
    return figure


def circulant_gradient(loss: RetrievalLoss) -> NDArray[np.float64]:
    """Compute the negative gradient of ``loss`` with respect to the scores of :func:`one_anchor`, both directions.

    Every row and every column of the batch has the same candidates, rotated, so that all anchors are alike.
    """
    labels, scores = (torch.from_numpy(values[::-1].copy()) for values in one_anchor())
    index = torch.arange(len(labels))
    place = (index[None, :] - index[:, None]) % len(labels)  # 0, the match, on the diagonal
    similarity = scores[place].requires_grad_()
    loss(similarity, labels[place]).backward()
    return -similarity.grad[0].numpy()[::-1]


def all_gradients() -> Figure:
    """Draw the gradient of every registered loss over the candidates of one anchor, ordered by label."""
    labels, scores = one_anchor()
    figure = Figure(figsize=(9.0, 11.0), layout="constrained")
    columns = 4
    panels = figure.subplots(-(-(len(LOSSES) + 1) // columns), columns, sharex=True)
    places = np.arange(labels.size)
    first, *others = panels.flat
    first.plot(places, labels, color=NEITHER, label="label")
    first.scatter(places, scores, 14, DARK, zorder=2, label="score")
    first.set_title("candidates", fontsize=9)
    first.legend(fontsize=7)
    for axes, name in zip(others, LOSSES, strict=False):
        # Temperature and weight of SAM are those of CIDEr, ten times as large as these labels.
        moves = circulant_gradient(from_name(name, **({"temperature": 1.0} if name == "sam" else {})))
        moves /= np.abs(moves).max()
        axes.bar(places, moves, color=np.where(moves > 0, POSITIVE, NEGATIVE))
        axes.axhline(0, color=NEITHER, linewidth=0.8)
        axes.set(ylim=(-1.1, 1.1), yticks=())
        axes.set_title(name, fontsize=9, family="monospace")
    for axes in others[len(LOSSES) :]:
        axes.set_visible(False)
    first.set_xticks(places[::3], [f"{label:.1f}" for label in labels[::3]])
    figure.supxlabel("label of the candidate; the match is the last one")
    return figure


def embeddings(anchor: int = 1) -> Figure:
    """Draw captions around one image in the space of a small model: untrained, after Triplet-HN, and after BCLS.

    The distance from the middle is the angle between caption and image; directions are the two in which the captions,
    seen from the image, differ most.
    """
    data = make_scenes(240, seed=1)
    truth = torch.from_numpy(true_relevance(data.scenes, data.captions)).float()
    figure = Figure(figsize=(7.4, 3.1), layout="constrained")
    panels = figure.subplots(1, 3)
    trained: list[tuple[str, RetrievalLoss | None]] = [
        ("untrained", None),
        ("Triplet-HN", TripletHardLoss()),
        ("BCLS", BCLSLoss()),
    ]
    order = truth[anchor].argsort()  # the most relevant on top
    for axes, (name, loss) in zip(panels, trained, strict=True):
        images, captions = learn(data, truth, loss)
        metrics = recalls(images @ captions.T, data.image_of_caption) | kendall(images @ captions.T, truth)
        cosines = captions @ images[anchor]
        rest = captions - cosines[:, None] * images[anchor]
        _, _, directions = torch.pca_lowrank(rest, q=2)
        flat = torch.nn.functional.normalize(rest @ directions, dim=1) * cosines.clamp(-1, 1).arccos()[:, None]
        shown = flat.rad2deg()[order].numpy()
        dots = axes.scatter(*shown.T, 9, truth[anchor][order].numpy(), cmap="viridis_r", vmin=0, vmax=1)
        axes.scatter(0, 0, 90, NEGATIVE, "*", zorder=3)
        for degrees in (45, 90):
            axes.add_patch(Circle((0, 0), degrees, fill=False, color=DARK, linewidth=0.7, zorder=3))
        axes.set(title=f"{name}\nRSUM {metrics['rsum']:.0f}, tau {metrics['i2t_tau_a']:.2f}", aspect="equal")
        axes.set(xlim=(-125, 125), ylim=(-125, 125))
        axes.set_axis_off()
    figure.colorbar(dots, ax=panels, label="true relevance", shrink=0.7)
    return figure


def learn(
    data: SceneDataset, truth: torch.Tensor, loss: RetrievalLoss | None, steps: int = 300
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute embeddings of images and captions with two linear towers, over pixels and over words.

    Args:
        data: What is learned.
        truth: ``(N, C)`` labels of all pairs.
        loss: None leaves the towers as they begin.
        steps: Batches of 128 captions.
    """
    pixels = torch.from_numpy(render_all(data.scenes, size=32)).flatten(1).float() / 255
    pixels = pixels - pixels.mean(0)
    words = sorted({word for text in data.texts for word in text.split()})
    bags = torch.tensor([[word in text.split() for word in words] for text in data.texts]).float()
    owner = torch.from_numpy(data.image_of_caption)
    torch.manual_seed(0)
    towers = torch.nn.ModuleList([torch.nn.Linear(pixels.shape[1], 32), torch.nn.Linear(len(words), 32)])
    optimizer = torch.optim.Adam(towers.parameters(), lr=1e-3)
    for _ in range(steps if loss is not None else 0):
        chosen = torch.randperm(len(owner))[:128]
        inputs = pixels[owner[chosen]], bags[chosen]
        images, captions = (torch.nn.functional.normalize(t(x), dim=1) for t, x in zip(towers, inputs, strict=True))
        optimizer.zero_grad()
        loss(images @ captions.T, truth[owner[chosen]][:, chosen], image_ids=owner[chosen]).backward()
        optimizer.step()
    with torch.no_grad():
        images, captions = (
            torch.nn.functional.normalize(t(x), dim=1) for t, x in zip(towers, (pixels, bags), strict=True)
        )
    return images, captions


def contact_sheet() -> Figure:
    """Draw scenes of a dataset, each with one of its captions."""
    data = make_scenes(8, seed=3)
    figure = Figure(figsize=(7.4, 4.8), layout="constrained")
    for image, axes in enumerate(figure.subplots(2, 4).flat):
        _show(axes, data.scenes[image], data.captions[5 * image + 1].text)
    return figure


def ranked_scenes() -> Figure:
    """Draw one caption and scenes in the order of falling relevance."""
    data = make_scenes(600, seed=0)
    caption = next(one for one in data.captions if len(one.facts.mentions) == 2 and one.facts.relations)
    relevance = true_relevance(data.scenes, [caption])[:, 0]
    figure = Figure(figsize=(7.4, 1.95), layout="constrained")
    figure.suptitle(f"“{caption.text}”", fontsize=11)
    for axes, wanted in zip(figure.subplots(1, 5), (1.0, 0.7, 0.45, 0.2, 0.0), strict=True):
        image = caption.image if wanted == 1 else int(np.abs(relevance - wanted).argmin())
        _show(axes, data.scenes[image], f"r = {relevance[image]:.2f}")
    return figure


def _show(axes: Axes, scene: object, text: str) -> None:
    axes.imshow(np.asarray(render(scene, size=192)))
    axes.set_axis_off()
    axes.set_title("\n".join(textwrap.wrap(text, 29)), y=-0.06, va="top", fontsize=8.5)


if __name__ == "__main__":
    draw_all(Path(__file__).resolve().parent / "_generated")
