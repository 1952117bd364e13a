"""The oracle of keyed tables: models with a policy for missing keys each, and their answers by NumPy and a dictionary of
the table's keys."""

import numpy as np

import oracle

HASH_ROWS = 37
MASK = 2**64 - 1


def hashed_row(key, rows):
    """The row that stands in for a missing key, as proto/PROTOCOL.md has it."""
    z = (int(key) + 0x9e3779b97f4a7c15) & MASK
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & MASK
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & MASK
    return (z ^ z >> 31) * rows >> 64


POLICIES = {
    "failing": {}, "skipping": {"missing": "skip"},
    "defaulting": {"missing": "default", "default_index": 5}, "hashing": {"missing": "hash", "hash_rows": HASH_ROWS},
    "padded": {"missing": "skip", "padding_idx": -1},
    "padding": {"missing": "hash", "hash_rows": 1, "padding_idx": 77777, "reduction": "mean"},
    "meaning": {"missing": "default", "default_index": str(2**64 - 1), "reduction": "mean", "weighted_mean": True},
    "largest": {"missing": "skip", "reduction": "max"},}


class Table:
    """The rows, and where each key's is."""

    def __init__(self, keys, values):
        self.keys, self.values = keys, values
        self.rows = {int(key): row for row, key in enumerate(keys)}

    def resolve(self, key, model):
        """The row of an entry; None: it leaves its bag."""
        key = int(key) & MASK
        padding = model.get("padding_idx")
        if padding is not None and key == int(padding) & MASK:
            return None
        if key in self.rows:
            return self.rows[key]
        policy = model.get("missing", "error")
        if policy == "default":
            return self.rows[int(model["default_index"]) & MASK]
        return hashed_row(key, model["hash_rows"]) if policy == "hash" else None

    def pool(self, bags, weights, model):
        """The oracle's answer over row numbers."""
        default = model.get("default_index")
        rules = oracle.Rules(reduction=model.get("reduction", "sum"), default_index=-1 if default is None
                             else self.rows[int(default) & MASK])
        rows, kept_weights = [], None if weights is None else []
        for i, bag in enumerate(bags):
            found = [self.resolve(key, model) for key in bag]
            rows.append(np.array([row for row in found if row is not None], np.int64))
            if weights is not None:
                kept_weights.append(np.array([w for w, row in zip(weights[i], found) if row is not None], np.float32))
        return oracle.pool(self.values, rows, kept_weights, rules)
