"""bagserve convert of quantised rows as other programs write them: TorchRec's weight beside weight_qscale
and weight_qbias, symmetric INT8 beside its scale, rows that FBGEMM has padded. Exact values by NumPy."""

import json

import numpy as np
import pytest

from harness import Server, expect, expect_equal, run
from numerics import F16, F32, U8, Storage, pack
from table_files import convert, read_safetensors, write_safetensors
from v2 import Client, Tensor

ROWS, COLUMNS = 300, 21
I8 = np.int8
TYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int64": "I64"}
NAME = "embedding_bags.t1.weight"


def write(path, tensors):
    """Named arrays as .npz or .safetensors, by the suffix."""
    if path.suffix == ".npz":
        np.savez(path, **tensors)
    else:
        write_safetensors(path, {name: (TYPES[str(array.dtype)], np.asarray(array))
                                 for name, array in tensors.items()})


def split(rng, bits, number, columns=COLUMNS):
    """TorchRec's three tensors, and the values that they stand for, rounded once."""
    codes = rng.integers(0, 2 ** bits, (ROWS, columns)).astype(U8)
    scale = rng.uniform(0.001, 0.1, (ROWS, 1)).astype(number)
    bias = rng.uniform(-0.5, 0.5, (ROWS, 1)).astype(number)
    values = (codes * scale.astype(float) + bias.astype(float)).astype(F32)
    return codes, scale, bias, values


def answers(path, count=ROWS):
    """What the server has in the converted table, row by row."""
    with Server("--table", f"t={path}") as server, Client(server) as client:
        return client.infer("t", [Tensor("indices", np.arange(count)[:, None])], binary=True).embeddings()


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("number", [F16, F32])
@pytest.mark.parametrize("bits", [8, 4])
def test_torchrec(rng, directory, bits, number, suffix):
    """Rows that a format has room for are kept bit by bit; four bits with f32 become FP32."""
    codes, scale, bias, values = split(rng, bits, number)
    source, out = directory / f"ebc.{suffix}", directory / "out.safetensors"
    other = split(rng, 8, F16)
    write(source, {NAME: codes if bits == 8 else pack(codes, 4), NAME + "_qscale": scale,
                   NAME + "_qbias": bias.ravel(), "embedding_bags.t2.weight": other[0],
                   "embedding_bags.t2.weight_qscale": other[1], "embedding_bags.t2.weight_qbias": other[2]})
    convert("--report", directory / "r.json", f"{source}#{NAME},row_elements={COLUMNS}", out)
    metadata, tensors, _ = read_safetensors(out)
    want = {(8, F16): "int8_f16_front", (8, F32): "int8", (4, F16): "int4", (4, F32): "plain"}
    expect_equal(metadata, {"row_format": want[bits, number], "row_elements": str(COLUMNS)})
    rows = tensors["values"]
    if (bits, number) == (8, F16):
        expect(np.array_equal(rows, np.hstack([scale.view(U8), bias.view(U8), codes])), "bytes")
    elif (bits, number) == (8, F32):
        expect(np.array_equal(rows, np.hstack([codes, scale.view(U8), bias.view(U8)])), "bytes")
    elif number is F16:
        expect(np.array_equal(rows, np.hstack([pack(codes, 4), scale.view(U8), bias.view(U8)])), "bytes")
    else:
        expect(np.array_equal(rows, values), "values")
    expect(np.array_equal(answers(out), values), "answers")
    report = json.loads((directory / "r.json").read_text())
    expect_equal((report["rows"], report["row_elements"], report["max_error"]), (ROWS, COLUMNS, 0))


def test_torchrec_to_other_rows(rng, directory):
    """A wider format of the same codes loses nothing; another one is made of the values."""
    codes, scale, bias, values = split(rng, 8, F16)
    write(directory / "t.npz", {"weight": codes, "weight_qscale": scale, "weight_qbias": bias})
    source, out = directory / "t.npz", directory / "out.safetensors"
    convert(f"{source},row_format=int8", out)
    rows = read_safetensors(out)[1]["values"]
    expect(np.array_equal(rows[:, :-8], codes), "codes")
    expect(np.array_equal(Storage("FP32", "int8").decode(rows, COLUMNS), values), "values")
    convert("--force", "--datatype", "FP32", f"{source},row_elements={COLUMNS}", out)
    expect(np.array_equal(read_safetensors(out)[1]["values"], values), "FP32")
    convert("--force", "--row-format", "int4", "--report", directory / "r.json",
            f"{source},row_elements={COLUMNS}", out)
    rows = read_safetensors(out)[1]["values"]
    got = Storage("FP32", "int4").decode(rows, COLUMNS)
    error = ((got - values.astype(float)) ** 2).mean()
    report = json.loads((directory / "r.json").read_text())
    expect(np.isclose(report["mean_squared_error"], error, rtol=1e-6), f"{report} {error}")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("number", [F16, F32])
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1), (1,), (1, 1), ()])
def test_symmetric(rng, directory, shape, number, suffix):
    """code * scale, rounded once: exactly what the server answers; keys are kept."""
    codes = rng.integers(-128, 128, (ROWS, COLUMNS)).astype(I8)
    codes[0] = 0
    scale = np.asarray(rng.uniform(1e-4, 0.1, shape)).astype(number)
    keys = rng.permutation(10 ** 6)[:ROWS].astype(np.int64)
    names = {"npz": ("weight", "scale"), "safetensors": ("m.weight", "m.weight_scale")}[suffix]
    write(directory / f"t.{suffix}", {names[0]: codes, names[1]: scale, "ids": keys})
    out = directory / "out.safetensors"
    convert(f"{directory / 't'}.{suffix}#{names[0]},keys_tensor=ids", out)
    metadata, tensors, _ = read_safetensors(out)
    expect_equal(metadata["row_format"], "int8")
    expect_equal(tensors["keys"].tolist(), keys.tolist())
    want = (codes * scale.astype(float).reshape(-1, 1)).astype(F32)
    with Server("--table", f"t={out}") as server, Client(server) as client:
        got = client.infer("t", [Tensor("indices", keys[:, None])], binary=True).embeddings()
    expect(np.array_equal(got, want), f"{got} instead of {want}")


