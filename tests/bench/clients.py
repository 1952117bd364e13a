"""The clients that load the servers, and what one measurement is."""

import dataclasses
import json
import os
import pathlib
import resource
import subprocess
import time

from servers import HERE, TICKS_PER_S, Unusable, end_with_parent, on_cpus


@dataclasses.dataclass(frozen=True)
class Query:
    """What is asked, again and again, with other ids each time."""

    name: str
    model: str
    rows: int
    bags: int
    ids: int  # per bag
    json: bool = False
    varied: bool = False  # ids is the most, and each request has an id of its own; loadgen only
    features: tuple = ()  # (rows, ids) of each; then `rows` and `ids` are those of all together
    collection: bool = False

    def for_loadgen(self):
        features = ",".join(f"{rows}:{ids}" for rows, ids in self.features)
        return ["--model", self.model, "--rows", self.rows, "--bags", self.bags,
                "--ids", self.ids, *(["--json"] if self.json else []),
                *(["--vary", "--bodies", "1000"] if self.varied else []),
                *(["--features", features] if features else []),
                *(["--collection"] if self.collection else [])]

    def for_wrk(self):
        return [f"model={self.model}", f"rows={self.rows}", f"bags={self.bags}",
                f"ids={self.ids}", *(["json=1"] if self.json else [])]


@dataclasses.dataclass
class Sample:
    """One server under one client for a second or a few."""

    requests: int
    per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float  # of the server, per request
    busy: float  # share of one processor that the server used
    client_cpu_us: float
    bad: int  # answers other than 200, and connections lost
    others: float  # share of the machine that processes used which are not ours


def _busy_s():
    """Seconds that all processors together were busy since the machine started."""
    fields = [int(f) for f in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS_PER_S


def _children_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_json(command, cpus, timeout_s=300):
    """Runs a program whose last line of output is JSON."""
    process = subprocess.Popen(on_cpus(cpus, command), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=end_with_parent)
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except BaseException:
        process.kill()
        process.wait()
        raise
    try:
        return json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise Unusable(f"{command[0]} failed: {errors[-500:]}{out[-500:]}") from None


class Clients:
    """wrk and loadgen, kept on processors of their own where there are enough."""

    def __init__(self, loadgen_program, cpus):
        self.loadgen_program = loadgen_program
        self.cpus = cpus

    def wrk(self, server, query, connections, seconds):
        # wrk takes whole seconds only.
        return run_json(["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s",
                         "-s", HERE / "binary.lua", f"http://127.0.0.1:{server.port}", "--",
                         *query.for_wrk()], self.cpus)

    def loadgen(self, server, query, *arguments):
        return run_json([self.loadgen_program, "--port", server.port, *query.for_loadgen(),
                         *arguments], self.cpus)

    def closed(self, tool, server, query, connections, seconds):
        """A closed loop by either client, as a Sample."""
        started, cpu, client, busy = time.monotonic(), server.cpu_s(), _children_s(), _busy_s()
        if tool == "wrk":
            result = self.wrk(server, query, connections, seconds)
            requests, bad = result["requests"], result["not_200"] + result["lost"]
            per_s, elapsed = result["per_s"], result["seconds"]
        else:
            result = self.loadgen(server, query, "--connections", connections, "--seconds",
                                  seconds)["phases"][0]
            requests = result["ok"]
            bad = result["rejected"] + result["lost"] + result["other"]
            per_s, elapsed = result["answered_per_s"], result["seconds"]
        cpu, client, busy = server.cpu_s() - cpu, _children_s() - client, _busy_s() - busy
        if not requests:
            raise Unusable(f"{server.name} answered nothing to {query.name}: {result}; its log: "
                           f"{server.last_words()}")
        wall = time.monotonic() - started
        return Sample(requests=requests, per_s=per_s, p50_us=result["p50_us"],
                      p99_us=result["p99_us"],
                      cpu_us=cpu * 1e6 / requests, busy=cpu / elapsed,
                      client_cpu_us=client * 1e6 / requests, bad=bad,
                      others=max(0, busy - cpu - client) / wall / os.cpu_count())

    def open(self, server, query, phases, connections, normal_ms):
        """An open loop through phases of (rate, seconds); loadgen's phases."""
        text = ",".join(f"{rate:.1f}:{seconds}" for rate, seconds in phases)
        return self.loadgen(server, query, "--open", text, "--connections", connections,
                            "--normal-ms", normal_ms)["phases"]

    def get(self, server, path, rate, seconds):
        """GET at random times, timed from when it was due; loadgen's phase."""
        return run_json([self.loadgen_program, "--port", server.port, "--get", path, "--open",
                         f"{rate}:{seconds}"], self.cpus)["phases"][0]
