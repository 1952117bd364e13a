"""What is asked in tests/bench/serving, and of which tables.

`items` has random numbers, as JSON replies print them. `wide` is larger than any cache and all zeros: a sparse file costs
no disk, and pooling takes as long whatever it adds.
"""

import numpy as np

from clients import Query, run_json

ITEMS_ROWS, ITEMS_COLUMNS = 100_000, 64
WIDE_ROWS, WIDE_COLUMNS = 1_000_000, 128
SMALL = Query("1 bag x 10 ids, dim 64", "items", ITEMS_ROWS, 1, 10)
VARIED = Query("1 bag x 1 to 19 ids, dim 64, ids of requests", "items", ITEMS_ROWS, 1, 19,
               varied=True)
MEDIUM = Query("64 bags x 20 ids, dim 64", "items", ITEMS_ROWS, 64, 20)
# 270 samples of MLPerf's DLRM-v2 query, 214 ids each over all tables: 57,780 rows.
MLPERF = Query("270 bags x 214 ids, dim 128", "wide", WIDE_ROWS, 270, 214)
JSON = Query("JSON, 1 bag x 1000 ids, dim 64", "items", ITEMS_ROWS, 1, 1000, json=True)
BINARY = Query("binary, 1 bag x 1000 ids, dim 64", "items", ITEMS_ROWS, 1, 1000)
# A request of the collection of 26 tables, for one sample or a batch of them.
DLRM = [Query(f"DLRM-v2, {samples} x 26 bags, 214 ids, dim 128", "dlrm", 0, samples, 0, preset="mlperf-dlrm-v2")
        for samples in (1, 16, 128)]


def call_in_process(bench, query, cpus, seconds):
    """The kernels alone, with as many ids as the query has on average; what bench_inprocess prints."""
    ids = (1 + query.ids) // 2 if query.varied else query.ids
    return run_json([bench.programs / "bench_inprocess", query.bags, seconds, bench.tables[query.model], ids], cpus)


def make_tables(directory):
    """Paths by name."""
    paths = {name: directory / f"{name}.npy" for name in ("items", "wide")}
    np.save(paths["items"], np.random.default_rng(1).standard_normal((ITEMS_ROWS, ITEMS_COLUMNS), np.float32))
    np.lib.format.open_memmap(paths["wide"], "w+", np.float32, (WIDE_ROWS, WIDE_COLUMNS)).flush()
    return paths
