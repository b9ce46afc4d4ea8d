"""Speed of cross-attention scoring compared with the authors' implementation: ``python -m benchmarks.cross``.

The reference follows the published code of SGR and SAF: shards of 100 images and 100 captions, one caption at a time,
in float32. Both start from the same codes on the same device (36 regions, width 1024, similarity vectors of width 256,
caption lengths of MS-COCO's 5K test split) with the same weights; the table shows how much their scores differ. If the
reference takes too long, it is timed on a part of the captions and its time is scaled by the number of words. The two
run alternately.

``--device cuda`` scores 1,000 images x 5,000 captions; the bar is a ratio of 8 in float32 or better. On a CPU the
default is smaller and the bar is a ratio of 1.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch.nn.functional import leaky_relu, linear

from bcls.models import build
from bcls.models.cross_attention import image_side
from bcls.models.layers import Padded, unit
from benchmarks.memory import peak_megabytes
from benchmarks.tables import show

#: Captions of MS-COCO's 5K test split by their number of words, <start> and <end> included; those above 24 are rare.
LENGTHS = dict(
    zip(
        (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 28, 38),
        (107, 1292, 4271, 5282, 4904, 3530, 2174, 1291, 805, 441, 292, 187, 125, 72, 46, 42, 106, 33),
        strict=True,
    )
)
SHARD = 100
WIDTH, REGIONS = 1024, 36


def make(name, images, captions, device, seed=0):
    """A model in eval mode, and codes of images and captions."""
    torch.manual_seed(seed)
    model = build({"name": name, "words": 10}).eval().to(device)
    shares = torch.tensor(list(LENGTHS.values()), dtype=torch.float64)
    lengths = torch.tensor(list(LENGTHS))[torch.multinomial(shares, captions, replacement=True)]
    words = torch.randn(captions, int(lengths.max()), WIDTH, device=device)
    texts = Padded(unit(words) * (torch.arange(words.shape[1]) < lengths[:, None]).to(device)[..., None], lengths)
    regions = Padded(unit(torch.randn(images, REGIONS, WIDTH, device=device)))
    return model, regions, Padded(texts.values, lengths.to(device))


def l2(values, dim):
    return values / (values.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


def of(layer, values):
    return linear(values, layer.weight, layer.bias)


def authors_shard(model, images, words, lengths):
    """Scores of one shard, one caption at a time."""
    head = model.head
    image_vectors = model.image_vectors(Padded(images))
    columns = []
    for caption, length in zip(words, lengths, strict=True):
        caption = caption[None, :length]
        vector = model.text_vectors(Padded(caption))
        repeated = caption.repeat(len(images), 1, 1)
        attention = leaky_relu(torch.bmm(images, repeated.transpose(1, 2)), 0.1)
        attention = l2(attention, 2).transpose(1, 2).contiguous()
        attention = torch.softmax(attention * head.smooth, 2)
        context = torch.bmm(images.transpose(1, 2), attention.transpose(1, 2).contiguous()).transpose(1, 2)
        local = l2(of(head.local, (l2(context, -1) - repeated).pow(2)), -1)
        whole = l2(of(head.whole, (image_vectors - vector).pow(2)), -1)
        nodes = torch.cat([whole[:, None], local], 1)
        if hasattr(head, "steps"):
            for step in head.steps:
                edges = torch.softmax(torch.bmm(of(step.query, nodes), of(step.key, nodes).transpose(1, 2)), -1)
                nodes = of(step.out, torch.bmm(edges, nodes)).relu()
            final = nodes[:, 0]
        else:
            shares = head.norm(of(head.filter, nodes).transpose(1, 2)).sigmoid()
            shares = shares / (shares.abs().sum(-1, keepdim=True) + 1e-8)
            final = l2(torch.bmm(shares, nodes)[:, 0], -1)
        columns.append(of(head.score, final).sigmoid())
    return torch.cat(columns, 1)


@torch.inference_mode()
def authors_way(model, regions, texts):
    scores = torch.zeros(len(regions), len(texts))
    lengths = texts.lengths.tolist()
    for row in range(0, len(regions), SHARD):
        images = regions.values[row : row + SHARD]
        for column in range(0, len(texts), SHARD):
            part = slice(column, column + SHARD)
            block = authors_shard(model, images, texts.values[part], lengths[part])
            scores[row : row + SHARD, part] = block.cpu()
    return scores


@torch.inference_mode()
def our_way(model, regions, texts, dtype=torch.float32):
    with torch.autocast(regions.values.device.type, dtype=dtype, enabled=dtype != torch.float32):
        side = image_side(regions, model.image_vectors(regions))
        return model.head(side, texts, model.text_vectors(texts)).float().cpu()


def timed(run, device):
    started = time.perf_counter()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def measured(name, device, images, captions, part, rounds, compiles):
    """Rows of the table: name, seconds of the reference, our seconds, largest difference."""
    model, regions, texts = make(name, images, captions, device)
    some = texts.take(slice(0, part))
    scale = float(texts.lengths.sum() / some.lengths.sum())
    plain = model.head.score_block
    ways = {"float32": (plain, torch.float32), "bfloat16": (plain, torch.bfloat16)}
    if compiles:
        compiled = torch.compile(plain, dynamic=True)
        ways |= {"float32, compiled": (compiled, torch.float32), "bfloat16, compiled": (compiled, torch.bfloat16)}

    def ours(way, captions_of):
        model.head.score_block = ways[way][0]
        return our_way(model, regions, captions_of, ways[way][1])

    for way in ways:  # warm-up: kernels are selected and compiled
        ours(way, texts)
    authors_way(model, regions, some.take(slice(0, 5)))
    times = {way: [] for way in (*ways, "authors")}
    gaps = {}
    for _ in range(rounds):
        took, expected = timed(lambda: authors_way(model, regions, some), device)
        times["authors"].append(took * scale)
        for way in ways:
            took, scores = timed(lambda way=way: ours(way, texts), device)
            times[way].append(took)
            gaps[way] = float((scores[:, :part] - expected).abs().max() / expected.std())
    reference = statistics.median(times["authors"])
    return [(f"{name}, {way}", reference, statistics.median(times[way]), gaps[way]) for way in ways]


def scoring(name, way, images, captions):
    """For :func:`peak_megabytes`: makes the codes, and returns the function to measure."""
    model, regions, texts = make(name, images, captions, "cpu")
    return lambda: {"ours": our_way, "authors": authors_way}[way](model, regions, texts)


def memory(name, device, images, captions):
    """Peak megabytes beyond the codes, of our implementation and of the authors'."""
    if device == "cpu":
        return [peak_megabytes(scoring, name, way, images, captions) for way in ("ours", "authors")]
    model, regions, texts = make(name, images, captions, device)
    found = []
    for way, some in ((our_way, texts), (authors_way, texts.take(slice(0, SHARD)))):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        way(model, regions, some)
        found.append((torch.cuda.max_memory_allocated() - before) / 2**20)
    return found


