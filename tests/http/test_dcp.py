"""Checkpoints of torch.distributed.checkpoint become the tables that they have, or are refused in one line; none of them runs."""

import json
import os
import pathlib
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from harness import ROOT, Server, expect, expect_equal

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_dcp  # noqa: E402
import bagserve_export  # noqa: E402
from bagserve_client import Client  # noqa: E402
from bagserve_trainers import read_safetensors_header  # noqa: E402
from dcp import BAGS, EMBS, Call, Global, New, Stored, dumps, of_metadata, write_dcp, write_dcp_safetensors  # noqa: E402
from trainers import write_dynamicemb  # noqa: E402

SUM = ("--reduction", "sum")


def rows_of(rows, columns, kind=np.float32, start=0):
    return ((np.arange(rows * columns) * 7 + start) % 1999 / 8 - 99).reshape(rows, columns).astype(kind)


FILMS, USERS, ONE = rows_of(37, 8), rows_of(12, 16, start=5), rows_of(1, 4, start=9)
BY_ROWS = [(0, 0, 0, 19, 8), (1, 19, 0, 18, 8)]
TWO = {BAGS.format("films"): Stored(FILMS, BY_ROWS), BAGS.format("users"): Stored(USERS, [(0, 0, 0, 6, 16), (1, 6, 0, 6, 16)])}
BF16 = rows_of(11, 8).view(np.int32) >> 16


def export(source, folder, *arguments):
    bagserve_export.main([str(source), str(folder), *map(str, arguments)])


def exported(folder, name):
    """(type in the file, rows, how it pools) of a table that was exported."""
    path = folder / name / "1" / "table.safetensors"
    header, start = read_safetensors_header(path)
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<i2", "F64": "<f8"}
    rows = np.fromfile(path, kinds[header["values"]["dtype"]], offset=start).reshape(header["values"]["shape"])
    return header["values"]["dtype"], rows, json.loads((path.parent / "config.json").read_text())["reduction"]


def layout(*places):
    """Writes TWO at each place below the folder, and an optimizer beside it."""
    def write(folder):
        for place in places:
            write_dcp(folder / place, TWO)
            write_dcp(folder / pathlib.Path(place).parent / "optimizer", {
                f"state.{BAGS.format('films')}.films.exp_avg": Stored(FILMS),
                "optimizer.state.x.embedding_bags.films.weight": Stored(FILMS)})
        return folder
    return write


def of(*tables, **options):
    """Writes a checkpoint of {key: Stored} with options of write_dcp."""
    return lambda folder: write_dcp(folder, *tables, **options)


def bags(**tables):
    return {BAGS.format(name): stored for name, stored in tables.items()}