@pytest.mark.parametrize("row_format", ["int8_f16_front", "int8", "int4_f16_front", "int4"])
def test_padded_rows(rng, directory, row_format):
    """FBGEMM's rows for GPUs have as many bytes as a multiple of 16 is; what is behind is dropped."""
    bits, number = (4 if "int4" in row_format else 8), (F32 if row_format == "int8" else F16)
    codes, scale, bias, values = split(rng, bits, number)
    params = [scale.view(U8), bias.view(U8)]
    data = [codes if bits == 8 else pack(codes, 4)]
    rows = np.hstack(params + data if "front" in row_format else data + params)
    padding = -rows.shape[1] % 16
    padded = np.hstack([rows, rng.integers(0, 256, (ROWS, padding)).astype(U8)])
    expect(0 < padding < 16, "the test needs padding")
    np.save(directory / "t.npy", padded)
    keys = f"row_format={row_format},row_elements={COLUMNS}"
    done = run("serve", "--table", f"t={directory / 't.npy'},{keys}")
    expect_equal(done.returncode, 1, done.stderr)
    expect(f"padded to {padded.shape[1]}" in done.stderr and "bagserve convert" in done.stderr, done.stderr)
    convert(f"{directory / 't.npy'},{keys}", directory / "o.safetensors")
    expect(np.array_equal(read_safetensors(directory / "o.safetensors")[1]["values"], rows), "bytes")
    expect(np.array_equal(answers(directory / "o.safetensors"), values), "answers")
    np.save(directory / "wide.npy", np.hstack([padded, np.zeros((ROWS, 16), U8)]))
    convert(f"{directory / 'wide.npy'},{keys}", directory / "p", code=2, words=["rows of 21 elements take"])


def test_codes_are_not_served(rng, directory):
    """Scales beside codes are told, with the command; inspect still lists all."""
    codes, scale, bias, _ = split(rng, 8, F16)
    write(directory / "t.npz", {NAME: codes, NAME + "_qscale": scale, NAME + "_qbias": bias})
    write(directory / "s.safetensors", {"weight": codes.view(I8), "scale": scale})
    for path, values, scales in (("t.npz", NAME, NAME + "_qscale"), ("s.safetensors", "weight", "scale")):
        path = directory / path
        for source in (path, f"{path}#{values}"):
            done = run("serve", "--table", f"t={source}")
            expect_equal(done.returncode, 1, done.stderr)
            for word in (f"'{values}'", f"'{scales}'", f"bagserve convert {path}#{values}"):
                expect(word in done.stderr, f"{word} is not in {done.stderr}")
        seen = run("inspect", path)
        expect_equal(seen.returncode, 0, seen.stderr)
        expect("bagserve convert" in seen.stdout and scales in seen.stdout, seen.stdout)
        expect_equal(run("verify", path).returncode, 2)
        listed = json.loads(run("inspect", "--json", path).stdout)["tensors"]
        expect_equal({t["name"]: t["shape"] for t in listed}[scales], [ROWS, 1])


def test_scales_beside_other_tables(rng, directory):
    """FP32 rows beside a `scale` are a table as ever; integers beside one are codes."""
    rows = rng.standard_normal((9, 3)).astype(F32)
    write(directory / "t.safetensors", {"weight": rows, "scale": np.ones(9, F32)})
    expect(np.array_equal(answers(directory / "t.safetensors", 9), rows), "rows")
    np.savez(directory / "u.npz", weight=rng.integers(0, 9, (9, 3)).astype(U8), scale=np.ones(9))
    convert(f"{directory / 'u.npz'}#weight", directory / "out.safetensors", code=2, words=["'weight'", "'scale'"])


