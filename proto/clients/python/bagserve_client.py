"""A client for bagserve: one file, on NumPy and Python's standard library.

    from bagserve_client import Client

    with Client("127.0.0.1:8000") as client:
        rows = client.bags("items", [[7, 99999, 7], [12345]], reduction="mean")
        both = client.collection("ranker", {"history": [[0, 2], []], "user": [[4], [1]],
                                            "ad": [[7], []]})

AsyncClient has the same methods, to be awaited. Tensors travel as raw bytes both ways. A client keeps up to
`connections` connections and reuses them; a Client may be used by several threads at once, an AsyncClient by
several tasks of one event loop.

Ids are integers: floats, whole ones and arrays too, raise TypeError before anything is sent, and so do
options that nobody knows. Only numbers are sent: an array with masked or missing elements, or with a unit,
raises TypeError, too. Calls raise BadRequest, Unauthorized, NotFound, Conflict, TooLarge, StorageFull or
Unavailable (all of them ServerError) with the server's own words, and ConnectionFailed where there was no
whole answer. Pooling changes nothing on the server, and an update of rows changes nothing more when it is
sent again (with a number also where others send updates): so a call is repeated when a kept
connection turns out to be closed, and, up to `retries` times, after 503 and after a connection that cannot
be made; never after a time-out, which the work itself may have caused. Before that it waits as long as the
server says (Retry-After), and a random time on top that doubles.

A closed client raises RuntimeError. After a fork the child makes connections of its own; an AsyncClient does
so, too, in another event loop. A client may be copied and pickled: the copy is open, asks the same server, and
makes connections of its own. A pickle contains the token; a client with an `ssl_context` cannot be pickled.

A server with a token_file wants Client(..., token=TOKEN), and behind TLS Client("https://HOST").
Client("unix:///run/bagserve.sock") asks at a Unix-domain socket, as --unix and --admin-socket make them.
"""

from __future__ import annotations

import asyncio
import difflib
import http.client
import itertools
import json
import numbers
import operator
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
import warnings
import weakref
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

# Types of arguments. Results have no types here, because those of AsyncClient's calls are awaited.
Ids = Union[Sequence, np.ndarray]  # whole numbers
Bags = Union[Sequence[Ids], np.ndarray]
Weights = Union[Sequence, np.ndarray, "BF16"]
Version = Union[int, str, None]

_HEADER_LENGTH = "Inference-Header-Content-Length"
_NUMPY = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32,
          "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32,
          "UINT64": np.uint64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
_V2 = {np.dtype(kind): name for name, kind in _NUMPY.items()}
_PARAMETERS = ("reduction", "padding_idx", "include_last_offset", "output_datatype", "output_row_format",
               "missing", "out_of_range", "timeout", "explain", "table_versions")
_OPTIONS = ("version", "request_id", "outputs") + _PARAMETERS
_ID_INPUTS = ("indices", "offsets", "segment_ids", "num_segments", "default_index", "values",
              "lengths", "stride_per_key")
_LONGEST_WAIT_S = 5.0
_FIRST_JITTER_S = 0.1


# ---- errors -----------------------------------------------------------------------------------
class BagserveError(Exception):
    """Whatever went wrong in a call."""


class ConnectionFailed(BagserveError):
    """No connection, or no whole answer on it."""


class ServerError(BagserveError):
    """The server rejected the call; `status` is HTTP's, the text the server's.

    `code` is the kind of the error, as PROTOCOL.md lists them. `input` and `position` say which element of a
    tensor is wrong. Each is None where the server does not say it.
    """

    def __init__(self, status, text, code=None, input=None, position=None):  # pylint: disable=redefined-builtin
        super().__init__(text)
        self.status, self.code, self.input, self.position = status, code, input, position


class BadRequest(ServerError):
    """400, 415: the request itself is wrong, and will be wrong again."""


class Unauthorized(ServerError):
    """401, 403: no access token, an unknown one, or one whose scope does not cover the call."""


class NotFound(ServerError):
    """404: no such model or version."""


class Conflict(ServerError):
    """409: an update's number does not follow the last one; the text names the one expected."""


class TooLarge(ServerError):
    """413: more than the server's limit."""


class Unavailable(ServerError):
    """503, also after the retries: loading, stopping, or too much to do."""


class StorageFull(ServerError):
    """507: no room on the journal's disk, or no spare row for a new key."""


_ERRORS = {400: BadRequest, 401: Unauthorized, 403: Unauthorized, 404: NotFound, 409: Conflict,
           413: TooLarge, 415: BadRequest, 503: Unavailable, 507: StorageFull}


