"""What trainers write is served as they would answer, or refused by name: exports, dumps, and the deltas between them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from example import check_rows
from harness import PROGRAM, ROOT, Server, expect, expect_equal, wait_until

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_export  # noqa: E402
import trainers  # noqa: E402
from bagserve_client import Client  # noqa: E402
from trainers import DIM, EBC, EC, dequantise, quantise, write_dynamicemb, write_rtp, write_torcheasyrec  # noqa: E402


def rows_of(count, start=1.0, dim=DIM):
    return (np.arange(count * dim, dtype=np.float32) + start).reshape(count, dim) / 8


A, B, C = rows_of(5), rows_of(3, 100), rows_of(4, -7)
KEYS = [2**62 + 1, -5, 17]
ZERO = np.zeros(DIM, np.float32)


def export(source, folder, *arguments):
    bagserve_export.main([str(source), str(folder), *map(str, arguments)])


def connect(server):
    return Client(f"{server.host}:{server.port}")


# ---- exports ----------------------------------------------------------------------------------
def damage(path, file, change):
    """Changes a file that was written; a change of None removes it."""
    found, = path.rglob(file)
    if change is None:
        found.unlink()
    else:
        found.write_bytes(change(found.read_bytes()))
    return path


def shards(folder):
    """Two ranks: a table in parts by rows, one on the second rank alone, and sequences without pooling."""
    return write_torcheasyrec(folder, [{EBC + "cut": A[:3], EC + "items": B},
                                       {EBC + "cut": A[3:], EBC + "one": C}],
                              {EBC + "cut": "SUM", EBC + "one": "MEAN"})


def dynamic(folder, *default, pooling="SUM", second=True):
    """Keys on two ranks; the second has no dynamic table unless `second`."""
    ranks = [{EBC + "users": (KEYS[:2], B[:2], *default)}, {EBC + "users": (KEYS[2:], B[2:], *default)} if second
             else {EBC + "cut": A}]
    return write_torcheasyrec(folder, ranks, {EBC + "users": pooling, EBC + "cut": "SUM"})


def both(folder, path=EBC + "users"):
    """A table of the same name with pooling and without."""
    return write_torcheasyrec(folder, [{path: A, EC + "users": B}], {path: "SUM"})


def rtp(folder):
    dense, keyed = "model.ebc.embedding_bags.cut.weight/part_{}_2", "model.ebc.users.{}/part_{}_2"
    return write_rtp(folder, [{dense.format(1): A[3:], keyed.format("keys", 0): np.array(KEYS[:2]),
                               keyed.format("values", 0): B[:2], "model.ebc.embedding_bags.same.weight": C},
                              {dense.format(0): A[:3], keyed.format("keys", 1): np.array(KEYS[2:]),
                               keyed.format("values", 1): B[2:], "model.ebc.embedding_bags.same.weight": C}])


def dump(folder):
    """Two collections; one rank has no keys of the first."""
    write_dynamicemb(folder / "model.sparse", "users", [(KEYS[:2], B[:2]), ([], rows_of(0)), (KEYS[2:], B[2:])])
    write_dynamicemb(folder / "model.sequence", "items", [([1, 2, 3, 4], C)])
    return folder


def native(folder):
    folder.mkdir()
    (folder / "weights.nve").write_bytes(b"NVE")
    return folder


def only_dynamic(folder, other):
    """Without the files of static tables, and without those of a rank."""
    dynamic(folder)
    for pattern in ("sparse_embeddings*.npz", "sparse_dynamic_embedding-01*", other):
        for path in folder.rglob(pattern):
            path.unlink()
    return folder


SUM = ("--reduction", "sum")
NAN = A.copy()
NAN[2, 1] = np.nan
CUT = {"cut": ("sum", range(5), A)}
USERS = {"users": ("sum", [*KEYS, 4], [*B, ZERO])}
DEFAULT = np.full((1, DIM), 0.5, np.float32)
HALF = DEFAULT[0]
# The function that writes the files, the arguments, and the outcome: {model: (reduction, ids, rows)}, or words of the refusal.
OUTCOMES = {
    "TorchEasyRec's shards": (shards, (), CUT | {"one": ("mean", range(4), C), "items": ("none", range(3), B)}),
    "its dynamic tables": (dynamic, (), USERS),
    "a rank without them": (lambda f: dynamic(f, second=False), (), CUT | {"users": ("sum", [*KEYS[:2], 4], [*B[:2], ZERO])}),
    "its default_value": (lambda f: dynamic(f, DEFAULT), (), {"users": ("sum", [*KEYS, 4, -1], [*B, HALF, HALF])}),
    "a default_value that differs": (lambda f: write_torcheasyrec(f, [
        {EBC + "users": ([1], B[:1], DEFAULT)}, {EBC + "users": ([2], B[1:2], DEFAULT * 2)}], {EBC + "users": "SUM"}),
        (), ["embedding_bags.users", "default_value differs"]),
    "missing keys in a mean": (lambda f: dynamic(f, pooling="MEAN"), (), {"users": ("mean", [*KEYS, 4], [*B, ZERO])}),
    "its int8 rows": (lambda f: write_torcheasyrec(f, [{EBC + "cut": quantise(A), EC + "users": (KEYS, quantise(B))}],
                                                   {EBC + "cut": "SUM"}), (),
                      {"cut": ("sum", range(5), dequantise(quantise(A))),
                       "users": ("none", [*KEYS, 4], [*dequantise(quantise(B)), ZERO])}),
    "an int8 default_value": (lambda f: write_torcheasyrec(f, [{EBC + "users": (KEYS, quantise(B), quantise(DEFAULT))}],
                                                           {EBC + "users": "MEAN"}), (),
                              {"users": ("mean", [*KEYS, 4], [*dequantise(quantise(B)), HALF])}),
    "int8 zeros for missing keys": (lambda f: write_torcheasyrec(f, [{EBC + "users": (KEYS, quantise(B))}],
                                                                 {EBC + "users": "MEAN"}), (),
                                    {"users": ("mean", [*KEYS, 4], [*dequantise(quantise(B)), ZERO])}),
    "quantised rows of another kind": (lambda f: damage(write_torcheasyrec(f, [{EBC + "cut": quantise(A)}]), "*-01.json",
                                                        lambda b: b.replace(b"QUint8RowwiseF16", b"QInt4RowwiseF16")),
                                       SUM, ["embedding_bags.cut", "QInt4RowwiseF16", "only QUint8RowwiseF16"]),
    "a table twice": (both, (), {EBC + "users": ("sum", range(5), A), EC + "users": ("none", range(3), B)}),
    "copies on all ranks": (lambda f: write_torcheasyrec(f, [{EBC + "cut": A}] * 2), SUM,
                            ["embedding_bags.cut", "all ranks have the same rows", "one rank"]),
    "ranks of other widths": (lambda f: write_torcheasyrec(f, [{EBC + "cut": A}, {EBC + "cut": A[:, 1:]}]), SUM,
                              ["embedding_bags.cut", "rows of other shapes", "(5, 4), (5, 3)"]),
    "no pooling said": (lambda f: write_torcheasyrec(f, [{EBC + "cut": A}]), (), ["say how it pools", "cut"]),
    "a rank that is missing": (lambda f: damage(shards(f), "sparse_embeddings-01-of-02.npz", None), (),
                               ["rank 1 of 2 is missing", "sparse_embeddings-00-of-02.npz"]),
    "a dynamic file that is missing": (lambda f: damage(dynamic(f), "sparse_dynamic_embedding-01-of-02.npz", None), (),
                                       ["sparse_dynamic_embedding-01-of-02.npz", "embedding_bags.users", "is missing"]),
    "a rank of dynamic tables alone that is missing": (lambda f: only_dynamic(f, "sparse_embeddings-01*"), (),
                                                       ["rank 1 of 2 is missing", "sparse_dynamic_embedding-00-of-02.npz"]),
    "a rank of dynamic tables alone": (lambda f: only_dynamic(f, "none"), (),
                                       ["sparse_dynamic_embedding-01-of-02.npz is missing", "embedding_bags.users"]),
    "dynamic tables alone": (lambda f: [p.unlink() for p in dynamic(f).glob("sparse_embeddings*.npz")], (), USERS),
    "a static file that is missing": (lambda f: [p.unlink() for p in dynamic(f, second=False).glob("sparse_embeddings*.npz")],
                                      (), ["sparse_embeddings-01-of-02.npz is missing", "embedding_bags.cut"]),
    "copies with a NaN on all ranks": (lambda f: write_torcheasyrec(f, [{EBC + "cut": NAN}] * 2), SUM,
                                       ["embedding_bags.cut", "all ranks have the same rows", "one rank"]),
    "RTP's copies with a NaN": (lambda f: write_rtp(f, [{"m.same.weight": NAN}, {"m.same.weight": NAN}]), SUM,
                                {"same": ("sum", range(5), NAN)}),
    "names that are one on the server": (lambda f: write_torcheasyrec(f, [{"m.a b": A, "n.a_b": B}]), SUM,
                                         ["two tables would be called", "m.a b", "n.a_b", "sparse_embeddings-00-of-01"]),
    "a key file that ends inside a key": (lambda f: damage(dump(f), "items_emb_keys*", lambda b: b[:-3]), SUM,
                                          ["items_emb_keys.rank_0.world_size_1 is cut", "29 bytes", "multiple of 8"]),
    "rows that end inside a number": (lambda f: damage(dump(f), "items_emb_values*", lambda b: b + b"x"), SUM,
                                      ["items_emb_values.rank_0.world_size_1 is cut", "65 bytes"]),
    "a JSON that is missing": (lambda f: damage(shards(f), "sparse_embeddings-01-of-02.json", None), (),
                               ["sparse_embeddings-01-of-02.json is missing"]),
    "a JSON of another export": (lambda f: damage(shards(f), "sparse_embeddings-00-of-02.json",
                                                  lambda b: b.replace(b"3,", b"5,")), (), ["says that", "5 x 4", "3 x 4"]),
    "a file that is cut": (lambda f: damage(shards(f), "sparse_embeddings-00-of-02.npz", lambda b: b[:-30]), (),
                           ["sparse_embeddings-00-of-02.npz", "zip"]),
    "a compressed file": (lambda f: np.savez_compressed(shards(f) / "sparse_embeddings-00-of-02.npz", **{EBC + "cut": A}) or f,
                          (), ["sparse_embeddings-00-of-02.npz", "compressed"]),
    "RTP's parts": (rtp, SUM, CUT | USERS | {"same": ("sum", range(4), C)}),
    "RTP's copies that differ": (lambda f: damage(rtp(f), "model-000001-of-000002.safetensors",
                                                  lambda b: b.replace(C.tobytes(), (C + 1).tobytes())), SUM,
                                 ["embedding_bags.same", "comes twice, with other rows"]),
    "a part of RTP's that is missing": (lambda f: write_rtp(f, [{"m.cut.weight/part_1_2": A}]), SUM,
                                        ["m.cut", "part 0 of 2 of its values is missing"]),
    "RTP's file that is cut": (lambda f: damage(rtp(f), "model-000000-of-000002.safetensors", lambda b: b[:-1]), SUM,
                               ["model-000000-of-000002.safetensors is cut"]),
    "dynamicemb's dump": (dump, SUM, USERS | {"items": ("sum", [1, 2, 3, 4, 5], [*C, ZERO])}),
    "a rank of the dump that is missing": (lambda f: damage(dump(f), "users_emb_values.rank_2*", None), SUM,
                                           ["rank 2 of 3 is missing", "users_emb_values.rank_0.world_size_3"]),
    "a file of the dump that is cut": (lambda f: damage(dump(f), "items_emb_values*", lambda b: b[:-4]), SUM,
                                       ["model.sequence.items", "4 keys and 15 FP32"]),
    "ranks of two dumps": (lambda f: write_dynamicemb(write_dynamicemb(f, "u", [([1], A[:1])] * 2), "u", [([1], A[:1])]),
                           SUM, ["u_emb_", "one of"]),
    "NV-embedding-cache's own file": (native, (), ["weights.nve is of NV-embedding-cache", "export the checkpoint"]),
    "a checkpoint of safetensors in parts": (lambda f: f.mkdir() or write_rtp(f, [{"m.cut.weight": A}]) and [p.rename(
        f / p.name.replace("000000-of-000001", "00001-of-00001")) for p in f.iterdir()], SUM, ["no files of TorchEasyRec"]),
    "no layout that is known": (lambda f: f.mkdir() or f, (), ["no files of TorchEasyRec", "dynamicemb"]),}


@pytest.mark.parametrize("case", OUTCOMES)
def test_outcomes(directory, case):
    write, arguments, want = OUTCOMES[case]
    source, folder = directory / "source", directory / "models"
    write(source)
    if isinstance(want, list):
        with pytest.raises(SystemExit) as ended:
            export(source, folder, *arguments)
        expect(all(word in str(ended.value) for word in want), ended.value)
        expect("\n" not in str(ended.value) and not folder.exists(), "one line, and nothing is written")
        return
    export(source, folder, *arguments)
    with Server("--models", folder) as server, connect(server) as client:
        expect_equal([e for e in server.events() if e["level"] in ("warning", "error")], [])
        expect_equal(set(client.models()), set(want))
        for model, (reduction, ids, rows) in want.items():
            ids, rows = np.array(ids), np.asarray(rows, np.float32)
            got = client.rows(model, ids) if reduction == "none" else client.bags(model, [[i] for i in ids] + [[]])
            if reduction != "none":
                expect(not got[-1].any(), f"{model}: an empty bag is {got[-1]}")
                pair = client.bags(model, [ids[-2:]])[0]
                check_rows([pair], rows[-2:].sum(axis=0, keepdims=True) / (2 if reduction == "mean" else 1))
            check_rows(got[:len(rows)], rows)


# ---- rows of bytes ----------------------------------------------------------------------------
def fused(kind):
    """A row of the codes 10 and 200 with scale 0.5 and bias -3, of every layout, and what it stands for."""
    f4, f2 = (lambda *n: np.array(n, "<f4").tobytes()), (lambda *n: np.array(n, "<f2").tobytes())
    codes, signed, four, two = bytes([10, 200]), np.array([10, -56], np.int8).tobytes(), bytes([0xc2]), bytes([0x0d])
    eight = [2.0, 97.0]
    return {"int8": (codes + f4(0.5, -3), eight), "int8_f16_front": (f2(0.5, -3) + codes, eight),
            "int8_f16_back": (codes + f2(0.5, -3), eight), "int8_symmetric": (signed + f4(0.5), [5, -28]),
            "int8_symmetric_f16": (signed + f2(0.5), [5, -28]), "int4": (four + f2(0.5, -3), [-2, 3]),
            "int4_f16_front": (f2(0.5, -3) + four, [-2, 3]), "int2": (two + f2(0.5, -3), [-2.5, -1.5])}[kind]


@pytest.mark.parametrize("writer, kind", [
    ("FBGEMM, fused", "int8"), ("FBGEMM, inference", "int8_f16_front"), ("FBGEMM, fused", "int4"),
    ("FBGEMM, inference", "int4_f16_front"), ("FBGEMM, fused", "int2"), ("FBGEMM, QUint8RowwiseF16", "int8_f16_back"),
    ("NV-embedding-cache, QUint8RowwiseF32", "int8"), ("NV-embedding-cache, QUint8RowwiseF16", "int8_f16_back"),
    ("NV-embedding-cache, QInt8RowwiseF32", "int8_symmetric"), ("NV-embedding-cache, QInt8RowwiseF16", "int8_symmetric_f16")])
def test_row_formats_of_trainers(directory, writer, kind):
    """By its name a row stands for what its writer means; without one the file is refused with what to say."""
    row, want = fused(kind)
    np.save(directory / "t.npy", np.frombuffer(row * 3, np.uint8).reshape(3, -1))
    with Server("--table", f"t={directory}/t.npy,row_format={kind},row_elements=2") as server, connect(server) as client:
        check_rows(client.bags("t", [[0], [2]]), [want, want])


@pytest.mark.parametrize("names, want", [
    (("weight", "weight_qscale", "weight_qbias"), [2.0, 97.0]), (("weight", "weight_scale"), [5.0, -28.0]),
    (("weight", "scale"), [5.0, -28.0])])
def test_codes_apart_from_scales(directory, names, want):
    """TorchRec's state_dict, and symmetric codes: the exporter names `convert`, which joins them."""
    codes = np.array([[10, 200]] * 3, np.uint8) if len(names) == 3 else np.array([[10, -56]] * 3, np.int8)
    parts = [codes, np.full((3, 1), 0.5, np.float32), np.full((3, 1), -3, np.float32)]
    np.savez(directory / "q.npz", **dict(zip(names, parts)))
    subprocess.run([PROGRAM, "convert", f"{directory}/q.npz#weight" + ",row_elements=2" * (len(names) == 3),
                    str(directory / "t.safetensors")], check=True, capture_output=True)
    with Server("--table", f"t={directory}/t.safetensors") as server, connect(server) as client:
        check_rows(client.bags("t", [[1]]), [want])


