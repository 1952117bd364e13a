"""The tables that the benchmarks serve, as .npy files.

`items` has random numbers, as JSON replies print them. `wide` and `deep` are larger than any cache
and all zeros: a sparse file costs no disk, and pooling takes as long whatever it adds. Rows of
`deep` are those of text or image embeddings: few ids make much work.
"""

import numpy as np

ITEMS_ROWS, ITEMS_COLUMNS = 100_000, 64
WIDE_ROWS, WIDE_COLUMNS = 1_000_000, 128
DEEP_ROWS, DEEP_COLUMNS = 64_000, 1024


def make_tables(directory):
    """Paths by name."""
    paths = {name: directory / f"{name}.npy" for name in ("items", "wide", "deep")}
    random = np.random.default_rng(1)
    np.save(paths["items"], random.standard_normal((ITEMS_ROWS, ITEMS_COLUMNS), np.float32))
    for name, shape in (("wide", (WIDE_ROWS, WIDE_COLUMNS)), ("deep", (DEEP_ROWS, DEEP_COLUMNS))):
        np.lib.format.open_memmap(paths[name], "w+", np.float32, shape).flush()
    return paths