def training_step(name, device, batch=128):
    """Milliseconds and megabytes of one forward and backward pass of the scores of a batch."""
    model, regions, texts = make(name, batch, batch, device)
    model.train()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    took = []
    for _ in range(5):
        inputs = [Padded(one.values.clone().requires_grad_(), one.lengths) for one in (regions, texts)]
        took.append(timed(lambda inputs=inputs: model.scores(*inputs).sum().backward(), device)[0])
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GB" if device == "cuda" else "not measured"
    return 1000 * statistics.median(took[1:]), peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--images", type=int, help="1,000 on cuda, 100 on a CPU")
    parser.add_argument("--captions", type=int, help="5,000 on cuda, 100 on a CPU")
    parser.add_argument("--part", type=int, help="captions on which the reference is timed: 500 on cuda, all on a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="also with torch.compile, which takes minutes")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    chosen = parser.parse_args()
    small = chosen.device == "cpu"
    images = chosen.images or (100 if small else 1000)
    captions = chosen.captions or (100 if small else 5000)
    part = min(captions, chosen.part or (captions if small else 500))
    title = f"{images:,} images x {captions:,} captions on {chosen.device}, reference timed on {part:,} captions"
    rows, notes = [], []
    for name in ("sgr", "saf"):
        for what, reference, ours, gap in measured(
            name, chosen.device, images, captions, part, chosen.rounds, chosen.compile
        ):
            row = {"scores": what, "authors' way, s": reference, "ours, s": ours, "ratio": reference / ours}
            rows.append({**row, "largest difference / std": gap})
        ours, reference = memory(name, chosen.device, images, captions)
        notes.append(f"{name}: peak memory beyond the codes {ours:,.0f} MB, the authors' way {reference:,.0f} MB")
        if not small:
            took, peak = training_step(name, chosen.device)
            notes.append(f"{name}: training step of 128 x 128 scores {took:.0f} ms, peak {peak}")
    show(title, rows, chosen.json, chosen.device)
    for note in notes:
        print(note)


if __name__ == "__main__":
    main()