# ---- TorchEasyRec's deltas --------------------------------------------------------------------
@pytest.fixture(name="world")
def make_world(directory, monkeypatch):
    """A dense and a keyed table as models with room for keys, and a folder of deltas."""
    trainers.install_pyarrow(monkeypatch)
    write_torcheasyrec(directory / "export", [{EBC + "cut": A, EBC + "users": (KEYS, B)}],
                       {EBC + "cut": "SUM", EBC + "users": "SUM"})
    export(directory / "export" / "sparse", directory / "models", "--table", "cut=cut", "--table", "users=users,spare_rows=9")
    (directory / "deltas").mkdir()
    return directory


CUT_PATH, USERS_PATH = "model.group.ebc.embedding_bags.cut", "model.group.ebc.embedding_bags.users"


def write_steps(source, *steps):
    """Two ranks of each: row STEP % 5 of `cut` is STEP, key STEP of `users`, too, and key STEP - 100 is removed."""
    for step in steps:
        value = np.full((1, DIM), step, np.float32)
        trainers.write_delta(source, step, {CUT_PATH: ([step % 5], value), USERS_PATH: ([step], value)}, 0, 2)
        trainers.write_delta(source, step, {USERS_PATH: ([step - 100, -777], np.zeros((2, DIM), np.float32))}, 1, 2)


