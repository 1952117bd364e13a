"""A server whose models change: tables whose rows all say which version they are of, the admin
listener, and what is asked of it."""

import contextlib
import json
import os

import numpy as np

from example import i64
from harness import Server, expect, free_port, write_json
from v2 import Client, at_port

TOKEN = "admin-0123456789abcdef"
READER = "read-0123456789abcdef"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
ROWS, COLUMNS = 8, 4


def rows_of(version, rows=ROWS, columns=COLUMNS):
    return np.full((rows, columns), version, np.float32)


def publish(root, name, version, table=None, settings=None):
    """A version's folder, which appears complete."""
    folder = root / name / f".new-{version}"
    folder.mkdir(parents=True)
    np.save(folder / "table.npy", rows_of(version) if table is None else table)
    if settings:
        write_json(folder / "config.json", settings)
    final = root / name / str(version)
    os.rename(folder, final)
    return final / "table.npy"


KEYS_TWICE = [0, 1, 2, 3, 4, 5, 7, 7]


def publish_keyed(root, name, version, keys=range(ROWS)):
    """The same of a keyed table; KEYS_TWICE are found to be wrong when they are loaded."""
    folder = root / name / f".new-{version}"
    folder.mkdir(parents=True)
    np.save(folder / "keys.npy", np.asarray(keys, np.int64))
    np.save(folder / "values.npy", rows_of(version, len(keys)))
    os.rename(folder, root / name / str(version))


def replace(path, table):
    """Another file in the place of one."""
    new = path.with_name(".new.npy")
    np.save(new, table)
    os.replace(new, path)


def collection(root, name, tables, version=1):
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"features": [{"name": f"f_{table}", "model": table} for table in tables]})


def tokens(directory):
    path = directory / "tokens"
    path.touch(0o600)
    path.write_text(f"admin {TOKEN}\nread {READER}\ninfer infer-0123456789abcdef\n")
    return path


class Admin:
    """The admin listener of a server."""

    def __init__(self, server, port):
        self.client = Client(at_port(port))

    def post(self, path, body=None, headers=None):
        text = json.dumps(body) if body is not None else ""
        return self.client.request("POST", f"/v2/repository/{path}", text, headers or BEARER)

    def load(self, model, version=None, **top):
        body = top | ({"parameters": {"version": version}} if version is not None else {})
        return self.post(f"models/{model}/load", body or None)

    def unload(self, model, **parameters):
        return self.post(f"models/{model}/unload", {"parameters": parameters} if parameters else None)

    def group(self, *models, **top):
        return self.post("load", {"models": list(models)} | top)

    def index(self):
        """{(name, version): (state, reason)}"""
        entries = self.post("index").expect().json()
        return {(e["name"], e["version"]): (e["state"], e["reason"]) for e in entries}

    def states(self, name):
        return {version: state for (model, version), (state, _) in self.index().items() if model == name}


@contextlib.contextmanager
def serve(directory, *arguments, mode="explicit", **options):
    """A server of the folder directory/models; yields it with `client` and `admin`."""
    port = free_port()
    # The tests' own requests carry the token, whichever scope they need.
    with Server("--models", directory / "models", "--model-control", mode, "--admin-port", port,
                "--token-file", tokens(directory), *arguments, **options) as server:
        with Client(server, headers=BEARER) as client:
            server.client, server.admin = client, Admin(server, port)
            yield server


def index(client, name):
    """{version: (state, reason)}"""
    entries = client.request("POST", "/v2/repository/index", b"").expect().json()
    return {e["version"]: (e["state"], e["reason"]) for e in entries if e["name"] == name}


def served(client, model="t", version=None):
    """The version whose rows a model answers with; a reply's status where it does not."""
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    reply = client.infer(model, [i64("indices", [0, ROWS - 1]), i64("offsets", [0, 1])], path=path)
    if reply.status != 200:
        return reply.status
    values = np.unique(reply.embeddings())
    expect(values.size == 1, f"rows of several versions: {values}")
    return int(values[0])


def served_together(client, model, features, version=None):
    """The versions that the features of one answer of a version are of; or a status."""
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    inputs = [i64(f"{name}.indices", [[0, ROWS - 1]]) for name in features]
    reply = client.infer(model, inputs, path=path)
    if reply.status != 200:
        return reply.status
    found = []
    for name in features:
        values = np.unique(reply.outputs()[name].array)
        expect(values.size == 1, f"rows of several versions: {values}")
        found.append(int(values[0]) // 2)
    return found
