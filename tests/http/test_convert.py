"""bagserve convert: every format against NumPy, its report, its file, and what goes wrong."""

import json
import os
import signal
import subprocess

import numpy as np
import pytest

from harness import PROGRAM, Server, environment, expect, expect_equal, wait_until
from numerics import F16, F32, ROW_FORMATS, Storage
from table_files import convert, file_names, read_safetensors
from v2 import Client, Tensor

ROWS, COLUMNS = 700, 33
BAGS, LENGTH = 1000, 20

STORAGES = {name: Storage(name) for name in ("FP32", "FP16", "BF16")} | {
    name: Storage("FP32", name) for name in ROW_FORMATS}


def flag_of(name):
    return ("--datatype" if name.isupper() else "--row-format", name)


# ---- the report, computed again --------------------------------------------------------------------

def random_rows(count, rows):
    """The rows of the sampled bags: SplitMix64 from 1 on."""
    state, mask, found = 1, 2 ** 64 - 1, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        value = state
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
        found.append((value ^ value >> 31) % rows)
    return np.array(found)


def errors_of(want, got):
    want, got = want.astype(float), got.astype(float)
    dots = (want * got).sum(1)
    lengths = np.sqrt((want * want).sum(1) * (got * got).sum(1))
    cosines = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
    cosines[(want == 0).all(1) & (got == 0).all(1)] = 1
    return {"mean_squared_error": ((want - got) ** 2).mean(), "max_error": abs(want - got).max(),
            "mean_cosine": cosines.mean()}


def sum_bags(rows, reduction="sum"):
    sums = np.zeros((BAGS, rows.shape[1]), F32)
    picked = random_rows(BAGS * LENGTH, len(rows)).reshape(BAGS, LENGTH)
    for i in range(LENGTH):
        sums += rows[picked[:, i]]
    return sums / F32(LENGTH) if reduction == "mean" else sums


def check_numbers(got, want, what):
    for key, value in want.items():
        expect(np.isclose(got[key], value, rtol=1e-9, atol=1e-300),
               f"{what}: {key} is {got[key]!r} instead of {value!r}")


def check_report(report, want, got, keys=None, reduction="sum"):
    expect_equal((report["rows"], report["row_elements"]), want.shape)
    check_numbers(report, errors_of(want, got), "rows")
    squares = ((want.astype(float) - got.astype(float)) ** 2).mean(1)
    worst = sorted(range(len(want)), key=lambda row: (-squares[row], row))[:10]
    worst = [row for row in worst if squares[row] > 0]
    listed = report["worst_rows"]
    # The order of rows whose errors differ in their last bits is not the test's to say.
    expect(np.allclose([entry["mean_squared_error"] for entry in listed], squares[worst], rtol=1e-9,
                       atol=0), f"{listed} instead of {worst}")
    for entry in listed:
        expect(np.isclose(squares[entry["row"]], entry["mean_squared_error"], rtol=1e-9, atol=0), str(entry))
        expect_equal(entry["key"], None if keys is None else int(keys[entry["row"]]))
        expect(np.isclose(entry["max_error"], abs(want[entry["row"]].astype(float)
                                                  - got[entry["row"]]).max(), rtol=1e-9), str(entry))
    bags = report["bags"]
    expect_equal((bags["bags"], bags["ids_per_bag"], bags["reduction"]), (BAGS, LENGTH, reduction))
    check_numbers(bags, errors_of(sum_bags(want, reduction), sum_bags(got.astype(F32), reduction)), "bags")


# ---- tables ----------------------------------------------------------------------------------------

@pytest.fixture(scope="module", name="rows")
def make_rows(rng):
    rows = (rng.standard_normal((ROWS, COLUMNS)) * 0.05).astype(F32)
    rows[3] = 0
    rows[4] = 0.125
    return rows


@pytest.fixture(scope="module", name="keys")
def make_keys(rng):
    keys = rng.permutation(10 * ROWS)[:ROWS].astype(np.uint64)
    keys[0], keys[1] = 2 ** 64 - 1, 2 ** 63
    return keys


