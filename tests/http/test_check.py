"""serve --check: says valid of what serve then serves, and of nothing else."""

import zipfile

import numpy as np
import pytest

from harness import Server, expect, expect_equal, run, write_json
from numerics import F32
from table_files import convert

VALUES = np.arange(48, dtype=F32).reshape(12, 4)
KEYS = np.arange(12, dtype=np.int64) * 7


def save_keyed(folder, keys=KEYS):
    folder.mkdir(parents=True)
    np.save(folder / "values.npy", VALUES)
    np.save(folder / "keys.npy", keys)
    return folder


def twice():
    keys = KEYS.copy()
    keys[8] = keys[3]
    return keys


def damage(path):
    """One bit of the values of an archive."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("values.npy")
    data = bytearray(path.read_bytes())
    data[entry.header_offset + entry.file_size] ^= 1
    path.write_bytes(data)


def write_duplicated(directory):
    return ["--table", f"t={save_keyed(directory / 't', twice())}"]


def write_duplicated_in_a_version(directory):
    save_keyed(directory / "models/t/1", twice())
    save_keyed(directory / "models/t/2")
    return ["--models", directory / "models"]


def write_lacking_default(directory):
    return ["--table", f"t={save_keyed(directory / 't')},missing=default,default_index=8"]


def write_lacking_default_of_a_feature(directory):
    save_keyed(directory / "t")
    return ["--config", write_json(directory / "c.json", {"models": [
        {"name": "t", "path": str(directory / "t")},
        {"name": "c", "features": [{"name": "a", "model": "t"},
                                   {"name": "b", "model": "t", "missing": "default", "default_index": 8}]}]})]


def write_damaged(directory):
    np.savez(directory / "t.npz", values=VALUES)
    damage(directory / "t.npz")
    return ["--table", f"t={directory / 't.npz'}"]


def write_big_endian(directory):
    np.save(directory / "t.npy", VALUES.astype(">f4"))
    return ["--load", "map", "--table", f"t={directory / 't.npy'}"]


def write_column_major(directory):
    np.save(directory / "t.npy", np.asfortranarray(VALUES))
    return ["--table", f"t={directory / 't.npy'},load=map"]


def write_unguarded_updates(directory):
    np.save(directory / "t.npy", VALUES)
    return ["--updates", "on", "--table", f"t={directory / 't.npy'}"]


def write_control_without_admin(directory):
    np.save(directory / "t.npy", VALUES)
    return ["--model-control", "explicit", "--table", f"t={directory / 't.npy'}"]


REFUSED = {
    write_duplicated: ["key 21 is duplicated, in rows 3 and 8"],
    write_lacking_default: ["model 't'", "default_index is 8", "the table does not have"],
    write_lacking_default_of_a_feature: ["model 'c', feature 'b'", "default_index is 8"],
    write_damaged: ["t.npz", "CRC-32"], write_big_endian: ["t.npy", "big-endian"],
    write_column_major: ["t.npy", "column-major"], write_unguarded_updates: ["updates needs a token_file"],
    write_control_without_admin: ["explicit needs an admin listener"],}


@pytest.mark.parametrize("write", REFUSED, ids=lambda write: write.__name__[6:])
def test_what_serve_refuses(directory, write):
    """Both refuse it, in the same words."""
    arguments = write(directory)
    for flags in (["--check"], ["--port", "0"]):
        ended = run("serve", *flags, *arguments)
        expect_equal(ended.returncode, 1, f"{flags}: {ended.stderr}")
        for word in REFUSED[write]:
            expect(word in ended.stderr, f"{flags}: {word!r} is not in {ended.stderr!r}")


def test_every_version(directory):
    """Also one that is not served."""
    ended = run("serve", "--check", *write_duplicated_in_a_version(directory))
    expect_equal(ended.returncode, 1, ended.stderr)
    expect("models/t/1" in ended.stderr and "key 21 is duplicated" in ended.stderr, ended.stderr)


def test_lists_good_and_bad_models(directory, root):
    """All models are listed, good ones too; then it fails, and says how many are bad."""
    save_keyed(root / "good/1")
    save_keyed(root / "twice/1", twice())
    save_keyed(root / "twice/2")
    for name in ("empty/1", "torn/3"):
        (root / name).mkdir(parents=True)
    (root / "torn/3/t.npy").write_bytes(b"no table")
    ended = run("serve", "--check", "--models", root)
    expect_equal(ended.returncode, 1, ended.stderr)
    lines = ended.stdout.splitlines() + [line for line in ended.stderr.splitlines() if ": cannot be served: " in line]
    expect_equal(ended.stdout.splitlines(),
                 ["good version 1: 12 rows of 4 elements, FP32, with keys",
                  "twice version 2: 12 rows of 4 elements, FP32, with keys"])
    bad = dict(line.split(": cannot be served: ") for line in lines if "cannot be served" in line)
    expect_equal(sorted(bad), ["empty version 1", "torn version 3", "twice version 1"])
    expect("no table" in bad["empty version 1"] and "key 21 is duplicated" in bad["twice version 1"], bad)
    expect("3 versions cannot be served" in ended.stderr, ended.stderr)
    expect_equal((ended.stdout + ended.stderr).count("key 21 is duplicated"), 1, "the fault is told once")


def test_updates_of_mapped_tables_are_warned_of(directory):
    """They change nothing, so that both options together are a mistake."""
    np.save(directory / "t.npy", VALUES)
    for load, warned in (("map", True), ("copy", False)):
        ended = run("serve", "--check", "--table", f"t={directory / 't.npy'}", "--load", load, "--updates", "on",
                    "--admin-socket", "/nowhere/admin.sock")
        expect_equal((ended.returncode, "updates have no effect" in ended.stderr), (0, warned), ended.stderr)


def test_guarded_updates():
    """An admin listener that only some may use guards updates; it is not opened."""
    ended = run("serve", "--check", "--demo", "--updates", "on", "--admin-socket", "/nowhere/admin.sock")
    expect_equal(ended.returncode, 0, ended.stderr)
    ended = run("serve", "--check", "--demo", "--updates", "on", "--admin-port", "8001")
    expect_equal(ended.returncode, 1, "anybody may use a port")


def test_what_is_listed(directory):
    """Each model that will be served: its rows, their width, what they are."""
    save_keyed(directory / "models/keyed/2")
    save_keyed(directory / "models/keyed/1", np.arange(12))
    np.save(directory / "half.npy", VALUES[:5].astype(np.float16))
    convert("--row-format", "int4", directory / "models/keyed/1", directory / "small.safetensors")
    np.save(directory / "empty.npy", VALUES[:0])
    config = write_json(directory / "c.json", {"models": [
        {"name": "half", "path": str(directory / "half.npy")},
        {"name": "both", "features": [{"name": "a", "model": "half"}, {"name": "b", "model": "keyed"}]},
        {"name": "one", "features": [{"name": "a", "model": "half"}]},
        {"name": "small", "path": str(directory / "small.safetensors")},
        {"name": "empty", "path": str(directory / "empty.npy"), "load": "map"}]})
    arguments = ["--config", config, "--models", directory / "models"]
    ended = run("serve", "--check", *arguments)
    expect_equal(ended.returncode, 0, ended.stderr)
    lines = ended.stdout.splitlines()
    expect_equal(sorted(lines[:-1]), [
        "both version 1: 2 features",
        "empty version 1: 0 rows of 4 elements, FP32; it has no row that a request could ask for",
        "half version 1: 5 rows of 4 elements, FP16", "keyed version 2: 12 rows of 4 elements, FP32, with keys",
        "one version 1: 1 feature", "small version 1: 12 rows of 4 elements, FP32 as int4 rows, with keys"])
    expect(lines[-1].startswith("The configuration is valid: 6 models,"), lines[-1])
    with Server(*arguments) as server:
        expect_equal([event["models"] for event in server.events() if event["event"] == "ready"], [6])
