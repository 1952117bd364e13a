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
HUGE = Query("500 bags x 100 ids, dim 128", "wide", WIDE_ROWS, 500, 100)

MANY = Query("20 bags x 1000 ids, dim 64", "items", ITEMS_ROWS, 20, 1000)

# MLPerf's 26 tables: rows (the largest a 54th of theirs, so that all take 2 GB), ids of each bag.
CRITEO = tuple(zip(
    (740000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 740000, 56814, 7505, 10, 2209, 11938,
     155, 4, 976, 14, 740000, 740000, 740000, 10929, 12973, 108, 36),
    (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)))
CRITEO_ROWS, CRITEO_IDS = (sum(values) for values in zip(*CRITEO))
COLLECTION = Query("26 tables", "criteo", CRITEO_ROWS, 270, CRITEO_IDS, features=CRITEO,
                   collection=True)
ONE_TABLE = Query("the same rows as one table", "whole", CRITEO_ROWS, 270, CRITEO_IDS,
                  features=CRITEO)


def large_query(ids):
    """As many ids of each table, and a reply of 27 MB."""
    return Query(f"26 tables, 2,048 bags x {ids} ids, 27 MB reply", "criteo", CRITEO_ROWS, 2048,
                 len(CRITEO) * ids, features=tuple((rows, ids) for rows, _ in CRITEO),
                 collection=True)


LARGE, LARGE_COPY = large_query(8), large_query(1)

# One bag a request, whose row of 512 numbers is projected to 512.
PROJECTION_COLUMNS, PROJECTION_OUT = 512, 512
PROJECTED = Query("1 bag x 10 ids, 512 x 512 matrix", "projected", ITEMS_ROWS, 1, 10)

WORK_US = (200, 1000)
WORK_BAGS = 2


def call_in_process(bench, query, cpus, seconds):
    """The kernels alone, with as many ids as the query has on average; what bench_inprocess prints."""
    ids = (1 + query.ids) // 2 if query.varied else query.ids
    return call_tables_in_process(bench, query.bags, [(bench.tables[query.model], ids)], cpus, seconds)


def call_tables_in_process(bench, bags, tables, cpus, seconds, send_cpus=None):
    """Likewise, of several (path, ids of each bag); with `send_cpus` a thread there sends each result
    over loopback to a process that reads it."""
    send = ["--send", send_cpus[0]] if send_cpus else []
    return run_json([bench.programs / "bench_inprocess", *send, bags, seconds,
                     *(word for table in tables for word in table)], cpus)


def query_of_work(bench, work_us):
    """A query that keeps the kernels busy for about that long on one processor."""
    trial = Query("", "deep", DEEP_ROWS, WORK_BAGS, 200)
    took = call_in_process(bench, trial, bench.server_cpus, 0.3)["cpu_us_per_query"]
    ids = max(1, round(trial.ids * work_us / took))
    return Query(f"{work_us} us of work: {WORK_BAGS} bags x {ids} ids, dim {DEEP_COLUMNS}",
                 "deep", DEEP_ROWS, WORK_BAGS, ids)
