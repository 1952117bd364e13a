"""What a hostile client sends: each request gets the right statuses and an end, and the server goes
on. Where two readers could differ about where a request ends, nothing behind it is answered.
"""

import json
import threading

import pytest

from harness import Server, expect, expect_equal
from hostile import CASES, Library
from v2 import Client, Raw

# More than a time-out and less than two: a request that hangs fails its case.
REQUEST_TIMEOUT_S = 2
IDLE_TIMEOUT_S = 4
BATCH = 128  # cases at once


class Answer:
    """All that a connection brings until its end."""

    def __init__(self, server, request):
        self.replies = []
        self.problem = None
        self._thread = threading.Thread(target=self._ask, args=(server, request))
        self._thread.start()

    def _ask(self, server, request):
        method = request[:4].decode("latin-1").strip()
        try:
            with Raw(server, timeout_s=30) as raw:
                raw.send(request)
                while (reply := raw.reply(method)) is not None:
                    self.replies.append(reply)
        except (ConnectionResetError, BrokenPipeError):
            pass  # a close with bytes unread; what came before counts
        except Exception as problem:  # pylint: disable=broad-except
            self.problem = problem

    def wait(self):
        self._thread.join()


def check(answer, request, statuses):
    got = tuple(reply.status for reply in answer.replies)
    if isinstance(statuses, Library):
        # It sends the head of some replies twice, so that only the first line can be trusted.
        expect_equal(got[:1], tuple(statuses), "first status")
        return
    expect(answer.problem is None, f"{answer.problem!r}")
    expect_equal(got, statuses, "statuses")
    for reply in answer.replies:
        if reply.status >= 400:
            reply.error()


def is_alive(client):
    client.get("/v2/health/live").expect(200)
    expect_equal(json.loads(client.get("/v2/health/ready").body), {"ready": True})


@pytest.fixture(scope="module", name="server")
def serve():
    with Server("--demo", "--request-timeout-s", str(REQUEST_TIMEOUT_S), "--idle-timeout-s",
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
                one.wait()
                answers[first + i] = one
            with Client(server) as client:
                is_alive(client)
        return answers[number]

    return answer


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, *_ in CASES])
def test_hostile(answers, number):
    _, request, statuses = CASES[number]
    check(answers(number), request, statuses)
