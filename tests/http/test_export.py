"""From tensors to an answer: what the exporter writes is served, and answers as it was told.

NumPy's arrays stand for the tensors here; test_torch.py has PyTorch's.
"""

import json
import os
import sys

import numpy as np
import pytest

from harness import PROGRAM, ROOT, Server, expect, expect_equal, write_json

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_export  # noqa: E402
from bagserve_client import Client  # noqa: E402
from bagserve_export import Export, add_tables, main, model_name  # noqa: E402


def serve(folder):
    return Server("--models", folder)


def connect(server):
    return Client(f"{server.host}:{server.port}")


def warnings_of(server):
    return [event for event in server.events() if event["level"] in ("warning", "error")]


@pytest.fixture(name="checkpoint")
def fake_checkpoint(monkeypatch):
    """Sets what main reads in place of a file, which needs torch."""
    state = {}
    monkeypatch.setattr(bagserve_export, "_load", lambda path: state)
    return state


def run_main(*arguments):
    main(["model.pt", *map(str, arguments)])


# ---- tables -----------------------------------------------------------------------------------
def test_tables(directory, rng):
    """Each with rules of its own, in a folder that --models serves; data begins at a page."""
    rows, wide = rng.random((9, 3), np.float32), rng.random((5, 2))
    half = rng.random((4, 5)).astype(np.float16)
    exported = Export()
    expect_equal(exported.table("a/b", rows, "mean", padding_idx=-1), "a_b")
    exported.table("wide", wide, "max")
    exported.table("half", half, "sum", include_last_offset=True)
    exported.collection("both", {"x": "a_b", "y": "wide"})
    expect_equal(exported.write(directory), directory)
    raw = (directory / "a_b" / "1" / "table.safetensors").read_bytes()
    expect_equal(((len(raw) - 9 * 3 * 4) % 4096, raw[-108:]), (0, rows.tobytes()))
    expect_equal(sorted(path.name for path in directory.iterdir()),
                 ["a_b", "both", "half", "wide"], "nothing else is left")
    expect_equal((directory / "a_b" / "1").stat().st_mode & 0o777, 0o777 & ~_umask(), "others may read it")
    with serve(directory) as server, connect(server) as client:
        expect_equal(warnings_of(server), [])
        expect(np.array_equal(client.bags("a_b", [[0, 1, 8]])[0], (rows[0] + rows[1]) / np.float32(2)),
               "mean without the padding")
        expect(np.array_equal(client.bags("wide", [[0, 4]])[0], np.maximum(wide[0], wide[4])), "FP64")
        expect(np.array_equal(client.offsets("half", [2, 3], [0, 1])[0], half[2]), "FP16")
        got = client.collection("both", {"y": [[1]], "x": [[2, 8]]})
        expect(np.array_equal(got["x"][0], rows[2]) and np.array_equal(got["y"][0], wide[1]), got)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_versions(directory, rng):
    """A second one goes beside the first; none is written over, and nothing is left of a failed one."""
    first, second = rng.random((2, 4, 3), np.float32)
    for version, rows in ((1, first), (2026112304, second)):
        exported = Export()
        exported.table("items", rows, "sum")
        exported.write(directory, version)
        with pytest.raises(ValueError, match=f"items/{version} is there already.*--version"):
            exported.write(directory, version)
    for wrong in (0, -1, 1.0, "2", None):
        with pytest.raises(ValueError, match="whole number from 1"):
            exported.write(directory, wrong)
    expect_equal(sorted(path.name for path in directory.iterdir()), ["items"])
    with serve(directory) as server, connect(server) as client:
        expect(np.array_equal(client.bags("items", [[3]])[0], second[3]), "the newest is served")
        expect_equal(client.metadata("items")["versions"], ["2026112304"])


