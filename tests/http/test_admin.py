"""The requests that load and unload: their bodies, who may ask, and on which listener."""

import stat
import sys

import pytest

from control import BEARER, READER, TOKEN, Admin, collection, publish, serve, served
from harness import ROOT, Server, expect, expect_equal, free_port, run
from v2 import Client, UnixRaw, head

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_client as bc  # noqa: E402


@pytest.fixture(scope="module", name="shared")
def serve_shared(shared_directory):
    publish(shared_directory / "models", "t", 1)
    with serve(shared_directory) as server:
        yield server


# ---- bodies -----------------------------------------------------------------------------------
# tests/unit/test_control.c has all that may be wrong with them.
@pytest.mark.parametrize("path, body, words", [
    ("models/t/load", '{"parameters": {"file:1/model.onnx": "x"}}', "not supported"),
    ("models/t/unload", '{"parameters": {"unload_dependents": "yes"}}', "true or false"),
    ("load", '{"models": [{"name": "t", "vers": 1}]}', "unknown key 'vers'")])
def test_bad_bodies(shared, path, body, words):
    reply = shared.admin.client.request("POST", f"/v2/repository/{path}", body, BEARER).expect(400)
    expect(words in reply.error(), reply.error())


# ---- who may ask, and where -------------------------------------------------------------------
def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_first_listener_changes_nothing(shared):
    reply = shared.client.request("POST", "/v2/repository/models/t/unload").expect(403)
    expect("admin listener" in reply.error(), reply.error())
    expect_equal(served(shared.client), 1)


def test_tokens(shared):
    client = shared.admin.client
    for path in ("models/t/load", "models/t/unload", "load"):
        client.request("POST", f"/v2/repository/{path}", "").expect(401)
        reply = client.request("POST", f"/v2/repository/{path}", "", bearer(READER)).expect(403)
        expect("scope admin" in reply.error(), reply.error())
    for path in ("/v2/health/ready", "/metrics", "/v2/models/t"):
        client.request("GET", path, headers=BEARER).expect(200)
    client.request("POST", "/v2/models/t/infer", "{}", BEARER).expect(400)
    client.request("POST", "/v2/models/t/infer", "{}", bearer(READER)).expect(403)
    client.request("POST", "/v2/models/t/infer", "{}", bearer("infer-0123456789abcdef")).expect(403)


def test_log_names_who_asked(directory):
    publish(directory / "models", "t", 1)
    with serve(directory) as server:
        server.admin.unload("t").expect()
        done = server.wait_event("change done")
        expect(done["asked_by"].startswith("127.0.0.1:") and done["models"] == "unload t", f"{done}")
        expect(TOKEN not in server.log(), "the token was logged")


def test_off_by_default(directory):
    publish(directory / "models", "t", 1)
    port = free_port()
    with Server("--models", directory / "models", "--admin-port", port) as server:
        reply = Admin(server, port).unload("t").expect(404)
        expect("--model-control" in reply.error(), reply.error())


@pytest.mark.parametrize("arguments, words", [
    (["--model-control", "explicit"], "admin listener"),
    (["--model-control", "explicit", "--admin-port", "PORT"], "token_file"),
    (["--model-control", "poll", "--admin-port", "PORT"], "token_file"),
    (["--model-control", "always"], "none, explicit, poll")])
def test_start_needs_a_guard(directory, arguments, words):
    publish(directory / "models", "t", 1)
    arguments = [str(free_port()) if a == "PORT" else a for a in arguments]
    ended = run("serve", "--port", "0", "--models", directory / "models", *arguments)
    expect(ended.returncode != 0 and words in ended.stderr, ended.stderr)


def test_poll_without_a_second_listener(directory):
    publish(directory / "models", "t", 1)
    with Server("--models", directory / "models", "--model-control", "poll") as server:
        with Client(server) as client:
            expect_equal(served(client), 1)


@pytest.mark.parametrize("permissions, is_open", [("660", False), ("666", True), ("602", True)])
@pytest.mark.parametrize("changes", [("--updates", "on"), ("--model-control", "explicit")])
def test_socket_of_everybody(directory, permissions, is_open, changes):
    """Everybody may change the tables: that is logged."""
    publish(directory / "models", "t", 1)
    with Server("--models", directory / "models", *changes, "--admin-socket", directory / "admin.sock",
                "--unix-permissions", permissions) as server:
        expect_equal([event["event"] for event in server.events()].count("tables unguarded"), int(is_open))


def test_unix_socket(directory):
    """Whoever may write to it changes models, without a token; other routes are there, too."""
    publish(directory / "models", "t", 1)
    path = directory / "admin.sock"
    with Server("--models", directory / "models", "--model-control", "explicit", "--admin-socket",
                path, "--unix-permissions", "600") as server, Client(server) as client:
        mode = path.stat().st_mode
        expect(stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, oct(mode))
        for method, target, status in (("POST", "/v2/repository/models/t/unload", 200),
                                       ("GET", "/v2/health/ready", 200), ("GET", "/metrics", 200),
                                       ("POST", "/v2/repository/models/t/load", 200)):
            with UnixRaw(path) as raw:
                raw.send(head(method, target, {"Content-Length": "0"}))
                raw.reply().expect(status)
        expect_equal(served(client), 1)
        expect_equal(server.wait_event("change done")["asked_by"], "unix")
    expect(not path.exists(), "the socket is left behind")


# ---- clients ----------------------------------------------------------------------------------
def test_python_client(directory, root):
    publish(root, "t", 1)
    publish(root, "u", 1)
    collection(root, "c", ["t"])
    with serve(directory) as server:
        address = f"127.0.0.1:{server.admin.client.server.port}"
        with bc.Client(address, token=TOKEN) as client:
            publish(root, "t", 2)
            expect_equal(client.load("t", ("u", 1))["done"], True)
            expect_equal((served(server.client), served(server.client, "u")), (2, 1))
            client.load("t", version=1)
            expect_equal(served(server.client), 1)
            with pytest.raises(bc.Conflict):
                client.unload("t")
            client.unload("t", unload_dependents=True)
            expect_equal({(e["name"], e["state"]) for e in client.index()},
                         {("t", "UNAVAILABLE"), ("c", "UNAVAILABLE"), ("u", "READY")})
            with pytest.raises(bc.NotFound):
                client.load("nobody")


@pytest.mark.parametrize("path, body", [
    ("models/t/load", "{}"), ("models/t/unload", '{"parameters": {"unload_dependents": false}}'),
    ("models/t/load", ""), ("index", '{"ready": false}')])
def test_as_tritonclient_asks(shared, path, body):
    """The requests of load_model, unload_model and get_model_repository_index, one after the other."""
    shared.admin.client.request("POST", f"/v2/repository/{path}", body, BEARER).expect(200)
    extensions = shared.client.get("/v2").json()["extensions"]
    expect({"model_repository", "model_repository(unload_dependents)"} <= set(extensions), f"{extensions}")
