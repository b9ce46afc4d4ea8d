"""mAP@R, R-precision and recalls of ranked lists of ids, as the definitions read."""


def precisions(ranked, gold):
    """Give mAP@R, R-precision and R@1 in percent, averaged over the queries of ``gold``."""
    totals = [0.0, 0.0, 0.0]
    for query, answers in gold.items():
        answers = set(answers)
        size, found, average = len(answers), 0, 0.0
        for place, item in enumerate(ranked[query][:size], start=1):
            if item in answers:
                found += 1
                average += found / place
        totals[0] += average / size
        totals[1] += found / size
        totals[2] += ranked[query][0] in answers
    return [100 * total / len(gold) for total in totals]


def recall(ranked, gold, k, gallery=None):
    """Give the recall at K in percent; with ``gallery``, among these items alone."""
    hits = 0
    for query, answers in gold.items():
        items = [item for item in ranked[query] if gallery is None or item in gallery]
        hits += any(item in answers for item in items[:k])
    return 100 * hits / len(gold)


def figures(ranked, gold, captions):
    """Give everything; ``ranked`` and ``gold`` by direction, ``captions`` in the order of the folds."""
    out = {}
    for direction in ("i2t", "t2i"):
        names = ("eccv_map_at_r", "eccv_rprecision", "eccv_r1")
        for name, value in zip(names, precisions(ranked[direction], gold["eccv", direction]), strict=True):
            out[f"{name}_{direction}"] = value
        for k in (1, 5, 10):
            out[f"coco_5k_r{k}_{direction}"] = recall(ranked[direction], gold["coco", direction], k)
            out[f"cxc_r{k}_{direction}"] = recall(ranked[direction], gold["cxc", direction], k)
            out[f"coco_1k_r{k}_{direction}"] = 0.0
    size = len(captions) // 5
    for first in range(0, len(captions), size):
        inside = {int(caption) for caption in captions[first : first + size]}
        images = {gold["coco", "t2i"][caption][0] for caption in inside}
        for k in (1, 5, 10):
            i2t = {image: gold["coco", "i2t"][image] for image in images}
            t2i = {caption: gold["coco", "t2i"][caption] for caption in inside}
            out[f"coco_1k_r{k}_i2t"] += recall(ranked["i2t"], i2t, k, inside) / 5
            out[f"coco_1k_r{k}_t2i"] += recall(ranked["t2i"], t2i, k, images) / 5
    return out
