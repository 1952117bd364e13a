"""What is asked in tests/bench/serving."""

from clients import Query, run_json
from tables import DEEP_COLUMNS, DEEP_ROWS, ITEMS_ROWS, WIDE_ROWS

SMALL = Query("1 bag x 10 ids, dim 64", "items", ITEMS_ROWS, 1, 10)
VARIED = Query("1 bag x 1 to 19 ids, dim 64, ids of requests", "items", ITEMS_ROWS, 1, 19,
               varied=True)
MEDIUM = Query("64 bags x 20 ids, dim 64", "items", ITEMS_ROWS, 64, 20)
# 270 samples of MLPerf's DLRM-v2 query, 214 ids each over all tables: 57,780 rows.
MLPERF = Query("270 bags x 214 ids, dim 128", "wide", WIDE_ROWS, 270, 214)
JSON = Query("JSON, 1 bag x 1000 ids, dim 64", "items", ITEMS_ROWS, 1, 1000, json=True)
BINARY = Query("binary, 1 bag x 1000 ids, dim 64", "items", ITEMS_ROWS, 1, 1000)
WORK_US = (200, 1000)
WORK_BAGS = 2


def call_in_process(bench, query, cpus, seconds):
    """The kernels alone, with as many ids as the query has on average; what bench_inprocess prints."""
    ids = (1 + query.ids) // 2 if query.varied else query.ids
    return run_json([bench.programs / "bench_inprocess", query.bags, seconds, bench.tables[query.model], ids], cpus)


def query_of_work(bench, work_us):
    """A query that keeps the kernels busy for about that long on one processor."""
    trial = Query("", "deep", DEEP_ROWS, WORK_BAGS, 200)
    took = call_in_process(bench, trial, bench.server_cpus, 0.3)["cpu_us_per_query"]
    ids = max(1, round(trial.ids * work_us / took))
    return Query(f"{work_us} us of work: {WORK_BAGS} bags x {ids} ids, dim {DEEP_COLUMNS}",
                 "deep", DEEP_ROWS, WORK_BAGS, ids)
