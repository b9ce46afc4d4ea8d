"""Speed of the figures on this machine's CPU, as ratios measured in one run: ``python -m benchmarks.evaluation``.

The rival of :func:`bcls.evaluation.eccv` is what one does without it: sort all rows and columns of the matrix, look the
ids up, and hand the lists to the package ``eccv_caption``. Both start from the same 5,000 x 25,000 float32 matrix and
give the same 24 figures, which is checked. The rival takes a few minutes and is measured once.
"""

import argparse
import contextlib
import io
import statistics
import time
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

from bcls.evaluation import eccv, kendall, recalls
from bcls.evaluation._coco_truth import load_truth


def scores(images, captions, seed=0):
    """Noise, and a bonus for the image of each caption."""
    owner = np.arange(captions) * images // captions
    similarity = np.random.default_rng(seed).standard_normal((images, captions), dtype=np.float32)
    similarity[owner, np.arange(captions)] += 2.5
    return similarity, owner


def seconds(run, repeats=1):
    """Median seconds, and what the last run gave."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - started)
    return statistics.median(times), result


def ranked_ids(similarity, query_ids, item_ids):
    """Whole rankings by id. The ids are shared objects, so that the lists fit into memory."""
    names = np.array(item_ids.tolist(), dtype=object)
    lists = {}
    for query, row in zip(query_ids.tolist(), similarity, strict=True):
        lists[query] = names[np.argsort(-row, kind="stable")].tolist()
    return lists


def sort_and_eccv_caption(similarity, image_ids, caption_ids):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import eccv_caption
    i2t = ranked_ids(similarity, image_ids, caption_ids)
    t2i = ranked_ids(np.ascontiguousarray(similarity.T), caption_ids, image_ids)
    wanted = ("coco_1k_recalls", "coco_5k_recalls", "cxc_recalls", "eccv_map_at_r", "eccv_rprecision", "eccv_r1")
    with contextlib.redirect_stderr(io.StringIO()):
        nested = eccv_caption.Metrics().compute_all_metrics(i2t, t2i, target_metrics=wanted)
    return {f"{name}_{side}": 100 * value for name, sides in nested.items() for side, value in sides.items()}


def against_eccv_caption():
    truth = load_truth()
    image_ids, caption_ids = truth.image_of_caption[::5], truth.captions
    similarity, _ = scores(5000, 25000)
    load_truth.cache_clear()  # reading the ground truth is part of both
    ours, figures = seconds(lambda: eccv(similarity, image_ids, caption_ids))
    rival, expected = seconds(lambda: sort_and_eccv_caption(similarity, image_ids, caption_ids))
    if figures.keys() != expected.keys():
        raise SystemExit(f"other figures: {figures.keys() ^ expected.keys()}")
    return rival, ours, max(abs(figures[name] - expected[name]) for name in figures)


def sorted_recalls(similarity, owner):
    """Recalls at 1, 5 and 10 from whole sorted rows and columns."""
    order = np.argsort(-similarity, axis=1, kind="stable")
    hits = owner[order] == np.arange(len(similarity))[:, None]
    i2t = [100 * hits[:, :k].any(axis=1).mean() for k in (1, 5, 10)]
    hits = np.argsort(-similarity.T, axis=1, kind="stable") == owner[:, None]
    return sum(i2t) + sum(100 * hits[:, :k].any(axis=1).mean() for k in (1, 5, 10))


def against_sorting():
    similarity, owner = scores(1000, 5000)
    ours, figures = seconds(lambda: recalls(similarity, owner), 5)
    rival, expected = seconds(lambda: sorted_recalls(similarity, owner))
    return rival, ours, abs(figures["rsum"] - expected)


def against_scipy():
    similarity, _ = scores(200, 1000)
    relevance = np.random.default_rng(1).random((200, 1000), dtype=np.float32)
    ours, figures = seconds(lambda: kendall(similarity, relevance), 5)
    rival, expected = seconds(
        lambda: (
            np.mean([kendalltau(s, r).statistic for s, r in zip(similarity, relevance, strict=True)])
            + np.mean([kendalltau(s, r).statistic for s, r in zip(similarity.T, relevance.T, strict=True)])
        )
    )
    return rival, ours, abs(figures["i2t_tau_b"] + figures["t2i_tau_b"] - expected)


RIVALS = {
    "recalls": ("recalls, 1,000 x 5,000, against sorted rows and columns", against_sorting),
    "kendall": ("kendall, 200 x 1,000, against scipy.stats.kendalltau", against_scipy),
    "eccv": ("eccv, 5,000 x 25,000, against argsort and eccv_caption", against_eccv_caption),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RIVALS, action="append", help="one of them, may be repeated; all without it")
    table = Table("what", "rival s", "ours s", "ratio", "largest difference")
    for name in parser.parse_args().only or RIVALS:
        title, run = RIVALS[name]
        rival, ours, gap = run()
        table.add_row(title, f"{rival:.2f}", f"{ours:.3f}", f"{rival / ours:.0f}x", f"{gap:.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
