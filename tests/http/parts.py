"""Tables in parts: which part has a row or a key, and asking a part."""

import numpy as np

from harness import expect, expect_equal
from updates import AUTHORIZED
from v2 import Tensor

ROWS, COLUMNS, OF = 500, 7, 3
MASK = 2**64 - 1
RANGES = {size: [size * part // OF for part in range(OF + 1)] for size in (ROWS, COLUMNS, 9)}


def part_of_key(key, parts=OF):
    """As proto/PARTS.md has it."""
    h = int(key) & MASK
    h = ((h ^ h >> 33) * 0xff51afd7ed558ccd) & MASK
    h = ((h ^ h >> 33) * 0xc4ceb9fe1a85ec53) & MASK
    return (h ^ h >> 33) * parts >> 64


def part_of_row(row, rows=ROWS, parts=OF):
    return next(part for part in range(parts) if rows * part // parts <= row < rows * (part + 1) // parts)


def make_keys(rng):
    keys = np.concatenate([[0, -1, 1, 2**62, -2**63], rng.integers(-2**62, 2**62, ROWS - 5)])
    expect_equal(len(set(keys.tolist())), ROWS)
    return rng.permutation(keys).astype(np.int64)


def divided(models, way, **more):
    """A model of each part, NAME_WAY_INDEX."""
    return [{"name": f"{name}_{way}_{index}", "part": {"by": way, "index": index, "of": OF}} | model | more
            for name, model in models.items() for index in range(OF)]


def ask(client, model, ids, status=200, **parameters):
    """The row of each id."""
    reply = client.infer(model, [Tensor("indices", np.asarray(ids, np.int64).reshape(-1, 1))], AUTHORIZED,
                         binary=True, parameters={"binary_data_output": True} | parameters).expect(status)
    return reply.embeddings() if status == 200 else reply.error()


def expect_bits(got, want, what):
    expect_equal((got.shape, got.dtype), (want.shape, want.dtype), what)
    expect(got.tobytes() == want.tobytes(), f"{what}: other bits")
