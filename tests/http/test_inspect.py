"""bagserve inspect and bagserve verify, against NumPy."""

import hashlib
import json
import subprocess
import zipfile

import numpy as np
import pytest

from harness import Server, expect, expect_equal, run, write_json
from numerics import F32
from table_files import file_names, write_safetensors
from v2 import Client, Tensor

ROWS, COLUMNS = 300, 7


@pytest.fixture(name="rows")
def make_rows(rng):
    rows = rng.standard_normal((ROWS, COLUMNS)).astype(F32)
    rows[5] = rows[200] = rows[7]  # apart from each other
    rows[8] = rows[9] = 0
    rows[10, 3] = np.nan
    rows[11, 0:2] = np.inf, -np.inf
    return rows


def inspect(*arguments):
    done = run("inspect", "--json", *arguments)
    expect_equal(done.returncode, 0, done.stderr)
    return json.loads(done.stdout)


def check_values(report):
    expect_equal({key: report[key] for key in ("rows", "row_elements", "sampled_rows", "nan", "inf",
                                               "zero_rows", "duplicate_rows")},
                 {"rows": ROWS, "row_elements": COLUMNS, "sampled_rows": ROWS, "nan": 1, "inf": 2,
                  "zero_rows": 2, "duplicate_rows": 3})


def test_inspect(directory, rows):
    np.save(directory / "t.npy", rows)
    np.save(directory / "double.npy", np.asfortranarray(rows.astype(">f8")))
    keys = np.arange(ROWS) * 3
    write_safetensors(directory / "m.safetensors", {
        "values": ("F32", rows), "keys": ("U64", keys.astype(np.uint64)), "mask": ("BOOL", np.zeros(3, np.uint8))})
    plain = inspect(directory / "t.npy")
    check_values(plain)
    expect_equal(plain["tensors"], [{"name": "values", "datatype": "FP32", "shape": [ROWS, COLUMNS],
                                     "bytes": 4 * ROWS * COLUMNS}])
    expect_equal((plain["keyed"], plain["serving_bytes"]), (False, 4 * ROWS * COLUMNS))
    check_values(inspect(directory / "double.npy"))
    keyed = inspect(directory / "m.safetensors")
    check_values(keyed)
    expect_equal([(t["name"], t["datatype"], t["shape"]) for t in keyed["tensors"]],
                 [("values", "FP32", [ROWS, COLUMNS]), ("keys", "UINT64", [ROWS]),
                  ("mask", "unsupported", [])])
    expect(keyed["keyed"] and keyed["serving_bytes"] > 4 * ROWS * COLUMNS, str(keyed))


@pytest.mark.parametrize("row_format", ["int8", "int4", "f8_e4m3", "f8_e5m2_scaled"])
def test_configuration_serves(directory, rows, row_format):
    """What inspect prints is a configuration that serves the table."""
    np.save(directory / "t.npy", np.nan_to_num(rows, posinf=1, neginf=-1))
    run("convert", "--row-format", row_format, directory / "t.npy", directory / "o.safetensors")
    report = inspect(directory / "o.safetensors")
    expect_equal((report["row_format"], report["row_elements"]), (row_format, COLUMNS))
    config = write_json(directory / "c.json", report["configuration"])
    with Server("--config", config) as server, Client(server) as client:
        (model,) = report["configuration"]["models"]
        reply = client.infer(model["name"], [Tensor("indices", np.array([[3]]))])
        expect_equal(reply.embeddings().shape, (1, COLUMNS))


def test_text(directory, rows):
    np.save(directory / "t.npy", rows)
    said = run("inspect", directory / "t.npy").stdout
    for word in (f"values  FP32 [{ROWS}, {COLUMNS}]", f"{ROWS} rows of {COLUMNS} elements",
                 "1 NaN, 2 infinite; 2 zero rows, 3 duplicate rows", "Norms of the rows", '"models"'):
        expect(word in said, f"{word!r} is not in {said}")
    counts = [int(line.split()[-1]) for line in said.splitlines() if " |" in line]
    norms = np.sqrt((np.nan_to_num(rows, nan=0, posinf=0, neginf=0).astype(float) ** 2).sum(1))
    expect_equal(counts, np.histogram(norms, 10)[0].tolist())


def test_several_tensors(directory):
    write_safetensors(directory / "m.safetensors", {
        "a": ("F32", np.ones((4, 2), F32)), "b": ("F32", np.ones((5, 3), F32))})
    report = inspect(directory / "m.safetensors")
    expect_equal([t["name"] for t in report["tensors"]], ["a", "b"])
    expect("configuration" not in report, str(report))
    expect("a, b" in run("inspect", directory / "m.safetensors").stdout, "no names")
    expect_equal(inspect(f"{directory}/m.safetensors#b")["rows"], 5)