def test_unchanged_tables(directory, rng):
    """A table with the bytes of the version before is a link to it, quantised ones too; any other is a file of its own."""
    same, first, second = rng.random((3, 500, 8), np.float32)
    for version, rows in ((1, first), (3, second), (2, first), (10, second)):
        exported = Export("int8", PROGRAM) if version == 10 else Export()
        exported.table("same", same, "sum" if version < 3 else "mean")
        exported.table("other", rows, "sum")
        exported.write(directory, version)

    def is_link(name, one, other):
        return (directory / name / str(one) / "table.safetensors").samefile(directory / name / str(other) / "table.safetensors")

    expect_equal([is_link("same", 1, 2), is_link("same", 1, 3), is_link("other", 1, 2), is_link("other", 2, 3),
                  is_link("same", 3, 10)], [True, True, True, False, False])
    exported = Export("int8", PROGRAM)
    exported.table("same", same, "sum")
    exported.write(directory, 11)
    expect(is_link("same", 10, 11), "the int8 rows were written twice")
    with serve(directory) as server, connect(server) as client:
        expect_equal(client.metadata("same")["versions"], ["11"])
        expect(np.allclose(client.bags("same", [[3]])[0], same[3], atol=0.01), "int8")


def test_file_systems_without_links(directory, rng, monkeypatch):
    """The table is a file of its own there."""
    def refuse(*_):
        raise OSError("no links")

    monkeypatch.setattr(os, "link", refuse)
    rows = rng.random((4, 3), np.float32)
    for version in (1, 2):
        exported = Export()
        exported.table("items", rows, "sum")
        exported.write(directory, version)
    first, second = (directory / "items" / version / "table.safetensors" for version in "12")
    expect(not first.samefile(second) and first.read_bytes() == second.read_bytes(), "the files")
    expect_equal(sorted(path.name for path in second.parent.iterdir()), ["config.json", "table.safetensors"])


def test_row_formats(directory, rng):
    """Quantised by the program; a format or a program that is not there is said, and nothing is written."""
    rows = rng.random((20, 8), np.float32)
    for row_format, error in (("int8", 0.002), ("int4", 0.04)):
        exported = Export(row_format, PROGRAM)
        exported.table("items", rows, "mean")
        exported.write(directory / row_format)
        files = sorted(path.name for path in (directory / row_format / "items" / "1").iterdir())
        expect_equal(files, ["config.json", "table.safetensors"])
        with serve(directory / row_format) as server, connect(server) as client:
            expect_equal(client.metadata("items")["parameters"]["row_format"], row_format)
            got = client.bags("items", [[3, 4]])
            expect(np.allclose(got[0], (rows[3] + rows[4]) / 2, atol=error), got)
    for exported, words in ((Export("int7", PROGRAM), "int7"), (Export("int8", "/nowhere/bagserve"),
                                                               "needs the program /nowhere/bagserve")):
        exported.table("items", rows, "sum")
        with pytest.raises(ValueError, match=words):
            exported.write(directory / "failed")
        expect_equal(list((directory / "failed").iterdir()), [])


def test_what_is_wrong_with_tables(rng):
    table = rng.random((4, 2), np.float32)
    codes = rng.integers(0, 256, (4, 2)).astype(np.uint8)
    twice = Export()
    twice.table("a b", table, "sum")
    split = {"t.weight": codes, "t.weight_qscale": table, "t.weight_qbias": table}
    for work, words in (
            (lambda: Export().table("a", table, "avg"), "sum, mean, max, sqrtn, none"),
            (lambda: Export().table("a", table, None), "reduction is None"),
            (lambda: Export().table("a", table[0], "sum"), "2 dimensions"),
            (lambda: Export().table("a", table > 0, "sum"), "bool"),
            (lambda: Export().table("a", np.ma.masked_less(table, 2), "sum"), "a: its array has masked elements"),
            (lambda: Export().table("a", table, "sum", padding_idx=4), "padding_idx is 4; .* from -4 to 3"),
            (lambda: twice.table("a_b", table, "sum"), "two models would be called 'a_b'"),
            (lambda: model_name("..."), "makes no name"),
            (lambda: model_name("x" * 129), "makes no name"),
            (lambda: add_tables(Export(), split, ["t=t.weight"], "sum"), "'t.weight' has codes.*bagserve convert")):
        with pytest.raises(ValueError, match=words):
            work()


def test_pins(directory, rng):
    """Two versions of a collection answer from the tables of their own; so do those of the command, and one over other
    tables follows the versions that are served."""
    rows = rng.random((3, 4, 2), np.float32)
    for version in (1, 2):
        exported = Export()
        exported.table("items", rows[version], "sum")
        exported.collection("both", {"x": "items", "y": "items"})
        exported.write(directory, version)
    exported = Export()
    exported.collection("newest", {"x": "items"})
    exported.write(directory)
    write_json(directory / "both" / "config.json", {"version_policy": "all"})
    with serve(directory) as server, connect(server) as client:
        for version in (1, 2):
            for name, got in client.collection("both", {"x": [[3]], "y": [[3]]}, version=version).items():
                expect(np.array_equal(got[0], rows[version][3]), f"{name} of version {version}")
        expect(np.array_equal(client.collection("newest", {"x": [[0]]})["x"][0], rows[2][0]), "the newest")
    expect_equal(json.loads((directory / "both/2/config.json").read_text())["features"][1],
                 {"name": "y", "model": "items", "version": 2})


