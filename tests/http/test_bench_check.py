"""`bagserve bench --check`: answers compared with what the tables' files give, in every format."""

import json
import os
import re

import numpy as np
import pytest

from benching import (  # noqa: F401, fixtures
    SHORT, Foreign, bench_model, foreign, foreign_metadata, make_tables, only, start_server)
from harness import Server, expect, expect_equal, has_openblas, run, write_json
from numerics import ROW_FORMATS
from shards import front_of, parts_of
from table_files import random_rows, write_safetensors


@pytest.mark.parametrize("arguments", [[], ["--weights"], ["--reduction", "mean"], ["--body", "json"],
                                       ["--reduction", "sqrtn", "--weights"]])
def test_check(server, tables, arguments):
    """Answers are what the files give: of dense and keyed tables, halves, padding, collections."""
    files = [f"--table={name}={tables / path}" for name, path in (("items", "items.npy"), ("users", "users"))]
    for model in ("items", "users", "all"):
        report = bench_model(server, model, "--check", 10, "--bags", 20, "--ids", "0-30", *files, *arguments,
                             "--closed", *SHORT)
        expect_equal(only(report)["errors"], {})
    bench_model(server, "halves", "--check", 10, "--table", f"halves={tables / 'halves.npy'}", "--closed", *SHORT)


def test_check_finds_a_difference(server, tables, directory):
    """One element of a file that is not what is served."""
    values = np.load(tables / "items.npy")
    values[500, 3] += 1e-4
    np.save(directory / "other.npy", values)
    arguments = ["--check", 200, "--bags", 10, "--closed", *SHORT]
    said = bench_model(server, "items", *arguments, "--table", f"items={directory / 'other.npy'}", code=1)
    expect("model 'items', output 'embeddings', bag" in said and "element 3" in said, said)
    np.save(directory / "narrow.npy", values[:, :5].copy())
    said = bench_model(server, "items", *arguments, "--table", f"items={directory / 'narrow.npy'}", code=1)
    expect("narrow.npy: its rows have 5 elements, those of the answer 8" in said, said)
    said = bench_model(server, "items", *arguments, code=2)
    expect("--table NAME=PATH" in said, said)


class Form:
    """A table in a file: `write(path, rows)` puts it there. `changed` is the place of a stored element whose bits
    `flip` change, in the row's element of that number."""

    def __init__(self, file, write, rows, keys=None, what="", changed=(20, 2), flip=0x40, element=None):
        self.file, self.write, self.rows, self.keys, self.what = file, write, rows, keys or {}, what
        self.changed, self.flip, self.element = changed, flip, changed[1] if element is None else element

    def other_rows(self):
        """The rows with one element that is another one: in its highest byte."""
        rows = np.array(self.rows, order="F" if np.isfortran(self.rows) else "C")
        bits = rows[self.changed].astype(rows.dtype.newbyteorder("<")).tobytes()
        rows[self.changed] = np.frombuffer(bits[:-1] + bytes([bits[-1] ^ self.flip]), rows.dtype.newbyteorder("<"))[0]
        return rows


def tensors(dtype, name="values", metadata=None, **others):
    return lambda path, rows: write_safetensors(path, {**others, name: (dtype, rows)}, metadata)


