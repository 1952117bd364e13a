"""Starting: where tables and options come from, and every rejection to start.

A rejection is an exit code other than 0 and one line that names the file or option and the reason.
"""

import dataclasses
import json
import os
import socket
import subprocess

import numpy as np
import pytest

from example import check_rows
from harness import (PROGRAM, ROOT, TIMEOUT_S, Server, environment, expect, expect_equal, free_port, run, wait_until,
                     write_json)
from lifecycle import TABLE, check_table, save
from v2 import Client, Tensor, f32_from_bf16, is_ready


# ---- where tables come from -------------------------------------------------------------------
def test_files_may_go_after_loading(directory):
    gone, cut, replaced = (save(directory / f"{n}.npy") for n in ("gone", "cut", "replaced"))
    arguments = [v for p in (gone, cut, replaced) for v in ("--table", f"{p.stem}={p}")]
    with Server(*arguments) as server, Client(server) as client:
        gone.unlink()
        os.truncate(cut, 10)
        np.save(replaced, TABLE * 2)
        for name in ("gone", "cut", "replaced"):
            check_table(client, model=name)


TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def test_files_of_numpy(directory, rng):
    """Every header version, type, byte order and axis order that NumPy writes; large files are read in several tiles."""
    def some(shape, kind, layout):
        values = np.frombuffer(rng.bytes(np.prod(shape) * int(kind[-1])), kind).reshape(shape)
        return np.asarray(values, order=layout)

    arrays = {f"{kind}{'big' if order == '>' else ''}{layout}": some((4, 3), order + kind, layout)
              for kind in TYPES for order in "<>" for layout in "CF"}
    arrays |= {f"large{columns}{layout}": some((rows, columns), ">f4", layout)
               for rows, columns in ((131, 20011), (1500007, 2)) for layout in "CF"}
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    for version in (1, 2, 3):
        arrays[f"v{version}"] = TABLE
        with open(directory / f"v{version}.npy", "wb") as file:
            np.lib.format.write_array(file, TABLE, (version, 0))
    with Server("--models", directory) as server, Client(server) as client:
        for name, array in arrays.items():
            ids = np.linspace(0, len(array) - 1, 50).astype(np.int64)
            got = client.infer(name, [Tensor("indices", ids[:, None])], binary=True, parameters={"binary_data_output": True})
            check_rows(got.embeddings(), array[ids])


def skipped(words, *arguments):
    """A version of a folder that cannot be served: --check rejects it; the server starts, and its
    index says why, without the folders of paths."""
    ended = run("serve", "--check", *arguments)
    expect_equal(ended.returncode, 1, ended.stderr)
    with Server(*arguments) as server, Client(server) as client:
        client.get("/v2/health/ready").expect(503)
        entry, = client.request("POST", "/v2/repository/index", b"").expect().json()
        expect_equal((entry["name"], entry["state"]), ("items", "UNAVAILABLE"))
        for word in words:
            for text, told in ((str(word), ended.stderr), (str(word).rsplit("/")[-1], entry["reason"])):
                expect(text in told, f"no {text!r} in {told!r}")


def test_models_directory(directory, root):
    """NAME.npy, and NAME/VERSION/ with a table and its configuration; the highest by default."""
    save(root / "plain.npy")
    for version in (1, 2, 10):
        save(root / "items" / str(version) / "table.npy", TABLE * version)
    write_json(root / "items" / "2" / "config.json", {"reduction": "mean"})
    write_json(root / "items" / "config.json", {"version_policy": "all"})
    with Server("--models", root) as server, Client(server) as client:
        expect_equal(sorted(client.get("/v2/models").json()["models"]), ["items", "plain"])
        expect_equal(client.get("/v2/models/items").json()["versions"], ["1", "2", "10"])
        check_table(client, model="plain")
        check_table(client, TABLE * 10)
        for version in (1, 2, 10):
            path = f"/v2/models/items/versions/{version}/infer"
            check_table(client, TABLE * version, path=path)
        both = [Tensor("indices", np.array([[0, 1]]))]
        path = "/v2/models/items/versions/2/infer"
        got = client.infer("items", both, path=path).embeddings()
        expect(np.array_equal(got, [TABLE[0] + TABLE[1]]), f"the mean of version 2 is {got}")


