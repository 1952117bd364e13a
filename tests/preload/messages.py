"""A request of every kind, as bytes, and whether what is answered is right."""

import gzip
import json

import numpy as np

INFER = "/v2/models/items/infer"
VARYING = ("metrics", "statistics", "history", "list", "model metrics")


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def post(path, body, extra=""):
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{extra}"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def as_json(path, inputs, extra="", **top):
    return post(path, json.dumps({"inputs": [
        {"name": n, "datatype": "FP32" if n == "rows" else "INT64", "shape": list(np.shape(v)),
         "data": np.ravel(v).tolist()} for n, v in inputs.items()], **top}).encode(), extra)


def as_binary(path, inputs, **parameters):
    arrays = {n: np.asarray(v, np.int64) for n, v in inputs.items()}
    text = json.dumps({"inputs": [
        {"name": n, "datatype": "INT64", "shape": list(a.shape),
         "parameters": {"binary_data_size": a.nbytes}} for n, a in arrays.items()],
        "parameters": {"binary_data_output": True, **parameters}}).encode()
    return post(path, text + b"".join(a.tobytes() for a in arrays.values()),
                f"Inference-Header-Content-Length: {len(text)}\r\n")


def requests_of_every_kind():
    rows = np.arange(3000) * 7 % 1000
    packed = {"indices": rows.reshape(100, 30)}
    unsorted = {"indices": rows, "segment_ids": rows % 50, "num_segments": [60]}
    text = as_json(INFER, {"indices": [[1, 2], [3, 4]]})
    body = text.split(b"\r\n\r\n", 1)[1]
    return {
        "small JSON": text,
        "large JSON": as_json(INFER, packed),
        "small binary": as_binary(INFER, {"indices": [1, 2, 3], "offsets": [0, 2]}),
        "large binary": as_binary(INFER, {"indices": np.tile(rows, 40), "offsets":
                                          np.arange(0, 120_000, 10)}),
        "unsorted segments": as_binary(INFER, unsorted),
        "explain": as_json(INFER, packed, parameters={"explain": True}),
        "gzip": post(INFER, gzip.compress(body, mtime=0), "Content-Encoding: gzip\r\n"),
        "chunked": (f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n"
                    f"{len(body):x}\r\n").encode() + body + b"\r\n0\r\n\r\n",
        "collection": as_json("/v2/models/both/infer", {"values": [1, 2, 3, 4],
                                                        "lengths": [1, 1, 2, 0]}),
        "projection": as_json("/v2/models/narrow/infer", packed),
        "mapped": as_json("/v2/models/mapped/infer", packed),
        "keyed": as_json("/v2/models/keyed/infer", {"keys": [[7, 21], [700, 1]]}),
        "bad index": as_json(INFER, {"indices": [[1, 5000]]}),
        "no such model": as_json("/v2/models/none/infer", {"indices": [[1]]}),
        "metadata": get("/v2/models/items"), "configuration": get("/v2/models/items/config"),
        "models": get("/v2/models"), "live": get("/v2/health/live"), "openapi": get("/openapi.json"),
        "index": post("/v2/repository/index", b""),
        # Answered before its body, so that the server goes on reading for a while.
        "too long": (f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {1 << 30}\r\n\r\n"
                     ).encode() + bytes(1000),
        # The contents of these replies change by themselves: only their form is compared.
        "metrics": get("/metrics"), "statistics": get("/v2/models/stats"),
        "history": get("/v2/server/history"), "list": get("/v2/server/models"), "options": get("/v2/server/options"),
        "model metrics": get("/v2/models/items/metrics"), "page": get("/console"),
    }


def requests_of_fronts():
    """Of models of shards by rows, columns and keys, of all of them twice at once, and what tells of them."""
    rows = np.arange(3000) * 7 % 1000
    requests = {"metadata": get("/v2/models/rows"), "index": post("/v2/repository/index", b""),
                "metrics": get("/metrics"),
                "all": as_json("/v2/models/all/infer", {"values": np.arange(0, 112, 7), "lengths": [2] * 8})}
    for by in ("rows", "columns", "keys"):
        path = f"/v2/models/{by}/infer"
        requests |= {
            f"small JSON {by}": as_json(path, {"indices": [[1, 420], [700, 999]]}),
            f"small binary {by}": as_binary(path, {"indices": [7, 350, 994], "offsets": [0, 2]}),
            f"large binary {by}": as_binary(path, {"indices": np.tile(rows, 40), "offsets":
                                                   np.arange(0, 120_000, 10)}),
            f"explain {by}": as_json(path, {"indices": rows.reshape(100, 30)}, parameters={"explain": True})}
    return requests


def comparable(reply, name):
    """A reply without what differs by itself; None where it is not whole."""
    head, found, body = reply.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")]
    lengths = [int(line.split(b":")[1]) for line in lines
               if line.lower().startswith(b"content-length:")]
    if not found or (lengths and lengths[0] != len(body)):
        return None
    if name in VARYING:
        lines = [line for line in lines if not line.lower().startswith(b"content-length:")]
        body = b""
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def is_beginning(reply, wanted):
    """Whether a reply is the right one as far as it goes."""
    head, found, body = reply.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")]
    return bool(found) and wanted.startswith(b"\r\n".join(lines) + b"\r\n\r\n" + body)


def fault_of(reply, wanted, name):
    """What is wrong with a reply to a request during which something failed; None: nothing."""
    if not reply or comparable(reply, name) == wanted:
        return None
    if comparable(reply, name) is None:
        return f"the reply is not whole: {reply[:300]!r}"
    head, _, body = reply.partition(b"\r\n\r\n")
    try:
        tells = "error" in json.loads(body)
    except ValueError:
        tells = False
    if head.startswith(b"HTTP/1.1 503") and b"retry-after:" in head.lower() and tells:
        return None
    if head.startswith(b"HTTP/1.1 502") and b"shard http://127.0.0.1:" in body and tells:
        return None
    return f"another reply: {reply[:300]!r}"