@pytest.mark.parametrize("name", STORAGES)
def test_formats(directory, rows, keys, name):
    """The file is what its description says, the report is right, and the server answers its rows."""
    (directory / "in").mkdir()
    np.save(directory / "in/values.npy", rows)
    np.save(directory / "in/keys.npy", keys)
    out, report = directory / "out.safetensors", directory / "report.json"
    convert(*flag_of(name), "--report", report, directory / "in", out)
    metadata, tensors, begin = read_safetensors(out)
    expect_equal(begin % 4096, 0, "where the values begin")
    expect_equal(metadata, {"row_format": STORAGES[name].row_format, "row_elements": str(COLUMNS)})
    expect_equal(tensors["keys"].tolist(), keys.tolist())
    got = STORAGES[name].decode(tensors["values"], COLUMNS)
    report = json.loads(report.read_text())
    if name == "FP32":  # the bytes are copied
        expect(got.tobytes() == rows.tobytes(), "the rows have changed")
        expect_equal((report["max_error"], report["worst_rows"]), (0, []))
    else:
        check_report(report, rows, got, keys)
    with Server("--table", f"t={out}") as server, Client(server) as client:
        reply = client.infer("t", [Tensor("indices", keys[:, None])], binary=True,
                             parameters={"output_datatype": "FP32"} if name.endswith("16") else {})
        expect(np.array_equal(reply.embeddings(), got), "the server answers something else")


def fbgemm_errors(rows):
    """The squared errors of FBGEMM's greedy search: 200 steps, of which 16 % may be given up."""
    def errors(low, high):
        bias = low.astype(F16).astype(F32)
        scale = ((high - bias) / F32(15)).astype(F16).astype(F32)
        scale = np.where(scale == 0, F32(1), scale)[:, None]
        codes = np.clip(np.rint((rows - bias[:, None]) / scale), 0, 15)
        return ((codes * scale + bias[:, None] - rows).astype(float) ** 2).sum(1)

    low, high = rows.min(1), rows.max(1)
    step = (high - low) / F32(200)
    best = errors(low, high)
    for _ in range(200 - 168):
        raised, lowered = errors(low + step, high), errors(low, high - step)
        up = raised < lowered
        low, high = np.where(up, low + step, low), np.where(up, high, high - step)
        best = np.minimum(best, np.minimum(raised, lowered))
    return best


@pytest.mark.parametrize("kind", ["normal", "laplace", "uniform", "outlier"])
@pytest.mark.parametrize("columns", [16, 64, 100])
def test_int4_is_as_good_as_a_greedy_search(rng, directory, kind, columns):
    rows = {"laplace": rng.laplace, "uniform": rng.uniform}.get(kind, rng.normal)(
        -0.05, 0.05, (2000, columns)).astype(F32)
    if kind == "outlier":
        rows[:, 5] = 0.5
    np.save(directory / "t.npy", rows)
    convert("--row-format", "int4", "--report", directory / "r.json", directory / "t.npy",
            directory / "o.safetensors")
    got = json.loads((directory / "r.json").read_text())["mean_squared_error"]
    want = fbgemm_errors(rows).sum() / rows.size
    print(f"{got:.4g} against {want:.4g}")
    expect(got <= want, f"{got} against {want}")


def test_the_report_of_a_mean_table(directory, rows):
    """Its bags are means, as the model's are."""
    np.save(directory / "t.npy", rows)
    convert("--row-format", "int8", "--report", directory / "r.json", f"{directory / 't.npy'},reduction=mean",
            directory / "out.safetensors")
    _, tensors, _ = read_safetensors(directory / "out.safetensors")
    got = STORAGES["int8"].decode(tensors["values"], COLUMNS)
    check_report(json.loads((directory / "r.json").read_text()), rows, got, reduction="mean")


SOURCES = {
    "big-endian.npy": lambda path, rows: np.save(path, rows.astype(">f4")),
    "column-major.npy": lambda path, rows: np.save(path, np.asfortranarray(rows)),
    "double.npy": lambda path, rows: np.save(path, rows.astype("f8")),
    "some.npz": lambda path, rows: np.savez(path, values=rows),}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["int8", "FP16", "FP32"])
