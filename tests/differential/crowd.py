"""Clients beside a world's own, from threads: they read documents, ask, send damaged requests and leave in the midst of
them. Of what they are answered only the status is looked at; what the world asks must stay right meanwhile."""

import threading

import numpy as np

from harness import Failure, expect
from test_vanish import vanish
from v2 import Client, Tensor, head, infer_body

DOCUMENTS = ("/v2", "/v2/models", "/v2/models/stats", "/metrics", "/v2/health/ready", "/v2/server/history",
             "/v2/server/models", "/v2/server/options", "/v2/models/{}", "/v2/models/{}/metrics")


class Crowd:
    def __init__(self, server, headers, models, number):
        self.server, self.headers, self.models = server, headers, models
        self.ended, self.problems = threading.Event(), []
        self.threads = [threading.Thread(target=self._work, args=(i,)) for i in range(number)]
        for thread in self.threads:
            thread.start()

    def end(self):
        """Joins all of them; a Failure where one was answered what nobody may be."""
        self.ended.set()
        for thread in self.threads:
            thread.join()
        if self.problems:
            raise Failure(f"beside the others: {self.problems[0]}")

    def _work(self, number):
        rng = np.random.default_rng([self.server.port, number])
        try:
            while not self.ended.is_set():
                for kind in rng.permutation(["read", "ask", "leave", "leave"]):
                    getattr(self, f"_{kind}")(rng, self.models[rng.integers(len(self.models))])
        except Exception as problem:  # pylint: disable=broad-except
            self.problems.append(repr(problem))

    def _read(self, rng, model):
        with Client(self.server, headers=self.headers) as client:
            for path in rng.permutation(DOCUMENTS):
                status = client.get(str(path).format(model)).status
                expect(status in (200, 404, 503), f"{path} of {model}: status {status}")

    @staticmethod
    def _body(rng, binary):
        ids = rng.integers(0, 40, (int(rng.choice([1, 4, 300])), int(rng.integers(1, 30))))
        return infer_body([Tensor("indices", ids)], binary=binary)

    def _ask(self, rng, model):
        body, headers = self._body(rng, bool(rng.integers(2)))
        with Client(self.server, headers=self.headers) as client:
            reply = client.request("POST", f"/v2/models/{model}/infer", body, headers)
            expect(reply.status in (200, 400, 404, 503), f"{model}: status {reply.status}: {reply.body[:300]!r}")

    def _leave(self, rng, model):
        """A beginning of a request, or all of it, every other one with a few bytes changed."""
        body, headers = self._body(rng, True)
        data = bytearray(head("POST", f"/v2/models/{model}/infer", self.headers | headers, body))
        if rng.integers(2):
            for at in rng.integers(0, len(data), int(rng.integers(1, 4))):
                data[at] = int(rng.integers(256))
        length = int(rng.choice([len(data), rng.integers(len(data)), rng.integers(300)]))
        vanish(self.server, bytes(data[:length]), False, bool(rng.integers(2)))
