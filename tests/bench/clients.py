"""The clients that load the servers, and what one measurement is."""

import csv
import dataclasses
import json
import os
import pathlib
import resource
import subprocess
import tempfile
import time
import typing

from servers import TICKS_PER_S, Unusable, end_with_parent, on_cpus


@dataclasses.dataclass(frozen=True)
class Query:
    """What is asked, again and again, with other ids each time."""

    name: str
    model: str
    rows: int
    bags: int
    ids: int  # per bag
    json: bool = False
    varied: bool = False  # ids is the most
    preset: str = ""  # of `bagserve bench`, which then decides about the ids

    def for_bench(self):
        """Arguments of `bagserve bench`."""
        if self.preset:
            return ["--preset", self.preset, "--bags", self.bags, "--bodies", "64"]
        return ["--bags", self.bags, "--ids", f"1-{self.ids}" if self.varied else self.ids,
                "--body", "json" if self.json else "binary", "--bodies", "1000" if self.varied else "64"]


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


def percentile(values, share):
    """Of sorted values; 0 where there are none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Request(typing.NamedTuple):
    """A line of --log: due in seconds, the rest in microseconds after that; status 0: no answer."""

    due: float
    sent_us: float
    took_us: float
    status: int


class Clients:
    """`bagserve bench`, kept on processors of its own where there are enough."""

    def __init__(self, program, cpus):
        self.program = program
        self.cpus = cpus

    def bench(self, server, asked, *arguments):
        """The runs of its report."""
        where = ["--unix", server.unix] if server.unix else []
        return run_json([self.program, "bench", "--report", "-", "--warmup", "0", *arguments, *asked[1:], *where,
                         f"http://127.0.0.1:{server.port or 1}", *asked[:1]], self.cpus)["runs"]

    def closed(self, server, query, connections, seconds):
        """A closed loop, as a Sample."""
        started, cpu, client, busy = time.monotonic(), server.cpu_s(), _children_s(), _busy_s()
        result, = self.bench(server, [query.model, *query.for_bench()], "--closed",
                             "--connections", connections, "--duration", seconds)
        requests, (p50_us, p99_us) = result["answered"], (result["latency_ms"][key] * 1e3 for key in ("p50", "p99"))
        cpu, client, busy = server.cpu_s() - cpu, _children_s() - client, _busy_s() - busy
        if not requests:
            raise Unusable(f"{server.name} answered nothing to {query.name}: {result}; its log: "
                           f"{server.last_words()}")
        wall = time.monotonic() - started
        return Sample(requests=requests, per_s=result["requests_per_s"], p50_us=p50_us, p99_us=p99_us,
                      cpu_us=cpu * 1e6 / requests, busy=cpu / result["seconds"],
                      client_cpu_us=client * 1e6 / requests,
                      bad=sum(error["count"] for error in result["errors"].values()),
                      others=max(0, busy - cpu - client) / wall / os.cpu_count())

    def redis(self, server, query, connections, pipeline, seconds):
        """MGET of as many random rows as the query has ids, in a closed loop of redis-benchmark, as a Sample."""
        def ask(requests):
            keys = ["key:__rand_int__"] * (query.bags * query.ids)
            command = ["redis-benchmark", "-p", server.port, "-c", connections, "-P", pipeline, "-n", requests, "-r",
                       query.rows, "--csv", "MGET", *keys]
            ended = subprocess.run(on_cpus(self.cpus, command), capture_output=True, text=True, check=True)
            names, values = (next(csv.reader([line])) for line in ended.stdout.splitlines()[-2:])
            return dict(zip(names, values, strict=True))

        requests = max(2000, int(float(ask(2000)["rps"]) * seconds))
        started, cpu, client, busy = time.monotonic(), server.cpu_s(), _children_s(), _busy_s()
        result = ask(requests)
        cpu, client, busy = server.cpu_s() - cpu, _children_s() - client, _busy_s() - busy
        wall = time.monotonic() - started
        return Sample(requests=requests, per_s=float(result["rps"]), p50_us=float(result["p50_latency_ms"]) * 1e3,
                      p99_us=float(result["p99_latency_ms"]) * 1e3, cpu_us=cpu * 1e6 / requests,
                      busy=cpu * float(result["rps"]) / requests, client_cpu_us=client * 1e6 / requests, bad=0,
                      others=max(0, busy - cpu - client) / wall / os.cpu_count())

    def requests(self, server, query, *arguments):
        """All requests of `bagserve bench`, and the report of its last rate."""
        with tempfile.NamedTemporaryFile("r") as log:
            run = self.bench(server, [query.model, *query.for_bench()], "--log", log.name, *arguments)[-1]
            return [Request(*map(float, line.split())) for line in log], run

    def load(self, server, query, normal_ms, *arguments):
        """What became of the requests of `bagserve bench`'s last rate, or of its closed loop."""
        requests, run = self.requests(server, query, *arguments)
        end = max(request.due for request in requests)
        mine = [request for request in requests if request.due >= end - run["seconds"]]
        took = sorted(request.took_us / 1e3 for request in mine if request.status == 200)
        rejected = sorted(request.took_us / 1e3 for request in mine if request.status == 503)
        return {"answered_per_s": len(took) / run["seconds"], "p50_ms": percentile(took, 0.5),
                "in_time_per_s": sum(ms <= normal_ms for ms in took) / run["seconds"],
                "p99_ms": percentile(took, 0.99), "rejected": len(rejected),
                "rejected_p99_ms": percentile(rejected, 0.99), "ok": len(took), "due": len(mine),
                "lost": len(mine) - len(took) - len(rejected),
                "late_p99_ms": percentile(sorted(one.sent_us / 1e3 for one in mine), 0.99)}
