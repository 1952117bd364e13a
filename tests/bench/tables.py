"""The tables that the benchmarks serve, as .npy files.

`items` has random numbers, as JSON replies print them. `wide` and `deep` are larger than any cache
and all zeros: a sparse file costs no disk, and pooling takes as long whatever it adds. Rows of
`deep` are those of text or image embeddings: few ids make much work.
"""

import json

import numpy as np

ITEMS_ROWS, ITEMS_COLUMNS = 100_000, 64
WIDE_ROWS, WIDE_COLUMNS = 1_000_000, 128
DEEP_ROWS, DEEP_COLUMNS = 64_000, 1024


def make_collection(directory, features):
    """A table for each of the features, one that holds the rows of all, and a configuration with
    both and with the collection; the configuration's path and those of the features' tables."""
    rows = [rows for rows, _ in features]
    names = [f"t{i}" for i in range(len(rows))]
    for name, count in zip([*names, "whole"], [*rows, sum(rows)], strict=True):
        np.lib.format.open_memmap(directory / f"{name}.npy", "w+", np.float32,
                                  (count, WIDE_COLUMNS)).flush()
    models = [{"name": name, "path": f"{name}.npy"} for name in [*names, "whole"]]
    models.append({"name": "criteo", "features": [{"name": f"f{i}", "model": name}
                                                  for i, name in enumerate(names)]})
    config = directory / "criteo.json"
    config.write_text(json.dumps({"models": models}))
    return config, [directory / f"{name}.npy" for name in names]


def make_projection(directory, columns, out):
    """A table of rows of so many numbers and a matrix to `out`, and a configuration of it."""
    random = np.random.default_rng(1)
    np.save(directory / "factor.npy", random.standard_normal((ITEMS_ROWS, columns), np.float32))
    np.save(directory / "matrix.npy", random.standard_normal((columns, out), np.float32))
    config = directory / "projection.json"
    config.write_text(json.dumps({"models": [{"name": "projected", "path": "factor.npy",
                                              "projection": "matrix.npy"}]}))
    return config


def make_tables(directory):
    """Paths by name."""
    paths = {name: directory / f"{name}.npy" for name in ("items", "wide", "deep")}
    random = np.random.default_rng(1)
    np.save(paths["items"], random.standard_normal((ITEMS_ROWS, ITEMS_COLUMNS), np.float32))
    for name, shape in (("wide", (WIDE_ROWS, WIDE_COLUMNS)), ("deep", (DEEP_ROWS, DEEP_COLUMNS))):
        np.lib.format.open_memmap(paths[name], "w+", np.float32, shape).flush()
    return paths
