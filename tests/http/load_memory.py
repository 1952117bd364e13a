"""Memory and time of loading a large table; too heavy for every run of the suite.

    tests/http/load_memory.py [GIGABYTES]

Writes a table of 2 GB (or as many as are given) and checks that the server that has loaded it takes
at most 1.05 times its size and 64 MB more, now and at its peak. Prints both.
"""

import sys
import time

import numpy as np

from harness import Server, expect, scratch
from v2 import Client, Tensor

DIM = 64
BLOCK_ROWS = 65536


def write_table(path, gigabytes):
    """Row i holds i in every column, written block by block; returns the number of rows."""
    rows = int(gigabytes * 1e9) // (DIM * 4)
    table = np.lib.format.open_memmap(path, "w+", np.float32, (rows, DIM))
    for first in range(0, rows, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, rows)
        table[first:last] = np.arange(first, last, dtype=np.float32)[:, None]
    table.flush()
    return rows


def check_memory(path, rows):
    size = rows * DIM * 4
    start = time.monotonic()
    with Server("--table", f"items={path}") as server, Client(server) as client:
        took_s = time.monotonic() - start
        allowed = 1.05 * size + 64e6
        now, peak = server.memory_bytes("VmRSS"), server.memory_bytes("VmHWM")
        print(f"a table of {size / 1e6:.1f} MB: ready after {took_s:.2f} s, RSS {now / 1e6:.1f} "
              f"MB, at its peak {peak / 1e6:.1f} MB, allowed {allowed / 1e6:.1f} MB")
        expect(now <= allowed and peak <= allowed, "more memory than allowed")
        expect(now >= size, "less memory than the table: it was not loaded")
        some = np.linspace(0, rows - 1, 1000).astype(np.int64)
        got = client.infer("items", [Tensor("indices", some.reshape(-1, 1))]).embeddings()
        expect((got == some.astype(np.float32)[:, None]).all(), "rows have other values")


def main():
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2
    with scratch() as directory:
        rows = write_table(directory / "items.npy", gigabytes)
        check_memory(directory / "items.npy", rows)


if __name__ == "__main__":
    main()
