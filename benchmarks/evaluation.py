"""Speed and memory of the metrics, as ratios measured in one run: ``python -m benchmarks.evaluation``.

With ``--device cuda`` Kendall's tau is computed on the GPU, and the baseline is the CPU implementation.

The baseline of :func:`bcls.evaluation.eccv` sorts all rows and columns of the matrix, looks up the ids, and passes the
lists to the package ``eccv_caption``. Both start from the same 5,000 x 25,000 float32 matrix and must give the same 24
values. The baseline takes a few minutes and is measured once. The baseline of :func:`bcls.evaluation.kendall` is a loop
of ``scipy.stats.kendalltau``, timed on a sample of the queries and extrapolated.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

import bcls.cli.main
from bcls.evaluation.coco import eccv, load_truth
from bcls.evaluation.kendall import kendall, taus
from bcls.evaluation.recall import recalls
from benchmarks.tables import keep


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
    ours, metrics = seconds(lambda: eccv(similarity, image_ids, caption_ids))
    baseline, expected = seconds(lambda: sort_and_eccv_caption(similarity, image_ids, caption_ids))
    if metrics.keys() != expected.keys():
        raise SystemExit(f"other metrics: {metrics.keys() ^ expected.keys()}")
    gap = max(abs(metrics[name] - expected[name]) for name in metrics)
    return [("eccv, 5,000 x 25,000: argsort and eccv_caption / ours", baseline, ours, "", gap)]


def sorted_recalls(similarity, owner):
    """Recalls at 1, 5 and 10 from whole sorted rows and columns."""
    order = np.argsort(-similarity, axis=1, kind="stable")
    hits = owner[order] == np.arange(len(similarity))[:, None]
    i2t = [100 * hits[:, :k].any(axis=1).mean() for k in (1, 5, 10)]
    hits = np.argsort(-similarity.T, axis=1, kind="stable") == owner[:, None]
    return sum(i2t) + sum(100 * hits[:, :k].any(axis=1).mean() for k in (1, 5, 10))


def against_sorting():
    similarity, owner = scores(1000, 5000)
    ours, metrics = seconds(lambda: recalls(similarity, owner), 5)
    baseline, expected = seconds(lambda: sorted_recalls(similarity, owner))
    what = "recalls, 1,000 x 5,000: sorted rows and columns / ours"
    return [(what, baseline, ours, "", abs(metrics["rsum"] - expected))]


#: Rows and columns of each direction that scipy is timed on, in rounds between which our path runs.
SAMPLE, ROUNDS = (40, 200), 5


def labels(images, captions):
    """Labels with two digits, so that many are equal."""
    return np.random.default_rng(1).random((images, captions), dtype=np.float32).round(2)


def scipy_taus(similarity, relevance):
    """Tau-b of each row."""
    return np.array([kendalltau(s, r).statistic for s, r in zip(similarity, relevance, strict=True)])


def against_scipy():
    similarity, _ = scores(1000, 5000)
    relevance = labels(1000, 5000)
    turned = np.ascontiguousarray(similarity.T), np.ascontiguousarray(relevance.T)
    ours, baseline, gap = [], [], 0.0
    for turn in range(ROUNDS):
        ours.append(seconds(lambda: kendall(similarity, relevance))[0])
        whole = 0.0
        for (s, r), sample in zip(((similarity, relevance), turned), SAMPLE, strict=True):
            part = slice(turn * sample, (turn + 1) * sample)
            took, expected = seconds(lambda s=s, r=r, part=part: scipy_taus(s[part], r[part]))
            whole += took * len(s) / sample
            gap = max(gap, abs(expected - taus(s[part], r[part])[1]).max())
        baseline.append(whole)
    rows, columns = (ROUNDS * sample for sample in SAMPLE)
    what = f"kendall, 1,000 x 5,000: scipy on {rows} rows and {columns:,} columns, scaled / ours"
    return [(what, statistics.median(baseline), statistics.median(ours), ">= 1.8", gap)]


def on_gpu():
    """Kendall's tau on the GPU beside the CPU, both ways and whole, with the matrices where they are used."""
    found = []
    for images, captions, repeats in ((1000, 5000, 9), (5000, 25000, 5)):
        similarity, _ = scores(images, captions)
        relevance = labels(images, captions)
        there = [torch.from_numpy(one).cuda() for one in (similarity, relevance)]
        metrics = kendall(*there)  # the first call also loads the kernels
        ours, _ = seconds(lambda there=there: kendall(*there), repeats)
        baseline, expected = seconds(lambda similarity=similarity, relevance=relevance: kendall(similarity, relevance))
        gap = max(abs(metrics[name] - expected[name]) for name in metrics)
        found.append(
            (f"kendall, {images:,} x {captions:,}: CPU / {torch.cuda.get_device_name()}", baseline, ours, "", gap)
        )
    return found


#: Flags that are measured, beside the recalls and median ranks that are always there.
MEMORY = ((), ("--html", "page.html", "--intervals", "--hubness"), ("--qbnorm",), ("--labels", "wordllama"))


def memory():
    """Peak memory of the whole command on a mapped 5,000 x 25,000 float32 matrix, mapped pages included."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        similarity, owner = scores(5000, 25000)
        np.save(data / "scores.npy", similarity)
        del similarity
        rows = (
            {"image_id": str(image), "caption_id": str(place), "text": f"take {place} of {image}", "split": "test"}
            for place, image in enumerate(owner.tolist())
        )
        (data / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (data / "manifest.json").write_text('{"format": "bcls-dataset", "version": 1}', encoding="utf-8")
        for flags in MEMORY:
            # A process of its own for each, for a peak never goes down.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peak = pool.apply(evaluate_and_measure, (folder, flags))
            what = f"{' '.join(['bcls evaluate', *flags])}, 5,000 x 25,000: peak MB / 2048"
            found.append((what, peak, 2048, "<= 1", 0.0))
    return found


def evaluate_and_measure(folder, flags):
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        code = bcls.cli.main.main(["evaluate", "--similarity", "scores.npy", "--data", ".", "--json", *flags])
    if code:
        raise RuntimeError(f"bcls evaluate ended with {code}")
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


PARTS = {"recalls": against_sorting, "kendall": against_scipy, "memory": memory, "eccv": against_eccv_caption}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="one of them, may be repeated; all without it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: Kendall's tau on the GPU alone")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        if not torch.cuda.is_available():
            parser.error("--device cuda: torch finds no GPU")
        if arguments.only:
            parser.error("--only: the parts are those of --device cpu")
        parts = [on_gpu]
    else:
        parts = [PARTS[name] for name in arguments.only or PARTS]
    rows = []
    table = Table("what", "first", "second", "ratio", "bar", "largest difference")
    for part in parts:
        print(f"{part.__name__.replace('_', ' ')} ...", file=sys.stderr, flush=True)
        for what, first, second, bar, gap in part():
            rows.append(
                {"what": what, "first": first, "second": second, "ratio": first / second, "bar": bar, "gap": gap}
            )
            unit = (lambda value: f"{value:.0f} MB") if "MB" in what else (lambda value: f"{value:.3f} s")
            table.add_row(what, unit(first), unit(second), f"{first / second:.2f}", bar, f"{gap:.1e}")
    Console(width=140).print(table)
    keep(arguments.json, rows, device=arguments.device)


if __name__ == "__main__":
    main()
