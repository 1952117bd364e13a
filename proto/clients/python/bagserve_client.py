"""A client for bagserve: one file, on NumPy and Python's standard library.

    from bagserve_client import Client

    with Client("127.0.0.1:8000") as client:
        rows = client.offsets("items", indices=[7, 99999, 7, 12345], offsets=[0, 3])
        both = client.kjt("ranker", values=[0, 2, 4, 1, 7], lengths=[2, 0, 1, 1, 1, 0])

Tensors travel as raw bytes both ways. A client keeps one connection and reuses it; it is not for
use by several threads at once: make one for each.

A server with a token_file wants Client(..., token=TOKEN), and behind TLS Client("https://HOST").

Calls raise BadRequest, Unauthorized, NotFound, TooLarge or Unavailable (all of them ServerError)
with the server's own words, and ConnectionFailed where there was no whole answer. Pooling changes
nothing on the server, so every call may be sent again without harm: a call is repeated when the
kept connection turns out to be closed, and, up to `retries` times, after 503 and after a connection
that cannot be made; never after a time-out, which the work itself may have caused.
"""

import http.client
import json
import time
import urllib.parse

import numpy as np

_HEADER_LENGTH = "Inference-Header-Content-Length"
_NUMPY = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32,
          "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32,
          "UINT64": np.uint64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
_V2 = {np.dtype(kind): name for name, kind in _NUMPY.items()}
_LONGEST_WAIT_S = 5.0


# ---- errors -----------------------------------------------------------------------------------
class BagserveError(Exception):
    """Whatever went wrong in a call."""


class ConnectionFailed(BagserveError):
    """No connection, or no whole answer on it."""


class ServerError(BagserveError):
    """The server rejected the call; `status` is HTTP's, the text the server's."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class BadRequest(ServerError):
    """400, 415: the request itself is wrong, and will be wrong again."""


class Unauthorized(ServerError):
    """401, 403: no access token, an unknown one, or one whose scope does not cover the call."""


class NotFound(ServerError):
    """404: no such model or version."""


class TooLarge(ServerError):
    """413: more than the server's limit."""


class Unavailable(ServerError):
    """503, also after the retries: loading, stopping, or too much to do."""


_ERRORS = {400: BadRequest, 401: Unauthorized, 403: Unauthorized, 404: NotFound, 413: TooLarge,
           415: BadRequest, 503: Unavailable}


# ---- tensors ----------------------------------------------------------------------------------
class BF16:
    """bfloat16 for a weights tensor, which NumPy does not have: its bits in a uint16 array."""

    def __init__(self, bits):
        self.bits = np.asarray(bits, np.uint16)