BOTH = {"films": FILMS, "users": USERS}
# The function that writes the files, and {table: rows}, each sum or of an EmbeddingCollection.
TABLES = {
    "one process": (of(bags(films=Stored(FILMS), one=Stored(ONE)) | {"model.over_arch.weight": Stored(rows_of(3, 8))}),
                    {"films": FILMS, "one": ONE}),
    "rows": (of(TWO), BOTH),
    "an empty chunk": (of(bags(one=Stored(ONE, [(0, 0, 0, 1, 4), (1, 1, 0, 0, 4)]))), {"one": ONE}),
    "columns of uneven widths": (of(bags(users=Stored(USERS, [(0, 0, 0, 12, 7), (1, 0, 7, 12, 4), (0, 0, 11, 12, 5)]))),
                                 {"users": USERS}),
    "a grid": (of(bags(films=Stored(FILMS, [(0, 0, 0, 19, 3), (1, 19, 0, 18, 3), (1, 0, 3, 30, 5), (0, 30, 3, 7, 5)]))),
               {"films": FILMS}),
    "a table of rank 1": (of(bags(films=Stored(FILMS, [(1, 0, 0, 37, 8)]), one=Stored(ONE))), {"films": FILMS, "one": ONE}),
    "transposed": (of(bags(films=Stored(FILMS, strides="F"), users=Stored(USERS, strides="gaps"))), BOTH),
    "transposed parts": (of(bags(films=Stored(FILMS, BY_ROWS, strides="F"))), {"films": FILMS}),
    "the other byte order": (of(bags(films=Stored(FILMS, BY_ROWS)), item={BAGS.format("films"): {"byte_order": "big"}}),
                             {"films": FILMS}),
    "torch 2.0": (of(TWO, old=True), BOTH),
    "a metadata file for each rank": (of(TWO, by_rank=True), BOTH),
    "a file for each chunk": (of(TWO, file_a_chunk=True), BOTH),
    "types": (of(bags(half=Stored(FILMS.astype(np.float16), BY_ROWS), double=Stored(FILMS.astype(np.float64)),
                      bfloat=Stored(BF16.astype(np.int16), [(0, 0, 0, 6, 8), (1, 6, 0, 5, 8)], "bfloat16"))),
              {"half": FILMS.astype(np.float16), "double": FILMS.astype(np.float64), "bfloat": BF16.astype(np.int16)}),
    "an EmbeddingCollection": (of({EMBS.format("films"): Stored(FILMS, BY_ROWS)}), {"films": FILMS}),
    "tables of one name": (of({"a.embedding_bags.ids.weight": Stored(FILMS), "b.embedding_bags.ids.weight": Stored(ONE),
                               "b.embedding_bags.users.weight": Stored(USERS)}),
                           {"a.embedding_bags.ids": FILMS, "b.embedding_bags.ids": ONE, "users": USERS}),
    "model and optimizer in one": (of(TWO | {f"optimizer.state.{BAGS.format('films')}.exp_avg": Stored(FILMS),
                                             "optimizer.x.embedding_bags.films.weight": Stored(FILMS)}), BOTH),
    "TorchEasyRec's folders": (layout("model.ckpt-200/model"), BOTH),
    "DLRM-v3's folders": (layout("89/sparse"), BOTH),
    "safetensors": (lambda folder: write_dcp_safetensors(folder, TWO), BOTH),
    "safetensors by columns": (lambda folder: write_dcp_safetensors(folder, bags(
        users=Stored(USERS.astype(np.float16), [(0, 0, 0, 12, 9), (1, 0, 9, 12, 7)]))), {"users": USERS.astype(np.float16)}),
    "merged safetensors": (lambda folder: write_dcp_safetensors(folder, TWO, merged=True), BOTH),
    "no CRC-32": (of(TWO, item={BAGS.format("films"): {"crc": 0}}), BOTH),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(directory, case, capsys):
    """Bit for bit, in the type that they have; a line for each says rows, width and chunks."""
    write, want = TABLES[case]
    source, folder = directory / "source", directory / "models"
    write(source)
    export(source, folder, *SUM)
    lines = capsys.readouterr().out.splitlines()[:-1]
    expect_equal({line.partition(":")[0] for line in lines}, set(want))
    for name, rows in want.items():
        kind, got, reduction = exported(folder, name)
        expect(got.dtype == rows.dtype and got.tobytes() == rows.tobytes(), f"{name}: {got}")
        expect_equal((kind == "BF16", reduction), (name == "bfloat", "none" if "Collection" in case else "sum"))
        expect(any(line.startswith(f"{name}: {len(rows)} rows of {rows.shape[1]}, {reduction}, ") for line in lines), lines)


def test_tables_are_served(directory, capsys):
    """With pooling and a collection by hand; the chunks are those of each table."""
    write_dcp(directory / "source", TWO | {
        EMBS.format("seen"): Stored(FILMS, BY_ROWS), BAGS.format("bfloat"): Stored(BF16.astype(np.int16), kind="bfloat16"),
        "model.tower.item.weight": Stored(USERS, strides="F")})
    export(directory / "source", directory / "models", "--table", "films=films,reduction=mean", "--table", "*=u*,reduction=max",
           "--table", "seen=seen", "--table", "bfloat=bfloat,reduction=sum",
           "--table", "item=model.tower.item.weight,reduction=sum",
           "--collection", "both=seen:films,user:sers")
    expect_equal(capsys.readouterr().out.splitlines()[:2],
                 ["films: 37 rows of 8, mean, 2 chunks", "sers: 12 rows of 16, max, 2 chunks"])
    with Server("--models", directory / "models") as server, Client(f"{server.host}:{server.port}") as client:
        expect_equal(client.bags("films", [[0, 36]])[0].tolist(), ((FILMS[0] + FILMS[36]) / 2).tolist())
        expect_equal(client.rows("seen", [36, 20]).tolist(), FILMS[[36, 20]].tolist())
        expect_equal(client.bags("item", [[11]])[0].tolist(), USERS[11].tolist())
        expect_equal(client.metadata("bfloat")["parameters"]["datatype"], "BF16")
        got = client.collection("both", {"seen": [[5]], "user": [[1, 2]]})
        expect_equal(got["seen"][0].tolist(), FILMS[5].tolist())
        expect_equal(got["user"][0].tolist(), np.maximum(USERS[1], USERS[2]).tolist())


# ---- refusals ---------------------------------------------------------------------------------
def spoil(write, work):
    """Writes a checkpoint, and gives its folder to `work`."""
    def spoilt(folder):
        write(folder)
        work(folder)
        return folder
    return spoilt


def cut(name, count):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-count])