def after(*steps):
    """What `cut` has, and whether `users` has keys 100, 200 and 300."""
    cut = A.copy()
    for step in steps:
        cut[step % 5] = step
    return cut, [step == max(steps, default=0) for step in (100, 200, 300)]


def check(client, steps):
    cut, has = after(*steps)
    check_rows(client.bags("cut", [[i] for i in range(5)]), cut)
    got = client.bags("users", [[100], [200], [300], [KEYS[0]]])
    expect_equal([bool(row.any()) for row in got], [*has, True])


def test_deltas_in_a_folder(world):
    """Numbered one after the other, rows before removed keys; called again it changes nothing, and newer ones follow."""
    source, models = world / "deltas", world / "models"
    write_steps(source, 100)
    expect_equal(bagserve_export.deltas(source, models, interval=100), [100])
    expect_equal(bagserve_export.deltas(source, models, interval=100), [])
    write_steps(source, 200, 300)
    expect_equal(bagserve_export.deltas(source, models, interval=100), [200, 300])
    expect_equal(sorted(os.listdir(models / "users" / "1" / "deltas")), list("123456"))
    with Server("--models", models, "--updates", "on", "--admin-socket", world / "admin") as server, connect(server) as client:
        check(client, [100, 200, 300])
        expect_equal(client.metadata("users")["parameters"]["updates_through"], 6)
        expect_equal(client.metadata("users")["parameters"]["rows"], 4)
    (models / "deltas.json").unlink()  # as after a call that broke before its end
    expect_equal(bagserve_export.deltas(source, models, after=200), [300])
    expect_equal(len(os.listdir(models / "users" / "1" / "deltas")), 6)