def forms():
    """Every format of files and of rows that a table may have, by the name of its model."""
    rng = np.random.default_rng(4)
    plain = rng.standard_normal((30, 6)).astype(np.float32)
    keys = rng.permutation(np.arange(30, dtype=np.int64) * 10**15 - 10**16)
    found = {
        "tensor": Form("t.safetensors", tensors("F32", "rows", None, other=("F32", plain + 1)), plain, what="#rows"),
        "values": Form("v.safetensors", tensors("F32", other=("F32", plain + 1)), plain),
        "only": Form("o.safetensors", tensors("F64", "w", None, bias=("F32", plain[0])), plain.astype(float)),
        "bf16": Form("bf.safetensors", tensors("BF16"), (plain.view(np.uint32) >> 16).astype(np.uint16)),
        "keyed": Form("k.safetensors", tensors("F32", keys=("I64", keys)), plain),
        "ids": Form("i.safetensors", tensors("F32", ids=("I64", keys)), plain, {"keys_tensor": "ids"}),
        "npz": Form("z.npz", lambda path, rows: np.savez(path, a=rows + 1, b=rows), plain, what="#b"),
        "npz_keyed": Form("zk.npz", lambda path, rows: np.savez(path, keys=keys, values=rows), plain),
        "npz_only": Form("zo.npz", lambda path, rows: np.savez(path, b=rows, n=keys), plain),
        "raw_bf16": Form("bf.npy", np.save, (plain.view(np.uint32) >> 16).astype(np.uint16), {"datatype": "BF16"}),
        "halves": Form("h.npy", np.save, plain.astype(np.float16), {"output_datatype": "FP32"}),
        "columns": Form("f.npy", np.save, np.asfortranarray(plain)),
        "swapped": Form("s.npy", np.save, plain.astype(">f4")),
        "cube": Form("c.npy", np.save, plain.reshape(30, 2, 3), changed=(20, 1, 1), element=4),
        "line": Form("l.npy", np.save, plain[:, 0].copy(), changed=(20,), element=0)}
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        limits = np.iinfo(dtype)
        found[dtype] = Form(f"{dtype}.npy", np.save, rng.integers(limits.min, limits.max, (30, 6), dtype, True))
    for name in ("int8", "int8_f16_front", "int4", "int4_f16_front", "f8_e4m3", "f8_e5m2", "f8_e4m3_scaled",
                 "f8_e5m2_scaled"):
        stored, at = random_rows(rng, name, 9)[0], 6 if "front" in name else 2
        facts = {"row_format": name, "row_elements": 9}
        place = {"changed": (20, at), "flip": 0x08, "element": 4 if "int4" in name else 2}
        found[name] = Form(f"{name}.npy", np.save, stored, facts, **place)
        texts = {key: str(value) for key, value in facts.items()}
        found[f"{name}.file"] = Form(f"{name}.safetensors", tensors("U8", metadata=texts), stored, **place)
    found["typed"] = Form("y.safetensors", tensors("F8_E5M2"), random_rows(rng, "f8_e5m2", 6)[0], flip=8)
    return found


FORMS = forms()
FEW = ["--closed", "--requests", 1, "--warmup", 0, "--bodies", 1]


def is_of_floats(form):
    return form.rows.dtype.kind == "f" or form.rows.dtype.itemsize == 2 and "bf" in form.file or "row_format" in form.keys


@pytest.fixture(scope="module", name="forms_server")
def serve_forms(tmp_path_factory):
    folder, models = tmp_path_factory.mktemp("forms"), []
    (folder / "other").mkdir()
    for name, form in FORMS.items():
        form.write(folder / form.file, form.rows)
        form.write(folder / "other" / form.file, form.other_rows())
        models.append({"name": name, "path": form.file, **form.keys} | ({"tensor": form.what[1:]} if form.what else {}))
    write_json(folder / "config.json", {"models": models})
    with Server("--config", folder / "config.json") as server:
        yield server, folder


def check_arguments(name, folder):
    form = FORMS[name]
    keys = ["--keys", f"{folder / form.file}#ids"] if name == "ids" else []
    return ["--check", 20, "--bags", 100, *FEW, *keys, "--table", f"{name}={folder / form.file}{form.what}"]


@pytest.mark.parametrize("name", FORMS)
def test_check_of_every_format(forms_server, name):
    """Answers are what the file gives, with each reduction; and where one element of it is another one, they are
    not: the sentence says of which model, bag and element."""
    server, folder = forms_server
    same, other = check_arguments(name, folder), check_arguments(name, folder / "other")
    for asked in (["none", "sum", "mean", "max", "sqrtn"] if is_of_floats(FORMS[name]) else ["none", "sum", "mean", "max"]):
        weights = ["--weights"] if is_of_floats(FORMS[name]) and asked in ("sum", "sqrtn") else []
        bench_model(server, name, *same, "--ids", "0-7", "--reduction", asked, *weights)
    said = bench_model(server, name, *other, "--ids", 1, code=1)
    found = re.search(r"model '(.*)', output 'embeddings', bag (\d+), element (\d+) is (\S+); pooled from the file it is "
                      r"(\S+)\n", said)
    expect(found, said)
    expect_equal((found[1], int(found[3])), (name, FORMS[name].element))
    expect(int(found[2]) < 100 and found[4] != found[5], said)


