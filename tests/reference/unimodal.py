"""Slow transcription of USA, the uni-modal half of CUSA, one loop for one sum; autograd gives its gradients."""

import torch


def softmax(values):
    """Softmax of a list of scalars."""
    weights = [torch.exp(value - max(values).detach()) for value in values]
    return [weight / sum(weights) for weight in weights]


def divergence(scores, labels, temperature, label_temperature=1.0):
    """Sum over the rows of KL(softmax of the labels, softmax of the scores)."""
    total = scores.sum() * 0
    for i in range(len(scores)):
        target = softmax([label / label_temperature for label in labels[i]])
        predicted = softmax([score / temperature for score in scores[i]])
        for q, p in zip(target, predicted, strict=True):
            total = total + q * (torch.log(q) - torch.log(p))
    return total


def cosines(vectors, weight, bias):
    """Cosines of all pairs of vectors behind a linear layer."""
    projected = [weight @ vector + bias for vector in vectors]
    unit = [vector / (torch.sqrt(sum(value**2 for value in vector)) + 1e-8) for vector in projected]
    return torch.stack([torch.stack([sum(a * b for a, b in zip(x, y, strict=True)) for y in unit]) for x in unit])


def unimodal(sides):
    """Mean over the sides, (vectors, weight, bias, labels, temperature) each, of the mean over the rows."""
    total = 0.0
    for vectors, weight, bias, labels, temperature in sides:
        total = total + divergence(cosines(vectors, weight, bias), labels, temperature) / len(vectors)
    return total / len(sides)


def similarities(embeddings, owner, captions, aggregate):
    """Similarities between the images of a batch, and between its captions, as nested lists."""

    def cosine(x, y):
        return float(x @ y / (x @ x) ** 0.5 / (y @ y) ** 0.5)

    def between(i, j):
        if owner[i] == owner[j]:
            return 1.0
        if aggregate == "paired":
            return cosine(embeddings[i], embeddings[j])
        found = [
            cosine(embeddings[k], embeddings[m])
            for k in range(len(owner))
            for m in range(len(owner))
            if owner[k] == owner[i] and owner[m] == owner[j]
        ]
        return max(found) if aggregate == "max" else sum(found) / len(found)

    texts = [[cosine(embeddings[i], embeddings[j]) for j in captions] for i in captions]
    return [[between(i, j) for j in captions] for i in captions], texts