def test_deltas_are_polled(world):
    """A delta with the ready_file is served at the next poll."""
    for model in ("cut", "users"):
        (world / "models" / model / "1" / "READY").touch()
    with Server("--models", world / "models", "--model-control", "poll", "--poll-seconds", 0.2, "--ready-file", "READY",
                "--updates", "on", "--admin-socket", world / "admin") as server, connect(server) as client:
        write_steps(world / "deltas", 100)
        bagserve_export.deltas(world / "deltas", world / "models", ready_file="READY")
        wait_until(lambda: client.bags("cut", [[0]])[0, 0] == 100 and client.bags("users", [[100]])[0, 0] == 100, "step 100")


def test_deltas_to_a_server(world):
    """The server's number says which steps it has: sent again, or after a call that broke, nothing changes twice."""
    source = world / "deltas"
    write_steps(source, 100, 200)
    with Server("--models", world / "models", "--updates", "on", "--admin-socket", world / "admin") as server, \
            connect(server) as client, Client(f"unix:{world / 'admin'}") as admin:
        expect_equal(bagserve_export.deltas(source, server=admin, interval=100), [100, 200])
        check(client, [100, 200])
        expect_equal(client.metadata("users")["parameters"]["updates_through"], 400)
        expect_equal(bagserve_export.deltas(source, server=f"unix:{world / 'admin'}", interval=100), [])
        write_steps(source, 300)
        admin.update("users", np.full((1, DIM), 300, np.float32), keys=[300], sequence=599, first_sequence=401)
        expect_equal(bagserve_export.deltas(source, server=admin, interval=100), [300])
        check(client, [100, 200, 300])
        expect_equal([client.metadata(m)["parameters"]["updates_through"] for m in ("cut", "users")], [600, 600])
        write_steps(source, 400)
        rows = np.full((1, DIM), 400, np.float32)
        admin.update("cut", rows, indices=[0], sequence=800, first_sequence=601)  # only the first table has step 400
        expect_equal(bagserve_export.deltas(source, server=admin, interval=100), [])
        expect_equal(client.bags("users", [[400], [300]])[:, 0].tolist(), [400, 0])