@pytest.mark.parametrize("row_format", ROW_FORMATS)
def test_check_of_encoded_replies(directory, row_format):
    """Replies of encoded rows are what the files give: copied, pooled, of another format and by a coordinator."""
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((30, 6)).astype(np.float32)
    rows[4, 2] = np.nan
    stored = random_rows(rng, row_format, 6)[0]
    arrays = {"f32": rows, "f16": rows.astype(np.float16), "bf16": (rows.view(np.uint32) >> 16).astype(np.uint16),
              "stored": stored}
    facts = {"bf16": {"datatype": "BF16"}, "stored": {"row_format": row_format, "row_elements": 6}}
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
        np.save(directory / f"{name}.other.npy", array[::-1])
    models = [{"name": name, "path": f"{name}.npy", "output_row_format": row_format, **facts.get(name, {})}
              for name in arrays]
    write_json(directory / "config.json", {"models": models + [{"name": "all", "features": [
        {"name": "pooled", "model": "f32"}, {"name": "rows", "model": "stored", "reduction": "none"}]}]})
    with Server("--config", directory / "config.json") as server:
        for name in arrays:
            for reduction in ("none", "mean"):
                arguments = ["--check", 10, "--bags", 20, "--ids", "0-5", "--reduction", reduction, *FEW, "--table"]
                bench_model(server, name, *arguments, f"{name}={directory / name}.npy")
                said = bench_model(server, name, *arguments, f"{name}={directory / name}.other.npy", code=1)
                expect(f"model '{name}', output 'embeddings', bag" in said, said)
        bench_model(server, "all", "--check", 10, "--bags", 20, "--ids", "0-5", *FEW,
                    *(f"--table={name}={directory / name}.npy" for name in ("f32", "stored")))
    with parts_of(directory, {"path": str(directory / "f32.npy")}, "rows", 2) as servers, \
            front_of(directory, [server.url for server in servers], output_row_format=row_format) as front:
        for reduction in ("none", "sum"):
            bench_model(front, "items", "--check", 10, "--bags", 20, "--ids", "0-5", "--reduction", reduction, *FEW,
                        f"--table=items={directory}/f32.npy")


@pytest.mark.parametrize("row_format", ["int8", "int4", "f8_e4m3_scaled"])
def test_check_of_short_encoded_rows(directory, row_format):
    """Rows of one element are longer encoded than as FP32."""
    np.save(directory / "t.npy", random_rows(np.random.default_rng(9), row_format, 1)[0])
    facts = {"row_format": row_format, "row_elements": 1, "output_row_format": row_format, "reduction": "none"}
    write_json(directory / "config.json", {"models": [{"name": "t", "path": "t.npy", **facts}]})
    with Server("--config", directory / "config.json") as server:
        bench_model(server, "t", "--check", 10, "--bags", 500, "--ids", "0-5", *FEW, f"--table=t={directory}/t.npy")


def test_check_by_rules(directory):
    """Rows of empty bags, and paddings that count from the end, are of the file, too."""
    rows = np.random.default_rng(6).standard_normal((12, 3)).astype(np.float32)
    rows[4, 0] = np.nan
    rows[5, 1] = np.inf
    np.save(directory / "t.npy", rows)
    write_json(directory / "config.json", {"models": [
        {"name": "t", "path": "t.npy", "padding_idx": -2, "default_index": 3},
        {"name": "greatest", "path": "t.npy", "reduction": "max", "default_index": 10, "padding_idx": 10}]})
    with Server("--config", directory / "config.json") as server:
        for model in ("t", "greatest"):
            arguments = ["--check", 20, "--bags", 50, "--ids", "0-2", *FEW]
            bench_model(server, model, *arguments, "--table", f"{model}={directory / 't.npy'}")
            bent = rows.copy()
            bent[3 if model == "t" else 10] += 1
            np.save(directory / "bent.npy", bent)
            bench_model(server, model, *arguments, "--table", f"{model}={directory / 'bent.npy'}", code=1)


