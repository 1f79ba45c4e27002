"""Reference solutions of chapter 4."""

from functools import lru_cache

from kernels.lab.chapters.split_policy import cost


def waves(blocks, sm_count):
    count = -(-blocks // sm_count)
    return count, blocks / (count * sm_count)


def split_ranges(tiles, num_splits):
    edges = [split * tiles // num_splits for split in range(num_splits + 1)]
    return list(zip(edges, edges[1:], strict=False))


def split_policy(batch, head_groups, tiles, sm_count):
    # Shapes are few and this is asked once a plan: trying every count costs nothing that matters
    return min(
        range(1, min(64, max(1, tiles)) + 1),
        key=lambda splits: cost(splits, batch, head_groups, tiles, sm_count),
    )


@lru_cache
def constant_splits(head_groups, tiles, sm_count):
    shapes = [(batch, head_groups, tiles, sm_count) for batch in (1, 4, 16, 64, 128)]
    best = [cost(split_policy(*shape), *shape) for shape in shapes]

    def worst(splits):
        return max(cost(splits, *shape) / least for shape, least in zip(shapes, best, strict=True))

    return min(range(1, min(64, max(1, tiles)) + 1), key=worst)


def batch_invariant_policy(batch, head_groups, tiles, sm_count):
    return constant_splits(head_groups, tiles, sm_count)