def test_pipes_are_not_waited_for(directory):
    """Where a file is expected and nobody writes."""
    pipe = directory / "models" / "items" / "1" / "config.json"
    save(pipe.with_name("table.npy"))
    os.mkfifo(pipe)
    skipped([pipe, "is not a regular file"], "--models", directory / "models")
    ended = run("serve", "--config", pipe)
    expect(ended.returncode == 1 and f"{pipe}: is not a regular file" in ended.stderr, ended.stderr)
    pipe.rename(pipe.with_name("other"))
    (pipe.with_name("SHA256SUMS")).write_text(f"{'0' * 64}  other\n")
    ended = run("verify", pipe.parent)
    expect(ended.returncode > 0 and "other: is not a regular file" in ended.stderr, ended.stderr)


def test_bad_models_directory(directory, root):
    (root / "items" / "1").mkdir(parents=True)
    skipped([root / "items" / "1"], "--models", root)
    save(root / "items" / "1" / "a.npy")
    save(root / "items" / "1" / "b.npy")
    skipped([root / "items" / "1" / "b.npy"], "--models", root)
    (root / "items" / "1" / "b.npy").unlink()
    config = root / "items" / "1" / "config.json"
    write_json(config, {"reduktion": "mean"})
    skipped([config, "reduktion", "reduction"], "--models", root)


def test_sources_override_each_other(directory):
    """Defaults < file < environment < flags, seen by which limit a body meets."""
    path = save(directory / "items.npy")
    config = write_json(directory / "config.json", {
        "http": {"max_body_bytes": 1000}, "models": [{"name": "items", "path": str(path)}]})
    variables = {"BAGSERVE_MAX_BODY_BYTES": "2000"}
    for limit, arguments, environ in [
            (1000, ["--config", config], {}),
            (1000, [], {"BAGSERVE_CONFIG": config}),
            (2000, ["--config", config], variables),
            (3000, ["--config", config, "--max-body-bytes", "3000"], variables),
            (4096, ["--config", config, "--max-body-bytes=4KiB"], variables)]:
        with Server(*arguments, variables=environ) as server:
            for size, status in ((limit, 400), (limit + 1, 413)):
                with Client(server) as client:
                    reply = client.request("POST", "/v2/models/items/infer", b" " * size)
                expect_equal(reply.status, status, f"{size} bytes with {arguments} {environ}")


def test_instruction_set(directory):
    """The plain kernels are everywhere; a set that the processor lacks is rejected by name."""
    table = ("--table", f"items={save(directory / 'items.npy')}")
    with Server(*table, variables={"BAGSERVE_ISA": "generic"}) as server, Client(server) as client:
        expect_equal(client.get("/").json()["isa"], "generic")
        expect_equal(server.wait_event("listening")["isa"], "generic")
        check_table(client)
    rejected(["sse", "generic"], *table, variables={"BAGSERVE_ISA": "sse"})
    foreign = "avx2" if os.uname().machine == "aarch64" else "neon"
    rejected([foreign, "generic"], *table, "--isa", foreign)


def test_demo():
    with Server("--demo") as server, Client(server) as client:
        expect_equal(sorted(client.get("/v2/models").json()["models"]), ["example", "items", "ranker"])
        shape = client.get("/v2/models/items").json()["outputs"][0]["shape"]
        expect_equal(shape, [-1, 64])
        inputs = [Tensor("indices", np.array([0, 2, 3, 4])), Tensor("offsets", np.array([0, 2, 2]))]
        weights = Tensor("per_sample_weights", np.full(4, 0.5, np.float32))
        got = client.infer("example", inputs + [Tensor("default_index", np.int64(0)), weights])
        want = np.array([[-1.05, -1.2], [-0.2, -0.6], [-0.1, 0.4]])
        expect(np.allclose(got.embeddings(), want, atol=1e-6), f"{got.embeddings()}")