@pytest.mark.parametrize("begin, words", [
    (b"PK\3\4\0\0\x08\x08" + bytes(60), ["zip archive", ".npz", "bagserve_export.py"]),
    (b"\x80\2}q\0X\1\0" + bytes(60), ["pickle", "torch.save"]), (b"\x89HDF\r\n\x1a\n" + bytes(60), ["HDF5"]),
    (b"PAR1" + bytes(60), ["Parquet"]), (b"\x1f\x8b\x08\x08\x6a\x11\x0f\x65" + bytes(60), ["gzip"]),
    (b"version https://git-lfs.github.com/spec/v1\n", ["Git LFS"]), (b"", ["empty"]),
    (b"1,2,3\n4,5,6\n", ["text", "numpy.loadtxt"]), (b"{\"rows\": [[1, 2], [3, 4]]}", ["text"]),
    (b"GGUF" + bytes(60), ["GGUF"]), (b"\xf1\xf2\xf3\xf4" + bytes(60), ["NUMPY"])])
@pytest.mark.parametrize("suffix", ["pt", "npy", "safetensors"])
def test_other_files(directory, begin, words, suffix):
    """A file of another kind is named, whatever its own name says."""
    path = directory / f"model.{suffix}"
    path.write_bytes(begin)
    if suffix == "safetensors":
        words = {"NUMPY": ["is this a safetensors file"], "empty": ["ends after 0 bytes"]}.get(words[0], words)
    for command in ("inspect", "verify", "convert", "serve"):
        arguments = {"convert": [path, directory / "o"], "serve": ["--table", f"t={path}"]}
        done = run(command, *arguments.get(command, [path]))
        expect_equal(done.returncode, 1 if command in ("serve", "verify") else 2, f"{command}: {done.stderr}")
        for word in [path.name, *words]:
            expect(word in done.stderr, f"{command}: {word!r} is not in {done.stderr!r}")
        if command != "serve":  # nobody has named a model
            expect(done.stderr.startswith(f"bagserve: {path}: "), f"{command}: {done.stderr!r}")
    expect_equal(file_names(directory), [path.name])


def test_messages_name_the_file_alone(directory):
    """Also where the file can be read, and what is said behind it does not fit."""
    np.save(directory / "t.npy", np.zeros((3, 4), np.float32))
    operand = f"{directory}/t.npy,row_format=int8,row_elements=4"
    for arguments in ([operand], [operand, directory / "o"]):
        done = run("verify" if len(arguments) == 1 else "convert", *arguments)
        expect_equal(done.returncode, 2, done.stderr)
        expect(done.stderr.startswith(f"bagserve: {directory}/t.npy: "), done.stderr)


def test_archives_of_others(directory):
    """What torch.save writes is a zip archive, too; and a compressed member is named as the cause."""
    with zipfile.ZipFile(directory / "model.npz", "w") as archive:
        for name in ("model/data.pkl", "model/data/0", "model/version"):
            archive.writestr(name, b"0123")
    np.savez_compressed(directory / "small.npz", a=np.ones((5, 3), np.float32))
    for name, words in (("model.npz", ["torch.save", "bagserve_export.py"]),
                        ("small.npz", ["'a'", "compressed", "numpy.savez"])):
        for command in (["verify", directory / name], ["convert", directory / name, directory / "o"]):
            done = run(*command)
            expect_equal(done.returncode, 1 if command[0] == "verify" else 2, done.stderr)
            for word in words:
                expect(word in done.stderr, f"{word!r} is not in {done.stderr!r}")
        seen = run("inspect", directory / name)
        expect(all(word in seen.stdout for word in words), seen.stdout)
    expect_equal(file_names(directory), ["model.npz", "small.npz"])


# ---- verify ----------------------------------------------------------------------------------------

def verify(*arguments, code=0, words=()):
    done = run("verify", *arguments)
    said = done.stdout + done.stderr
    expect_equal(done.returncode, code, said)
    for word in words:
        expect(word in said, f"{word!r} is not in {said!r}")


def test_verify(directory, rows):
    np.save(directory / "t.npy", rows)
    verify(directory / "t.npy", words=["is valid", f"{ROWS} rows of {COLUMNS}"])
    verify("--finite", directory / "t.npy", code=1, words=["t.npy", "row 10, element 3"])
    (directory / "cut.npy").write_bytes((directory / "t.npy").read_bytes()[:-1])
    verify(directory / "cut.npy", code=1, words=["cut.npy", "truncated"])
    verify(directory / "absent.npy", code=2, words=["No such file"])
    verify(code=2, words=["usage"])


