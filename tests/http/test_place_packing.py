"""How deploy/place packs tables into nodes: what must always hold, for tables that are drawn and for those of MLPerf's
DLRM-v2."""

import importlib.machinery
import importlib.util
import random
import sys

import pytest

from harness import ROOT, expect, expect_equal

_loader = importlib.machinery.SourceFileLoader("place", str(ROOT / "deploy/place"))
place = importlib.util.module_from_spec(importlib.util.spec_from_loader("place", _loader))
sys.modules["place"] = place
_loader.exec_module(place)

GB = 10**9
# Rows of the 26 tables, each of 128 FP32 numbers.
MLPERF_ROWS = (40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4,
               976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36)


def check(placement):
    """Each part is on one node, no two parts of a table are on the same, no node has more than its memory, and the sums
    are right."""
    sums = [0] * len(placement.bytes)
    for table in placement.tables:
        expect(1 <= len(table.nodes) <= table.max_parts, table)
        expect_equal(len(set(table.nodes)), len(table.nodes))
        for node in table.nodes:
            sums[node] += table.part_bytes(len(table.nodes))
    expect_equal(sums, placement.bytes)
    expect(max(sums) <= placement.memory_bytes, sums)


def pack(tables, memory_bytes, nodes=0):
    placement = place.Placement(tables, memory_bytes)
    placement.pack(nodes)
    check(placement)
    return placement


def pack_again(placement, nodes=0):
    """Returns a placement of the same tables, with this one as the earlier one."""
    for table in placement.tables:
        table.before = table.nodes
    again = place.Placement(placement.tables, placement.memory_bytes, len(placement.bytes))
    again.pack(nodes)
    check(again)
    return again


def count_whole(placement):
    return sum(len(table.nodes) == 1 for table in placement.tables)


def mlperf_tables():
    return [place.Table("table", rows * 512, max_parts=min(rows, 1024)) for rows in MLPERF_ROWS]


def tail_tables(seed):
    """Returns tables of a long tail: a few large ones, many small ones."""
    draw = random.Random(seed)
    return [place.Table("table", 40 * GB // (i + 1) ** 2 + draw.randrange(GB)) for i in range(200)]


def memory_for(tables, nodes):
    """Returns 1.05 times the tables' bytes, over so many nodes."""
    return sum(table.bytes for table in tables) // 100 * 105 // nodes


def test_mlperf_fits_within_5_percent():
    for nodes in range(1, 41):
        tables = mlperf_tables()
        placement = pack(tables, memory_for(tables, nodes), nodes)
        expect_equal(placement.total_bytes, 512 * sum(MLPERF_ROWS))
        expect(nodes == 1 or count_whole(placement) >= len(MLPERF_ROWS) - 8, nodes)


@pytest.mark.parametrize("memory_gb, nodes, whole", [(110, 1, 26), (64, 2, 26), (44, 3, 26), (36, 3, 24), (27, 4, 24),
                                                     (23, 5, 26), (22, 5, 25), (12, 9, 21)])
def test_mlperf_takes_the_fewest_nodes(memory_gb, nodes, whole):
    """Without a number of nodes as few as the bytes allow, and tables are whole where they fit."""
    placement = pack(mlperf_tables(), memory_gb * GB)
    expect_equal((len(placement.bytes), count_whole(placement)), (nodes, whole))


def test_long_tails_fit_within_5_percent():
    for seed in range(1, 21):
        for nodes in range(1, 13):
            tables = tail_tables(seed)
            expect(count_whole(pack(tables, memory_for(tables, nodes), nodes)) >= 200 - 4, (seed, nodes))


def test_joining_node_takes_its_share():
    for seed in range(1, 21):
        for nodes in range(2, 9):
            tables = tail_tables(seed)
            again = pack_again(pack(tables, memory_for(tables, nodes), nodes), nodes + 1)
            expect(again.moved_bytes() <= again.total_bytes // (nodes + 1), (seed, nodes))
            expect(again.bytes[nodes] >= again.total_bytes // (nodes + 1) // 2, (seed, nodes))


def test_nothing_moves_if_nothing_changed():
    tables = tail_tables(7)
    again = pack_again(pack(tables, memory_for(tables, 5), 5))
    expect_equal((len(again.bytes), again.moved_bytes()), (5, 0))


def test_leaving_node_moves_its_tables_alone():
    tables = tail_tables(3)
    placement = pack(tables, 2 * memory_for(tables, 4), 4)
    expect_equal(pack_again(placement, 3).moved_bytes(), placement.bytes[3])


def test_grown_table_moves_its_neighbours_alone():
    tables = [place.Table("table", size * GB) for size in (4, 4, 1, 1)]
    placement = pack(tables, 10 * GB, 2)
    tables[0].bytes, grown = 10 * GB, tables[0].nodes
    again = pack_again(placement, 2)
    expect_equal((tables[0].nodes, again.moved_bytes()), (grown, 1 * GB))


def test_used_table_is_alone():
    """A table with most of the use has a node of its own, though it is small."""
    tables = [place.Table("table", GB, rate=100 if i == 4 else 1) for i in range(5)]
    pack(tables, 10 * GB, 2)
    expect(all(table.nodes != tables[4].nodes for table in tables[:4]), tables)


def test_parts_of_keys_have_an_excess():
    """Parts by keys have room for more than their share, and for what each part keeps."""
    table = place.Table("table", 1000000, keys=10000, kept_bytes=300)
    expect_equal([table.part_bytes(parts) for parts in (1, 4)], [1000000, 250000 + 20000 + 300])
    expect_equal(place.Table("table", 1000000).part_bytes(3), 333334)


def test_reports_tables_that_do_not_fit():
    tables = [place.Table("table", 11 * GB), place.Table("table", 11 * GB)]
    with pytest.raises(place.DoesNotFit) as failed:
        pack(tables, 10 * GB, 2)
    expect_equal(str(failed.value), "the tables take 22000000000 bytes, and do not fit into 2 nodes of 10000000000 bytes; "
                                    "give more --nodes or --memory, or leave --nodes out")
    tables[0].name, tables[0].max_parts = "wide", 1
    with pytest.raises(place.DoesNotFit) as failed:
        pack(tables, 10 * GB)
    expect_equal(str(failed.value), "table 'wide' takes 11000000000 bytes and can be cut into 1 parts; one of them does not "
                                    "fit into --memory (10000000000 bytes)")


def test_edges():
    """Tables without a byte, and one table in two parts."""
    expect_equal(len(pack([place.Table("table") for _ in range(3)], 1).bytes), 1)
    expect_equal(pack([place.Table("table", 6)], 5).bytes, [3, 3])


def test_many_tables_and_nodes():
    """A thousand tables, some of which are larger than a node, on hundreds of nodes."""
    tables = [place.Table("table", GB * (1 + i % 7) * (20 if i % 100 == 0 else 1)) for i in range(1000)]
    expect(len(pack(tables, 16 * GB).bytes) <= 300, "more than 300 nodes")
