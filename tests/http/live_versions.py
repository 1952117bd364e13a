"""Versions of a table that are loaded beside updates of it: sent as requests, and as folders (deltas)."""

import os

import numpy as np

import control
from updates import rows_of, update


def after(snapshot, through, last):
    """The rows of a snapshot once updates through + 1 to last have each set one row."""
    rows = snapshot.copy()
    for number in range(through + 1, last + 1):
        rows[number % control.ROWS] = -number
    return rows


def change(client, number):
    return update(client, "t", [number % control.ROWS], [[-number] * control.COLUMNS], sequence=number)


def all_rows(client):
    return rows_of(client, "t", np.arange(control.ROWS))


def serve_versions(directory, *arguments):
    return control.serve(directory, "--updates", "on", "--journal-dir", directory / "journal", *arguments)


def serve_plain(directory, *arguments, **options):
    return control.serve(directory, "--updates", "on", *arguments, **options)


def delta(version, number, ids, rows=None, is_keyed=False, name=None):
    """The folder of an update, which appears complete."""
    folder = version / "deltas" / f".{number}"
    folder.mkdir(parents=True)
    np.save(folder / ("keys.npy" if is_keyed else "indices.npy"), np.asarray(ids))
    if rows is not None:
        np.save(folder / "rows.npy", np.asarray(rows, np.float32))
    final = version / "deltas" / str(number if name is None else name)
    os.rename(folder, final)
    return final


def numbered(version, number):
    """The update that `change` sends, as a folder."""
    return delta(version, number, [number % control.ROWS], [[-number] * control.COLUMNS])


def has(client, through, snapshot=None):
    want = after(control.rows_of(1) if snapshot is None else snapshot, 0, through)
    return np.array_equal(all_rows(client), want)
