"""What people really have where a table should be: damaged, half copied, written by other tools, with
neighbours. One line for each, with its outcome: the rows that are served, or words of the refusal. `serve`,
`serve --check`, `inspect` and `convert` agree."""

import io
import re
import struct
import sys

import numpy as np
import pytest

from harness import ROOT, Server, expect, expect_equal, expect_words, run, write_json
from numerics import F32
from table_files import read_safetensors, write_safetensors
from v2 import Client, Tensor, bf16_from_f32

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
from bagserve_export import Export, add_tables  # noqa: E402

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


# ---- what is no table --------------------------------------------------------------------------------
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 123456789\n"
HTML = b"<!DOCTYPE html><html><head><title>404</title></head></html>"
KINDS = {"Git LFS": LFS, "git-annex": b"/annex/objects/SHA256E-s12--ab.npy\n", "DVC": b"outs:\n- md5: 0a1b\n  path: t.npy\n",
         "HTML": HTML, "XML": b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>",
         "GGUF": b"GGUF\3\0\0\0" + bytes(64), "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(64), "MATLAB": b"MATLAB 5.0 MAT-file" + bytes(200),
         "Parquet": b"PAR1" + b"\x15\x04" * 20, "Arrow": b"ARROW1\0\0" + bytes(64), "Feather": b"FEA1" + bytes(64),
         "Avro": b"Obj\1\4\x16avro.codec\x08null" + bytes(64), "SQLite": b"SQLite format 3\0" + bytes(64), "gzip": b"\x1f\x8b\x08" + bytes(64),
         "zstd": b"\x28\xb5\x2f\xfd" + bytes(64), "xz": b"\xfd7zXZ\0" + bytes(64), "bzip2": b"BZh91AY" + bytes(64),
         "lz4": b"\x04\x22\x4d\x18" + bytes(64), "7z": b"7z\xbc\xaf\x27\x1c" + bytes(64),
         "tar": b"t.npy" + bytes(252) + b"ustar\x0000" + bytes(300), "pickle": b"\x80\x04\x95" + bytes(64),
         "text": b"1.5,2.5\n3.5,4.5\n"}


@pytest.mark.parametrize("suffix", ["npy", "safetensors", "npz"])
def test_file_of_another_kind(directory, suffix):
    """It is called by its name, whatever name the file has."""
    for kind, data in KINDS.items():
        path = directory / f"{kind.replace(' ', '')}.{suffix}"
        path.write_bytes(data)
        for arguments in (("serve", "--check", "--table", f"t={path}"), ("inspect", path),
                          ("convert", path, directory / "out.safetensors")):
            done = run(*arguments)
            said = done.stderr.replace(str(path), "")
            expect(done.returncode in (1, 2) and kind in said, f"{kind} as .{suffix}: {done.returncode} {said}")
            expect(("loadtxt" in said) == (kind == "text"), said)
    for other in {"npy", "safetensors"} - {suffix}:
        path = directory / f"{other}.{suffix}"
        (npy(ROWS) if other == "npy" else safetensors(values=("F32", ROWS)))(directory / f"t.{other}")
        path.write_bytes((directory / f"t.{other}").read_bytes())
        done = run("serve", "--check", "--table", f"t={path}")
        expect(f"must end with .{other}" in done.stderr, done.stderr)


NO_TABLE = [
    ("pointers of Git LFS as a pair", {"key": LFS, "emb_vector": LFS}, "", ["key", "Git LFS", "git lfs pull"]),
    ("an HTML page beside keys", {"key": longs(1), "emb_vector": HTML}, "", ["emb_vector", "HTML"]),
    ("a sparse matrix of SciPy", {"t.npz": npz(data=ROWS[0], indices=np.arange(2), indptr=np.arange(3), shape=np.array([2, 9]))},
     "/t.npz", ["t.npz", "SciPy", "toarray"]),
    ("an .npz file of something else", {"t.npz": npz(a=ROWS, b=ROWS)}, "/t.npz", ["a", "b", "name the table"]),
    ("half of an .npy file", {"t.npy": lambda path: path.write_bytes(cut(ROWS))}, "/t.npy", ["truncated"]),
    ("keys without values", {"keys.npy": npy(np.arange(4))}, "", ["values.npy"]),
    ("values without keys", {"values.npy": npy(ROWS)}, "", ["keys.npy"]),
    ("a key too many", {"keys.npy": npy(np.arange(5)), "values.npy": npy(ROWS)}, "", ["5 keys", "4 rows"]),
    ("a missing rank", dump(0, 2, longs(3), floats(5, 6)), "", ["rank_1.world_size_2"]),
    ("ranks of two widths", dump(0, 2, longs(3), floats(5, 6)) | dump(1, 2, longs(4), floats(5)), "", ["rows of 1 elements"]),
    ("parts of TensorFlow", {"saved_model.pb": b"x", "variables/variables.index": b"x"}, "", ["holds no table"]),
    ("two tables", {"a.npy": npy(ROWS), "b.npy": npy(ROWS)}, "", ["several tables"]),
    ("an empty folder", {"sub/x": b""}, "", ["holds no table"]),
]