# ---- rejecting to start ------------------------------------------------------------------------
def rejected(words, *arguments, check=True, variables=None, either=("",)):
    """The start fails, and so does --check; one line on standard error holds every word, and
    `either` of some."""
    commands = [["serve", "--port", "0", *arguments]]
    if check:
        commands.append(["serve", "--check", *arguments])
    for command in commands:
        ended = run(*command, variables=variables or {})
        told = f"{' '.join(map(str, command))}: {ended.stderr!r}"
        expect(0 < ended.returncode < 126, f"exit code {ended.returncode}: {told}")
        expect_equal(len(ended.stderr.strip().splitlines()), 1, f"lines of {told}")
        for word in words:
            expect(str(word) in ended.stderr, f"no {word!r} in {told}")
        expect(any(word in ended.stderr for word in either), f"none of {either} in {told}")


def test_port_in_use(directory):
    path = save(directory / "items.npy")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        rejected([port, "127.0.0.1", "in use", "another --port"], "--port", port, "--table",
                f"items={path}", check=False)
        rejected([port, "127.0.0.1", "in use", "another --admin-port"], "--admin-port", port,
                "--table", f"items={path}", check=False)


def test_bad_options(directory):
    table = f"items={save(directory / 'items.npy')}"
    for arguments, words in [
            (["--tabel", table], ["--tabel", "--table"]), (["items"], ["items", "--help"]),
            (["--config", directory / "absent.json", "--table", table], ["configuration file", "absent.json"]),
            (["--port", "65536", "--table", table], ["port", "65536", "65535"]), (["--table", "items"], ["items", "NAME=PATH"]),
            (["--host", "not an address", "--table", table], ["not an address"])]:
        rejected(words, *arguments, check=arguments[0] != "--host")


@pytest.mark.parametrize("arguments", [
    ["--demo", "--tabel"], ["--demo", "--port", "x"], ["--demo", "--port"], ["--demo", "stray"], [],
    ["--demo", "--check", "--port", "x"],
    *(["--demo", "--check", *wrong] for wrong in (
        ["--cors-origins", "example"], ["--trace-sample", "3"], ["--isa", "mmx"], ["--trusted-proxies", "x"],
        ["--otlp-endpoint", "x"], ["--unix-permissions", "9"], ["--proxy-protocol", "v2"]))])
def test_wrong_command_lines(arguments):
    """One sentence, which the program begins, and exit code 2."""
    ended = run("serve", *arguments)
    expect_equal(ended.returncode, 2, ended.stderr)
    expect(ended.stderr.startswith("bagserve: ") and ended.stderr.count("\n") == 1, ended.stderr)


def test_what_is_wrong_elsewhere(directory):
    """Files, tables, variables and ports have exit code 1."""
    config = write_json(directory / "c.json", {"nonsense": 1})
    for arguments in (["--demo", "--config", config], ["--demo", "--config", directory / "no"], ["--table", "t=no.npy"]):
        expect_equal(run("serve", *arguments).returncode, 1, arguments)
    for name, value in (("PORT", "x"), ("TRACE_SAMPLE", "3"), ("ISA", "mmx"), ("UNIX_PERMISSIONS", "9")):
        expect_equal(run("serve", "--demo", "--check", variables={f"BAGSERVE_{name}": value}).returncode, 1, name)


