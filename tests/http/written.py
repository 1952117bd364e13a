#!/usr/bin/python3
"""Files as this version writes them, for the later ones that must read them (deploy/RELEASES.md).

    tests/http/written.py tests/stable/VERSION     at a release, with BAGSERVE naming the program that is released
"""

import pathlib
import shutil
import sys

import numpy as np

from control import tokens
from harness import Server, run, write_json
from live_versions import delta
from updates import AUTHORIZED, rows_of, update
from v2 import Client

ROWS, COLUMNS = 8, 4
KEYS = np.array([3, 2**63, 5, 7, 11, 13, 17, 2**64 - 1], np.uint64)
CONFIG = {
    "updates": {"updates": "on"}, "log": {"log_format": "json", "log_level": "info"},
    "engine": {"workers": 1, "drain_timeout_s": 5}, "models_dir": "models",
    "models": [{"name": "quantised", "path": "quantised.safetensors", "reduction": "mean"},
               {"name": "both", "features": [{"name": "a", "model": "dense"}, {"name": "b", "model": "keyed"}]}],}


def table():
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) / 4


def serve(folder):
    """A server of such a folder. It adds to the journal there."""
    return Server("--config", folder / "config.json", "--token-file", tokens(folder), "--journal-dir", folder / "journal")


def write(folder):
    dense, keyed = folder / "models/dense/1", folder / "models/keyed/1"
    for made in (dense, keyed):
        made.mkdir(parents=True)
    np.save(dense / "table.npy", table())
    delta(dense, 1, [1], [[-1] * COLUMNS])
    np.save(keyed / "keys.npy", KEYS)
    np.save(keyed / "values.npy", table())
    write_json(keyed / "config.json", {"missing": "skip", "spare_rows": 2})
    write_json(folder / "config.json", CONFIG)
    run("convert", "--row-format", "int8", dense, folder / "quantised.safetensors").check_returncode()
    with serve(folder) as server, Client(server) as client:
        update(client, "dense", [2, 3], [[-2] * COLUMNS, [-3] * COLUMNS], sequence=2).expect(200)
        update(client, "keyed", KEYS[:1], [[-4] * COLUMNS], sequence=1).expect(200)
        update(client, "keyed", np.array([19], np.uint64), [[-5] * COLUMNS], sequence=2).expect(200)
        update(client, "keyed", KEYS[1:2], sequence=3, delete=True).expect(200)
        run("bench", "--closed", "--requests", "50", "--report", folder / "report.json",
            "--token-file", folder / "tokens", server.url, "dense").check_returncode()
    (folder / "tokens").unlink()


def check(folder):
    """Serves a copy of the folder, and compares every row with what was written."""
    with serve(folder) as server, Client(server, headers=AUTHORIZED) as client:
        dense, keyed = table(), table()
        for row in (1, 2, 3):
            dense[row] = -row
        keyed[0], keyed[1] = -4, 0
        np.testing.assert_array_equal(rows_of(client, "dense", np.arange(ROWS)), dense)
        ids = np.append(KEYS, np.uint64(19))
        np.testing.assert_array_equal(rows_of(client, "keyed", ids), np.vstack([keyed, [[-5] * COLUMNS]]))
        np.testing.assert_allclose(rows_of(client, "quantised", np.arange(ROWS)), table(), atol=0.002)
        said = run("bench", "--closed", "--requests", "50", "--compare", folder / "report.json",
                   "--token-file", folder / "tokens", server.url, "dense")
        assert said.returncode == 0 and "of those before" in said.stdout, said.stdout + said.stderr


if __name__ == "__main__":
    made = pathlib.Path(sys.argv[1])
    shutil.rmtree(made, ignore_errors=True)
    write(made)