def bf16_to_f32(bits):
    """The float32 values of bfloat16 bits, as outputs of that type come."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _tensor(values, kind=None):
    """(V2 datatype, C-ordered array); `kind` is the NumPy type of what is not an array yet."""
    if isinstance(values, BF16):
        return "BF16", np.ascontiguousarray(values.bits)
    array = np.ascontiguousarray(values if isinstance(values, np.ndarray)
                                 else np.asarray(values, kind)).reshape(np.shape(values))
    if array.dtype.newbyteorder("=") not in _V2:
        raise TypeError(f"no V2 datatype for {array.dtype}")
    kind = array.dtype.newbyteorder("<")
    return _V2[array.dtype.newbyteorder("=")], array.astype(kind, copy=False)


def _encode(inputs, outputs, parameters, request_id):
    """(JSON header, parts of the body) of named tensors; `outputs` are names or None for all."""
    described, parts = [], []
    for name, (datatype, array) in inputs.items():
        parts.append(array.tobytes())
        described.append({"name": name, "datatype": datatype, "shape": list(array.shape),
                          "parameters": {"binary_data_size": len(parts[-1])}})
    request = {"inputs": described, "parameters": {"binary_data_output": True} | parameters}
    if outputs is not None:
        request["outputs"] = [{"name": name} for name in outputs]
    if request_id:
        request["id"] = request_id
    header = json.dumps(request).encode()
    return header, [header] + parts


def _decode(headers, body):
    """The outputs of a reply, by name; BF16 ones are uint16 arrays of their bits."""
    if headers.get(_HEADER_LENGTH) is None:
        header, raw = json.loads(body), b""
    else:
        length = int(headers[_HEADER_LENGTH])
        header, raw = json.loads(body[:length]), memoryview(body)[length:]
    outputs = {}
    for output in header["outputs"]:
        kind = np.dtype(_NUMPY.get(output["datatype"], np.uint16)).newbyteorder("<")
        if "data" in output:
            array = np.array(output["data"], kind)
        else:
            size = output["parameters"]["binary_data_size"]
            array, raw = np.frombuffer(raw[:size], kind), raw[size:]
        outputs[output["name"]] = array.reshape(output["shape"])
    return outputs


# ---- the client -------------------------------------------------------------------------------
class Client:
    """Calls to one server, over one connection; `address` is HOST:PORT or a URL without a path.

    `token` is sent with every call. https:// is verified as `ssl_context` (an ssl.SSLContext) says,
    or else by the system's certificates.
    """

    def __init__(self, address="127.0.0.1:8000", timeout_s=30.0, retries=2, token=None,
                 ssl_context=None):
        scheme, _, rest = address.rpartition("://")
        self._address = rest.rstrip("/")
        if scheme not in ("", "http", "https") or "/" in self._address:
            raise ValueError(f"'{address}' is not HOST:PORT, http://HOST:PORT or https://HOST:PORT")
        if scheme == "https":
            self._connection = http.client.HTTPSConnection(self._address, timeout=timeout_s,
                                                           context=ssl_context)
        else:
            self._connection = http.client.HTTPConnection(self._address, timeout=timeout_s)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._retries = retries

    def close(self):
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- pooling ------------------------------------------------------------------------------
    def offsets(self, model, indices, offsets, weights=None, default_index=None, **options):
        """One row for each offset: `indices` [N] split where `offsets` [B] say; array [B, ...].

        `options` of all three forms: `version`, `request_id`, and the request's parameters
        (`reduction`, `padding_idx`, `include_last_offset`, `output_datatype`, `timeout`).
        """
        inputs = {"indices": _tensor(indices, np.int64), "offsets": _tensor(offsets, np.int64)}
        return self._pool(model, inputs, weights, default_index, options)

    def packed(self, model, indices, weights=None, default_index=None, **options):
        """One row for each row of `indices` [B, L]; array [B, ...]."""
        inputs = {"indices": _tensor(indices, np.int64)}
        return self._pool(model, inputs, weights, default_index, options)

    def segments(self, model, indices, segment_ids, num_segments=None, weights=None,
                 default_index=None, **options):
        """One row for each segment, up to `num_segments` or the last id; array [segments, ...]."""
        inputs = {"indices": _tensor(indices, np.int64),
                  "segment_ids": _tensor(segment_ids, np.int64)}
        if num_segments is not None:
            inputs["num_segments"] = _tensor(num_segments, np.int64)
        return self._pool(model, inputs, weights, default_index, options)

    def _pool(self, model, inputs, weights, default_index, options):
        if weights is not None:
            inputs["per_sample_weights"] = _tensor(weights, np.float32)
        if default_index is not None:
            inputs["default_index"] = _tensor(default_index, np.int64)
        return self._infer(model, inputs, **options)["embeddings"]

    # ---- collections --------------------------------------------------------------------------
    def kjt(self, model, values, lengths=None, offsets=None, weights=None, **options):
        """The bags of all features of a collection, in KeyedJaggedTensor's layout.

        `values` [N] feature by feature in the configured order, with `lengths` [F*B] or `offsets`
        [F*B + 1]. A dict of arrays [B, ...] by feature; with outputs=["embeddings"] of one array
        [B, sum of dims]. A feature alone, or each with its own number of bags, goes through infer:
        infer("ranker", {"user.indices": [[4], [1]]}).
        """
        inputs = {"values": _tensor(values, np.int64)}
        if lengths is not None:
            inputs["lengths"] = _tensor(lengths, np.int64)
        if offsets is not None:
            inputs["offsets"] = _tensor(offsets, np.int64)
        if weights is not None:
            inputs["weights"] = _tensor(weights, np.float32)
        return self._infer(model, inputs, **options)

    def infer(self, model, inputs, **options):
        """Any named tensors; a dict of the outputs by name, or of those in `outputs` alone."""
        return self._infer(model, {k: _tensor(v) for k, v in inputs.items()}, **options)

    def _infer(self, model, inputs, version=None, request_id=None, outputs=None, **parameters):
        header, parts = _encode(inputs, outputs, parameters, request_id)
        headers = {_HEADER_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"}
        path = self._model_path(model, version) + "/infer"
        return _decode(*self._call("POST", path, b"".join(parts), headers))

    # ---- asking around ------------------------------------------------------------------------
    def is_ready(self, model=None):
        """Whether the server, or a model of it, can be asked now."""
        path = "/v2/health/ready" if model is None else self._model_path(model) + "/ready"
        try:
            return bool(json.loads(self._call("GET", path, retries=0)[1])["ready"])
        except Unavailable:
            return False

    def models(self):
        """The models' names."""
        return json.loads(self._call("GET", "/v2/models")[1])["models"]

    def metadata(self, model, version=None):
        """The model's versions, inputs and outputs."""
        return json.loads(self._call("GET", self._model_path(model, version))[1])

    # ---- the wire -----------------------------------------------------------------------------
    @staticmethod
    def _model_path(model, version=None):
        path = "/v2/models/" + urllib.parse.quote(model, safe="")
        return path if version is None else f"{path}/versions/{int(version)}"

    def _call(self, method, path, body=None, headers=None, retries=None):
        """(headers, body) of a 200; everything else is raised."""
        left = self._retries if retries is None else retries
        while True:
            status, reply_headers, reply, failure = self._attempt(
                method, path, body, self._headers | (headers or {}))
            if failure is None and status == 200:
                return reply_headers, reply
            if left == 0 or (failure is None and status != 503):
                raise failure or self._error(status, reply)
            left -= 1
            seconds = 0.1 if failure else float(reply_headers.get("Retry-After") or 1)
            time.sleep(min(seconds, _LONGEST_WAIT_S))

    def _attempt(self, method, path, body, headers):
        """(status, headers, body, what to raise if there is no second try)."""
        kept = self._connection.sock is not None
        try:
            if not kept:
                self._connection.connect()
        except OSError as problem:
            return None, None, None, ConnectionFailed(
                f"cannot connect to {self._address}: {problem}")
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.headers, answer.read(), None
        except TimeoutError:
            self._connection.close()
            raise ConnectionFailed("the server did not answer in time") from None
        except (OSError, http.client.HTTPException) as problem:
            self._connection.close()
            if kept:  # it may have been closed while idle: once more on a new one
                return self._attempt(method, path, body, headers)
            raise ConnectionFailed(f"the connection broke: {problem!r}") from None

    @staticmethod
    def _error(status, body):
        try:
            text = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            text = body[:200].decode("latin-1")
        return _ERRORS.get(status, ServerError)(status, text)