@pytest.mark.parametrize("member", ["values", "keys"])
def test_damaged_archives(directory, rows, member):
    """A member that is not as its CRC-32 says is neither right nor converted."""
    path, keys = directory / "t.npz", np.arange(len(rows))
    np.savez(path, values=rows, keys=keys)
    expect_equal(run("verify", path).returncode, 0)
    data = bytearray(path.read_bytes())
    data[data.rfind((rows if member == "values" else keys)[7:].tobytes()) + 6] ^= 1
    path.write_bytes(data)
    for command in (["verify", path], ["convert", path, directory / "out.safetensors"]):
        ended = run(*command)
        expect(ended.returncode and "CRC-32" in ended.stderr, f"{command[0]}: {ended.stderr}")
    expect_equal(sorted(p.name for p in directory.iterdir()), ["t.npz"])


def test_verify_keys(directory, rows):
    np.save(directory / "values.npy", rows)
    keys = np.arange(ROWS) - 5
    np.save(directory / "keys.npy", keys)
    verify(directory, words=["no key duplicated"])
    for others in ((250, 20), (20, 21), (299, 0)):
        keys[list(others)] = 7
    np.save(directory / "keys.npy", keys)
    verify(directory, code=1, words=["key 7 is duplicated, in rows 0 and 12"])


def test_checksums(directory, rows):
    np.save(directory / "a.npy", rows)
    np.save(directory / "b.npy", rows[:9])
    verify(directory / "a.npy", words=["valid: ", "it has no file of checksums"])
    said = subprocess.run(["sha256sum", "a.npy", "b.npy"], cwd=directory, capture_output=True, check=True).stdout
    (directory / "SHA256SUMS").write_bytes(said)
    verify(directory / "a.npy", words=["1 of its files have the right checksum"])
    data = bytearray((directory / "a.npy").read_bytes())
    data[-1] ^= 1
    (directory / "a.npy").write_bytes(data)
    verify(directory / "a.npy", code=1, words=["a.npy", hashlib.sha256(data).hexdigest(), said[:64].decode()])
    verify(directory / "b.npy", words=["1 of its files"])
    (directory / "SHA256SUMS").write_text("nonsense\n")
    verify(directory / "b.npy", code=2, words=["SHA256SUMS", "nonsense"])


def test_configuration_lists_its_tables(directory, rows):
    """Of a configuration the tables are listed, from the heads of their files; collections and tables of shards are
    not."""
    np.save(directory / "t.npy", rows)
    (directory / "k").mkdir()
    np.save(directory / "k/keys.npy", np.arange(ROWS))
    np.save(directory / "k/values.npy", rows)
    np.save(directory / "cube.npy", np.zeros((3, 2, 5), np.float16))
    path = write_json(directory / "config.json", {"tables": {"load": "map"}, "models": [
        {"name": "t", "path": "t.npy", "default_index": 4},
        {"name": "all", "features": [{"name": "f", "model": "t"}]},
        {"name": "k", "path": "k", "version": 2, "load": "copy", "missing": "hash", "hash_rows": 3},
        {"name": "far", "shards": ["http://far:8000"]},
        {"name": "cube", "path": "cube.npy", "mlock": True}]})
    fixed = {"version": "1", "datatype": "FP32", "row_format": "plain", "keyed": False, "mlock": False, "hash_rows": 0,
             "default_index": -1}
    table, keyed, cube = inspect(path)["models"]
    expect_equal(table, fixed | {"name": "t", "shape": [ROWS, COLUMNS], "row_bytes": 28, "load": "map", "serving_bytes": 0,
                                 "mapped_bytes": 28 * ROWS, "default_index": 4})
    expect(keyed.pop("serving_bytes") > 28 * ROWS, keyed)
    expect_equal(keyed, fixed | {"name": "k", "version": "2", "shape": [ROWS, COLUMNS], "row_bytes": 28, "load": "copy",
                                 "keyed": True, "mapped_bytes": 0, "hash_rows": 3})
    expect_equal(cube, fixed | {"name": "cube", "datatype": "FP16", "shape": [3, 2, 5], "row_bytes": 20, "load": "map",
                                "mlock": True, "serving_bytes": 60, "mapped_bytes": 0})
    lines = run("inspect", path).stdout.splitlines()
    expect_equal(lines[0], "t version 1: 300 rows of 28 bytes, 0 bytes of memory, 8.20 KiB in mapped files")
    expect(lines[1].startswith("k version 2: 300 rows of 28 bytes with keys, ") and lines[1].endswith("KiB of memory"), lines)
    expect(lines[3].startswith("3 tables: ") and lines[3].endswith(" of memory, 8.20 KiB in mapped files"), lines)


def test_configuration_that_is_wrong(directory):
    for text, words in (("{", "config.json: line 1, column 2: "), ('{"models": [{"name": "a", "path": "gone.npy"}]}', "gone.npy"),
                        ('{"modles": []}', "models"),
                        ('{"models": [{"name": "a", "features": [{"name": "f", "model": "b"}]}]}', "'b'")):
        (directory / "config.json").write_text(text)
        done = run("inspect", directory / "config.json")
        expect(done.returncode == 2 and words in done.stderr, (text, done.stderr))
