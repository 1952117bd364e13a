"""What a hostile client sends: each request gets the right statuses and an end, and the server goes
on. Where two readers could differ about where a request ends, nothing behind it is answered.
"""

import contextlib
import json
import threading
import time

import pytest

from harness import Server, expect, expect_equal, reads_chunks
from hostile import BEFORE_1_0, CASES, SILENT, SILENT_SINCE_1_0, SINCE_1_0, post
from v2 import Client, Raw

# More than a time-out and less than two: a request that hangs fails its case.
REQUEST_TIMEOUT_S = 2
IDLE_TIMEOUT_S = 4
BATCH = 128  # cases at once


def is_ours(reply):
    """Whether a rejection is the server's, in JSON, or the library's in its own words."""
    return reply.headers.get("content-type") == "application/json"


class Answer(threading.Thread):
    """All that a connection brings until its end."""

    def __init__(self, server, request):
        super().__init__()
        self.server, self.request, self.replies, self.problem = server, request, [], None
        self.start()

    def run(self):
        server, request = self.server, self.request
        method = request[:4].decode("latin-1").strip()
        try:
            with Raw(server, timeout_s=30) as raw:
                raw.send(request)
                while (reply := raw.reply(method)) is not None:
                    self.replies.append(reply)
                    if reply.status >= 400 and not is_ours(reply):
                        raw.rest()  # 0.9.75 sends some twice
                        break
        except (ConnectionResetError, BrokenPipeError):
            pass  # a close with bytes unread; what came before counts
        except Exception as problem:  # pylint: disable=broad-except
            self.problem = problem


def accepted(name, request, statuses):
    """What may be answered: where the library sees no request it closes the connection."""
    choices = [statuses]
    if name in SILENT or (reads_chunks() and name in SILENT_SINCE_1_0):
        choices.append(statuses[:-1])
    if reads_chunks():
        choices.append(SINCE_1_0.get(name, statuses))
    else:
        choices.append(BEFORE_1_0.get(name, statuses))
        if b"chunked" in request.lower():
            choices += [(200,) * good + (411,) for good in range(4)]
    return choices


def check(answer, name, request, statuses):
    got = tuple(reply.status for reply in answer.replies)
    expect(answer.problem is None, f"{answer.problem!r}")
    choices = accepted(name, request, statuses)
    expect(got in choices, f"statuses: {got} and none of {choices}")
    for reply in answer.replies:
        if reply.status >= 400 and is_ours(reply):
            reply.error()


def is_alive(client):
    client.get("/v2/health/live").expect(200)
    expect_equal(json.loads(client.get("/v2/health/ready").body), {"ready": True})


@pytest.fixture(scope="module", name="server")
def serve():
    with Server("--demo", "--host-names", "*", "--request-timeout-s", str(REQUEST_TIMEOUT_S), "--idle-timeout-s",
                str(IDLE_TIMEOUT_S)) as server:
        yield server


@pytest.fixture(scope="module", name="answers")
def ask_in_batches(server):
    """A function that gives the answer to a case by its number. A batch is asked at once, as most
    cases wait for a deadline."""
    answers = {}

    def answer(number):
        if number not in answers:
            first = number - number % BATCH
            batch = [Answer(server, request) for _, request, _ in CASES[first:first + BATCH]]
            for i, one in enumerate(batch):
                one.join()
                answers[first + i] = one
            with Client(server) as client:
                is_alive(client)
        return answers[number]

    return answer


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, *_ in CASES])
def test_hostile(answers, number):
    name, request, statuses = CASES[number]
    check(answers(number), name, request, statuses)


def test_no_work_without_progress(server):
    """What is too long to be kept, on connections that stay open, costs no time once it was
    answered."""
    first = post(b"Transfer-Encoding: chunked")
    waste = [first + b"1;" + b"x" * 16400, first + b"0\r\nX: " + b"y" * 16400, b"G" * 16400,
             b"GET / HTTP/1.1\r\nX: " + b"y" * 16400]
    before = server.cpu_seconds()
    raws = [Raw(server) for _ in range(10) for _ in waste]
    for raw, request in zip(raws, waste * 10):
        raw.send(request)
    for raw in raws:
        with contextlib.suppress(ConnectionResetError):
            reply = raw.reply()
            expect(reply is None or reply.status >= 400, "accepted")
    with Client(server) as client:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            is_alive(client)
            time.sleep(0.1)
    spent_s = server.cpu_seconds() - before
    expect(spent_s < 0.5, f"{spent_s} s of CPU for nothing")
    for raw in raws:
        raw.close()