def test_sources(directory, rows, source, name):
    """However the rows lie in their file, the result has the same bytes."""
    np.save(directory / "plain.npy", rows)
    SOURCES[source](directory / source, rows)
    convert(*flag_of(name), directory / "plain.npy", directory / "want")
    convert(*flag_of(name), directory / source, directory / "got")
    expect((directory / "got").read_bytes() == (directory / "want").read_bytes(), source)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_rows(directory, rows, count):
    np.save(directory / "t.npy", rows[:count])
    convert("--row-format", "int8", "--report", directory / "r.json", directory / "t.npy",
            directory / "o.safetensors")
    report = json.loads((directory / "r.json").read_text())
    expect_equal(report["rows"], count)
    expect_equal(read_safetensors(directory / "o.safetensors")[1]["values"].shape, (count, COLUMNS + 8))


def test_threads(directory, rng):
    """Bytes and report do not depend on them; blocks are 2 MiB."""
    np.save(directory / "t.npy", rng.standard_normal((9001, 256), dtype=F32))
    made = []
    for threads in (1, 2, 7):
        out, report = directory / f"o{threads}", directory / f"r{threads}"
        convert("--row-format", "int8", "--threads", threads, "--report", report, directory / "t.npy", out)
        made.append((out.read_bytes(), report.read_text()))
    expect(made[0] == made[1] == made[2], "the threads made a difference")


# ---- another order ---------------------------------------------------------------------------------

def save_keyed(folder, rows, keys):
    folder.mkdir()
    np.save(folder / "values.npy", rows)
    np.save(folder / "keys.npy", keys)


COUNTS = {
    "whole": lambda rng: rng.integers(0, 50, ROWS),  # many are equal
    "large": lambda rng: rng.permutation(ROWS).astype(np.uint64) << np.uint64(40),
    "halves": lambda rng: rng.standard_normal(ROWS).astype(F16),
    "fractions": lambda rng: rng.standard_normal((ROWS, 1)),
    "negative": lambda rng: rng.integers(-100, 100, ROWS).astype(np.int8),
    "infinite": lambda rng: np.where(rng.random(ROWS) < 0.5, np.inf, -np.inf).astype(F32),
    "equal": lambda rng: np.zeros(ROWS, np.uint8),}


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("name", ["int8", "FP32"])
def test_order_by(directory, rng, rows, keys, name, kind):
    """As if the rows had come in that order; the report says where they were."""
    counts = COUNTS[kind](rng)
    order = np.argsort(-counts.reshape(-1).astype(float), kind="stable")
    np.save(directory / "counts.npy", counts)
    save_keyed(directory / "in", rows, keys)
    save_keyed(directory / "ordered", rows[order], keys[order])
    got, want = directory / "got.safetensors", directory / "want.safetensors"
    convert(*flag_of(name), "--report", directory / "want.json", directory / "ordered", want)
    convert(*flag_of(name), "--report", directory / "got.json", "--order-by",
            directory / "counts.npy", directory / "in", got)
    made = [read_safetensors(path) for path in (got, want)]
    expect_equal(made[0][0].pop("fixed_rows"), "0")
    expect_equal(made[0][0], made[1][0])
    for tensor in ("values", "keys"):
        expect(made[0][1][tensor].tobytes() == made[1][1][tensor].tobytes(), f"{tensor}: another order")
    reports = [json.loads((directory / f"{side}.json").read_text()) for side in ("got", "want")]
    for entry in reports[1]["worst_rows"]:
        entry["row"] = int(order[entry["row"]])
    expect_equal(*reports)


def test_order_by_blocks(directory, rng):
    """Rows of several blocks of 2 MiB, counts of several blocks of 65,536, any number of threads."""
    count = 2 * 65536 + 1
    values, keys = rng.standard_normal((count, 9), F32), rng.permutation(count)
    counts = rng.integers(0, 1000, count)
    order = np.argsort(-counts, kind="stable")
    save_keyed(directory / "in", values, keys)
    np.savez(directory / "counts.npz", counts=counts)
    for threads in (1, 3):
        convert("--order-by", f"{directory}/counts.npz#counts", "--threads", threads, "--force",
                directory / "in", directory / "out")
        tensors = read_safetensors(directory / "out")[1]
        expect(np.array_equal(tensors["keys"], keys[order]), f"{threads} threads: keys")
        expect(np.array_equal(tensors["values"], values[order]), f"{threads} threads: values")