def test_int8_deltas(world):
    """Decoded for a table of floats, and as they are for one in their format."""
    write_torcheasyrec(world / "codes", [{EC + "items": (KEYS, quantise(B))}])
    export(world / "codes", world / "models")
    rows = quantise(np.array([[1, 2, 3, 5], [0, 0, 0, 0]], np.float32))
    trainers.write_delta(world / "deltas", 5, {"x.items": (KEYS[:2], rows), USERS_PATH: (KEYS[:2], rows)})
    bagserve_export.deltas(world / "deltas", world / "models")
    stored = np.load(world / "models" / "items" / "1" / "deltas" / "1" / "rows.npy")
    check_rows(stored, rows[:1])
    with Server("--models", world / "models", "--updates", "on", "--admin-socket", world / "admin") as server, \
            connect(server) as client:
        check_rows(client.rows("items", KEYS[:2]), [dequantise(rows)[0], ZERO])
        check_rows(client.bags("users", [[KEYS[0]], [KEYS[1]]]), [dequantise(rows)[0], ZERO])


def twice(source):
    path = next(source.rglob("*step_200_rank_0*"))
    (source / "other_step_200.parquet").write_bytes(path.read_bytes())


def move(source, name, to):
    path = next(source.rglob(name))
    path.rename(path.with_name(to))