def replace_metadata(content):
    return spoil(of(TWO), lambda folder: (folder / ".metadata").write_bytes(content))


def flip(folder):
    content = bytearray((folder / "__1_0.distcp").read_bytes())
    content[content.index(FILMS[19:].tobytes()) + 100] ^= 1
    (folder / "__1_0.distcp").write_bytes(content)


def set_facts(key, **facts):
    return lambda listed, _places: listed[BAGS.format(key)].update(facts)


def move_chunk(listed, places):
    key = BAGS.format("films")
    listed[key]["chunks"][1] = (18, 0, 18, 8)
    places[key, 18, 0] = places.pop((key, 19, 0))


def outside(_listed, places):
    for place, (name, start, length) in places.items():
        places[place] = (name.replace("__1_0", "../1_0"), start, length)


def swap_ranks(folder):
    (folder / "__0_0.distcp").rename(folder / "x")
    (folder / "__1_0.distcp").rename(folder / "__0_0.distcp")
    (folder / "x").rename(folder / "__1_0.distcp")


RUNS = "touch checkpoint-was-run"
NESTED = ()
for _ in range(40):
    NESTED = (NESTED, NESTED)
KEY = Global("posix", "system")
HOSTILE = {
    "a call": (dumps({"x": Call(KEY, (RUNS,))}), "posix.system"),
    "eval": (dumps(Call(Global("builtins", "eval"), (RUNS,))), "builtins.eval"),
    "getattr": (dumps(Call(Global("builtins", "getattr"), (Global("builtins", "object"), "x"))), "builtins.getattr"),
    "a name with dots": (b"\x80\x04\x8c\x05torch\x8c\x10serialization.os\x93.", "torch.serialization.os"),
    "protocol 0": (b"cposix\nsystem\n(S'x'\ntR.", "posix.system"),
    "INST": (b"(S'x'\niposix\nsystem\n.", "STRING"),
    "a persistent id": (dumps((1,))[:-1] + b"Q.", "storage"),
    "an extension": (b"\x80\x04\x82\x01.", "EXT1"),
    "a memo of 2^27": (b"\x80\x04Nr\xff\xff\xff\x07.", "not the Metadata"),
    "a memo that is not there": (b"\x80\x04h\x05.", "lacks 5"),
    "an empty stack": (b"\x80\x04\x93.", "lacks"),
    "a list as a key": (dumps(New(of_metadata("Metadata"), {"storage_data": {}}))[:-2] + b"]Nsb.", "key"),
    "tuples that hash for ever": (b"\x80\x04})\x94" + b"".join(b"h%c\x86\x94" % i for i in range(60)) + b"Ns.", "not the Metadata"),
    "text that grows": (dumps(Call(Global("torch.serialization", "_get_layout"), (NESTED[:0],)))[:-1] + b".", "_get_layout"),
    "no end": (dumps({"x": 1})[:-1], "STOP"),
    "a huge string": (b"\x80\x04X\xff\xff\xff\x7fx.", "expected 2147483647 bytes"),
    "an append to a tuple": (b"\x80\x04)Na.", "not a list"),
    "a huge number": (dumps(Call(Global("torch", "Size"), ((2**70,),))), "whole numbers"),
    "text as a size": (dumps(Call(Global("torch", "Size"), ("12",))), "whole numbers"),
}
REFUSED = {
    "no rank's file": (spoil(of(TWO), lambda f: (f / "__1_0.distcp").unlink()), ["__1_0.distcp is missing", "films"]),
    "cut": (spoil(of(TWO), cut("__1_0.distcp", 900)), ["__1_0.distcp is cut", "users"]),
    "cut in an empty chunk": (spoil(of(bags(films=Stored(FILMS, [*BY_ROWS, (1, 37, 0, 0, 8)]))), cut("__1_0.distcp", 20)),
                              ["__1_0.distcp is cut"]),
    "no .metadata": (spoil(of(TWO), lambda f: (f / ".metadata").unlink()), [".metadata is missing", "begin with a dot"]),
    "a save that did not end": (spoil(of(TWO), lambda f: (f / ".metadata").rename(f / ".metadata.tmp")), [".metadata is missing"]),
    "cut .metadata": (spoil(of(TWO), cut(".metadata", 300)), [".metadata cannot be read"]),
    "no rank's metadata": (spoil(of(TWO, by_rank=True), lambda f: (f / "__1.metadata").unlink()),
                           ["films", "do not fill its 37 x 8"]),
    "no first rank's metadata": (spoil(of(TWO, by_rank=True), lambda f: (f / "__0.metadata").unlink()),
                                 ["__0.metadata is missing beside __1.metadata"]),
    "two steps": (layout("model.ckpt-100/model", "model.ckpt-200/model"),
                  ["several", "model.ckpt-100/model", "model.ckpt-200/model"]),
    "swapped ranks": (spoil(of(TWO), swap_ranks), [".metadata", "__0_0.distcp is cut"]),
    "a hole": (of(TWO, change=set_facts("films", chunks=[(0, 0, 19, 8), (19, 0, 17, 8)])), ["films", "do not fill its 37 x 8"]),
    "an overlap": (of(TWO, change=move_chunk), ["films", "overlap"]),
    "a huge size": (of(TWO, change=set_facts("films", size=(2**40, 2**20))), ["films", "do not fill"]),
    "a small size": (of(TWO, change=set_facts("films", size=(30, 8))), ["films", "outside of its 30 x 8"]),
    "numbers that lie over one another": (of(bags(one=Stored(np.repeat(ONE, 5, 0), strides="zero"))),
                                          ["one", "__0_0.distcp has strides (0, 1)"]),
    "another type": (of(TWO, change=set_facts("films", type="float64")), ["films", "__0_0.distcp is FloatStorage", "says float64"]),
    "no rows": (of(bags(films=Stored(FILMS[:0]))), ["films", "is empty", "(0, 8)"]),
    "a path outside": (of(TWO, change=outside), ["'../1_0.distcp'", "not a file of this folder"]),
    "a lost place": (of(TWO, change=lambda _, places: places.pop((BAGS.format("films"), 19, 0))), ["films", "does not say where"]),
    "packed": (of(TWO, packed=["stream.zstd/1"]), ["films", "__0_0.distcp", "stream.zstd/1"]),
    "compressed": (of(TWO, item={BAGS.format("films"): {"compression": zipfile.ZIP_DEFLATED}}),
                   ["films", "__0_0.distcp", "compressed"]),
    "safetensors as .distcp": (spoil(of(TWO), lambda f: (f / "__0_0.distcp").write_bytes(
        b"\x10" + bytes(9) + b"{}" + bytes((f / "__0_0.distcp").stat().st_size))),
        ["films", "__0_0.distcp is not what torch.save"]),
    "a changed bit": (spoil(of(TWO), flip), ["__1_0.distcp is damaged", "CRC-32"]),
    "a changed bit of a transposed chunk": (spoil(of(bags(films=Stored(FILMS, strides="F"))), lambda f: flip_in(f, FILMS.T)),
                                            ["__0_0.distcp is damaged", "CRC-32"]),
    "a hostile item": (of(TWO, item={BAGS.format("films"): {"pickled": dumps(Call(KEY, (RUNS,)), 2)}}),
                       ["data.pkl of", "films", "posix.system"]),
    "codes": (of(bags(films=Stored(FILMS.astype(np.uint8)), films2=Stored(FILMS))), ["films.weight", "uint8", "codes without"]),
    "codes beside scales": (of(bags(films=Stored(FILMS.astype(np.uint8))) | {
        BAGS.format("films") + part: Stored(np.ones((37, 1), np.float16)) for part in ("_qscale", "_qbias")}),
        ["films.weight' has codes", "films.weight_qscale"]),
    "managed collisions": (of(TWO | {"model.mc.users._mch_sorted_raw_ids": Stored(np.ones((12, 1), np.int64))}),
                           ["users", "_mch_sorted_raw_ids"]),
    "hashed ids": (of(TWO | {"model.mc.films._hash_zch_identities": Stored(np.ones((37, 1), np.int64))}),
                   ["films", "_hash_zch_identities"]),
    "a virtual table": (of(TWO | {BAGS.format("films") + "_id": Stored(np.ones((37, 1), np.int64))}), ["films", "weight_id"]),
    "no tables": (of({"model.linear.weight": Stored(FILMS)}),
                  ["no files of TorchEasyRec", "give --table NAME=KEY; it has model.linear.weight"]),
    "cut safetensors": (spoil(lambda f: write_dcp_safetensors(f, TWO), cut("shard-00002-model-00001-of-00001.safetensors", 5)),
                        ["shard-00002-model-00001-of-00001.safetensors is cut"]),
    "no first safetensors": (spoil(lambda f: write_dcp_safetensors(f, TWO), lambda f: (
        f / "shard-00001-model-00001-of-00001.safetensors").unlink()), ["films", "do not fill its 37 x 8"]),
} | {f"hostile: {name}": (replace_metadata(content), [".metadata", words]) for name, (content, words) in HOSTILE.items()}