def test_a_configuration_beside_the_tables(directory, root):
    """An exporter's, whose reductions are lost where the folder alone is named; said once."""
    save(root / "items.npy")
    exported = write_json(root / "bagserve.json", {"models": [
        {"name": "items", "path": "items.npy", "reduction": "mean"}]})
    with (Server("--models", root, "--model-control", "poll", "--poll-seconds", "0.2") as server,
          Client(server) as client):
        expect_equal(client.get("/v2/models/items/config").expect().json()["parameters"]["reduction"],
                     {"string_value": "sum"})
        save(root / "later.npy")
        wait_until(lambda: client.get("/v2/models/later/ready").status == 200, "the folder is not polled")
        told, = (event for event in server.events() if event["event"] in ("skipped", "ignored"))
        expect_equal((told["level"], told["path"]), ("warning", str(exported)))
        expect(told["reason"].endswith(f"to use them: --config {exported}"), told)
    write_json(exported, {"models_dir": "."})
    with Server("--config", exported) as server:
        expect_equal([e for e in server.events() if e["event"] in ("skipped", "ignored")], [])
    with Server("--models", root) as server:
        expect_equal([e for e in server.events() if e["event"] in ("skipped", "ignored")], [],
                     "it names nothing but the folder")


def test_nothing_to_serve(directory):
    rejected(["--table"])
    (directory / "empty").mkdir()
    rejected([directory / "empty", "put NAME.npy or NAME/VERSION/TABLE.npy there", "mount"],
             "--models", directory / "empty")
    (directory / "empty" / "items.csv").touch()
    ended = run("serve", "--check", "--models", directory / "empty")
    expect("ignored" in ended.stderr and "others go to NAME/VERSION/" in ended.stderr, ended.stderr)
    rejected([directory / "absent", "folder of models", "make it", "mount"], "--models", directory / "absent")


def test_duplicate_models(directory):
    one, two = save(directory / "one.npy"), save(directory / "two.npy")
    rejected(["items", one, two], "--table", f"items={one}", "--table", f"items={two}")
    config = write_json(directory / "config.json", {"models": [{"name": "items", "path": str(one)}]})
    rejected(["items", one, two], "--config", config, "--table", f"items={two}")
    save(directory / "models" / "items.npy")
    rejected(["items", one, "items.npy"], "--models", directory / "models", "--table", f"items={one}")


def test_damaged_tables(directory):
    """tests/unit/test_npy.c has all that may be wrong with a file."""
    good = save(directory / "good.npy").read_bytes()
    (directory / "none").mkdir()
    (directory / "truncated.npy").write_bytes(good[:-1])
    (directory / "garbage.npy").write_bytes(good[:6] + b"\x09\x00" + good[8:])
    for name, words in (("absent.npy", ["No such file"]), ("none", ["folder holds no table"]), ("truncated.npy", ["47", "48"]),
                        ("garbage.npy", ["9"])):
        rejected([directory / name, "model 'items'", *words], "--table", f"items={directory / name}")


def test_bad_configurations(directory):
    """tests/unit/test_config_*.c have all that may be wrong with one."""
    path, config = str(save(directory / "items.npy")), directory / "config.json"
    model = {"name": "items", "path": path}
    for text, words in [("{", []), ('{"model": []}', ["model", "models"]), ('{"http": {"prot": 1}}', ["prot", "port"]),
                        (json.dumps({"models": [model | {"reducton": "sum"}]}), ["reducton", "reduction"]),
                        (json.dumps({"models": [model | {"default_index": 4}]}), ["default_index", "4", "items"]),
                        (json.dumps({"models": [model | {"datatype": "BF16"}]}), ["BF16"])]:
        config.write_text(text)
        rejected(words, "--config", config, either=(str(config), path))
    rejected([directory / "absent.json"], "--config", directory / "absent.json")


def test_bad_environment(directory):
    table = ["--table", f"items={save(directory / 'items.npy')}"]
    rejected(["BAGSERVE_PROT"], *table, variables={"BAGSERVE_PROT": "1"})
    rejected(["BAGSERVE_WORKERS", "many"], *table, variables={"BAGSERVE_WORKERS": "many"})