def swap(source):
    first, second = next(source.rglob("*step_200_rank_0*")), next(source.rglob("*step_300_rank_0*"))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def say(source, **columns):
    trainers.write_delta(source, 200, {USERS_PATH: ([7], B[:1])}, 1, 2, said=columns)


def write_wide(source, step, width):
    """A step of two whole ranks whose rows have another width than the model's."""
    for rank in (0, 1):
        trainers.write_delta(source, step, {CUT_PATH: ([0], np.ones((1, width), np.float32))}, rank, 2)


def write_other(source, rank):
    trainers.write_delta(source, 200, {"other.users": ([7], B[:1])} if rank else {CUT_PATH: ([0], A[:1])}, rank, 2)


SPOILT = {
    "no rank": (lambda s: next(s.rglob("*step_200_rank_1*")).unlink(), ["step 200", "rank 1 of 2 is missing"]),
    "twice": (twice, ["step 200 comes twice", "other_step_200.parquet"]),
    "another world": (lambda s: trainers.write_delta(s, 200, {}, 2, 3), ["step 200 comes twice", "rank_2_of_3"]),
    "cut": (lambda s: damage(s, "*step_200_rank_1*", lambda b: b[:-9]), ["step 200", "rank_1_of_2.parquet cannot be read"]),
    "swapped": (swap, ["step 200", "rank_0_of_2.parquet has global_step 300", "says 200"]),
    "another rank's": (lambda s: say(s, rank=0), ["step 200", "rank_1_of_2.parquet has rank 0", "says 1"]),
    "another world's": (lambda s: say(s, world_size=4), ["step 200", "has world_size 4", "says 2"]),
    "another folder": (lambda s: (s / "step_200").rename(s / "step_250"), ["step 200", "is in the folder step_250"]),
    "a lost step": (lambda s: [p.unlink() for p in s.rglob("*step_200*.parquet")], ["step 200 is missing", "between step 100"]),
    "a key that differs": (lambda s: trainers.write_delta(s, 200, {USERS_PATH: ([200], B[:1])}, 1, 2),
                           ["step 200", "key 200 of table", "comes twice, with other rows"]),
    "another width": (lambda s: trainers.write_delta(s, 200, {USERS_PATH: ([7], B[:1, 1:])}, 1, 2),
                      ["step 200", "other widths", USERS_PATH]),
    "a table without a model": (lambda s: trainers.write_delta(s, 200, {"x.y": ([7], B[:1])}, 1, 2),
                                ["step 200", "no model for its table 'x.y'", "skip"]),
    "other rows than the model's": (lambda s: write_wide(s, 200, DIM + 1),
                                    ["step 200", CUT_PATH, "rows of 5 elements", "its model have 4"]),
    "a row that the model lacks": (lambda s: trainers.write_delta(s, 200, {CUT_PATH: ([2, 5], A[:2])}, 1, 2),
                                   ["step 200", CUT_PATH, "row 5", "has 5 rows"]),
    "two tables for one model": (lambda s: trainers.write_delta(s, 200, {"other.users": ([7], B[:1])}, 1, 2),
                                 ["step 200", f"'{USERS_PATH}' and 'other.users'", "the model 'users'"]),
    "another table for the model of before": (lambda s: [write_other(s, rank) for rank in (0, 1)],
                                              ["step 200", f"'{USERS_PATH}' and 'other.users'", "the model 'users'"]),
    "no delta": (lambda s: (s / "part-0.parquet").touch(), ["part-0.parquet is not a delta"]),}


