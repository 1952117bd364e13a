"""Damaged requests: thousands of good ones with bytes flipped, lost, doubled or put in.

Whatever comes, the answer is 200 or 400 in its proper form. Where it is 200, the request must have
been right after all: strict JSON by Python's reader without repeated keys, and the answer is what
the oracle makes of it. The seed is printed; a failure shows the body.
"""

import json

import numpy as np
import pytest

import oracle
from example import EXAMPLE, INFER, check_rows, i64
from harness import Failure, Server, expect, expect_equal, scaled
from v2 import HEADER_LENGTH, NUMPY, Tensor, infer_body

MUTANTS = scaled(10_000)
SNIPPETS = [b"0", b"1", b"-1", b"9", b".", b"e", b"-", b"+", b",", b":", b'"', b"\\", b"[", b"]",
            b"{", b"}", b" ", b"\n", b"\0", b"\xff", b"\xc3\xa4", b"\\u00e4", b"\\ud83d", b"NaN",
            b"Infinity", b"null", b"true", b"false", b"1e999", b"4294967296",
            b"9223372036854775807", b"18446744073709551616", b'"data"', b'"shape"', b'"name"',
            b'"indices"', b'"offsets"', b'"INT32"', b'"FP32"', b'"FP16"', b"[]", b"{}", b"[[0]]"]


def corpus():
    """(headers, body) of good requests, each form in JSON, in binary, and mixed."""
    weights = Tensor("per_sample_weights", np.array([1, 0.5, -2, 1e-3], np.float32))
    requests = [
        ([i64("indices", [0, 2, 3, 4]), i64("offsets", [0, 3])], {}),
        ([i64("indices", [0, 2, 3, 4]), i64("offsets", [0, 1, 4]), weights], {
            "parameters": {"include_last_offset": True, "padding_idx": -2}, "id": "x\u00e4\n"}),
        ([i64("indices", [[0, 2], [3, 4]])], {"parameters": {"reduction": "mean"}}),
        ([i64("indices", [0, 2, 3, 4]), i64("segment_ids", [0, 0, 1, 3]), i64("num_segments", [5]),
          i64("default_index", [1])], {"parameters": {"reduction": "max"}}),]
    for tensors, extra in requests:
        for binary in (False, True, ["indices"]):
            body, headers = infer_body(tensors, binary=binary, **extra)
            yield headers, body


def mutate(rng, body):
    """One small damage, or two."""
    for _ in range(rng.integers(1, 3)):
        at = rng.integers(len(body) + 1)
        end = at + rng.integers(4)
        part = body[at:end]
        put = [b"", part + part, SNIPPETS[rng.integers(len(SNIPPETS))], bytes(rng.bytes(1)),
               part + SNIPPETS[rng.integers(len(SNIPPETS))]][rng.integers(5)]
        body = body[:at] + put + body[end:]
    return body


# ---- what a request means, by Python -----------------------------------------------------------
def without_repeats(pairs):
    value = dict(pairs)
    expect_equal(len(value), len(pairs), f"keys of an accepted object {pairs}")
    return value


def read(headers, body):
    """The JSON header and the tensors of an accepted request."""
    length = int(headers.get(HEADER_LENGTH, len(body)))
    request = json.loads(body[:length].decode("utf-8"), object_pairs_hook=without_repeats)
    tensors, at = {}, length
    for entry in request["inputs"]:
        dtype = np.dtype(NUMPY[entry["datatype"]])
        if entry.get("data") is not None:
            flat = np.array(list(flatten(entry["data"])), dtype)
        else:
            size = entry["parameters"]["binary_data_size"]
            flat, at = np.frombuffer(body[at:at + size], dtype), at + size
        expect(entry["name"] not in tensors, "a repeated tensor was accepted")
        tensors[entry["name"]] = flat.reshape(entry["shape"])
    expect_equal(at, len(body), "bytes of an accepted body")
    return request, tensors


def flatten(value):
    if not isinstance(value, list):
        yield value
    else:
        for item in value:
            yield from flatten(item)


def bags_of(tensors, parameters):
    """The positions of the indices of each bag."""
    count = tensors["indices"].size
    if "offsets" in tensors:
        cuts = tensors["offsets"].tolist()
        cuts += [] if parameters.get("include_last_offset") else [count]
        return [np.arange(a, b) for a, b in zip(cuts, cuts[1:])]
    if "segment_ids" in tensors:
        ids = tensors["segment_ids"]
        bags = int(ids[-1]) + 1 if count else 0
        if "num_segments" in tensors:
            bags = int(tensors["num_segments"].item())
        return [np.nonzero(ids == i)[0] for i in range(bags)]
    bags, length = tensors["indices"].shape
    return [np.arange(i * length, (i + 1) * length) for i in range(bags)]


def meaning(headers, body):
    request, tensors = read(headers, body)
    parameters = request.get("parameters") or {}
    rules = oracle.Rules(parameters.get("reduction") or "sum", parameters.get("padding_idx"))
    if "default_index" in tensors:
        rules.default_index = int(tensors["default_index"].item())
    indices, bags = tensors["indices"].ravel(), bags_of(tensors, parameters)
    weights = tensors.get("per_sample_weights")
    if weights is not None:
        weights = [weights.ravel()[bag] for bag in bags]
    return oracle.pool(EXAMPLE, [indices[bag] for bag in bags], weights, rules)


# ---- the test ---------------------------------------------------------------------------------
def is_right(client, number, headers, body):
    """Whether the request was accepted; then it must have been right, as its answer must be."""
    reply = client.request("POST", INFER, body, headers)
    if reply.status == 400:
        expect(reply.error().isprintable(), "a message that is not printable")
        return False
    try:
        with np.errstate(all="ignore"):
            check_rows(reply.embeddings(), meaning(headers, body))
    except Exception as problem:
        raise Failure(f"request {number}: {headers} {body!r}: {problem!r}") from None
    return True


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    """A small limit on replies, so that a number made large does not keep the oracle busy."""
    np.save(shared_directory / "items.npy", EXAMPLE)
    with Server("--models", shared_directory, "--max-reply-bytes", "16KiB") as server:
        yield server


def test_damaged_requests(client, rng):
    good = list(corpus())
    accepted = 0
    for number in range(MUTANTS):
        headers, body = good[number % len(good)]
        changed = mutate(rng, body) if number >= len(good) else body
        if headers and rng.integers(4):  # keep the header's length right as a rule
            grown = len(changed) - len(body)
            headers = {HEADER_LENGTH: str(int(headers[HEADER_LENGTH]) + grown)}
        accepted += is_right(client, number, headers, changed)
    print(f"{accepted} of {MUTANTS} damaged requests were still right")