@pytest.mark.parametrize("count", [0, 1])
def test_order_by_of_few_rows(directory, rows, keys, count):
    save_keyed(directory / "in", rows[:count], keys[:count])
    np.save(directory / "counts.npy", np.zeros(count))
    convert("--order-by", directory / "counts.npy", directory / "in", directory / "out")
    expect_equal(read_safetensors(directory / "out")[1]["keys"].tolist(), keys[:count].tolist())


def test_order_by_is_rejected(directory, rows, keys):
    save_keyed(directory / "in", rows, keys)
    np.save(directory / "dense.npy", rows)
    counts = np.zeros(ROWS, F32)
    for name, array in (("good", counts), ("short", counts[1:]), ("pairs", np.zeros((ROWS, 2)))):
        np.save(directory / f"{name}.npy", array)
    counts[5] = np.nan
    np.save(directory / "nan.npy", counts)
    for counts, table, words in [
            ("good", "dense.npy", ["dense.npy", "no keys", "numbers of its rows"]),
            ("short", "in", ["short.npy has 699 rows of 1 elements", "which has 700"]),
            ("pairs", "in", ["pairs.npy has 700 rows of 2 elements", "one number for each row"]),
            ("nan", "in", ["nan.npy", "row 5 is not a number"]),
            ("absent", "in", ["absent.npy", "No such file"])]:
        convert("--order-by", directory / f"{counts}.npy", directory / table, directory / "out", code=2, words=words)
        expect(not (directory / "out").exists(), f"{counts}: a file was written")


# ---- what goes wrong -------------------------------------------------------------------------------

def test_rejected(directory, rows):
    np.save(directory / "t.npy", rows)
    np.save(directory / "whole.npy", np.arange(12).reshape(4, 3))
    np.save(directory / "cube.npy", np.zeros((2, 3, 4), F32))
    np.save(directory / "line.npy", np.zeros(4, F32))
    large = rows.copy()
    large[11, 5] = 1e6
    np.save(directory / "large.npy", large)
    large[11, 5] = np.nan
    np.save(directory / "nan.npy", large)
    (directory / "there").write_text("mine")
    (directory / "folder").mkdir()
    before = file_names(directory)
    table, out = directory / "t.npy", directory / "out"
    for arguments, code, words in [
            (["--row-format", "int8", table, directory / "there"], 2, ["exists already", "--force"]),
            (["--row-format", "int7", table, out], 2, ["'int7'", "must be int8, int4,", "or int2_f16_front"]),
            (["--datatype", "FP64", table, out], 2, ["FP64", "FP16"]),
            (["--datatype", "FP16", "--row-format", "int8", table, out], 2, ["cannot be combined"]),
            (["--max-error", "-1", table, out], 2, ["--max-error is '-1'"]),
            (["--threads", "17", table, out], 2, ["from 1 to 16"]),
            (["--frce", table, out], 2, ["unknown flag", "--frce"]),
            ([table], 2, ["an argument is missing", "usage"]),
            ([table, out, out], 2, ["one argument too many"]),
            ([table, directory / "out.npy"], 2, ["out.npy: what is written is a safetensors file",
                                                 "its name must end with .safetensors"]),
            ([directory / "absent.npy", out], 2, ["absent.npy", "No such file"]),
            (["--row-format", "int8", directory / "whole.npy", out], 2, ["INT64", "stay as they are"]),
            (["--row-format", "int8", directory / "cube.npy", out], 2, ["3 dimensions"]),
            (["--row-format", "int8", directory / "line.npy", out], 2, ["has 1 dimension;"]),
            (["--datatype", "FP16", directory / "large.npy", out], 2,
             ["large.npy", "row 11, element 5 is 1e+06", "FP16"]),
            (["--row-format", "int8", directory / "nan.npy", out], 2, ["row 11, element 5 is nan"]),
            (["--row-format", "int8", table, directory / "folder"], 2, ["folder: is a folder"]),
            (["--force", table, directory / "folder"], 2, ["folder: is a folder", "name a file"]),
            (["--report", directory / "no/r.json", table, out], 2, ["no/r.json", "cannot be written"]),
            (["--report", directory, table, out], 2, ["the report cannot be written", "directory"]),
            (["--row-format", "int8", table, "/proc/out"], 2, ["/proc/out.partial", "cannot be written"]),
            (["--row-format", "int8", table, directory / "no/out"], 2, ["cannot be written"])]:
        convert(*arguments, code=code, words=words)
        expect_equal(file_names(directory), before, f"{arguments}: files")
    expect_equal((directory / "there").read_text(), "mine")
    convert("--force", "--row-format", "int8", table, directory / "there")
    read_safetensors(directory / "there")


