"""What test_start.py and test_lifecycle.py share: one small table, saved and asked for."""

import numpy as np

from harness import expect
from v2 import Tensor

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def save(path, table=TABLE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, table, **options)
    return path


def check_table(client, table=TABLE, model="items", **options):
    """Asks for all four rows of a model, one a bag."""
    indices = Tensor("indices", np.arange(4).reshape(4, 1))
    got = client.infer(model, [indices], **options).embeddings()
    expect(np.array_equal(got, table), f"{model}: {got} instead of {table}")