@pytest.mark.parametrize("to_server", [False, True])
@pytest.mark.parametrize("case", SPOILT)
def test_deltas_that_are_not_whole(world, case, to_server):
    """The step before is taken; of it and of those after it nothing is."""
    (spoil, words), source = SPOILT[case], world / "deltas"
    write_steps(source, 100, 200, 300)
    spoil(source)
    whole = "not a delta" not in words[0]
    with Server("--models", world / "models", "--updates", "on", "--admin-socket", world / "admin", "--model-control",
                "explicit") as server, \
            connect(server) as client, Client(f"unix:{world / 'admin'}") as admin:
        for _ in range(2):
            target = {"server": admin} if to_server else {"folder": world / "models"}
            with pytest.raises(ValueError) as raised:
                bagserve_export.deltas(source, interval=100, **target)
            expect("\n" not in str(raised.value) and all(word in str(raised.value) for word in words), raised.value)
            if not to_server:
                admin.load("cut", "users")
            check(client, [100] if whole else [])


def test_deltas_that_come_late(world):
    write_steps(world / "deltas", 100, 300)
    expect_equal(bagserve_export.deltas(world / "deltas", world / "models"), [100, 300])
    write_steps(world / "deltas", 200)
    with pytest.raises(ValueError, match="step 200 comes after step 300, which was taken"):
        bagserve_export.deltas(world / "deltas", world / "models")
    with pytest.raises(ValueError, match="give a folder of models, or a server"):
        bagserve_export.deltas(world / "deltas")