def _error(status, body):
    try:
        said = json.loads(body)
        text = said["error"]
    except (ValueError, KeyError, TypeError):
        said, text = {}, body[:200].decode("latin-1")
    return _ERRORS.get(status, ServerError)(status, text, said.get("code"), said.get("input"), said.get("position"))


# ---- tensors ----------------------------------------------------------------------------------
class BF16:
    """bfloat16 for a weights tensor, which NumPy does not have: its bits in a uint16 array."""

    def __init__(self, bits):
        bits = _plain(bits, "bits")
        if bits.size and bits.dtype.kind not in "iu":
            raise TypeError(f"'bits' must be integers, not {bits.dtype}")
        self.bits = bits.astype(np.uint16)


def bf16_to_f32(bits):
    """The float32 values of bfloat16 bits, as outputs of that type come."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _f8_numbers(exponent_bits, bias):
    """What each byte means as a number of sign, exponent and fraction."""
    codes, fraction_bits = np.arange(256), 7 - exponent_bits
    exponent = codes >> fraction_bits & (1 << exponent_bits) - 1
    fraction = (codes & (1 << fraction_bits) - 1) / 2**fraction_bits
    values = np.where(exponent > 0, 1 + fraction, fraction) * 2.0**(np.maximum(exponent, 1) - bias)
    if exponent_bits == 5:
        values = np.where(exponent == 31, np.where(fraction > 0, np.nan, np.inf), values)
    else:
        values = np.where(codes & 127 == 127, np.nan, values)
    return np.where(codes & 128, -values, values).astype(np.float32)


_F8 = {"f8_e4m3": _f8_numbers(4, 7), "f8_e5m2": _f8_numbers(5, 15)}


def decode_rows(rows, row_format, row_elements):
    """The float32 rows [..., row_elements] that rows of bytes [..., bytes of a row] stand for, as an output
    that was asked for by `output_row_format` has them."""
    rows = np.ascontiguousarray(rows, np.uint8)
    name = row_format.replace("_scaled", "")
    if row_format in _F8:
        return _F8[row_format][rows]
    halves = row_format not in ("int8", "int8_symmetric") and name not in _F8
    number = np.dtype("<f2" if halves else "<f4")
    count = 1 if name in _F8 or "symmetric" in row_format else 2
    size = count * number.itemsize
    front = row_format.endswith("_front")
    codes, params = (rows[..., size:], rows[..., :size]) if front else (rows[..., :-size], rows[..., -size:])
    params = np.ascontiguousarray(params).view(number).astype(np.float64)
    scale, bias = params[..., :1], params[..., 1:]
    with np.errstate(all="ignore"):
        if name in _F8:
            return (_F8[name][codes] * scale).astype(np.float32)
        if "symmetric" in row_format:
            return (codes.view(np.int8) * scale).astype(np.float32)
        bits = int(row_format[3])
        if bits < 8:
            parts = [codes >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
            codes = np.stack(parts, -1).reshape(*codes.shape[:-1], codes.shape[-1] * len(parts))[..., :row_elements]
        return (codes * scale + bias).astype(np.float32)


def _tensor(array):
    """(V2 datatype, C-ordered little-endian array)."""
    shape = np.shape(array)
    native = np.asarray(array).dtype.newbyteorder("=")
    if native not in _V2:
        raise TypeError(f"no V2 datatype for {native}")
    array = np.ascontiguousarray(array, native.newbyteorder("<")).reshape(shape)
    return _V2[native], array


_PLAIN_ARRAYS = (np.ndarray, np.memmap, np.matrix, np.ma.MaskedArray)  # numbers, and at most a mask
_PLAIN_ELEMENTS = (int, float, bool, str)


def more_than_numbers(array):
    """A text for what an array has beside its numbers, which alone are sent; None: nothing. Its class is asked for names,
    because columns of a DataFrame are attributes, too."""
    kind = type(array)
    if np.ma.is_masked(array) or hasattr(kind, "get_mask"):
        return "masked elements"
    missing = array.null_count if hasattr(kind, "null_count") else 0
    missing = missing() if callable(missing) else missing
    if hasattr(kind, "isna") and not isinstance(getattr(array, "dtype", None), np.dtype):
        missing = np.any(np.asarray(array.isna()))
    if missing:
        return "missing elements"
    for name in ("unit", "units"):
        if hasattr(kind, name):
            return f"the unit '{getattr(array, name)}'"
    if isinstance(array, np.ndarray) and kind not in _PLAIN_ARRAYS:
        return f"what {kind.__name__} adds to an array"
    return None


def _check_plain(values, what):
    """Raises TypeError where an array, or one in nested lists, is more than its numbers."""
    if isinstance(values, np.generic) or (type(values) is np.ndarray and values.dtype != object):
        return
    if isinstance(values, (list, tuple)) or type(values) is np.ndarray:
        elements = values.ravel() if isinstance(values, np.ndarray) else values
        for kind in set(map(type, elements)).difference(_PLAIN_ELEMENTS):
            for element in elements:
                if type(element) is kind:
                    _check_plain(element, what)
        return
    more = more_than_numbers(values)
    if more:
        raise TypeError(f"'{what}' has {more}, which would be lost: convert it to a plain array first")


def _plain(values, what):
    """The array of the numbers of an array, or of nested lists of numbers and arrays."""
    _check_plain(values, what)
    return np.asarray(values)


def _flat(values):
    """The numbers of nested lists, one by one."""
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from _flat(value)
    elif hasattr(values, "__array__"):
        yield from np.asarray(values).ravel().tolist()
    else:
        yield values


def _are_all(kind, values):
    """Whether all numbers of nested lists are of a kind; booleans are none."""
    return all(isinstance(value, kind) and not isinstance(value, (bool, np.bool_)) for value in _flat(values))


def _ids(values, what):
    """Integers as a tensor of INT32 or INT64; keys beyond 2^63 as the same 64 bits."""
    array = _plain(values, what)
    is_list = not isinstance(values, (np.ndarray, np.generic))
    if is_list and array.size == 0:
        array = array.astype(np.int64)
    if is_list and array.dtype.kind in "fO" and _are_all((int, np.integer), values):
        bits = np.array([int(v) % 2**64 for v in _flat(values)], np.uint64)
        array = bits.reshape(np.shape(values))
    if array.dtype.kind not in "iu":
        raise TypeError(f"'{what}' must be integers, not {array.dtype}; convert them first")
    if array.dtype.itemsize == 8:
        return _tensor(array.astype(array.dtype.newbyteorder("=")).view(np.int64))
    return _tensor(array.astype(np.int32 if array.dtype.itemsize < 4 or array.dtype.kind == "i"
                                else np.int64))


def _weights(values, what):
    """Floats as they are, other numbers as FP32."""
    if isinstance(values, BF16):
        return "BF16", np.ascontiguousarray(values.bits)
    array = _plain(values, what)
    if isinstance(values, np.ndarray) and array.dtype.kind in "fiu":
        return _tensor(array)
    if array.dtype.kind not in "fiub" and not (array.dtype.kind == "O" and _are_all(numbers.Number, values)):
        raise TypeError(f"'{what}' must be numbers, not {array.dtype}")
    return _tensor(array.astype(np.float32))


def _named(name, values):
    """The tensor of an input, by the last part of its name."""
    kind = name.rpartition(".")[2]
    if kind in _ID_INPUTS:
        return _ids(values, name)
    if kind in ("per_sample_weights", "weights"):
        return _weights(values, name)
    return _tensor(_plain(values, name))


def _is_matrix(bags):
    return isinstance(bags, np.ndarray) and bags.ndim == 2


def _ragged(bags, what, convert):
    """(tensor of all, offsets) of a list of bags."""
    if isinstance(bags, np.ndarray) and bags.ndim != 2 and bags.dtype != object:
        raise TypeError(f"'{what}' must be a list of bags, or an array of 2 dimensions")
    parts = list(bags)
    for place, bag in enumerate(parts):
        if isinstance(bag, (str, bytes)) or not hasattr(bag, "__iter__"):
            raise TypeError(f"'{what}' must be a list of bags, each a list of numbers, as in [[1, 2], [3]]; position {place} "
                            f"has the {type(bag).__name__} {bag!r}")
    parts = [bag if isinstance(bag, np.ndarray) else list(bag) for bag in parts]
    offsets = np.zeros(len(parts), np.int64)
    np.cumsum([len(part) for part in parts[:-1]], out=offsets[1:])
    if any(isinstance(part, np.ndarray) for part in parts):
        arrays = [convert(part, what)[1] for part in parts if len(part)]
        flat = convert(np.concatenate(arrays) if arrays else [], what)
    else:
        flat = convert(list(itertools.chain.from_iterable(parts)), what)
    if flat[1].ndim != 1:
        raise TypeError(f"'{what}' must be a list of bags, each a list of numbers")
    return flat, _tensor(offsets)


def _bag_inputs(bags, weights, prefix=""):
    """The inputs of bags: an array [B, L], or a list of lists or arrays of any length."""
    indices = prefix + "indices"
    factors = prefix + "per_sample_weights"
    if _is_matrix(bags):
        inputs = {indices: _ids(bags, indices)}
        return inputs if weights is None else inputs | {factors: _weights(weights, factors)}
    ids, offsets = _ragged(bags, indices, _ids)
    inputs = {indices: ids, prefix + "offsets": offsets}
    if weights is None:
        return inputs
    if [len(bag) for bag in weights] != [len(bag) for bag in bags]:
        raise ValueError(f"'{factors}' must be bags as long as those of '{indices}'")
    return inputs | {factors: _ragged(weights, factors, _weights)[0]}


# ---- requests and replies ---------------------------------------------------------------------
class Outputs(dict):
    """Arrays by the outputs' names, and what else a reply says: `explain` ({name: [bag, ...]} where it
    was asked for), `table_versions` ({feature: version}, likewise), `warnings`, `model_version`, `request_id`."""

    def __init__(self, arrays, header):
        super().__init__(arrays)
        parameters = header.get("parameters", {})
        self.explain = {e["name"]: e["bags"] for e in parameters.get("explain", [])}
        self.table_versions = parameters.get("table_versions", {})
        self.warnings = parameters.get("warnings", [])
        self.model_version = header["model_version"]
        self.request_id = header.get("id")


class _Request:
    """One call: what is sent, and `finish`, which makes its result of (headers, body)."""

    def __init__(self, method, path, finish, body=None, headers=None, is_probe=False):
        self.method, self.path, self.finish = method, path, finish
        self.body, self.headers, self.is_probe = body, headers or {}, is_probe


def _check_options(options):
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, 1, 0)
            raise TypeError(f"unknown option '{name}'; did you mean '{near[0]}'?")


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


def _key(key):
    """As a parameter: from 2^53 on, which JSON's numbers do not hold exactly, a text of digits."""
    key = int(key) if isinstance(key, str) else operator.index(key)
    return key if abs(key) < 2**53 else str(key)