def flip_in(folder, array):
    path = folder / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[content.index(np.ascontiguousarray(array).tobytes()) + 100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(directory, case, monkeypatch):
    """In one line that names file and tensor; nothing is written, and nothing of the checkpoint was run."""
    write, words = REFUSED[case]
    write(directory / "source")
    work = directory / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    with pytest.raises(SystemExit) as ended:
        export(directory / "source", directory / "models", *SUM)
    line = str(ended.value)
    expect(all(word in line for word in words) and "\n" not in line, line)
    expect(not os.listdir(work) and not list(directory.glob("models/*")), f"{os.listdir(work)}")


def test_sizes_are_claims(directory):
    """A block is read in bounded memory, however wide the rows and however many the chunks."""
    rows = rows_of(20000, 400)
    chunks = [(0, row, column, 1000, 40) for row in range(0, 20000, 1000) for column in range(0, 400, 40)]
    write_dcp(directory / "source", bags(films=Stored(rows, chunks), users=Stored(rows, strides="F")))
    tracemalloc.start()
    checkpoint = bagserve_dcp.read_checkpoint(directory / "source")
    for table in checkpoint.tables.values():
        for row in range(0, 20000, 700):
            expect(np.array_equal(table[row:row + 700], rows[row:row + 700]), f"{table.key} at {row}")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expect(most < rows.nbytes // 2, f"{most} bytes")


# ---- descriptions -----------------------------------------------------------------------------
def describe(directory, tables, collections=()):
    path = directory / "tables.json"
    path.write_text(json.dumps({"tables": tables, "collections": list(collections)}))
    return path


SPARSE = "sparse_arch.embedding_bag_collection"
DESCRIBED = [{"name": f"{SPARSE}.embedding_bags.films", "rows": 37, "row_elements": 8, "reduction": "mean"},
             {"name": f"{SPARSE}.embedding_bags.users", "rows": 12, "row_elements": 16, "reduction": "sum", "padding_idx": 2}]


def test_described_tables(directory):
    """Names, pooling and features are those of the model; the checkpoint may have a prefix, and more."""
    write_dcp(directory / "source", TWO | {"model.other.embedding_bags.films.weight": Stored(ONE)})
    features = {"seen": DESCRIBED[0]["name"], "user": DESCRIBED[1]["name"]}
    path = describe(directory, DESCRIBED, [{"name": SPARSE, "features": features}])
    export(directory / "source", directory / "models", "--tables", path)
    with Server("--models", directory / "models") as server, Client(f"{server.host}:{server.port}") as client:
        expect_equal(set(client.models()), {SPARSE, *(table["name"] for table in DESCRIBED)})
        got = client.collection(SPARSE, {"seen": [[1, 3]], "user": [[2, 5]]})
        expect_equal(got["seen"][0].tolist(), ((FILMS[1] + FILMS[3]) / 2).tolist())
        expect_equal(got["user"][0].tolist(), USERS[5].tolist())


def test_sparse_features(directory):
    """TorchEasyRec's file names tables by their last part, and features by their collections."""
    write_dcp(directory / "source", TWO | {EMBS.format("films"): Stored(USERS)})
    path = directory / "sparse_features.json"
    path.write_text(json.dumps({"seen__ebc": {"embedding_name": "films__ebc", "pooling": "MEAN"},
                                "bought__ebc": {"embedding_name": "films__ebc", "pooling": "MEAN"},
                                "user__ebc": {"embedding_name": "users", "pooling": "SUM"},
                                "past__ec": {"embedding_name": "films__ec", "pooling": "NONE"}}))
    export(directory / "source", directory / "models", "--tables", path)
    with Server("--models", directory / "models") as server, Client(f"{server.host}:{server.port}") as client:
        expect_equal([feature["name"] for feature in client.features("ebc")], ["seen", "bought", "user"])
        got = client.collection("ebc", {"seen": [[1, 3]], "bought": [[]], "user": [[5, 6]]})
        expect_equal(got["seen"][0].tolist(), ((FILMS[1] + FILMS[3]) / 2).tolist())
        expect_equal(got["user"][0].tolist(), (USERS[5] + USERS[6]).tolist())
        expect_equal([feature["name"] for feature in client.features("ec")], ["past"])


@pytest.mark.parametrize("change, words", [
    ({"rows": 38}, ["tables.json says that", "38 x 8", "it is 37 x 8", "a rank's file is missing"]),
    ({"name": "x.films"}, ["'x.films'", "none of this name"]), ({"reduction": "avg"}, ["reduction is 'avg'"]),
    ({"colour": 1}, ["tables.json", "describe writes"]), ({"name": 7}, ["tables.json", "describe writes"]),
    ({"name": "films"}, ["'films'", "several of this name"])])
def test_wrong_descriptions(directory, change, words):
    write_dcp(directory / "source", TWO | {"model.other.embedding_bags.films.weight": Stored(ONE)})
    path = describe(directory, [DESCRIBED[0] | change])
    with pytest.raises(SystemExit) as ended:
        export(directory / "source", directory / "models", "--tables", path)
    expect(all(word in str(ended.value) for word in words), ended.value)


def test_lost_rank_of_safetensors(directory):
    """Without the last rank's file a table is only smaller; its described rows show it."""
    write_dcp_safetensors(directory / "source", TWO)
    (directory / "source" / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(SystemExit, match=r"films' is 37 x 8, and it is 19 x 8: a rank's file is missing"):
        export(directory / "source", directory / "models", "--tables", describe(directory, DESCRIBED))


@pytest.mark.parametrize("arguments, words", [
    (("--table", "films=films,reduction=sum", "--tables", "x.json"), "give --tables, or --table"),
    (("--tables", "nowhere.json"), "nowhere.json"), ((), "say how it pools"),
    ((*SUM, "--collection", "both=x:nothing"), "no table 'nothing'; there are films, users"),
    ((*SUM, "--collection", "both"), "NAME=FEATURE:TABLE"), ((*SUM, "--collection", "both=films"), "NAME=FEATURE:TABLE"),
    ((*SUM, "--collection", "c=x:films,x:users"), "a feature twice"), ((*SUM, "--collection", "films=x:films"), "two models")])
def test_wrong_arguments(directory, arguments, words):
    write_dcp(directory / "source", TWO)
    with pytest.raises(SystemExit) as ended:
        export(directory / "source", directory / "models", *arguments)
    expect(words in str(ended.value) and "\n" not in str(ended.value), ended.value)


def test_dynamic_tables_beside(directory):
    """TorchEasyRec's checkpoint has the dump of dynamicemb beside a tensor of that name without its rows."""
    source = directory / "source" / "model.ckpt-9"
    write_dcp(source / "model", TWO)
    write_dynamicemb(source / "dynamicemb" / "model.ebc", "users", [([7, 2**60], USERS[:2])])
    export(source, directory / "models", *SUM)
    with Server("--models", directory / "models") as server, Client(f"{server.host}:{server.port}") as client:
        expect_equal(set(client.models()), {"films", "users"})
        expect_equal(client.bags("users", [[2**60]])[0].tolist(), USERS[1].tolist())
        expect_equal(client.bags("films", [[36]])[0].tolist(), FILMS[36].tolist())
