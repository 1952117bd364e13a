"""Random batches of rows for a table, as it is now: rows that are put, keys that are removed, and how they are
numbered."""

import numpy as np

from state import Batch
from tables import random_keys, random_rows
from v2 import Tensor


def random_batch(rng, model):
    """A batch, mostly one that is taken: (batch, its tensors, its parameters)."""
    live = model.live
    count = int(rng.choice([1, 1, 2, 5, 12]))
    deletes = live.where is not None and rng.random() < 0.3
    next_one = model.sequence + 1
    batch = Batch(next_one, next_one, [], live.storage, None)
    parameters = random_numbers(rng, batch)
    if rng.random() < 0.04 and "sequence" in parameters:
        batch.stored = live.stored[:0]
        return batch, [], parameters  # skips numbers
    if deletes:
        parameters["delete"] = True
    return batch, fill_batch(rng, model, batch, count, deletes), parameters


def fill_batch(rng, model, batch, count, deletes):
    """The tensors of a batch, which it gets."""
    live = model.live
    batch.ids, wide = random_ids(rng, live, count, deletes, batch.may_repeat)
    inputs = [Tensor("indices" if live.where is None else "keys", wide)]
    if not deletes:
        array, datatype, batch.stored = random_rows(rng, model.served.snapshot, len(batch.ids))
        inputs.append(Tensor("rows", array, datatype))
    return inputs


def random_numbers(rng, batch):
    """The parameters that number a batch: none, its number, or those that it stands for."""
    kind, next_one = rng.random(), batch.first
    if kind < 0.4:
        return {}
    if kind < 0.75:
        return {"sequence": next_one}
    if kind < 0.8:
        return {"sequence": max(1, next_one + int(rng.choice([-1, 1, 2])))}
    first = max(1, next_one + int(rng.choice([-2, -1, 0, 0, 0, 1])))
    batch.sequence = max(first, next_one + int(rng.choice([-1, 0, 1, 3])))
    batch.may_repeat, batch.may_be_gone = True, first < next_one
    return {"first_sequence": first, "sequence": batch.sequence}


def random_ids(rng, live, count, deletes, repeats):
    """As numbers, and as a tensor's array."""
    twice = rng.random() < (0.5 if repeats else 0.03)
    if live.where is None:
        ids = rng.choice(len(live), min(count, len(live)), replace=twice)
        if rng.random() < 0.05 and len(ids):
            ids[0] = rng.choice([-1, len(live), 2**31 - 1])
        return [int(i) for i in ids], ids.astype(np.int64 if rng.integers(2) else np.int32)
    known = np.array(list(live.where), np.uint64)
    if deletes:
        if len(known) < 2 or rng.random() < 0.05:
            known = np.append(known, random_keys(rng, 2))
        ids = rng.choice(known, min(count, len(known) - 1), replace=False)
    else:
        known = np.unique(np.concatenate([known, random_keys(rng, int(rng.choice([0, 1, 4])))]))
        ids = rng.choice(known, min(count, len(known)), replace=twice)
    signed = ids.view(np.int64)
    if (np.abs(signed.astype(np.float64)) < 2**31).all() and rng.integers(2):
        return [int(i) for i in ids], signed.astype(np.int32)
    return [int(i) for i in ids], ids if rng.integers(2) else signed