# ---- starting --------------------------------------------------------------------------------
def test_check(directory):
    """--check says nothing is wrong, and opens no port."""
    path = save(directory / "items.npy")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = run("serve", "--check", "--port", port, "--table", f"items={path}")
    expect_equal(ended.returncode, 0, ended.stderr)
    expect(f"1 model, {TABLE.nbytes} bytes of tables" in ended.stdout, ended.stdout)
    ended = run("serve", "--check", "--demo")
    expect("3 models, 25600040 bytes of tables" in ended.stdout, ended.stdout)


def test_examples(directory):
    """Each of config/examples passes --check where its tables are."""
    script = ROOT / "config" / "examples" / "tables.py"
    subprocess.run(["/usr/bin/python3", script, directory], check=True)
    names = sorted(path.name for path in script.parent.glob("*.json"))
    expect_equal(sorted(path.name for path in directory.glob("*.json")), names)
    for name in names:
        ended = run("serve", "--check", "--config", directory / name)
        expect("The configuration is valid" in ended.stdout, f"{name}: {ended}")
        check_example(directory / name)


def check_example(path):
    """Every table of the configuration, and the collection of it, answers with the rows that the script wrote."""
    rows = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)
    config = json.loads(path.read_text())
    tables = {model["name"]: model for model in config.get("models", []) if "features" not in model} or {"items": {}}
    ids = Tensor("indices", np.array([[0], [999]], np.int64))
    with Server("--config", path, "--host", "127.0.0.1") as server, Client(server) as client:
        for name, model in tables.items():
            want = f32_from_bf16(rows.view(np.uint32) >> 16) if model.get("datatype") == "BF16" else rows
            check_rows(client.infer(name, [ids]).embeddings(), want[[0, 999]])
        for model in config.get("models", []):
            for feature in model.get("features", []):
                asked = dataclasses.replace(ids, name=f"{feature['name']}.indices")
                check_rows(client.infer(model["name"], [asked]).outputs()[feature["name"]].array, rows[[0, 999]])


def test_what_is_logged(directory):
    """Where to ask, and how many models; each model only at the level debug, unless it takes a second."""
    path = save(directory / "items.npy")
    tables = ["--table", f"items={path}", "--table", f"b={path}", "--host", "127.0.0.1"]
    with Server(*tables) as server:
        ready, = [event for event in server.events() if event["event"] == "ready"]
        expect_equal((ready["models"], ready["url"]), (2, f"http://127.0.0.1:{server.port}"))
        events = [event["event"] for event in server.events()]
        expect(not {"loading", "loading table", "model ready"} & set(events), events)
    with Server(*tables, "--log-level", "debug") as server:
        for event, want in (("loading table", ["items"]), ("model ready", ["items", "b"])):
            names = [each["model"] for each in server.events() if each["event"] == event]
            expect_equal(names, want, event)  # both read one file
    with Server("--table", f"items={path}", "--unix", directory / "socket") as server:
        ready, = [event for event in server.events() if event["event"] == "ready"]
        expect_equal(ready["url"], f"unix:{directory}/socket")


def test_default_limits():
    """At its defaults a server warns of nothing and takes 4096 connections."""
    with Server("--demo") as server:
        expect_equal([e for e in server.events() if e["level"] == "warning"], [])


def test_closed_descriptors():
    """Standard streams that are closed at the start become /dev/null."""
    port = free_port()

    def close_all():
        for descriptor in range(3):
            os.close(descriptor)

    with subprocess.Popen([PROGRAM, "serve", "--demo", "--port", str(port)], env=environment(),
                          preexec_fn=close_all) as process:
        try:
            wait_until(lambda: process.poll() is not None or is_ready(port), "not ready")
            expect_equal(process.poll(), None, "the exit code")
            for descriptor in range(3):
                expect_equal(os.readlink(f"/proc/{process.pid}/fd/{descriptor}"), "/dev/null")
            process.terminate()
            expect_equal(process.wait(TIMEOUT_S), 0, "the exit code")
        finally:
            process.kill()
