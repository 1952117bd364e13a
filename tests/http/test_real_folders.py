"""What people really have where a table should be: damaged, half copied, written by other tools, with
neighbours. One line for each, with its outcome: the rows that are served, or words of the refusal. `serve`,
`serve --check`, `inspect` and `convert` agree."""

import re
import struct

import numpy as np
import pytest

from harness import Server, expect, expect_equal, expect_words, run
from numerics import F32
from table_files import read_safetensors, write_safetensors
from v2 import Client, Tensor

ROWS = np.arange(8, dtype=F32).reshape(4, 2)
EMPTY = np.zeros((2, 0), F32)


# ---- files -----------------------------------------------------------------------------------------
def longs(*numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


def floats(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def npy(array):
    return lambda path: np.save(path, array)


def npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def safetensors(metadata=None, **tensors):
    """Tensors as (dtype, array); dots in names are written as two underscores."""
    named = {name.replace("__", "."): entry for name, entry in tensors.items()}
    return lambda path: write_safetensors(path, named, metadata)


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)


def dump(rank, ranks, keys, values):
    """The two files that a rank of dynamicemb writes."""
    return {f"t_emb_keys.rank_{rank}.world_size_{ranks}": keys,
            f"t_emb_values.rank_{rank}.world_size_{ranks}": values}


# ---- outcomes --------------------------------------------------------------------------------------
def served(path, ids):
    """The rows of these ids, or keys, of a table that is served."""
    with Server("--table", f"t={path}") as server, Client(server) as client:
        tensors = [Tensor("indices", np.asarray(ids, np.int64)[:, None])]
        return client.infer("t", tensors, binary=True).embeddings().tolist()


def accept(path, want, keys, out):
    """The table is served, checked, inspected and converted, with these rows."""
    ids = range(len(want)) if keys is None else keys
    checked = run("serve", "--check", "--table", f"t={path}")
    expect_equal(checked.returncode, 0, checked.stderr)
    inspected = run("inspect", path)
    expect_equal(inspected.returncode, 0, inspected.stderr)
    expect(f"Table: {len(want)} rows of {len(want[0])} elements" in inspected.stdout, inspected.stdout)
    converted = run("convert", path, out)
    expect_equal(converted.returncode, 0, converted.stderr)
    expect_equal(served(path, ids), want)
    expect_equal(served(out, ids), want)


def refuse(path, words, out, converts=None):
    """Each command refuses the table for the same reason; unless `converts` has the rows that convert makes."""
    for arguments in (("serve", "--check", "--table", f"t={path}"), ("serve", "--port", "0", "--table", f"t={path}"),
                      ("inspect", path), ("convert", path, out)):
        if arguments[0] == "convert" and converts:
            done = run(*arguments)
            expect_equal(done.returncode, 0, done.stderr)
            expect_equal(served(out, range(len(converts))), converts)
            continue
        done = run(*arguments)
        # inspect shows what else is in an archive, and says why no table can be chosen.
        shows = arguments[0] == "inspect" and "No table can be chosen" in done.stdout
        expect(done.returncode in ((0,) if shows else (1, 2)), f"{arguments}: {done.returncode}: {done.stdout}")
        expect_words(done.stdout + done.stderr, words)
        expect("loadtxt" in words or "loadtxt" not in done.stderr, done.stderr)
    expect(converts or not out.exists(), "convert wrote a table")


# ---- vectors that are gone -------------------------------------------------------------------------
GONE = [
    ("vectors of 0 bytes beside keys", {"key": longs(1, 2), "emb_vector": b""}, "", ["emb_vector", "2 keys", "empty"]),
    ("keys and vectors of 0 bytes", {"key": b"", "emb_vector": b""}, "", ["emb_vector", "no vectors"]),
    ("keys of 0 bytes", {"key": b"", "emb_vector": floats(1, 2)}, "", ["emb_vector", "0 keys"]),
    ("dynamicemb's values of 0 bytes", dump(0, 1, longs(1, 2), b""), "",
     ["t_emb_values.rank_0.world_size_1", "2 keys", "empty"]),
    ("dynamicemb's first rank of 0 bytes",
     dump(0, 2, longs(1, 2), b"") | dump(1, 2, longs(3), floats(5, 6)), "",
     ["t_emb_values.rank_0.world_size_2", "2 keys", "empty"]),
    ("dynamicemb's last rank of 0 bytes",
     dump(0, 2, longs(3), floats(5, 6)) | dump(1, 2, longs(1, 2), b""), "",
     ["t_emb_values.rank_1.world_size_2", "2 keys", "empty"]),
    ("dynamicemb's ranks without rows", dump(0, 1, b"", b""), "", ["t_emb_values.rank_0.world_size_1", "no vectors"]),
    (".npy without columns", {"t.npy": npy(EMPTY)}, "/t.npy", ["t.npy", "no vectors"]),
    (".npy without rows and columns", {"t.npy": npy(EMPTY[:0])}, "/t.npy", ["t.npy", "no vectors"]),
    (".npz without columns", {"t.npz": npz(values=EMPTY)}, "/t.npz", ["t.npz", "no vectors"]),
    ("values without columns beside keys", {"keys.npy": npy(np.arange(2)), "values.npy": npy(EMPTY)}, "",
     ["values.npy", "no vectors"]),
    ("safetensors without columns", {"t.safetensors": safetensors(values=("F32", EMPTY))}, "/t.safetensors",
     ["t.safetensors", "no vectors"]),
    ("quantised rows without bytes", {"t.npy": npy(EMPTY.astype(np.uint8))}, "/t.npy,row_format=int8,row_elements=4",
     ["t.npy", "no vectors"]),
    ("a file of 0 bytes", {"t.npy": b""}, "/t.npy", ["t.npy", "empty"]),
]


@pytest.mark.parametrize("files, at, words", [pytest.param(*case[1:], id=case[0]) for case in GONE])
def test_vectors_that_are_gone(directory, files, at, words):
    write(directory / "t", files)
    refuse(f"{directory / 't'}{at}", words, directory / "out.safetensors")


def test_file_without_a_header_that_is_empty(directory):
    """The number of rows follows from the size, and 0 bytes are no rows; a shape may say that there are none."""
    write(directory, {"t.bin": b""})
    for rows, code in ((-1, 1), (0, 0)):
        config = directory / f"{rows}.json"
        config.write_text('{"models": [{"name": "t", "path": "t.bin", "shape": [%d, 2], "datatype": "FP32"}]}' % rows)
        done = run("serve", "--check", "--config", config)
        expect_equal(done.returncode, code, done.stderr)
        expect(code == 0 or re.search("t.bin: the file is empty", done.stderr), done.stderr)


# ---- what is whole ---------------------------------------------------------------------------------
WHOLE = [
    ("a rank of dynamicemb without rows", dump(0, 2, b"", b"") | dump(1, 2, longs(3), floats(5, 6)), "", [3], [[5, 6]]),
    ("HugeCTR's pair", {"key": longs(5, 7, 9, 11), "emb_vector": ROWS.tobytes(), "slot_id": longs(0, 0, 1, 1)}, "",
     [5, 7, 9, 11], ROWS.tolist()),
]


@pytest.mark.parametrize("files, at, keys, rows", [pytest.param(*case[1:], id=case[0]) for case in WHOLE])
def test_whole(directory, files, at, keys, rows):
    write(directory / "t", files)
    accept(f"{directory / 't'}{at}", rows, keys, directory / "out.safetensors")
    if keys:
        expect_equal(sorted(read_safetensors(directory / "out.safetensors")[1]["keys"].tolist()), sorted(keys))
