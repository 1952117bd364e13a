"""bagserve-feed as a process, and a cluster of Kafka that is librdkafka's mock of one."""

import json
import os
import subprocess
import threading

import numpy as np

from harness import ROOT, TIMEOUT_S, Failure, _die_with_parent, environment, expect_equal, wait_until
from v2 import Tensor, infer_body

FEED = os.environ.get("FEED", str(ROOT / "build" / "release" / "bagserve-feed"))
MOCK_KAFKA = os.environ.get("MOCK_KAFKA", str(ROOT / "build" / "release" / "tests" / "feed" / "mock_kafka"))
TOPIC = "rows"


class Kafka:
    """Brokers, and a producer."""

    def __init__(self, brokers=2, partitions=1, linger_ms=5):
        self.process = subprocess.Popen([MOCK_KAFKA, str(brokers), str(linger_ms)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, preexec_fn=_die_with_parent)
        self.bootstrap = self.process.stdout.readline().decode().strip()
        if partitions:
            self.ask(f"topic {TOPIC} {partitions}")

    def ask(self, line, value=b""):
        self.process.stdin.write(line.encode() + b"\n" + value)
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode().strip()
        if not answer.startswith("ok"):
            raise Failure(f"{line}: {answer}")
        return answer

    def produce(self, value, header_bytes=0, topic=TOPIC, partition=0):
        self.ask(f"produce {topic} {partition} {header_bytes} {len(value)}", value)

    def flush(self):
        self.ask("flush")

    def batch(self, ids, rows=None, binary=True, partition=0, **parameters):
        """Produces a batch of rows, as its senders do."""
        ids = np.asarray(ids)
        inputs = [Tensor("keys" if ids.dtype == np.uint64 else "indices", ids)]
        if rows is not None:
            inputs.append(Tensor("rows", np.asarray(rows, np.float32)))
        body, headers = infer_body(inputs, binary=binary, **({"parameters": parameters} if parameters else {}))
        if isinstance(body, str):
            body = body.encode()
        self.produce(body, int(headers.get("Inference-Header-Content-Length", 0)), partition=partition)

    def read(self, topic, partition, offset):
        """The value of a message, and why it is there."""
        _, _, size, error = self.ask(f"read {topic} {partition} {offset}").split(" ", 3)
        return self.process.stdout.read(int(size)), error.replace("_", " ")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Feed:
    """The program, from its start to its end."""

    def __init__(self, kafka, server, *arguments, model="dense", topic=TOPIC):
        self.lines = []
        url = getattr(server, "url", server)
        self.process = subprocess.Popen(
            [FEED, "--brokers", getattr(kafka, "bootstrap", kafka), "--topic", topic, "--model", model,
             "--server", url, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=environment(), preexec_fn=_die_with_parent)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def log(self):
        return "\n".join(self.lines)

    def wait_for(self, text):
        wait_until(lambda: text in self.log() or self.process.poll() is not None, f"the feed says {text!r}")
        if text not in self.log():
            raise Failure(f"the feed ended without {text!r}: {self.log()}")

    def ends_with(self, code):
        """Its last words, once it has ended."""
        expect_equal(self.process.wait(TIMEOUT_S), code, f"the exit code; {self.log()}")
        self.reader.join()
        return self.log()

    def stop(self):
        self.process.terminate()
        return self.ends_with(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.join()


def updates_through(client, model="dense"):
    return json.loads(client.get(f"/v2/models/{model}").expect().body)["parameters"]["updates_through"]


def reaches(client, sequence, model="dense"):
    wait_until(lambda: updates_through(client, model) >= sequence, f"sequence {sequence}")
    expect_equal(updates_through(client, model), sequence)