def _decode(headers, body):
    """The outputs of a reply, by name; BF16 ones are uint16 arrays of their bits."""
    if headers.get(_HEADER_LENGTH) is None:
        header, raw = json.loads(body), b""
    else:
        length = int(headers[_HEADER_LENGTH])
        header, raw = json.loads(body[:length]), memoryview(body)[length:]
    arrays = {}
    for output in header["outputs"]:
        kind = np.dtype(_NUMPY.get(output["datatype"], np.uint16)).newbyteorder("<")
        if "data" in output:
            array = np.array(output["data"], kind)
        else:
            size = output["parameters"]["binary_data_size"]
            array, raw = np.frombuffer(raw[:size], kind), raw[size:]
        array = array.reshape(output["shape"])
        parameters = output.get("parameters", {})
        if "row_format" in parameters:
            array = decode_rows(array, parameters["row_format"], parameters["row_elements"])
        arrays[output["name"]] = array
    outputs = Outputs(arrays, header)
    for text in outputs.warnings:
        warnings.warn(f"bagserve: {text}", stacklevel=2)
    return outputs


def _parse(body):
    return json.loads(body)


def _model_path(model, version=None):
    path = "/v2/models/" + urllib.parse.quote(model, safe="")
    if version is None:
        return path
    return f"{path}/versions/{int(version) if isinstance(version, str) else operator.index(version)}"


