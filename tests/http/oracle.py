"""What a model must answer, computed with NumPy to the bit.

Rows are added in index order in f32; a weight goes in by one fused multiply-add. `mean` is one
division by the count or by the sum of the weights, `sqrtn` one by the root of the count or of the
sum of the squared weights; those sums go in index order, too.
"""

import dataclasses

import numpy as np


def fused_multiply_add(weights, rows, sums):
    """weights * rows + sums in f32, rounded once.

    A product of two f32 is exact in f64. Its sum with a third is not, but rounded to odd instead
    of to nearest it still decides correctly when it is then rounded to f32: an inexact sum whose
    last bit is even is moved one step towards its error, which Knuth's two-sum gives exactly.
    """
    product = weights.astype(np.float64) * rows.astype(np.float64)
    addend = sums.astype(np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, total).astype(np.float32)


def add_in_order(rows, weights=None):
    """The sum over the first axis from the first row to the last; zeros where there is none."""
    if not len(rows):
        return np.zeros(rows.shape[1:], np.float32)
    if weights is None:
        return np.add.accumulate(rows, axis=0)[-1]
    total = np.zeros(rows.shape[1:], np.float32)
    for weight, row in zip(weights, rows):
        total = fused_multiply_add(weight, row, total)
    return total


def rounding_bound(rows, weights):
    """How far the sum of rows with weights may be from one that rounds each product before it is added: half
    a unit in the last place for each product and each addition of both, of the sum of all magnitudes."""
    return 2 * (len(rows) + 1) * 2.0**-24 * np.abs(rows.astype(np.float64) * weights[:, None]).sum(axis=0)


@dataclasses.dataclass
class Rules:
    reduction: str = "sum"
    padding_idx: int | None = None
    default_index: int = -1


def divisor(rules, count, weights):
    """What the sum of a bag of `count` entries is divided by, for mean and sqrtn."""
    if rules.reduction == "mean":
        return np.float32(count) if weights is None else add_in_order(weights)
    squares = np.float32(count) if weights is None else add_in_order(weights, weights)
    return np.sqrt(squares)


def divide(total, by):
    """A divisor of zero gives zeros."""
    return total / by if by else np.zeros_like(total)


def pool_bag(table, indices, weights, rules):
    """One bag: its indices, its weights or None."""
    if rules.padding_idx is not None:
        kept = indices != rules.padding_idx % len(table)
        indices, weights = indices[kept], None if weights is None else weights[kept]
    if not len(indices):
        if rules.default_index >= 0:
            return table[rules.default_index]
        return np.zeros(table.shape[1:], np.float32)
    rows = table[indices]
    if rules.reduction == "max":
        return rows.max(axis=0)
    total = add_in_order(rows, weights)
    if rules.reduction == "sum":
        return total
    return divide(total, divisor(rules, len(indices), weights))


def pool(table, bags, weights, rules):
    """The whole answer: `bags` is a list of index arrays, `weights` likewise or None."""
    result = np.zeros((len(bags),) + table.shape[1:], np.float32)
    for i, indices in enumerate(bags):
        result[i] = pool_bag(table, indices, None if weights is None else weights[i], rules)
    return result