def test_in_place(directory, rows):
    """With --force a file may be replaced by its own conversion."""
    np.save(directory / "t.npy", rows)
    out = directory / "t.safetensors"
    convert(directory / "t.npy", out)
    ended = convert("--row-format", "int8", out, out, code=2)  # before any work is announced
    expect_equal(ended.stderr, f"bagserve: {out}: exists already; --force replaces it\n")
    convert("--force", "--row-format", "int8", out, out)
    expect_equal(read_safetensors(out)[0]["row_format"], "int8")
    expect_equal(file_names(directory), ["t.npy", "t.safetensors"])


def test_partial_file_is_no_link(directory, rows):
    """Who may write to the folder must not choose what is written over."""
    np.save(directory / "t.npy", rows)
    (directory / "precious").write_text("mine")
    (directory / "o.partial").symlink_to(directory / "precious")
    convert("--row-format", "int8", directory / "t.npy", directory / "o", code=2,
            words=["o.partial: cannot be written", "symbolic link"])
    expect_equal((directory / "precious").read_text(), "mine")
    expect(not (directory / "o").exists(), "a file was written")


def test_max_error(directory, rows):
    np.save(directory / "t.npy", rows)
    report = directory / "r.json"
    arguments = ["--row-format", "int4", "--report", report, directory / "t.npy", directory / "o"]
    convert("--max-error", "0.0001", *arguments, code=1, words=["--max-error allows 0.0001"])
    expect(not (directory / "o").exists(), "a file was written")
    most = json.loads(report.read_text())["max_error"]
    convert("--max-error", repr(most * 0.999), *arguments, code=1)
    convert("--max-error", repr(most * 1.001), *arguments)
    expect_equal(file_names(directory), ["o", "r.json", "t.npy"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(directory, number):
    """Nothing but what SIGKILL leaves is left, and that is taken over by the next run."""
    table, out = directory / "t.npy", directory / "o"
    np.lib.format.open_memmap(table, "w+", F32, (60_000, 512)).flush()
    with subprocess.Popen([PROGRAM, "convert", "--threads", "1", "--row-format", "int4", table, out],
                          stderr=subprocess.PIPE, env=environment()) as process:
        wait_until(lambda: (directory / "o.partial").exists(), "the partial file")
        process.send_signal(number)
        said = process.communicate(timeout=60)[1].decode()
    if process.returncode == 0:
        pytest.skip("it was faster than the signal")
    if number == signal.SIGKILL:
        expect_equal(file_names(directory), ["o.partial", "t.npy"])
        np.save(table, np.ones((2, 4), F32))
        convert("--row-format", "int8", table, out)
        expect_equal(file_names(directory), ["o", "t.npy"])
        return
    expect_equal(process.returncode, 128 + number, said)
    expect("interrupted" in said, said)
    expect_equal(file_names(directory), ["t.npy"])


def test_full_disk(directory, rows):
    """What the disk has no room for is said before any row is converted."""
    np.save(directory / "t.npy", rows)
    disk = directory / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk],
                                      capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        convert(directory / "t.npy", disk / "o", code=1, words=["no room for", "No space left"])
        expect_equal(file_names(disk), [])
    finally:
        subprocess.run(["umount", disk], check=True)
