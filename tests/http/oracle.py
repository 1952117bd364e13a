"""What a model of rows of f32 must answer, to the bit: the sums of numerics.py, bag by bag."""

import dataclasses

import numpy as np

from numerics import pool_floats


@dataclasses.dataclass
class Rules:
    reduction: str = "sum"
    padding_idx: int | None = None
    default_index: int = -1


def pool_bag(table, indices, weights, rules):
    """One bag: its indices, its weights or None."""
    if rules.padding_idx is not None:
        kept = indices != rules.padding_idx % len(table)
        indices, weights = indices[kept], None if weights is None else weights[kept]
    if not len(indices):
        if rules.default_index >= 0:
            return table[rules.default_index]
        return np.zeros(table.shape[1:], np.float32)
    return pool_floats(rules.reduction, table[indices], weights)


def pool(table, bags, weights, rules):
    """The whole answer: `bags` is a list of index arrays, `weights` likewise or None."""
    result = np.zeros((len(bags),) + table.shape[1:], np.float32)
    for i, indices in enumerate(bags):
        result[i] = pool_bag(table, indices, None if weights is None else weights[i], rules)
    return result
