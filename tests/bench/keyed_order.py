"""Skewed keys: a table whose rows stand in random order beside the same table by how often they are asked for.

    tests/bench/keyed order [--rows 4000000] [--columns 16] [--zipf 1.05] [--pairs 15] [--program PATH]

Keys follow Zipf's law. A log of 5 keys for each row is counted, `bagserve convert --order-by` puts the rows in
the order of these counts, and two servers are asked for other keys of the same law: A has the rows in random
order, B by counts, FP32 first, then int8. Requests are 64 bags of 100 keys. Servers take turns as in
tests/bench/paired, which prints CPU time of the server per request and the rate; CPU time is the figure to go by.
The exit code is 1 where the order makes a request more expensive.

Takes about a minute, 2 GB of memory and 1 GB of disk; --rows 8000000 takes twice the memory and disk.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
from servers import HERE, ROOT, build

BAGS, BAG_LENGTH = 64, 100
LOGGED_PER_ROW = 5
# As many different requests as a turn sends, so that caches do not keep the rows of a few.
BODIES, TURN_S = 1000, 0.5
BLOCK = 1 << 20  # keys counted at a time


def count_log(rng, rows, zipf):
    """How often each key stands in a log, by the law of `bagserve bench --zipf`."""
    counts = np.zeros(rows, np.int64)
    for _ in range(0, LOGGED_PER_ROW * rows, BLOCK):
        unit, power = rng.random(BLOCK), 1 - zipf
        ranks = (1 + unit * ((rows + 1) ** power - 1)) ** (1 / power)
        counts += np.bincount(np.minimum(ranks.astype(np.int64) - 1, rows - 1), minlength=rows)
    return counts


def make_table(directory, options):
    """A folder with keys and rows in random order, and a file with the count of each row."""
    rng = np.random.default_rng(1)
    table, counts = directory / "users", directory / "counts.npy"
    table.mkdir()
    keys = rng.permutation(options.rows)
    np.save(table / "keys.npy", keys)
    np.save(table / "values.npy", rng.standard_normal((options.rows, options.columns), np.float32))
    np.save(counts, count_log(rng, options.rows, options.zipf)[keys])
    return table, counts


def convert(options, table, to, *flags):
    done = subprocess.run([options.program, "convert", *flags, table, to], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return to


def compare(options, title, random, ordered):
    """Random order as A, by counts as B; whether B is not the more expensive one."""
    print(f"\n{title}: A in random order, B by counts", flush=True)
    servers = [f"{options.program} --table users={path}" for path in (random, ordered)]
    asked = ["--model", "users", "--rows", options.rows, "--bags", BAGS, "--ids", BAG_LENGTH,
             "--zipf", options.zipf, "--bodies", BODIES]
    command = [sys.executable, HERE / "paired", *servers, "--pairs", options.pairs, "--seconds", TURN_S,
               "--", *asked]
    return subprocess.run([str(word) for word in command], check=False).returncode == 0


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, prog="tests/bench/keyed order",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--zipf", type=float, default=1.05, help="the exponent, other than 1")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--program", help="another bagserve, taken as it is")
    options = parser.parse_args()
    if options.zipf <= 0 or options.zipf == 1 or options.rows < 1:
        parser.error("--zipf must be above 0 and other than 1, --rows at least 1")
    return options


def main():
    options = read_options()
    build(ROOT / "build" / "release")
    options.program = options.program or ROOT / "build" / "release" / "bagserve"
    with tempfile.TemporaryDirectory(prefix="bagserve-bench-") as name:
        directory = pathlib.Path(name)
        table, counts = make_table(directory, options)
        print(f"{options.rows} rows of {options.columns} numbers, Zipf {options.zipf}, {BAGS} bags of "
              f"{BAG_LENGTH} keys")
        good = compare(options, "FP32", table,
                       convert(options, table, directory / "ordered.safetensors", "--order-by", counts))
        int8 = [convert(options, table, directory / f"int8-{order}.safetensors", "--row-format", "int8", *flags)
                for order, flags in (("random", ()), ("ordered", ("--order-by", counts)))]
        good &= compare(options, "int8", *int8)
    return not good


if __name__ == "__main__":
    sys.exit(main())
