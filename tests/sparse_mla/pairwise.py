"""A small set of combinations in which every pair of values of two factors still meets."""

import itertools
import random
from collections.abc import Callable


def covering(
    factors: dict[str, tuple],
    cost: Callable[[dict], float] = lambda case: 1.0,
    limit: float = float("inf"),
    seed: int = 0,
    tries: int = 60,
) -> tuple[list[dict], list[tuple]]:
    """Cheap combinations that cover every pair of values that some combination within the limit holds.

    Args:
        factors: name to values.
        cost: what a combination costs, positive; one above `limit` is not used.
        tries: candidates compared for each combination.

    Returns:
        the combinations, and the pairs `((name, value), (name, value))` for which none was found.
    """
    rng = random.Random(seed)
    names = list(factors)

    def pairs_of(case):
        return set(itertools.combinations([(name, case[name]) for name in names], 2))

    open_pairs = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(factors[a], factors[b])
    }
    order = sorted(open_pairs, key=repr)
    rng.shuffle(order)
    chosen, unmet = [], []
    for pair in order:
        if pair not in open_pairs:
            continue
        best, merit = None, 0.0
        for _ in range(tries):
            case = {name: rng.choice(values) for name, values in factors.items()} | dict(pair)
            price = cost(case)
            if price <= limit:
                worth = len(pairs_of(case) & open_pairs) / price
                if worth > merit:
                    best, merit = case, worth
        if best is None:
            unmet.append(pair)
            open_pairs.discard(pair)
            continue
        chosen.append({name: best[name] for name in names})
        open_pairs -= pairs_of(best)
    return chosen, unmet
