"""Access tokens: which request needs which scope, the file, reading it again; public metrics."""

import json
import os
import signal

import numpy as np
import pytest

from example import EXAMPLE, INFER, INPUTS, WANT, check_rows
from harness import Server, expect, expect_equal, free_port, run, wait_until
from v2 import Client, Raw, at_port, head, infer_body

INFER_TOKEN = "infer-0123456789abcdef"
READ_TOKEN = "read-0123456789abcdef~"
ADMIN_TOKEN = "admin-0123456789abcdef/+="
UNKNOWN = "infer-0123456789abcdeF"
FILE = f"""# tokens of a test
infer {INFER_TOKEN}

read  {READ_TOKEN}
admin\t{ADMIN_TOKEN}
"""
REALM = 'Bearer realm="bagserve"'


def write(path, text=FILE, mode=0o600):
    """The file, replaced by renaming."""
    new = path.with_name("new")
    new.touch(mode)
    new.write_text(text)
    new.chmod(mode)
    os.replace(new, path)
    return path


def save(path):
    np.save(path, EXAMPLE)
    return path


def bearer(token):
    return {"Authorization": f"Bearer {token}"} if token else {}


def ask(client, method, path, token=None):
    if method != "POST":
        return client.request(method, path, headers=bearer(token))
    if path == INFER:
        return client.infer("items", INPUTS, headers=bearer(token))
    return client.request(method, path, b"", bearer(token))


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    path = save(shared_directory / "items.npy")
    with Server("--table", f"items={path}", "--token-file", write(shared_directory / "tokens"),
                "--loops", 2, "--access-log", "on", "--log-level", "debug") as server:
        yield server
        expect(not any(secret in server.log() for secret in
                       (INFER_TOKEN, READ_TOKEN, ADMIN_TOKEN, UNKNOWN)), "a token was logged")


READ = [("GET", "/"), ("GET", "/openapi.json"), ("GET", "/metrics"), ("GET", "/v2"),
        ("GET", "/v2/models"), ("HEAD", "/v2/models"), ("GET", "/v2/models/stats"),
        ("GET", "/v2/models/items"), ("GET", "/v2/models/items/ready"),
        ("GET", "/v2/models/items/config"), ("GET", "/v2/models/items/stats"),
        ("GET", "/v2/models/items/versions/1"), ("POST", "/v2/repository/index")]
OPEN = [("GET", "/v2/health/live", 200), ("GET", "/v2/health/ready", 200), ("OPTIONS", INFER, 204),
        ("OPTIONS", "*", 204), ("GET", "/nowhere", 404), ("PUT", "/v2", 405)]


def check_unauthorized(reply, challenge, words):
    reply.expect(401)
    expect_equal(reply.headers["www-authenticate"], challenge)
    if reply.body:
        expect(words in reply.error(), reply.error())


@pytest.mark.parametrize("method, path, scope", [(*route, "read") for route in READ] + [("POST", INFER, "infer")])
def test_scopes(client, method, path, scope):
    wrong, right = (INFER_TOKEN, READ_TOKEN) if scope == "read" else (READ_TOKEN, INFER_TOKEN)
    check_unauthorized(ask(client, method, path), REALM, "an access token is needed")
    for unknown in (UNKNOWN, INFER_TOKEN[:-1], INFER_TOKEN + "0"):
        check_unauthorized(ask(client, method, path, unknown), f'{REALM}, error="invalid_token"',
                           "the access token is not known")
    reply = ask(client, method, path, wrong)
    reply.expect(403)
    expect_equal(reply.headers["www-authenticate"], f'{REALM}, error="insufficient_scope", scope="{scope}"')
    if method != "HEAD":
        expect(f"it needs the scope {scope} or admin" in reply.error(), reply.error())
    for token in (right, ADMIN_TOKEN):
        reply = ask(client, method, path, token)
        reply.expect(200)
        expect("www-authenticate" not in reply.headers, "a challenge without need")


@pytest.mark.parametrize("method, path, status", OPEN)
def test_needs_no_token(client, method, path, status):
    for token in (None, UNKNOWN, READ_TOKEN):
        ask(client, method, path, token).expect(status)