BAD = [
    ({"weight_qscale": (ROWS, 2)}, "'weight_qscale' is FP16 of shape [300, 2]; it must be FP32, FP16 or "
                                   "BF16 of shape [300] or [300, 1], one for each row of 'weight'"),
    ({"weight_qscale": (ROWS - 1,)}, "'weight_qscale' is FP16 of shape [299]"),
    ({"weight_qbias": (1,)}, "'weight_qbias' is FP16 of shape [1]"),
    ({"weight_qbias": ()}, "'weight_qbias' is FP16 of shape []"),
    ({"weight_qbias": None}, "no 'weight_qbias'"),
    ({"weight": (ROWS, 2, 2)}, "'weight' has 3 dimensions"),
    ({"weight_qscale": np.int32}, "'weight_qscale' is INT32 of shape [300, 1]"),
    ({"weight": I8}, "codes with biases must be UINT8"),]


@pytest.mark.parametrize("change, text", BAD, ids=[text[:40] for _, text in BAD])
def test_wrong_shapes(rng, directory, change, text):
    codes, scale, bias, _ = split(rng, 8, F16)
    arrays = {"weight": codes, "weight_qscale": scale, "weight_qbias": bias}
    for name, what in change.items():
        if what is None:
            del arrays[name]
        elif isinstance(what, tuple):
            arrays[name] = np.zeros(what, arrays[name].dtype)
        else:
            arrays[name] = arrays[name].astype(what)
    np.savez(directory / "t.npz", **arrays)
    convert(f"{directory / 't.npz'}#weight,row_elements={COLUMNS}", directory / "out", code=2, words=[text, "t.npz"])
    expect(not (directory / "out").exists(), "there is a file")


@pytest.mark.parametrize("number, row_format", [(F32, "int8_symmetric"), (F16, "int8_symmetric_f16")])
def test_symmetric_codes_stay(rng, directory, number, row_format):
    codes = rng.integers(-128, 128, (ROWS, COLUMNS)).astype(I8)
    scale = rng.uniform(0.001, 0.1, (ROWS, 1)).astype(number)
    np.savez(directory / "t.npz", weight=codes, scale=scale)
    convert(f"{directory / 't.npz'},row_format={row_format}", directory / "o.safetensors")
    rows = read_safetensors(directory / "o.safetensors")[1]["values"]
    expect(np.array_equal(rows, np.hstack([codes.view(U8), scale.view(U8)])), "bytes")
    expect(np.array_equal(answers(directory / "o.safetensors"), codes.astype(F32) * scale.astype(F32)), "answers")


@pytest.mark.parametrize("number", [F16, F32])
def test_codes_of_two_bits(rng, directory, number):
    codes, scale, bias, values = split(rng, 2, number)
    np.savez(directory / "t.npz", weight=pack(codes, 2), weight_qscale=scale, weight_qbias=bias)
    convert(f"{directory / 't.npz'},row_elements={COLUMNS}", directory / "o.safetensors")
    expect_equal(read_safetensors(directory / "o.safetensors")[0]["row_format"], "int2" if number is F16 else "plain")
    expect(np.array_equal(answers(directory / "o.safetensors"), values), "answers")


@pytest.mark.parametrize("keys, text", [
    ("", "need row_elements: 21 where a byte is a code (int8), 42 where it is two (int4)"),
    (",row_elements=20", "row_elements is 20; rows of 21 bytes of codes hold 21 elements as int8, 42 as int4, or 84 as int2"),
    (",row_elements=44", "row_elements is 44"),
    (",row_format=f8_e4m3_scaled,row_elements=21", "no integer codes"),
    (",row_format=int8_symmetric,row_elements=21", "has codes with a sign and no bias"),
    (",row_format=int4,row_elements=21", "row_elements is 21"),])
def test_widths_are_not_guessed(rng, directory, keys, text):
    codes, scale, bias, _ = split(rng, 8, F16)
    np.savez(directory / "t.npz", weight=codes, weight_qscale=scale, weight_qbias=bias)
    convert(f"{directory / 't.npz'}{keys}", directory / "out", code=2, words=[text])


def test_wrong_scales(rng, directory):
    """The row is named, and nothing is written."""
    codes = rng.integers(-128, 128, (ROWS, COLUMNS)).astype(I8)
    scale = np.ones(ROWS, F32)
    for value, keys, text in ((np.nan, "", "row 7 has the scale nan"),
                              (3e38, "", "too large for int8 rows"),
                              (600, ",row_format=int8_f16_front", "too large for int8_f16_front")):
        scale[7] = value
        number = F16 if keys else F32
        with np.errstate(over="ignore"):
            np.savez(directory / "t.npz", weight=codes, scale=scale.astype(number))
        convert(f"{directory / 't.npz'}{keys}", directory / "out", code=2, words=[text])
        expect(not list(directory.glob("out*")), "there is a file")
    np.savez(directory / "t.npz", weight=codes, scale=np.ones(ROWS, F32))
    convert(f"{directory / 't.npz'},row_format=int8_f16_front", directory / "out", code=2,
            words=["row_format int8_f16_front has FP16 scales; these are FP32"])