# ---- the command ------------------------------------------------------------------------------
def test_command(directory, rng, checkpoint, capsys):
    """Each table by its own rules, and many by one flag; what was not asked for is not written."""
    rows = rng.random((4, 2), np.float32)
    checkpoint |= {"user.weight": rows, "emb_l.0.weight": rows + 1, "emb_l.12.weight": rows + 2,
                   "linear.weight": rows, "linear.bias": rows[0]}
    run_main(directory, "--table", "user=user.weight,reduction=mean,padding_idx=0,include_last_offset=true",
             "--table", "emb_*=emb_l.*.weight", "--reduction", "sum")
    expect_equal(capsys.readouterr().out,
                 "user: 4 rows of 2, mean\nemb_0: 4 rows of 2, sum\nemb_12: 4 rows of 2, sum\n"
                 f"bagserve serve --models {directory}\n")
    expect_equal(json.loads((directory / "user" / "1" / "config.json").read_text()),
                 {"reduction": "mean", "padding_idx": 0, "include_last_offset": True})
    run_main(directory, "--table", "user=user.weight,reduction=max", "--version", "2", "--row-format", "int8",
             "--program", PROGRAM, "--collection", "c=f:user")
    expect_equal(json.loads((directory / "c/2/config.json").read_text()),
                 {"features": [{"name": "f", "model": "user", "version": 2}]})
    with serve(directory) as server, connect(server) as client:
        expect_equal(client.models(), ["c", "emb_0", "emb_12", "user"])
        expect(np.array_equal(client.bags("emb_12", [[1, 3]])[0], rows[1] + 2 + (rows[3] + 2)), "sum")
        expect_equal(client.metadata("user")["parameters"]["row_format"], "int8")
        expect(np.allclose(client.bags("user", [[0, 1]])[0], np.maximum(rows[0], rows[1]), atol=0.01), "max")


def test_what_the_command_refuses(directory, rng, checkpoint, capsys):
    """With what there is to choose from; and nothing is written."""
    rows = rng.random((4, 2), np.float32)
    checkpoint |= {"user.weight": rows, "linear.weight": rows, "linear.bias": rows[0]}
    table = ("--reduction", "sum", "--table")
    for arguments, words in (
            (("--reduction", "sum"), ["which of its tensors are tables",
                                      "--table user=user.weight,reduction=...   4 x 2"]),
            (("--table", "user=user.weight"), ["say how it pools", "reduction=sum|mean|max|sqrtn|none"]),
            ((*table, "user=nobody"), ["no 'nobody'", "--table linear=linear.weight"]),
            ((*table, "user=x.*"), ["NAME=KEY, both with one *"]),
            ((*table, "x*=x.*"), ["no 'x.*'"]),
            ((*table, "user.weight"), ["NAME=KEY"]),
            ((*table, "user=linear.bias"), ["user: a table has 2 dimensions"]),
            ((*table, "user=user.weight,reducton=sum"), ["'reducton' is none of reduction, padding_idx"]),
            ((*table, "user=user.weight,padding_idx=first"), ["padding_idx must be a whole number"]),
            ((*table, "user=user.weight,padding_idx=4"), ["from -4 to 3"]),
            ((*table, "user=user.weight", "--table", "user=linear.weight"), ["two models would be called 'user'"])):
        with pytest.raises(SystemExit) as ended:
            run_main(directory / "out", *arguments)
        for word in ["model.pt: "] + words:
            expect(word in str(ended.value), f"'{ended.value}' lacks '{word}'")
    with pytest.raises(SystemExit):
        run_main(directory / "out", *table, "user=user.weight", "--version", "new")
    expect("invalid int value: 'new'" in capsys.readouterr().err, "the version")
    expect(not (directory / "out").exists(), "something was written")
    (directory / "file").touch()
    with pytest.raises(SystemExit, match="file"):
        run_main(directory / "file", *table, "user=user.weight")
