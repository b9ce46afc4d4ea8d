"""SGR and SAF, one caption after another and one image after another; autograd gives gradients.

``p`` are the tensors of a :class:`bcls.models.sgraf.CrossModel` by name. Batch norms take ``training`` and change their
running values in ``p`` as often as the authors' loop does.
"""

import torch

EPS = 1e-8
MOMENTUM, NORM_EPS = 0.1, 1e-5


def l2(vector):
    return vector / (vector.pow(2).sum().sqrt() + EPS)


def linear(p, name, vector):
    return p[f"{name}.weight"] @ vector + p[f"{name}.bias"]


def moved(p, name, place, values):
    """Mean and biased variance of some numbers, with the running ones at one place updated."""
    values = torch.stack(values).flatten()
    mean, variance = values.mean(), values.var(unbiased=False)
    with torch.no_grad():
        for key, now in (("running_mean", mean), ("running_var", values.var(unbiased=True))):
            p[f"{name}.{key}"][place] = (1 - MOMENTUM) * p[f"{name}.{key}"][place] + MOMENTUM * now
    return mean, variance


def normed(p, name, place, value, mean, variance):
    return (value - mean) / (variance + NORM_EPS).sqrt() * p[f"{name}.weight"][place] + p[f"{name}.bias"][place]


def image_vectors(p, images, *, training, per_region):
    """``images`` is a list of ``(R_i, D)``."""
    locals_ = [[linear(p, "image_attention.local", region) for region in image] for image in images]
    means = [image.mean(0) for image in images]
    wholes = [linear(p, "image_attention.whole", mean) for mean in means]
    width = len(wholes[0])
    local_norm, whole_norm = "image_attention.local_norm", "image_attention.whole_norm"

    def moments(name, place, values):
        if training:
            return moved(p, name, place, values)
        return p[f"{name}.running_mean"][place], p[f"{name}.running_var"][place]

    if per_region:
        longest = max(len(image) for image in images)
        for r in range(longest):
            values = [one[r] for one in locals_ if len(one) > r]
            mean, variance = moments(local_norm, r, values)
            for one in locals_:
                if len(one) > r:
                    one[r] = normed(p, local_norm, r, one[r], mean, variance)
    else:
        columns = [moments(local_norm, d, [one[d] for image in locals_ for one in image]) for d in range(width)]
        locals_ = [
            [torch.stack([normed(p, local_norm, d, one[d], *columns[d]) for d in range(width)]) for one in image]
            for image in locals_
        ]
    columns = [moments(whole_norm, d, [one[d] for one in wholes]) for d in range(width)]
    wholes = [torch.stack([normed(p, whole_norm, d, one[d], *columns[d]) for d in range(width)]) for one in wholes]
    return [attended(p, "image_attention", *parts) for parts in zip(images, locals_, wholes, strict=True)]


def text_vector(p, words):
    local = [linear(p, "text_attention.local", word) for word in words]
    return attended(p, "text_attention", words, local, linear(p, "text_attention.whole", words.mean(0)))


def attended(p, name, items, local, whole):
    logits = torch.stack([linear(p, f"{name}.common", one.tanh() * whole.tanh())[0] for one in local])
    shares = logits.softmax(0)
    return l2(sum(share * item for share, item in zip(shares, items, strict=True)))


def nodes(p, image, image_vector, words, caption_vector, smooth):
    """``(L + 1, K)``: the whole pair, then each word with its context."""
    found = [l2(linear(p, "head.whole", (image_vector - caption_vector) ** 2))]
    attention = []
    for region in image:
        row = torch.stack([torch.nn.functional.leaky_relu(region @ word, 0.1) for word in words])
        attention.append(l2(row))
    for place, word in enumerate(words):
        shares = torch.stack([smooth * row[place] for row in attention]).softmax(0)
        context = l2(sum(share * region for share, region in zip(shares, image, strict=True)))
        found.append(l2(linear(p, "head.local", (context - word) ** 2)))
    return torch.stack(found)


def sgr(p, graph, steps):
    for step in range(steps):
        name = f"head.steps.{step}"
        queries = [linear(p, f"{name}.query", node) for node in graph]
        keys = [linear(p, f"{name}.key", node) for node in graph]
        new = []
        for query in queries:
            shares = torch.stack([query @ key for key in keys]).softmax(0)
            mixed = sum(share * node for share, node in zip(shares, graph, strict=True))
            new.append(linear(p, f"{name}.out", mixed).relu())
        graph = torch.stack(new)
    return torch.sigmoid(linear(p, "head.score", graph[0])[0])


def saf(p, graphs, *, training):
    """All images of one caption: the batch norm sees them together."""
    raw = [torch.stack([linear(p, "head.filter", node)[0] for node in graph]) for graph in graphs]
    if training:
        mean, variance = moved(p, "head.norm", 0, raw)
    else:
        mean, variance = p["head.norm.running_mean"][0], p["head.norm.running_var"][0]
    scores = []
    for graph, values in zip(graphs, raw, strict=True):
        shares = torch.sigmoid(normed(p, "head.norm", 0, values, mean, variance))
        shares = shares / (shares.abs().sum() + EPS)
        mixed = l2(sum(share * node for share, node in zip(shares, graph, strict=True)))
        scores.append(torch.sigmoid(linear(p, "head.score", mixed)[0]))
    return torch.stack(scores)


def scores(p, images, captions, *, steps=None, smooth=9.0, training=False, per_region=True):
    """``(N, C)`` from lists of regions and of words; SGR with ``steps``, SAF without."""
    image_sides = image_vectors(p, images, training=training, per_region=per_region)
    columns = []
    for words in captions:
        caption = text_vector(p, words)
        graphs = [
            nodes(p, image, vector, words, caption, smooth) for image, vector in zip(images, image_sides, strict=True)
        ]
        if steps is None:
            columns.append(saf(p, graphs, training=training))
        else:
            columns.append(torch.stack([sgr(p, graph, steps) for graph in graphs]))
    return torch.stack(columns, 1)
