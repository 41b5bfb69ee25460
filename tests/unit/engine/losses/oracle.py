"""The losses once more: float64, plain Python, loops; shares no line with the product."""

from __future__ import annotations

import math

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def cosine(a: Vector, b: Vector) -> float:
    lengths = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / lengths if lengths else 0.0


def log_sum_exp(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def info_nce_sum(anchors, candidates, positive, temperature, excluded=frozenset()) -> float:
    losses = []
    for i, anchor in enumerate(anchors):
        logits = {
            j: cosine(anchor, candidate) / temperature
            for j, candidate in enumerate(candidates)
            if j == positive[i] or (i, j) not in excluded
        }
        losses.append(log_sum_exp(list(logits.values())) - logits[positive[i]])
    return math.fsum(losses)


def pairwise_sum(anchors, candidates, positive, temperature, excluded=frozenset()) -> float:
    losses = []
    for i, anchor in enumerate(anchors):
        own = cosine(anchor, candidates[positive[i]])
        terms = [
            log_sum_exp([0.0, (cosine(anchor, candidate) - own) / temperature])
            for j, candidate in enumerate(candidates)
            if j != positive[i] and (i, j) not in excluded
        ]
        losses.append(math.fsum(terms) / len(terms) if terms else 0.0)
    return math.fsum(losses)


def log_scale_gradient(anchors, candidates, positive, temperature) -> float:
    """Of the InfoNCE sum by ln(1 / temperature): sum of (p − y) · cos / temperature."""
    terms = []
    for i, anchor in enumerate(anchors):
        logits = [cosine(anchor, candidate) / temperature for candidate in candidates]
        total = log_sum_exp(logits)
        terms += [math.exp(x - total) * x for x in logits]
        terms.append(-logits[positive[i]])
    return math.fsum(terms)


def simctg(batch, masks, margin: float) -> float:
    terms = []
    for tokens, mask in zip(batch, masks, strict=True):
        kept = [token for token, keep in zip(tokens, mask, strict=True) if keep]
        for i, a in enumerate(kept):
            terms += [max(0.0, margin - 1 + cosine(a, b)) for j, b in enumerate(kept) if j != i]
    return math.fsum(terms) / len(terms) if terms else 0.0


def pool(tokens, mask, how: str) -> Vector:
    kept = [token for token, keep in zip(tokens, mask, strict=True) if keep]
    if how == "last":
        return kept[-1]
    weights = [1.0] * len(kept) if how == "mean" else [float(k + 1) for k in range(len(kept))]
    columns = zip(*kept, strict=True)
    return [dot(weights, list(column)) / math.fsum(weights) for column in columns]


def retrieval(anchors, corpus, relevant) -> dict[str, float]:
    sums = dict.fromkeys(("recall_at_1", "recall_at_5", "mrr", "ndcg_at_10"), 0.0)
    for anchor, wanted in zip(anchors, relevant, strict=True):
        near = [cosine(anchor, text) for text in corpus]
        ranked = sorted(range(len(corpus)), key=lambda j: (-near[j], wanted[j]))
        places = [place for place, j in enumerate(ranked, start=1) if wanted[j]]
        sums["recall_at_1"] += places[0] == 1
        sums["recall_at_5"] += places[0] <= 5
        sums["mrr"] += 1 / places[0]
        gain = sum(1 / math.log2(place + 1) for place in places if place <= 10)
        best = sum(1 / math.log2(place + 1) for place in range(1, min(10, len(places)) + 1))
        sums["ndcg_at_10"] += gain / best
    return sums
