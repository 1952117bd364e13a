"""The tables that the benchmarks serve, as .npy files.

`items` has random numbers, as JSON replies print them. `wide` is larger than any cache and all
zeros: a sparse file costs no disk, and pooling takes as long whatever it adds.
"""

import numpy as np

ITEMS_ROWS, ITEMS_COLUMNS = 100_000, 64
WIDE_ROWS, WIDE_COLUMNS = 1_000_000, 128


def make_tables(directory):
    """Paths by name."""
    paths = {name: directory / f"{name}.npy" for name in ("items", "wide")}
    random = np.random.default_rng(1)
    np.save(paths["items"], random.standard_normal((ITEMS_ROWS, ITEMS_COLUMNS), np.float32))
    np.lib.format.open_memmap(paths["wide"], "w+", np.float32, (WIDE_ROWS, WIDE_COLUMNS)).flush()
    return paths