@pytest.mark.parametrize("values", [["Basic aW5mZXI6eA=="], [INFER_TOKEN], ["Bearer"], [""],
                                    [f"Bearer {INFER_TOKEN} x"],
                                    [f"Bearer {INFER_TOKEN}", f"Bearer {INFER_TOKEN}"]])
def test_malformed_headers(server, values):
    lines = "".join(f"Authorization: {value}\r\n" for value in values)
    with Raw(server) as raw:
        raw.send(f"GET /v2 HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        check_unauthorized(raw.reply(), REALM, "must be one 'Bearer TOKEN'")


def test_blanks_around_the_value(server):
    """They are no part of it, whoever sends them."""
    body, headers = infer_body(INPUTS, binary=True)
    headers |= {"Authorization": f" \t Bearer {INFER_TOKEN} \t ", "Content-Encoding": "identity \t",
                "Inference-Header-Content-Length": headers["Inference-Header-Content-Length"] + "  "}
    with Raw(server) as raw:
        raw.send(head("POST", INFER, headers, body))
        raw.reply().expect(200)


def test_rejected_bodies(server):
    """A short body is read, and the connection stays; a long one need not come."""
    body, headers = infer_body(INPUTS)
    with Raw(server) as raw:
        for token, status in ((None, 401), (READ_TOKEN, 403), (INFER_TOKEN, 200), (None, 401)):
            raw.send(head("POST", INFER, headers | bearer(token), body))
            raw.reply().expect(status)
        raw.send(head("POST", INFER, {"Content-Length": str(8 << 20)}))
        raw.reply().expect(401)


def count(client, name, **labels):
    lines = client.request("GET", "/metrics", headers=bearer(READ_TOKEN)).body.decode().splitlines()
    wanted = "".join(f'{key}="{value}"' for key, value in labels.items())
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{") and wanted in line)


def test_rejections_are_counted(client):
    """By their reasons; to a model they are nothing."""
    def counts():
        return [count(client, "bagserve_refused_requests_total", reason=reason)
                for reason in ("unauthorized", "forbidden")] + [
                    count(client, "nv_inference_request_failure")]

    before = counts()
    for _ in range(3):
        ask(client, "POST", INFER, INFER_TOKEN).expect(200)
        ask(client, "POST", INFER).expect(401)
    ask(client, "POST", INFER, READ_TOKEN).expect(403)
    expect_equal([b - a for a, b in zip(before, counts())], [3, 1, 0])


# ---- reading the file again -------------------------------------------------------------------
def reload(server, event):
    """SIGHUP; returns the line that says what came of it."""
    def found():
        return [e for e in server.events() if e["event"] == event]

    before = len(found())
    server.send(signal.SIGHUP)
    with server._changed:  # pylint: disable=protected-access
        server._changed.wait_for(lambda: len(found()) > before, 60)
    return found()[before]


def test_reload(directory):
    table, path = save(directory / "items.npy"), write(directory / "tokens")
    new_token = "new-0123456789abcdef"
    with Server("--table", f"items={table}", "--token-file", path, "--loops", 2) as server:
        connections = [Client(server) for _ in range(8)]

        def statuses(token):
            return {ask(client, "POST", INFER, token).status for client in connections}

        expect_equal((statuses(INFER_TOKEN), statuses(new_token)), ({200}, {401}))
        write(path, f"infer {new_token}\n")
        expect_equal(statuses(INFER_TOKEN), {200}, "before SIGHUP")
        expect_equal(reload(server, "reloaded")["tokens"], 1)
        expect_equal((statuses(INFER_TOKEN), statuses(new_token)), ({401}, {200}))
        for text, mode, words in (("infer short\n", 0o600, "line 1: the token must have 16"),
                                  (FILE, 0o640, "mode 640"), ("", 0o600, "no token in it")):
            write(path, text, mode)
            line = reload(server, "not reloaded")
            expect(line["level"] == "error" and words in line["reason"], f"{line}")
            expect_equal((statuses(INFER_TOKEN), statuses(new_token)), ({401}, {200}))
        path.unlink()
        expect("cannot be opened" in reload(server, "not reloaded")["reason"], "no file")
        write(path)
        expect_equal(reload(server, "reloaded")["tokens"], 3)
        expect_equal((statuses(INFER_TOKEN), statuses(new_token)), ({200}, {401}))
        for client in connections:
            client.close()


def mount_secret(folder, text):
    """As Kubernetes does: a folder of its own for each version, behind a link that is replaced."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    write(version / "tokens", text, 0o440)
    (folder / "..new").symlink_to(version.name)
    os.replace(folder / "..new", folder / "..data")
    if not (folder / "tokens").is_symlink():
        (folder / "tokens").symlink_to("..data/tokens")
    return folder / "tokens"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of root's")
def test_mounted_secret(directory):
    table, folder = save(directory / "items.npy"), directory / "secret"
    folder.mkdir()
    path = mount_secret(folder, f"infer {INFER_TOKEN}\n")
    with Server("--table", f"items={table}", "--token-file", path) as server, \
            Client(server) as client:
        ask(client, "POST", INFER, INFER_TOKEN).expect(200)
        mount_secret(folder, f"infer {ADMIN_TOKEN}\n")
        expect_equal(reload(server, "reloaded")["tokens"], 1)
        ask(client, "POST", INFER, INFER_TOKEN).expect(401)
        ask(client, "POST", INFER, ADMIN_TOKEN).expect(200)


def test_reload_under_load(directory):
    """Requests that are compared while the tokens are replaced, on two loops."""
    table, path = save(directory / "items.npy"), write(directory / "tokens")
    with Server("--table", f"items={table}", "--token-file", path, "--loops", 2) as server:
        raws = [Raw(server) for _ in range(4)]
        request = head("GET", "/v2", bearer(READ_TOKEN))
        for _ in range(50):
            for raw in raws:
                raw.send(request * 20)
            server.send(signal.SIGHUP)
            for raw in raws:
                expect_equal({raw.reply().status for _ in range(20)}, {200})
        wait_until(lambda: any(e["event"] == "reloaded" for e in server.events()), "no reload")
        for raw in raws:
            raw.close()


def test_hangup_without_tokens(directory):
    table = save(directory / "items.npy")
    with Server("--table", f"items={table}") as server, Client(server) as client:
        expect("without a token_file" in reload(server, "not reloaded")["reason"], "ignored")
        check_rows(client.infer("items", INPUTS).embeddings(), WANT)


# ---- start ------------------------------------------------------------------------------------
@pytest.mark.parametrize("text, mode, words", [
    (FILE, 0o644, "others than its owner may use it (mode 644); chmod 600 it"),
    (f"{INFER_TOKEN} infer\n", 0o600, "line 1: the first word must be")])
def test_rejected_files(directory, text, mode, words):
    path = write(directory / "tokens", text, mode)
    for more in ((), ("--check",)):
        done = run("serve", "--demo", "--token-file", path, *more)
        expect_equal(done.returncode, 1)
        expect(f"token file: {path}: " in done.stderr and words in done.stderr, done.stderr)
        expect(INFER_TOKEN not in done.stdout + done.stderr, "a token was told")


def test_path_in_a_configuration_file(directory):
    """Relative to the file's folder."""
    write(directory / "tokens")
    (directory / "c.json").write_text(json.dumps({"http": {"token_file": "tokens"}}))
    with Server("--config", directory / "c.json", "--demo", cwd="/") as server, \
            Client(server) as client:
        ask(client, "GET", "/v2").expect(401)
        ask(client, "GET", "/v2", READ_TOKEN).expect(200)


# ---- private metrics --------------------------------------------------------------------------
def test_private_metrics(directory):
    port = free_port()
    with Server("--demo", "--metrics", "private", "--admin-port", port) as server, \
            Client(server) as client, Client(at_port(port)) as admin:
        reply = client.get("/metrics")
        expect("(metrics private)" in reply.expect(403).error(), "a rejection that names the option")
        client.get("/v2/models/stats").expect(200)
        expect_equal(admin.counted("bagserve_refused_requests_total", reason="wrong_port"), 1)


def test_private_metrics_with_tokens(directory):
    port = free_port()
    with Server("--demo", "--metrics", "private", "--admin-port", port,
                "--token-file", write(directory / "tokens")) as server, \
            Client(server) as client, Client(at_port(port)) as admin:
        for either in (client, admin):
            ask(either, "GET", "/metrics").expect(401)
            ask(either, "GET", "/metrics", INFER_TOKEN).expect(403)
            ask(either, "GET", "/metrics", READ_TOKEN).expect(200)
            ask(either, "GET", "/metrics", ADMIN_TOKEN).expect(200)