def test_check_refuses(forms_server, directory):
    """What cannot be compared is said, with what can be."""
    server, folder = forms_server
    (directory / "t.safetensors.index.json").write_text("{}")
    (directory / "empty.npy").touch()
    (directory / "cut.npy").write_bytes((folder / "h.npy").read_bytes()[:-1])
    np.savez_compressed(directory / "c.npz", values=FORMS["tensor"].rows)
    for model, path, words in (
            ("tensor", folder / "t.safetensors", "name the table, as PATH#TENSOR"),
            ("tensor", f"{folder / 't.safetensors'}#row", "did you mean 'rows'"),
            ("npz", f"{folder / 'z.npz'}#c", "'c'"),
            ("tensor", directory, "weight_map"),
            ("tensor", directory / "t.safetensors.index.json", "weight_map"),
            ("tensor", directory / "empty.npy", "the file is empty"), ("halves", directory / "cut.npy", "truncated"),
            ("npz", directory / "c.npz", "compress"), ("tensor", folder / "z.npz.no", "No such file"),
            ("ids", folder / "i.safetensors", "the keys, unless --keys FILE names them"),
            ("int8", folder / "t.safetensors#rows", "row_format int8 needs a table of 2 dimensions of UINT8"),
            ("int8", folder / "int4.safetensors", "row_format int8: the file says that it is int4"),
            ("int8", folder / "int4.npy", "row_format int8: rows of 9 elements take 17 bytes, but those of the file have 9"),
            ("u1", folder / "int8.safetensors", "its rows are int8, those of the server plain"),
            ("i4", f"{folder / 'i4.npy'},part=rows 0 of 2", "takes whole tables"),
            ("i4", folder / "u4.npy", "the output 'embeddings' is of INT32, the rows of the file are of UINT32")):
        ended = run("bench", "--check", 1, "--table", f"{model}={path}", *FEW, server.url, model)
        expect(ended.returncode in (1, 2) and words in ended.stderr, f"{path}: {ended}")


def test_check_of_what_servers_read(directory):
    """Files in parts, and dumps of trainers, are compared as well."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((40, 3)).astype(np.float32)
    keys = rng.permutation(np.arange(40, dtype=np.int64) * 7 - 90)
    write_safetensors(directory / "part.safetensors", {"w": ("F32", rows)})
    write_json(directory / "m.safetensors.index.json", {"weight_map": {"w": "part.safetensors"}})
    (directory / "dump").mkdir()
    for rank in range(2):
        for what, array in (("keys", keys), ("values", rows)):
            array[20 * rank:20 * rank + 20].tofile(directory / "dump" / f"t_emb_{what}.rank_{rank}.world_size_2")
    paths = {"parts": f"{directory / 'm.safetensors.index.json'}#w", "dump": directory / "dump"}
    with Server(*(f"--table={name}={path}" for name, path in paths.items())) as server:
        for name, path in paths.items():
            arguments = ["--check", 20, "--bags", 20, "--weights", *FEW, "--table", f"{name}={path}"]
            bench_model(server, name, *arguments)
        changed = rows.copy()
        changed[30, 1] += 1
        changed[20:].tofile(directory / "dump" / "t_emb_values.rank_1.world_size_2")
        said = bench_model(server, "dump", *arguments, code=1)
    expect("element 1 is" in said, said)


@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_check_of_a_projection(directory):
    """Even where its rows are as wide as the table's."""
    np.save(directory / "t.npy", np.ones((12, 3), np.float32))
    np.save(directory / "m.npy", np.full((3, 3), 2, np.float32))
    with Server("--table", f"t={directory / 't.npy'},projection={directory / 'm.npy'}") as server:
        said = bench_model(server, "t", "--check", 1, *FEW, "--table", f"t={directory / 't.npy'}", code=1)
    expect("the server multiplies pooled rows with a matrix" in said, said)


def test_check_of_a_file_that_is_cut_short(directory):
    """While its rows are read: a sentence and no crash."""
    path = directory / "t.npy"
    np.save(path, np.zeros((1000, 2), np.float32))

    class Cutting(Foreign):
        metadata = "/v2/models/t", foreign_metadata(rows=1000)

        def do_GET(self):
            if self.path == "/v2/models/t/config":
                self.answer(200, {"parameters": {"reduction": {"string_value": "sum"}}})
            else:
                super().do_GET()

        def infer(self, _):
            os.truncate(path, 0)
            head = json.dumps({"outputs": [{"name": "embeddings", "datatype": "FP32", "shape": [1, 2],
                                            "parameters": {"binary_data_size": 8}}]}).encode()
            self.send_response(200)
            self.send_header("Inference-Header-Content-Length", str(len(head)))
            self.send_header("Content-Length", str(len(head) + 8))
            self.end_headers()
            self.wfile.write(head + bytes(8))

    with foreign(Cutting) as url:
        ended = run("bench", "--check", 1, "--bags", 1, "--table", f"t={path}", *FEW, url)
    expect_equal((ended.returncode, ended.stderr.splitlines()[-1]),
                 (1, "bagserve: --check: output 'embeddings': the file became shorter while it was read, or its disk failed"))
