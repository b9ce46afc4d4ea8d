"""Recall at K inside one modality, with the query taken out of its gallery."""


def recall(similarity, gold, k):
    """Give the percentage, over the queries with gold items, and the number of those without."""
    hits = asked = 0
    for query, answers in enumerate(gold):
        if not answers:
            continue
        gallery = [item for item in range(len(similarity)) if item != query]
        first = sorted(gallery, key=lambda item: (-similarity[query][item], item))[:k]
        asked += 1
        hits += any(item in answers for item in first)
    return 100 * hits / asked if asked else float("nan"), len(similarity) - asked