def test_copies_with_a_nan(world):
    """Equal copies of a row on several ranks are one row, whatever is in it."""
    row = np.array([[1, np.nan, -np.inf, 0]], np.float32)
    for rank in (0, 1):
        trainers.write_delta(world / "deltas", 100, {CUT_PATH: ([1], row)}, rank, 2)
    write_steps(world / "deltas", 200)
    expect_equal(bagserve_export.deltas(world / "deltas", world / "models", interval=100), [100, 200])
    np.testing.assert_array_equal(np.load(world / "models" / "cut" / "1" / "deltas" / "1" / "rows.npy"), row)


def test_steps_that_a_server_has(world):
    """Steps are returned once, whatever tables the first and the newest one have; an empty one changes nothing."""
    source, one = world / "deltas", np.ones((1, DIM), np.float32)
    trainers.write_delta(source, 100, {CUT_PATH: ([1], one)})
    trainers.write_delta(source, 200, {USERS_PATH: ([200], one)})
    with Server("--models", world / "models", "--updates", "on", "--admin-socket", world / "admin") as server, \
            connect(server) as client, Client(f"unix:{world / 'admin'}") as admin:
        expect_equal(bagserve_export.deltas(source, server=admin, interval=100), [100, 200])
        trainers.write_delta(source, 300, {"x.left_out": ([1], one)})
        for _ in range(2):
            expect_equal(bagserve_export.deltas(source, server=admin, interval=100, skip=["left_out"]), [])
        trainers.write_delta(source, 400, {CUT_PATH: ([2], one * 4)})
        expect_equal(bagserve_export.deltas(source, server=admin, interval=100, skip=["left_out"]), [400])
        check_rows(client.bags("cut", [[1], [2]]), [one[0], one[0] * 4])


def test_without_pyarrow(world, monkeypatch):
    write_steps(world / "deltas", 100)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="needs pyarrow: pip install pyarrow"):
        bagserve_export.deltas(world / "deltas", world / "models")


# ---- dynamicemb's increments ------------------------------------------------------------------
def increment(keys, value, score):
    """What incremental_dump() returns of one table."""
    return ({"model.sparse": {"users": (np.array(keys), np.full((len(keys), DIM), value, np.float32))}},
            {"model.sparse": {"users": score}})


def test_increments(directory):
    """A chain by the scores: one that is lost, doubled or swapped is an error, and changes nothing."""
    models = directory / "models"
    write_dynamicemb(directory / "dump" / "model.sparse", "users", [(KEYS, B)])
    export(directory / "dump", models, "--table", "users=users,reduction=sum,spare_rows=5")
    first, second, third = increment([1, 17], 2, 20), increment([2], 3, 30), increment([3], 4, 40)
    expect_equal(bagserve_export.incremental(first, 10, models), first[1])
    for dumped, before, words in ((first, 10, "ends at score 20 comes twice"), (third, second[1], "one of them is missing"),
                                  (increment([9], 9, 15), 10, "out of order"), (increment([9], 9, 10), 20, "before that"),
                                  (second, {}, "give the score before the dump"),
                                  (increment([9, 9], 9, 30), 20, "2 keys, 1 of them different")):
        with pytest.raises(ValueError, match=words):
            bagserve_export.incremental(dumped, before, models)
    bagserve_export.incremental(second, first[1], models)
    bagserve_export.incremental(increment([], 0, 35), second[1], models)
    bagserve_export.incremental(third, 35, models)
    state = json.loads((models / "deltas.json").read_text())
    expect_equal((state["scores"], state["numbers"]), ({"model.sparse.users": 40}, {"users": 3}))
    with Server("--models", models, "--updates", "on", "--admin-socket", directory / "admin") as server, \
            connect(server) as client:
        expect_equal(client.bags("users", [[1], [2], [3], [17], [9]])[:, 0].tolist(), [2, 3, 4, 2, 0])