def cut(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()[:-4]


@pytest.mark.parametrize("files, at, words", [pytest.param(*case[1:], id=case[0]) for case in NO_TABLE])
def test_no_table(directory, files, at, words):
    write(directory / "t", files)
    refuse(f"{directory / 't'}{at}", words, directory / "out.safetensors")


# ---- what is whole ---------------------------------------------------------------------------------
WHOLE = [
    ("a rank of dynamicemb without rows", dump(0, 2, b"", b"") | dump(1, 2, longs(3), floats(5, 6)), "", [3], [[5, 6]]),
    ("hidden files of macOS", {"t.npy": npy(ROWS), "._t.npy": b"\0\5\x16\7", ".DS_Store": b"x", "README.md": b"x"}, "", None,
     ROWS.tolist()),
    ("keys that look like a zip archive", {"key": b"PK\3\4\0\0\0\0", "emb_vector": floats(5, 6)}, "", [0x04034b50], [[5, 6]]),
    ("a pickled checkpoint beside", {"t.npy": npy(ROWS), "model.pt": b"PK\3\4"}, "", None, ROWS.tolist()),
    ("HugeCTR's pair", {"key": longs(5, 7, 9, 11), "emb_vector": ROWS.tobytes(), "slot_id": longs(0, 0, 1, 1)}, "",
     [5, 7, 9, 11], ROWS.tolist()),
]


@pytest.mark.parametrize("files, at, keys, rows", [pytest.param(*case[1:], id=case[0]) for case in WHOLE])
def test_whole(directory, files, at, keys, rows):
    write(directory / "t", files)
    accept(f"{directory / 't'}{at}", rows, keys, directory / "out.safetensors")
    if keys:
        expect_equal(sorted(read_safetensors(directory / "out.safetensors")[1]["keys"].tolist()), sorted(keys))


# ---- neighbours that say that an array is not the table --------------------------------------------
I8, U8, I32, ONES = np.int8, np.uint8, np.int32, np.ones((4, 1), F32)
E4M3 = np.array([[0x38, 0x40], [0xb8, 0x00], [0x7e, 0x08], [0x01, 0x30]], U8)  # 1, 2, -1, 0, 448, 2^-6, 2^-9, 0.5
E4M3_VALUES = np.array([[1, 2], [-1, 0], [448, 2**-6], [2**-9, 0.5]], F32)
E5M2 = np.array([[0x3c, 0x40], [0xbc, 0x00], [0x7b, 0x04], [0x01, 0x38]], U8)
E5M2_VALUES = np.array([[1, 2], [-1, 0], [57344, 2**-14], [2**-16, 0.5]], F32)
BY_ROW = np.array([0.25, 0.5, 2, 4], F32)



def export(tensors, name):
    """What bagserve_export makes of the same tensors as a state_dict: None, or the words of its refusal."""
    try:
        add_tables(Export(), {key: array for key, (_, array) in tensors.items()}, [f"t={name}"], "sum")
    except ValueError as problem:
        return str(problem)
    return None


def expect_export_refuses(tensors, name, others):
    said = export(tensors, name)
    expect(said and all(f"'{other}'" in said for other in [name, *others]), f"exported: {said}")


# The table, its neighbour, and the rows that `bagserve convert` makes of both.
JOINED = [
    (name, ("F8_E4M3", E4M3), {mate: ("F32", np.full(shape, 0.25, F32))}, E4M3_VALUES / 4)
    for name, mate, shape in (
        ("FP8 and one scale", "w.weight_scale", ()), ("FP8 and a scale in a list", "w.weight_scale", (1,)),
        ("FP8 and DeepSeek's block", "w.weight_scale_inv", (1, 1)), ("FP8 and ComfyUI's", "w.scale_weight", ()))
] + [
    ("FP8 and a scale a row", ("F8_E4M3", E4M3), {"w.weight_scale": ("F32", BY_ROW)}, E4M3_VALUES * BY_ROW[:, None]),
    ("FP8 and scales of BF16", ("F8_E4M3", E4M3), {"w.weight_scale": ("BF16", bf16_from_f32(BY_ROW[:, None]))},
     E4M3_VALUES * BY_ROW[:, None]),
    ("FP8 of five bits", ("F8_E5M2", E5M2), {"w.weight_scale": ("F16", BY_ROW.astype(np.float16))},
     E5M2_VALUES * BY_ROW[:, None]),
    ("INT8 and ComfyUI's", ("I8", E4M3.view(I8)), {"w.scale_weight": ("F32", np.full((), 0.25, F32))},
     E4M3.view(I8).astype(F32) / 4),
]


@pytest.mark.parametrize("codes, mate, rows", [pytest.param(*case[1:], id=case[0]) for case in JOINED])
@pytest.mark.parametrize("at", ["#w.weight", ""])
def test_codes_that_are_joined(directory, codes, mate, rows, at):
    """Named or found as the only table: read without their scale they would be other numbers."""
    path = directory / "t.safetensors"
    write_safetensors(path, {"w.weight": codes} | mate)
    refuse(f"{path}{at}", [*mate, "bagserve convert"], directory / "out.safetensors", converts=rows.tolist())
    expect_export_refuses({"w.weight": codes} | mate, "w.weight", mate)


# The array that is named, its neighbours, and words of the refusal beside their names.
NOT_THE_TABLE = [
    ("FP8 in blocks of two sides", "w.weight", ("F8_E4M3", E4M3), {"w.weight_scale_inv": ("F32", np.ones((2, 2), F32))}, []),
    ("FP8 whose scales are in the log", "w.weight", ("F8_E4M3", E4M3), {"w.weight_scale": ("F8_E8M0", np.ones(4, U8))}, []),
    ("FP8 and two scales", "w.weight", ("F8_E4M3", E4M3),
     {"w.weight_scale": ("F32", ONES), "w.weight_scale_2": ("F32", ONES[0])}, ["dequantise"]),
    ("INT8 and a zero point", "w.weight", ("I8", E4M3.view(I8)),
     {"w.weight_scale": ("F32", ONES), "w.weight_zero_point": ("I8", np.zeros((4, 1), I8))}, ["dequantise"]),
    ("floats beside TorchRec's scales", "w.weight", ("F32", ROWS), {"w.weight_qscale": ("F32", ONES)}, ["dequantise"]),
    ("compressed-tensors, packed", "w.weight_packed", ("I32", np.ones((4, 2), I32)), {"w.weight_scale": ("F32", ONES)}, []),
    ("bitsandbytes of 8 bits", "w.weight", ("I8", E4M3.view(I8)), {"w.SCB": ("F32", np.ones(4, F32))}, ["dequantise"]),
    ("bitsandbytes of 4 bits", "w.weight", ("U8", E4M3), {"w.weight.absmax": ("F32", np.ones(1, F32))}, ["dequantise"]),
    ("NVFP4", "w.weight", ("U8", E4M3), {"w.weight_scale": ("F8_E4M3", E4M3)}, ["dequantise"]),
    ("MXFP4", "w_blocks", ("U8", E4M3), {"w_scales": ("U8", E4M3)}, ["dequantise"]),
    ("EETQ", "w.weight", ("I8", E4M3.view(I8)), {"w.weight_scales": ("F16", np.ones(4, np.float16))}, ["dequantise"]),
    ("GPTQ", "w.qweight", ("I32", np.ones((4, 2), I32)), {"w.scales": ("F16", np.ones((1, 8), np.float16))}, ["dequantise"]),
    ("MLX", "w.weight", ("U32", np.ones((4, 2), np.uint32)), {"w.scales": ("F16", np.ones((4, 1), np.float16))},
     ["dequantise"]),
    ("HQQ", "w.W_q", ("U8", E4M3), {"w.scale": ("F32", ONES)}, ["dequantise"]),
    ("quanto", "w.weight._data", ("I8", E4M3.view(I8)), {"w.weight._scale": ("F32", ONES)}, []),
    ("torchao", "w.weight:qdata", ("I8", E4M3.view(I8)), {"w.weight:scale": ("F32", ONES)}, ["dequantise"]),
    ("AQLM", "w.codes", ("I8", E4M3.view(I8)), {"w.codebooks": ("F16", np.ones((1, 2), np.float16))}, ["dequantise"]),
    ("a pruned weight", "w.weight_orig", ("F32", ROWS), {"w.weight_mask": ("F32", ROWS)}, ["remove_parametrizations"]),
    ("spectral_norm", "w.weight_orig", ("F32", ROWS), {"w.weight_u": ("F32", ROWS[0])}, ["remove_parametrizations"]),
    ("weight_norm", "w.weight_v", ("F32", ROWS), {"w.weight_g": ("F32", ONES)}, ["remove_parametrizations"]),
    ("a parametrization", "w.parametrizations.weight.original", ("F32", ROWS), {}, ["remove_parametrizations"]),
    ("weight_norm as a parametrization", "w.parametrizations.weight.original1", ("F32", ROWS),
     {"w.parametrizations.weight.original0": ("F32", ONES)}, ["remove_parametrizations"]),
    ("an adapter", "w.base_layer.weight", ("F32", ROWS), {"w.lora_embedding_A.default": ("F32", ROWS)}, ["merge_and_unload"]),
    ("a weight beside its parts", "w.weight", ("F32", ROWS), {"w.weight_orig": ("F32", ROWS)}, ["remove_parametrizations"]),
    ("a weight beside its parametrization", "w.weight", ("F32", ROWS), {"w.parametrizations.weight.original": ("F32", ROWS)},
     ["remove_parametrizations"]),
    ("bitsandbytes' state", "w.weight", ("U8", E4M3), {"w.weight.quant_state.bitsandbytes__nf4": ("U8", ONES.astype(U8))},
     ["dequantise"]),
    ("loralib", "weight", ("F32", ROWS), {"lora_A": ("F32", ROWS)}, ["merge_and_unload"]),
    ("a module that was replaced", "w.original_module.weight", ("F32", ROWS),
     {"w.modules_to_save.default.weight": ("F32", ROWS)}, ["merge_and_unload"]),
]


@pytest.mark.parametrize("name, table, mates, words", [pytest.param(*case[1:], id=case[0]) for case in NOT_THE_TABLE])
@pytest.mark.parametrize("parts", [1, 2])
def test_array_that_is_not_the_table(directory, name, table, mates, words, parts):
    """Refused by name in one file, and in two that an index joins, whether or not `convert` joins other scales; and by the
    exporter."""
    tensors = {name: table} | mates
    path = directory / "t.safetensors"
    if parts == 1:
        write_safetensors(path, tensors)
    else:
        write_safetensors(directory / "a.safetensors", {name: table})
        write_safetensors(directory / "b.safetensors", mates or {"other": ("F32", ROWS)})
        path = directory / "t.safetensors.index.json"
        write_json(path, {"weight_map": {n: "a.safetensors" if n == name else "b.safetensors" for n in tensors}})
    last = [name] if "parametrizations" in name else list(mates)[-1:]
    refuse(f"{path}#{name}", [*last, *(words if parts == 1 else [])], directory / "out.safetensors")
    expect_export_refuses(tensors, name, last if len(mates) < 2 else [])


@pytest.mark.parametrize("mate", ["w.weight_scale", "w.weight_absmax", "w.scale_weight", "w.scales", "w.bias", "w.weight_gain",
                                  "w.weight.x", "w.weight_mask", "v.weight_orig"])
def test_neighbour_that_says_nothing(directory, mate):
    """Floats are no codes, and other names belong to other arrays."""
    tensors = {"w.weight": ("F32", ROWS), mate: ("F32", ONES[0])}
    write_safetensors(directory / "t.safetensors", tensors)
    accept(f"{directory / 't.safetensors'}#w.weight", ROWS.tolist(), None, directory / "out.safetensors")
    expect_equal(export(tensors, "w.weight"), None)
