"""The Python client's connections: when they are kept, when a call is sent again, tokens and TLS."""

import asyncio
import socket
import ssl

import numpy as np
import pytest

from clients import (  # noqa: F401
    BUSY, MODELS, OTHER, TOKEN, Proxy, Script, address, answer, bc, connect, expect_raises, serve, serve_with_tokens)
from example import EXAMPLE, check_rows
from harness import Failure, Server, expect, expect_equal


def test_one_connection():
    """Two calls on one connection, and a new one where the server has closed it meanwhile."""
    script = Script([MODELS, MODELS], [MODELS])
    with bc.Client(script.address, retries=0) as client:
        for _ in range(3):
            expect_equal(client.models(), ["m"])
    script.close()
    expect_equal(script.requests, 3)


def test_asks_again_when_busy():
    script = Script([BUSY, BUSY, MODELS])
    with bc.Client(script.address, retries=2) as client:
        expect_equal(client.models(), ["m"])
    script.close()
    expect_equal(script.requests, 3)


def test_gives_up():
    script = Script([BUSY, BUSY])
    with bc.Client(script.address, retries=1) as client:
        expect_equal(expect_raises(bc.Unavailable, client.models, "busy").status, 503)
    script.close()
    expect_equal(script.requests, 2)


def test_does_not_repeat_rejections():
    for status, kind in ((400, bc.BadRequest), (404, bc.NotFound), (413, bc.TooLarge),
                         (415, bc.BadRequest), (500, bc.ServerError)):
        script = Script([answer(status, {"error": "no"})])
        with bc.Client(script.address) as client:
            expect_raises(kind, client.models, "no")
        script.close()
        expect_equal(script.requests, 1)


def test_broken_answers():
    for text in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"nonsense\r\n\r\n"):
        script = Script([text])
        with bc.Client(script.address, retries=0) as client:
            expect_raises(bc.ConnectionFailed, client.models)
        script.close()


def test_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = "127.0.0.1:%d" % unused.getsockname()[1]
        with bc.Client(nobody, retries=1) as client:
            expect_raises(bc.ConnectionFailed, client.models, "connect", nobody)


def test_addresses(client):
    """As a URL too, as the C client takes it."""
    plain = "%s:%d" % (client._host, client._port)
    for address_ in (plain, f"http://{plain}", f"http://{plain}/"):
        with bc.Client(address_) as other:
            expect(other.is_ready(), address_)
    for wrong in (f"ftp://{plain}", f"https://{plain}/v2", f"{plain}/v2", "a://http://b"):
        expect_raises(ValueError, lambda address_=wrong: bc.Client(address_), wrong, "HOST:PORT")


def test_unix_sockets(directory):
    """Inference on one, changes of models on the other, which needs no token."""
    path, admin = directory / "bagserve.sock", directory / "admin.sock"
    (directory / "models" / "items" / "1").mkdir(parents=True)
    np.save(directory / "models" / "items" / "1" / "items.npy", EXAMPLE)
    with Server("--models", directory / "models", "--unix", path, "--admin-socket", admin,
                "--model-control", "explicit"):
        for name in (f"unix://{path}", f"unix:{path}"):
            with bc.Client(name) as client:
                for _ in range(2):
                    check_rows(client.packed("items", [[0], [4]]), EXAMPLE[[0, 4]])
                expect_raises(bc.Unauthorized, lambda client=client: client.load("items"))
        with bc.Client(f"unix://{admin}") as client:
            client.load("items")
            expect_equal([entry["state"] for entry in client.index()], ["READY"])

        async def work():
            async with bc.AsyncClient(f"unix://{path}") as shared:
                for _ in range(2):
                    check_rows(await shared.packed("items", [[0], [4]]), EXAMPLE[[0, 4]])
        asyncio.run(work())
    with bc.Client(f"unix://{path}", retries=0) as client:
        expect_raises(bc.ConnectionFailed, client.models, "connect", str(path))
    for wrong in ("unix:", "unix://", "unix:///"):
        expect_raises(ValueError, lambda name=wrong: bc.Client(name), wrong, "unix:///PATH")


def test_time_out():
    """No answer: not asked again, because the work may be what took so long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with bc.Client("127.0.0.1:%d" % silent.getsockname()[1], timeout_s=0.2) as client:
            expect_raises(bc.ConnectionFailed, client.models, "in time")
        silent.accept()[0].close()
        silent.settimeout(0)
        try:
            silent.accept()
        except BlockingIOError:
            return
        raise Failure("asked twice")


# ---- tokens and TLS ---------------------------------------------------------------------------
def test_tokens(guarded):
    ids, url = [[1, 2]], f"http://{address(guarded)}"
    with bc.Client(url, token=TOKEN) as client:
        expect_equal(client.packed("items", ids).shape, (1, 64))
        expect(client.is_ready(), "health needs no token")
        problem = expect_raises(bc.Unauthorized, client.models, "scope read")
        expect_equal(problem.status, 403)
    with bc.Client(url, token=OTHER) as client:
        expect("items" in client.models(), "read")
        expect_raises(bc.Unauthorized, lambda: client.packed("items", ids), "scope infer")
    for token in (None, TOKEN + "x"):
        with bc.Client(url, token=token) as client:
            problem = expect_raises(bc.Unauthorized, client.models, "token")
            expect_equal(problem.status, 401)


def test_tls(guarded, directory):
    with Proxy(guarded, directory) as proxy:
        context = ssl.create_default_context(cafile=proxy.certificate)
        with bc.Client(proxy.url + "/", token=TOKEN, ssl_context=context) as client:
            for _ in range(2):
                expect_equal(client.packed("items", [[1, 2]]).shape, (1, 64))
        with bc.Client(proxy.url, retries=0) as client:
            expect_raises(bc.ConnectionFailed, client.models, "certificate verify failed")

        async def ask():
            async with bc.AsyncClient(proxy.url, token=TOKEN, ssl_context=context) as client:
                for _ in range(2):
                    expect_equal((await client.packed("items", [[1, 2]])).shape, (1, 64))
            with pytest.raises(bc.ConnectionFailed, match="certificate verify failed"):
                await bc.AsyncClient(proxy.url, retries=0).models()
        asyncio.run(ask())