def _wait_s(attempt, headers):
    """Seconds before attempt number `attempt` (from 1) after one that may be repeated."""
    said_s = min(float((headers or {}).get("Retry-After") or 0), _LONGEST_WAIT_S)
    return said_s + random.uniform(0, min(_FIRST_JITTER_S * 2**(attempt - 1), _LONGEST_WAIT_S))


def _socket_path(address):
    """The path in unix:///PATH or unix:PATH."""
    path = address[len("unix:"):]
    path = path[2:] if path.startswith("//") else path
    if not path.strip("/"):
        raise ValueError(f"'{address}' names no socket: it must be unix:///PATH")
    return path


# ---- calls ------------------------------------------------------------------------------------
_clients = weakref.WeakSet()  # whose connections a child of this process must not use


def _after_fork():
    for client in list(_clients):
        client._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Calls:
    """What both clients can be asked. `_run` sends a request: at once, or when it is awaited.

    Options of all calls that pool: `version`, `request_id`, and the request's parameters `reduction`,
    `padding_idx`, `include_last_offset`, `output_datatype`, `output_row_format`, `missing`, `out_of_range`,
    `timeout` (in microseconds), `explain` and `table_versions`. Rows that come in a row format are decoded to float32.
    """

    def __init__(self, address: str = "127.0.0.1:8000", timeout_s: float = 30.0, retries: int = 2,
                 token: Optional[str] = None, ssl_context: Optional[ssl.SSLContext] = None,
                 connections: int = 8):
        self._arguments = (address, timeout_s, retries, token, ssl_context, connections)
        self._address, self._ssl = address, None
        self._unix, self._host, self._port = None, "localhost", None
        if address.startswith("unix:"):
            self._unix = _socket_path(address)
        else:
            self._set_place(address, ssl_context)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s, self._retries, self._most = timeout_s, retries, connections
        self._closed = False
        self._start()
        _clients.add(self)

    def _set_place(self, address, ssl_context):
        scheme, _, rest = address.rpartition("://")
        self._address = rest.rstrip("/")
        if scheme not in ("", "http", "https") or "/" in self._address:
            raise ValueError(f"'{address}' is not HOST:PORT, http://HOST:PORT, https://HOST:PORT or "
                             f"unix:///PATH")
        place = urllib.parse.urlsplit("//" + self._address)
        self._host = place.hostname
        self._port = place.port or (443 if scheme == "https" else 80)
        if scheme == "https":
            self._ssl = ssl_context or ssl.create_default_context()

    def __reduce__(self):
        """Copies and pickles are open clients of the same server, with connections of their own."""
        return type(self), self._arguments

    def __deepcopy__(self, memo):
        return type(self)(*self._arguments)

    def _start(self):
        """Begins without connections: also in a child, where the parent's are not for use."""
        raise NotImplementedError

    def _check_open(self):
        if self._closed:
            raise RuntimeError("the client is closed")

    def _run(self, request):
        raise NotImplementedError

    # ---- one table ----------------------------------------------------------------------------
    def bags(self, model: str, bags: Bags, weights: Optional[Weights] = None,
             default_index: Optional[int] = None, **options: Any) -> Any:
        """One row for each bag: `bags` is a list of lists or arrays of ids, or an array [B, L].

        An array [B, ...]; with explain=True a pair of it and what became of every bag, a list of dicts.
        """
        return self._pool(model, _bag_inputs(bags, weights), None, default_index, options)

    def offsets(self, model: str, indices: Ids, offsets: Ids, weights: Optional[Weights] = None,
                default_index: Optional[int] = None, **options: Any) -> Any:
        """One row for each offset: `indices` [N] split where `offsets` [B] say; as `bags`."""
        inputs = {"indices": _ids(indices, "indices"), "offsets": _ids(offsets, "offsets")}
        return self._pool(model, inputs, weights, default_index, options)

    def packed(self, model: str, indices: Bags, weights: Optional[Weights] = None,
               default_index: Optional[int] = None, **options: Any) -> Any:
        """One row for each row of `indices` [B, L]; as `bags`."""
        return self._pool(model, {"indices": _ids(indices, "indices")}, weights, default_index,
                          options)

    def rows(self, model: str, ids: Union[Ids, Bags], default_index: Optional[int] = None,
             **options: Any) -> Any:
        """The row of each id, not pooled: an array of the shape of `ids`, which may be any, and a row's. Padding, and ids
        that the model skips, are zeros. With explain=True a pair of it and a list of one dict for all ids."""
        return self._pool(model, {"indices": _ids(ids, "ids")}, None, default_index,
                          options | {"reduction": "none"})

    def segments(self, model: str, indices: Ids, segment_ids: Ids, num_segments: Optional[int] = None,
                 weights: Optional[Weights] = None, default_index: Optional[int] = None,
                 **options: Any) -> Any:
        """One row for each segment, up to `num_segments` or the last id; as `bags`."""
        inputs = {"indices": _ids(indices, "indices"),
                  "segment_ids": _ids(segment_ids, "segment_ids")}
        if num_segments is not None:
            inputs["num_segments"] = _ids(num_segments, "num_segments")
        return self._pool(model, inputs, weights, default_index, options)

    def _pool(self, model, inputs, weights, default_index, options):
        def finish(headers, body):
            outputs = _decode(headers, body)
            rows = outputs["embeddings"]
            return (rows, outputs.explain["embeddings"]) if options.get("explain") else rows

        if weights is not None:
            inputs["per_sample_weights"] = _weights(weights, "weights")
        if default_index is not None:
            inputs["default_index"] = _ids(default_index, "default_index")
        return self._infer(model, inputs, options, finish)

    # ---- collections --------------------------------------------------------------------------
    def collection(self, model: str, features: Mapping[str, Bags],
                   weights: Optional[Mapping[str, Weights]] = None, **options: Any) -> Any:
        """The bags of some features of a collection, or of all: a dict by feature of bags as `bags` takes
        them, each with its own number; `weights` is a dict likewise. Outputs: a dict of arrays
        [B, ...] by feature, in the configured order."""
        inputs = {}
        weights = weights or {}
        for name in weights:
            if name not in features:
                raise ValueError(f"weights for feature '{name}', which has no bags")
        for name, bags in features.items():
            inputs |= _bag_inputs(bags, weights.get(name), name + ".")
        return self._infer(model, inputs, options)

    def kjt(self, model: str, values: Ids, lengths: Optional[Ids] = None,
            offsets: Optional[Ids] = None, weights: Optional[Weights] = None,
            stride_per_key: Optional[Ids] = None, **options: Any) -> Any:
        """The bags of all features of a collection, in KeyedJaggedTensor's layout.

        `values` [N] feature by feature in the configured order (`features` tells it), with `lengths`
        [F*B] or `offsets` [F*B + 1]; with `stride_per_key` [F] the features have so many bags each. Outputs as
        `collection`; with outputs=["embeddings"] one array [B, sum of dims]. Features that are not pooled have a row for
        each id.
        """
        inputs = {"values": _ids(values, "values")}
        if lengths is not None:
            inputs["lengths"] = _ids(lengths, "lengths")
        if offsets is not None:
            inputs["offsets"] = _ids(offsets, "offsets")
        if weights is not None:
            inputs["weights"] = _weights(weights, "weights")
        if stride_per_key is not None:
            inputs["stride_per_key"] = _ids(stride_per_key, "stride_per_key")
        return self._infer(model, inputs, options)

    def infer(self, model: str, inputs: Mapping[str, Any], **options: Any) -> Any:
        """Any named tensors; all outputs, or those in the list `outputs` alone."""
        return self._infer(model, {k: _named(k, v) for k, v in inputs.items()}, options)

    def _infer(self, model, inputs, options, finish=_decode):
        _check_options(options)
        parameters = {k: v for k, v in options.items() if k in _PARAMETERS and v is not None}
        if "padding_idx" in parameters:
            parameters["padding_idx"] = _key(parameters["padding_idx"])
        header, parts = _encode(inputs, options.get("outputs"), parameters,
                                options.get("request_id"))
        headers = {_HEADER_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"}
        path = _model_path(model, options.get("version")) + "/infer"
        return self._run(_Request("POST", path, finish, b"".join(parts), headers))

    # ---- changing rows ------------------------------------------------------------------------
    def update(self, model: str, rows: Weights, indices: Optional[Ids] = None,
               keys: Optional[Ids] = None, sequence: Optional[int] = None,
               first_sequence: Optional[int] = None) -> Any:
        """Puts `rows` [n, ...] in the place of those at `indices` [n], or under `keys` [n].

        Rows are FP32 (what is no array becomes that), or as the table stores them. Needs a token of
        scope admin. `sequence` is the batch's number: sent again it changes nothing, so that a call
        that broke may be repeated; without it the server counts on. With `first_sequence` the batch
        stands for all updates from that number to `sequence`: where ids are there twice the last
        counts. A dict with `sequence`, `applied` and `rows`. Raises Conflict where numbers in
        between are missing.
        """
        if (indices is None) == (keys is None):
            raise ValueError("give indices, or keys of a table with keys")
        name, ids = ("keys", keys) if indices is None else ("indices", indices)
        inputs = {name: _ids(ids, name), "rows": _weights(rows, "rows")}
        return self._change(model, inputs, sequence, first_sequence, {})

    def delete(self, model: str, keys: Ids, sequence: Optional[int] = None,
               first_sequence: Optional[int] = None) -> Any:
        """Removes `keys` [n] from a table with keys; otherwise as `update`."""
        return self._change(model, {"keys": _ids(keys, "keys")}, sequence, first_sequence,
                            {"delete": True})

    def _change(self, model, inputs, sequence, first_sequence, parameters):
        for name, number in (("sequence", sequence), ("first_sequence", first_sequence)):
            if number is not None:
                parameters[name] = operator.index(number)
        header, parts = _encode(inputs, None, parameters, None)
        headers = {_HEADER_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"}
        return self._run(_Request("POST", _model_path(model) + "/rows",
                                  lambda _, body: _parse(body), b"".join(parts), headers))

    # ---- which models are served, on the admin listener --------------------------------------
    def load(self, *models: Union[str, tuple], version: Version = None, wait: bool = True) -> Any:
        """Loads models, all or none: names, or pairs of name and version; `version` is of the only one.
        Without a version, what the model's policy asks for of what is in its folder now."""
        pairs = [m if isinstance(m, tuple) else (m, version if len(models) == 1 else None)
                 for m in models]
        items = [{"name": name} | ({} if number is None else {"version": str(number)})
                 for name, number in pairs]
        return self._control("load", {"models": items, "wait": bool(wait)})

    def unload(self, model: str, version: Version = None, unload_dependents: bool = False) -> Any:
        """Unloads a model, or one version of it; also the collections over it, if that is asked for."""
        parameters = {"unload_dependents": bool(unload_dependents)}
        if version is not None:
            parameters["version"] = str(version)
        path = f"models/{urllib.parse.quote(model, safe='')}/unload"
        return self._control(path, {"parameters": parameters})

    def index(self) -> Any:
        """Every version of every model: dicts of name, version, state and reason."""
        return self._control("index", {})

    def _control(self, path, body):
        return self._run(_Request("POST", f"/v2/repository/{path}", lambda _, text: _parse(text),
                                  json.dumps(body).encode()))

    # ---- asking around ------------------------------------------------------------------------
    def _get(self, path, finish=lambda headers, body: _parse(body), is_probe=False):
        return self._run(_Request("GET", path, finish, is_probe=is_probe))

    def is_ready(self, model: Optional[str] = None) -> Any:
        """Whether the server, or a model of it, can be asked now."""
        path = "/v2/health/ready" if model is None else _model_path(model) + "/ready"
        return self._get(path, lambda headers, body: bool(_parse(body).get("ready")), True)

    def models(self) -> Any:
        """The models' names."""
        return self._get("/v2/models", lambda headers, body: _parse(body)["models"])

    def metadata(self, model: str, version: Version = None) -> Any:
        """The model's versions, inputs and outputs; its `parameters` say what the table is."""
        return self._get(_model_path(model, version))

    def config(self, model: str, version: Version = None) -> Any:
        """How the model is configured, under the names of Triton's ModelConfig; `parameters` have its
        rules as dicts of `string_value`."""
        return self._get(_model_path(model, version) + "/config")

    def features(self, model: str, version: Version = None) -> Any:
        """A collection's features in their order: dicts of `name`, `model`, `rows` and so on."""
        return self._get(_model_path(model, version),
                         lambda headers, body: _parse(body)["parameters"]["features"])

    def statistics(self, model: Optional[str] = None, version: Version = None) -> Any:
        """What was done so far: a list with a dict for each version of each model, or of one."""
        path = "/v2/models/stats" if model is None else _model_path(model, version) + "/stats"
        return self._get(path, lambda headers, body: _parse(body)["model_stats"])


class _Attempts:
    """How often a request is sent: what both clients do after an answer, or without one."""

    def __init__(self, request, retries):
        self.request, self.made = request, 0
        self.most = 0 if request.is_probe else retries

    def wait_s(self, status, headers, body, failure):
        """None where the answer is the last one; otherwise the seconds before the next attempt."""
        if failure is None and (status == 200 or (status == 503 and self.request.is_probe)):
            return None
        if self.made == self.most or (failure is None and status != 503):
            raise failure or _error(status, body)
        self.made += 1
        return _wait_s(self.made, headers)


# ---- the client of threads --------------------------------------------------------------------
def _read_whole(answer):
    """The body, in memory of its own: arrays over it may be changed."""
    if answer.length is None:
        return bytearray(answer.read())
    body = bytearray(answer.length)
    if answer.readinto(body) != len(body):
        raise http.client.IncompleteRead(b"", len(body))
    return body


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix-domain socket."""

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.close()
            raise


class Client(_Calls):
    """Calls to one server; `address` is HOST:PORT, a URL without a path, or unix:///PATH.

    `token` is sent with every call. https:// is verified as `ssl_context` (an ssl.SSLContext) says,
    or else by the system's certificates. Calls beyond `connections` at once wait for each other.
    """

    def _start(self):
        self._idle, self._lock = [], threading.Lock()
        self._free = threading.BoundedSemaphore(self._most)

    def close(self) -> None:
        """Closes all connections; those in use as soon as their calls end."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _connect(self):
        if self._unix:
            return _UnixConnection(self._unix, self._timeout_s)
        if self._ssl:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s,
                                               context=self._ssl)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _run(self, request):
        self._check_open()
        attempts = _Attempts(request, self._retries)
        while True:
            status, headers, body, failure = self._attempt(request)
            seconds = attempts.wait_s(status, headers, body, failure)
            if seconds is None:
                return request.finish(headers, body)
            time.sleep(seconds)

    def _attempt(self, request):
        """(status, headers, body, what to raise if there is no second try)."""
        with self._free:
            with self._lock:
                connection = self._idle.pop() if self._idle else self._connect()
            try:
                return self._exchange(connection, request)
            except BaseException:
                connection.close()
                raise
            finally:
                with self._lock:
                    if self._closed:
                        connection.close()
                    else:
                        self._idle.append(connection)

    def _exchange(self, connection, request):
        kept = connection.sock is not None
        try:
            if not kept:
                connection.connect()
        except OSError as problem:
            return None, None, None, ConnectionFailed(
                f"cannot connect to {self._address}: {problem}")
        try:
            connection.request(request.method, request.path, request.body,
                               self._headers | request.headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, _read_whole(answer), None
        except TimeoutError:
            raise ConnectionFailed("the server did not answer in time") from None
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            if kept:  # it may have been closed while idle: once more on a new one
                return self._exchange(connection, request)
            raise ConnectionFailed(f"the connection broke: {problem!r}") from None


# ---- the client of tasks ----------------------------------------------------------------------
class _Closed(Exception):
    """A kept connection was closed before it answered."""


class AsyncClient(_Calls):
    """The same for asyncio: `rows = await client.bags(...)`, in `async with AsyncClient(...)`."""

    def _start(self):
        self._idle, self._loop, self._free = [], None, None

    def _enter_loop(self):
        """Connections and their semaphore belong to the event loop that made them."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._idle, self._loop, self._free = [], loop, asyncio.Semaphore(self._most)

    async def close(self) -> None:
        """As Client.close."""
        self._closed = True
        while self._idle:
            self._idle.pop()[1].close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def _run(self, request):
        self._check_open()
        self._enter_loop()
        attempts = _Attempts(request, self._retries)
        while True:
            async with self._free:
                status, headers, body, failure = await self._attempt(request)
            seconds = attempts.wait_s(status, headers, body, failure)
            if seconds is None:
                return request.finish(headers, body)
            await asyncio.sleep(seconds)

    async def _attempt(self, request):
        try:
            return await asyncio.wait_for(self._exchange(request), self._timeout_s)
        except asyncio.TimeoutError:
            raise ConnectionFailed("the server did not answer in time") from None

    async def _exchange(self, request):
        while self._idle:
            try:
                return await self._talk(self._idle.pop(), request, True)
            except _Closed:  # while it was idle: another one, or a new one
                pass
        try:
            streams = await self._connect()
        except OSError as problem:
            return None, None, None, ConnectionFailed(
                f"cannot connect to {self._address}: {problem}")
        return await self._talk(streams, request, False)

    async def _connect(self):
        if self._unix:
            return await asyncio.open_unix_connection(self._unix)
        return await asyncio.open_connection(self._host, self._port, ssl=self._ssl)

    async def _talk(self, streams, request, kept):
        """One request and its answer; the connection is kept where all went well."""
        reader, writer = streams
        try:
            writer.write(self._head(request) + (request.body or b""))
            await writer.drain()
            status, headers, body = await self._read(reader)
        except (OSError, EOFError, ValueError) as problem:
            writer.close()
            if kept and not isinstance(problem, ValueError):
                raise _Closed from None
            raise ConnectionFailed(f"the connection broke: {problem!r}") from None
        except BaseException:  # cancelled, too: the answer is still to come on it
            writer.close()
            raise
        if self._closed or (headers.get("Connection") or "").lower() == "close":
            writer.close()
        else:
            self._idle.append(streams)
        return status, headers, body, None

    def _head(self, request):
        host = "localhost" if self._unix else self._address
        headers = {"Host": host, "Accept": "*/*"} | self._headers | request.headers
        if request.body is not None:
            headers["Content-Length"] = str(len(request.body))
        lines = [f"{request.method} {request.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @staticmethod
    async def _read(reader):
        """(status, headers, body) of one answer."""
        words = (await reader.readuntil(b"\r\n")).split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise ValueError("that is not HTTP/1.1")
        headers = http.client.HTTPMessage()
        while line := (await reader.readuntil(b"\r\n")).rstrip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name] = value.strip()
        if (headers.get("Transfer-Encoding") or "").lower() != "chunked":
            return int(words[1]), headers, bytearray(await reader.readexactly(
                int(headers.get("Content-Length") or 0)))
        body = bytearray()
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        while (await reader.readuntil(b"\r\n")).rstrip():
            pass  # trailers
        return int(words[1]), headers, body
