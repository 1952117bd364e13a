"""Limits on sizes hold exactly: what is as large as the limit passes, one more does not."""

import gzip
import json
import re

import numpy as np
import pytest

from harness import Server, expect, expect_equal, write_json
from v2 import Client, Tensor, infer_body

MAX_TENSORS = 4096
FREE_BAGS = 16384
ROWS, DIM = 10, 3
INDICES = [Tensor("indices", np.arange(6).reshape(3, 2))]
RESULT_BYTES = 3 * DIM * 4
PAIR = [Tensor("values", np.arange(4)), Tensor("lengths", np.array([1, 1, 1, 1]))]
PAIR_BYTES = 2 * 2 * DIM * 4


@pytest.fixture(scope="module", name="config")
def make_config(shared_directory):
    np.save(shared_directory / "t.npy", np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM))
    return write_json(shared_directory / "config.json", {"models": [
        {"name": "items", "path": "t.npy"},
        {"name": "pair", "features": [{"name": "a", "model": "items"},
                                      {"name": "b", "model": "items"}]}]})


@pytest.fixture(scope="module", name="server")
def serve(config):
    with Server("--config", config) as server:
        yield server


@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_number_of_tensors(client, key):
    """Up to the limit each tensor is looked at: the first one's name is then what is wrong."""
    indices = {"name": "indices", "shape": [1, 1], "datatype": "INT64", "data": [0]}
    for count, words in ((MAX_TENSORS, "'t0'"), (MAX_TENSORS + 1, f"more than {MAX_TENSORS} tensors")):
        request = {"inputs": [indices]} | {key: [indices | {"name": f"t{i}"} if key == "inputs"
                                                 else {"name": f"t{i}"} for i in range(count)]}
        reply = client.request("POST", "/v2/models/items/infer", json.dumps(request))
        expect(words in reply.expect(400).error(), f"{count} {key}: {reply.error()}")


def ask(config, limit, model, inputs, binary):
    """The answer of a server with that limit on replies."""
    with Server("--config", config, "--max-reply-bytes", limit) as server, \
            Client(server) as client:
        return client.infer(model, inputs, binary=True, parameters={"binary_data_output": binary})


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("model, inputs, result_bytes",
                         [("items", INDICES, RESULT_BYTES), ("pair", PAIR, PAIR_BYTES)], ids=["table", "collection"])
def test_reply(config, model, inputs, result_bytes, binary):
    """First the results alone are compared with the limit, then the reply that holds them."""
    rejected = ask(config, result_bytes - 1, model, inputs, binary).expect(400).error()
    expect(re.search(r"results? would", rejected), rejected)
    rejected = ask(config, result_bytes, model, inputs, binary).expect(400).error()
    found = re.search(r"the reply of \d bags could take (\d+) bytes", rejected)
    expect(found, rejected)
    reply_bytes = int(found[1])
    expect(reply_bytes > result_bytes, rejected)
    rejected = ask(config, reply_bytes - 1, model, inputs, binary).expect(400).error()
    expect(f"could take {reply_bytes} bytes" in rejected, rejected)
    reply = ask(config, reply_bytes, model, inputs, binary).expect(200)
    expect(len(reply.body) <= reply_bytes, f"{len(reply.body)} bytes came")
    expect_equal(sum(output.array.nbytes for output in reply.outputs().values()), result_bytes)


def padded(body, header_bytes, wanted_bytes):
    """The body with blanks inside of its JSON header, so that it has as many bytes."""
    blanks = b" " * (wanted_bytes - len(body))
    return body[:header_bytes] + blanks + body[header_bytes:]


def empty_bags(count, **parameters):
    """A short request for so many bags without an index."""
    return json.dumps({"parameters": parameters, "inputs": [
        {"name": "indices", "datatype": "INT64", "shape": [count, 0], "data": []}]}).encode()


def test_ratio_of_replies(config):
    """The bytes of the bags beyond those that are free to those of the body, blanks and all."""
    bags, ratio = FREE_BAGS + 1000, 3
    body = empty_bags(bags, binary_data_output=True)
    limit = 1000 * DIM * 4 // ratio
    with Server("--config", config, "--max-reply-ratio", ratio) as server, \
            Client(server) as client:
        for body_bytes, status in ((limit - 1, 400), (limit, 200), (limit + 1, 200)):
            reply = client.request("POST", "/v2/models/items/infer", padded(body, len(body), body_bytes))
            if reply.expect(status).status == 400:
                expect_equal(reply.error(), f"the reply of {bags} bags takes about {bags * DIM * 4} bytes, and 1000 "
                             f"bags are beyond the ids and {FREE_BAGS} more; the request's body has {body_bytes} "
                             f"bytes, and the limit (max_reply_ratio) is {ratio} times as many for those bags")


def zipped(body):
    return gzip.compress(body), {"Content-Encoding": "gzip"}


def test_compressed_bodies_count_as_sent(config):
    """A few bytes become many that ask for more: what was sent bounds reply and work."""
    offsets = np.zeros(100_000, np.int32)
    body, headers = infer_body([Tensor("indices", np.zeros(0, np.int32)), Tensor("offsets", offsets)], binary=True)
    packed, coding = zipped(body)
    path = "/v2/models/items/infer"
    with Server("--config", config) as server, Client(server) as client:
        client.request("POST", path, body, headers).expect(200)
        reply = client.request("POST", path, packed, headers | coding).expect(400)
        expect_equal(reply.error(), f"the reply of 100000 bags takes about {100_000 * DIM * 12} bytes as JSON (binary "
                     f"output is smaller), and {100_000 - FREE_BAGS} bags are beyond the ids and {FREE_BAGS} more; "
                     f"the request's body as it was sent has {len(packed)} bytes, and the limit (max_reply_ratio) is "
                     f"1000 times as many for those bags")
    with Server("--config", config, "--max-reply-ratio", 0, "--max-work-us-per-byte", 1) as server, \
            Client(server) as client:
        client.request("POST", path, body, headers).expect(200)
        reply = client.request("POST", path, packed, headers | coding).expect(400)
        expect(f"a body of {len(packed)} bytes, as it was sent, may be" in reply.error(), reply.error())
        # A client that compresses what it sends anyway is not held to fewer bytes than it needs.
        small, coding = zipped(infer_body(INDICES)[0])
        client.request("POST", path, small, coding).expect(200)


def test_work_for_bytes(config):
    """A request of many bags is work for which a short body does not suffice; bytes below 2000 count
    as 2000. The estimate itself is not told to the microsecond, so the limit is searched for."""
    body = empty_bags(200_000, binary_data_output=True)
    options = ("--max-reply-ratio", 0, "--max-work-us-per-byte", 1)
    with Server("--config", config, *options) as server, Client(server) as client:
        def is_accepted(body_bytes):
            reply = client.request("POST", "/v2/models/items/infer", padded(body, len(body), body_bytes))
            expect(reply.status == 200 or "(max_work_us_per_byte)" in reply.expect(400).error(), reply.body)
            return reply.status == 200

        small, large = len(body), 1 << 20
        expect(is_accepted(large), "too much work for a MiB")
        expect(not is_accepted(small), "no work")
        while large - small > 1:
            middle = (small + large) // 2
            small, large = (small, middle) if is_accepted(middle) else (middle, large)
        expect(large > 2000, f"{large} bytes suffice")
        expect_equal([is_accepted(large + over) for over in (-1, 0, 1)], [False, True, True])
