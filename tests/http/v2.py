"""A small client of the Open Inference Protocol (V2) with Triton's binary tensors.

It sends what it is told, right or wrong, and hands back what came, undigested where asked: it is
for testing a server, so it must not repair anything.
"""

import dataclasses
import http.client
import json
import socket
import types

import numpy as np

from harness import TIMEOUT_S, Failure

HEADER_LENGTH = "Inference-Header-Content-Length"

# V2 datatype -> NumPy's; bfloat16 travels as the upper 16 bits of a float32, in a uint16.
NUMPY = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32,
         "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32,
         "UINT64": np.uint64, "FP16": np.float16, "BF16": np.uint16, "FP32": np.float32, "FP64": np.float64}
V2_NAME = {np.dtype(v): k for k, v in NUMPY.items() if k != "BF16"}
NO_JSON = ("FP16", "BF16")


# ---- tensors ----------------------------------------------------------------------------------
@dataclasses.dataclass
class Tensor:
    name: str
    array: np.ndarray
    datatype: str = ""

    def __post_init__(self):
        self.array = np.asarray(self.array)
        if not self.datatype:
            self.datatype = V2_NAME[self.array.dtype]

    def description(self):
        return {"name": self.name, "shape": list(self.array.shape), "datatype": self.datatype}

    def raw(self):
        return np.ascontiguousarray(self.array).tobytes()


def bf16_from_f32(values):
    """float32 -> bfloat16 in a uint16, rounded to nearest even; NaN stays NaN."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def f32_from_bf16(bits):
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


# ---- requests ---------------------------------------------------------------------------------
def infer_body(inputs, binary=(), outputs=None, **top):
    """Body and headers of an infer request.

    `binary` names the tensors that go as raw bytes (True: all of them, False: none); the others go
    as JSON.
    `outputs` and further keywords (id=..., parameters=...) become keys of the JSON header.
    """
    described, raw = [], []
    for tensor in inputs:
        entry = tensor.description()
        if binary is True or (binary and tensor.name in binary):
            raw.append(tensor.raw())
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            if tensor.datatype in NO_JSON:
                raise Failure(f"'{tensor.name}': {tensor.datatype} has no JSON form")
            entry["data"] = tensor.array.ravel().tolist()
        described.append(entry)
    request = {"inputs": described} | top
    if outputs is not None:
        request["outputs"] = outputs
    text = json.dumps(request, separators=(",", ":")).encode()
    headers = {HEADER_LENGTH: str(len(text))} if raw else {}
    return text + b"".join(raw), headers


@dataclasses.dataclass
class Reply:
    status: int
    headers: dict  # names in lower case
    body: bytes

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError as problem:
            raise Failure(f"not JSON ({problem}): {self.status} {self.body[:300]!r}") from None

    def error(self):
        """The message of an answer that is not 2xx, whose shape is checked on the way."""
        value = self.json()
        if self.headers.get("content-type") != "application/json":
            raise Failure(f"an error with Content-Type {self.headers.get('content-type')!r}")
        if not isinstance(value, dict) or not isinstance(value.get("error"), str):
            raise Failure(f"an error without the key 'error': {self.body[:300]!r}")
        return value["error"]

    def expect(self, status=200):
        if self.status != status:
            raise Failure(f"status {self.status} instead of {status}: {self.body[:600]!r}")
        return self

    def header(self):
        """The JSON header of an infer reply, and the bytes behind it."""
        length = self.headers.get(HEADER_LENGTH.lower())
        if length is None:
            return self.json(), b""
        if self.headers.get("content-type") != "application/octet-stream":
            raise Failure(f"a binary reply with Content-Type {self.headers.get('content-type')!r}")
        return json.loads(self.body[:int(length)]), self.body[int(length):]

    def outputs(self):
        """The output tensors by name, as Tensor; every inconsistency is a Failure."""
        self.expect(200)
        header, raw = self.header()
        found, at = {}, 0
        for entry in header["outputs"]:
            shape, datatype = entry["shape"], entry["datatype"]
            count = int(np.prod(shape, dtype=np.int64))
            if "data" in entry:
                if "row_format" not in entry.get("parameters", ["row_format"]):
                    raise Failure("an output with both data and parameters")
                array = np.array(entry["data"], dtype=NUMPY[datatype])
                if array.shape != (count,):
                    raise Failure(f"{array.shape} elements for shape {shape}, or data not flat")
            else:
                size = entry["parameters"]["binary_data_size"]
                array = np.frombuffer(raw[at:at + size], NUMPY[datatype])
                at += size
            if array.size != count:
                raise Failure(f"{array.size} elements for shape {shape}")
            found[entry["name"]] = Tensor(entry["name"], array.reshape(shape), datatype)
        if at != len(raw):
            raise Failure(f"{len(raw) - at} bytes left over in the reply")
        return found

    def embeddings(self):
        return self.outputs()["embeddings"].array


def at_port(port, host="127.0.0.1"):
    """What a Client needs to know of a server."""
    return types.SimpleNamespace(host=host, port=port)


def is_ready(port):
    try:
        with Client(at_port(port)) as client:
            return client.get("/v2/health/ready").status == 200
    except OSError:
        return False


class Client:
    """One keep-alive connection."""

    def __init__(self, server, timeout_s=TIMEOUT_S, headers=None):
        """`headers` go with every request."""
        self.server, self.headers = server, headers or {}
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout_s)

    def request(self, method, path, body=None, headers=None, **options):
        self.connection.request(method, path, body, self.headers | (headers or {}), **options)
        answer = self.connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, names, answer.read())

    def get(self, path):
        return self.request("GET", path)

    def metrics(self):
        """Every sample of /metrics with its labels, as text: {'name{label="x"}': "1"}."""
        text = self.get("/metrics").expect().body.decode()
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")

    def counted(self, name, **labels):
        """The sum of the samples of a metric that have these labels."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(float(value) for sample, value in self.metrics().items()
                   if sample.split("{")[0] == name and all(label in sample for label in wanted))

    def infer(self, model, inputs, headers=None, path=None, **options):
        body, own = infer_body(inputs, **options)
        path = path or f"/v2/models/{model}/infer"
        return self.request("POST", path, body, own | (headers or {}))

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Raw:
    """A bare socket, for what no HTTP library would send."""

    def __init__(self, server, timeout_s=TIMEOUT_S, source=None):
        """`source` is the client's own address."""
        self.socket = socket.create_connection((server.host, server.port), timeout_s, source and (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)

    def reply(self, method="GET"):
        """Reads one answer (also of several pipelined ones); None where the server closed."""
        line = self._file.readline()
        if not line:
            return None
        status = int(line.split()[1])
        names = {}
        while (line := self._file.readline()) not in (b"\r\n", b"\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            names[name.strip().lower()] = value.strip()
        has_body = method != "HEAD" and status >= 200 and status not in (204, 304)
        body = self._file.read(int(names.get("content-length", 0))) if has_body else b""
        return Reply(status, names, body)

    def at_end(self):
        """Whether the server has closed the connection; waits for it."""
        return self._file.read(1) == b""

    def rest(self):
        """All that comes until the server closes the connection."""
        return self._file.read()

    def close(self):
        self._file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class UnixRaw(Raw):
    """A bare connection to a Unix-domain socket."""

    def __init__(self, path):  # pylint: disable=super-init-not-called
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(str(path))
        self._file = self.socket.makefile("rb")


def head(method, path, headers=None, body=b"", version="1.1"):
    """The bytes of a request with exactly these headers, plus Host and, with a body, its length."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    given = {name.lower() for name in headers or {}}
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body and not given & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
