"""The servers that are compared: started on free ports, watched in /proc, ended by their pid."""

import collections
import ctypes
import json
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
START_S = 120


class Unusable(Exception):
    """A server or a tool that cannot do its part; the text says why."""


def end_with_parent():
    """Called in the child: whatever ends this script ends what it started."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C reaches the script alone, which then ends its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def on_cpus(cpus, command):
    """The command, kept on these processors; everywhere if there are none to choose from."""
    command = [str(word) for word in command]
    return ["taskset", "-c", ",".join(map(str, cpus)), *command] if cpus else command


def processors():
    """The servers' and the client's, where there are two."""
    cpus = sorted(os.sched_getaffinity(0))
    return (cpus[:1], cpus[1:2]) if len(cpus) > 1 else (None, None)


class Server:
    """One process that serves; a context manager that ends it."""

    unix = None  # the path of a Unix-domain socket in place of the port

    def __init__(self, name, command, cpus):
        self.name = name
        self.process = subprocess.Popen(on_cpus(cpus, command), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        preexec_fn=end_with_parent)
        self.pid = self.process.pid
        self.log = collections.deque(maxlen=20)
        try:
            self.port = self.read_port()
        except BaseException:
            self.stop()
            raise
        # A server whose log nobody reads would one day wait for a reader.
        threading.Thread(target=self.log.extend, args=[self.process.stderr], daemon=True).start()

    def read_port(self):
        """The port, which these servers print as their first line."""
        line = self.process.stdout.readline()
        if not line:
            self.log.extend(self.process.stderr)
            raise Unusable(f"{self.name} did not start: {self.last_words()}")
        return int(line)

    def cpu_s(self):
        """User and system time of all its threads so far."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def cpu_ns(self):
        """Time of all its threads so far, to the nanosecond."""
        tasks = pathlib.Path(f"/proc/{self.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())

    def set_loop_affinity(self, cpus):
        """Keeps the first thread, which runs the loop, on these processors."""
        os.sched_setaffinity(self.pid, cpus)

    def workers_cpu_s(self):
        """Time of all threads but the first, which runs the loop."""
        tasks = pathlib.Path(f"/proc/{self.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0])
                   for task in tasks.iterdir() if task.name != str(self.pid)) / 1e9

    def last_words(self):
        return b"".join(self.log).decode(errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Bagserve(Server):
    """`bagserve serve`; it logs its port, and when its tables are loaded."""

    def __init__(self, program, tables, cpus, arguments=(), name="bagserve", under=()):
        command = [*under, program, "serve", "--port", "0", "--log-format", "json", *arguments]
        for model, path in tables.items():
            command += ["--table", f"{model}={path}"]
        super().__init__(name, command, cpus)

    def read_port(self):
        port = None
        for line in self.process.stderr:
            self.log.append(line)
            event = json.loads(line) if line.startswith(b"{") else {}
            if event.get("event") == "listening":
                port = event.get("port")  # none of a Unix-domain socket
            if event.get("event") == "ready":
                return port
        raise Unusable(f"{self.name} did not start: {self.last_words()}")


class Bare(Server):
    """The yardstick, answering as many bytes as bagserve answered, and its metadata of a model."""

    def __init__(self, program, reply_bytes, header_bytes, pool_bytes, metadata, cpus):
        super().__init__("bare", [program, reply_bytes, header_bytes, pool_bytes, metadata], cpus)


class Redis(Server):
    """Redis without persistence, with the rows of a table as values of the keys that redis-benchmark asks for."""

    def __init__(self, table, cpus):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.free_port = listener.getsockname()[1]
        super().__init__("redis", ["redis-server", "--bind", "127.0.0.1", "--port", self.free_port, "--save", "", "--appendonly",
                                   "no"], cpus)
        commands = b"".join(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%b\r\n" % (i, len(row), row)
                            for i, row in ((i, row.tobytes()) for i, row in enumerate(np.load(table))))
        subprocess.run(["redis-cli", "-p", str(self.port), "--pipe"], input=commands, stdout=subprocess.DEVNULL, check=True)

    def read_port(self):
        for line in self.process.stdout:
            self.log.append(line)
            if b"Ready to accept connections" in line:
                return self.free_port
        raise Unusable(f"redis did not start: {self.last_words()}")


class FastApi(Server):
    def __init__(self, tables, cpus):
        super().__init__("fastapi", ["/usr/bin/python3", HERE / "fastapi_server.py",
                                     *(f"{model}={path}" for model, path in tables.items())], cpus)


def fastapi_is_missing():
    """What Debian package is missing for it, or nothing."""
    found = subprocess.run(["/usr/bin/python3", "-c", "import fastapi, uvicorn, torch, numpy"],
                           capture_output=True, text=True, check=False)
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


def request_of(server, query, first_id=0):
    """One request of that shape."""
    ids = [(first_id + 7919 * i) % query.rows for i in range(query.bags * query.ids)]
    offsets = [bag * query.ids for bag in range(query.bags)]
    inputs, binary = [], b""
    for name, numbers in (("indices", ids), ("offsets", offsets)):
        tensor = {"name": name, "datatype": "INT64", "shape": [len(numbers)]}
        if query.json:
            tensor["data"] = numbers
        else:
            raw = struct.pack(f"<{len(numbers)}q", *numbers)
            tensor["parameters"] = {"binary_data_size": len(raw)}
            binary += raw
        inputs.append(tensor)
    header = {"inputs": inputs}
    if not query.json:
        header["parameters"] = {"binary_data_output": True}
    head = json.dumps(header).encode()
    headers = {} if query.json else {"Inference-Header-Content-Length": str(len(head))}
    return urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v2/models/{query.model}/infer", head + binary, headers)


def ask(server, query, first_id=0):
    """One request of that shape: the reply's bytes, and those of the JSON in front of tensors."""
    with urllib.request.urlopen(request_of(server, query, first_id), timeout=START_S) as reply:
        body = reply.read()
        return body, int(reply.headers.get("Inference-Header-Content-Length") or 0)


def metadata_of(server, model):
    """What a client may ask of the model, as a list of models, too."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v2/models/{model}",
                                timeout=START_S) as reply:
        return json.dumps({"models": [model]} | json.load(reply))


def numbers_of(body, header_bytes):
    """The numbers of a reply."""
    if header_bytes:
        return struct.unpack(f"<{(len(body) - header_bytes) // 4}f", body[header_bytes:])
    return json.loads(body)["outputs"][0]["data"]


def same_answer(left, right, query):
    """Whether two servers pool alike; a fast wrong answer is worth nothing."""
    return all(abs(a - b) <= 1e-4 * max(1, abs(a))
               for a, b in zip(numbers_of(*ask(left, query)), numbers_of(*ask(right, query)),
                               strict=True))


def reply_size(server, query):
    """Median bytes of replies (as JSON they vary), and of the JSON in front of tensors."""
    replies = [ask(server, query, first_id) for first_id in range(9)]
    return int(statistics.median(len(body) for body, _ in replies)), replies[0][1]


def build(directory, targets):
    """Builds what is measured; nothing if there are no targets."""
    for command in (["cmake", "--preset", "release", "-B", directory],
                    ["cmake", "--build", directory, "--parallel", str(os.cpu_count()), "--target",
                     *targets]) if targets else ():
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if built.returncode:
            sys.exit(built.stdout[-3000:] + built.stderr[-3000:])
