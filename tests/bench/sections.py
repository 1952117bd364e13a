"""The sections of tests/bench/serving: what is compared with what."""

import contextlib

from queries import BINARY, DLRM, JSON, MEDIUM, MLPERF, SMALL, VARIED, call_in_process
from report import median, paired, print_heading, print_row, quartiles, ratio
from servers import Bagserve, Bare, FastApi, Redis, Unusable, metadata_of, reply_size, same_answer

NORMAL_MS = 10


# --- servers -------------------------------------------------------------------------------------

def start_bagserve(stack, bench, *arguments, name="bagserve", cpus=None):
    return stack.enter_context(Bagserve(bench.program, bench.tables,
                                        cpus or bench.server_cpus,
                                        [*bench.arguments, *arguments], name))


def start_with_workers(stack, bench, count, *arguments, name="bagserve"):
    """Workers on processors of their own, the server's first; the loop beside the client."""
    if not bench.apart:
        return start_bagserve(stack, bench, "--workers", count, *arguments, name=name)
    cpus = [*bench.server_cpus, *bench.client_cpus]
    server = start_bagserve(stack, bench, "--workers", count, *arguments, name=name,
                            cpus=cpus[:count])
    server.set_loop_affinity(bench.client_cpus)
    return server


def start_bare(stack, bench, like, query):
    """A bare server that answers `query` with as many bytes as the server `like` does."""
    return stack.enter_context(Bare(bench.programs / "bench_bare", *reply_size(like, query),
                                    bench.bare_pool_bytes, metadata_of(like, query.model),
                                    bench.server_cpus))


def measure(bench, server, query, connections):
    """One sample of a closed loop."""
    sample = bench.clients.closed(server, query, connections, bench.seconds)
    bench.others.append(sample.others)
    return sample


def take_turns(bench, servers, rounds, query, connections):
    """A B C, C B A, ...: the samples of each server by its name."""
    samples = {server.name: [] for server in servers}
    for turn in range(rounds):
        for server in servers[::-1] if turn % 2 else servers:
            samples[server.name].append(measure(bench, server, query, connections))
    return samples


# --- closed --------------------------------------------------------------------------------------

def plan_closed(bench):
    """(query, connections) in the order they are printed."""
    if bench.quick:
        return [(SMALL, 8), (SMALL, 64), (VARIED, 64), (MEDIUM, 64), (MLPERF, 8), (JSON, 64)]
    return [(query, connections) for query in (SMALL, VARIED, MEDIUM, MLPERF, JSON)
            for connections in (1, 8, 64, 200)]


def print_ceiling(bare):
    """How many requests a processor of its own lets the client send, beside what bare takes."""
    client, server = (median(1e6 / getattr(sample, figure) for sample in bare)
                      for figure in ("client_cpu_us", "cpu_us"))
    print(f"the client can ask {client:,.0f} times a second, bare can answer {server:,.0f} times "
          "(a second over the CPU each takes)")


def closed(bench):
    """closed loop: every client waits for its answer"""
    with contextlib.ExitStack() as stack:
        bagserve = start_bagserve(stack, bench)
        bares, kernels_us = {}, {}
        for query, connections in plan_closed(bench):
            if query not in bares:
                bares[query] = start_bare(stack, bench, bagserve, query)
                kernels_us[query] = call_in_process(bench, query, bench.server_cpus,
                                                    0.3)["cpu_us_per_query"]
            samples = take_turns(bench, [bares[query], bagserve], bench.rounds, query, connections)
            print_heading(f"{query.name}; {connections} connections", "bare")
            for name, taken in samples.items():
                print_row(name, taken, samples["bare"])
            share = 1 / ratio(samples["bagserve"], samples["bare"], "cpu_us")
            print(f"requests per second of CPU: {share:.2f} of bare's; "
                  f"kernels alone: {kernels_us[query]:.1f} us")
            if query == SMALL and connections == 64:
                print_ceiling(samples["bare"])
    print("\nbusy: share of its processor that the server used; well below 100 % with many "
          "connections,\nthe client is the limit, and CPU per request tells more than requests/s. "
          "client: its own us per request.\n"
          "kernels alone: CPU of checking and pooling such a query in one process.")


# --- latency -------------------------------------------------------------------------------------

def latency(bench):
    """p50 and p99 of the small request at 1, 8 and 64 connections, by TCP and by a Unix socket"""
    with contextlib.ExitStack() as stack:
        path = str(bench.directory / "bagserve.sock")
        servers = [start_bagserve(stack, bench, name="tcp"), start_bagserve(stack, bench, "--unix", path, name="unix")]
        servers[1].unix = path
        for connections in (1, 8, 64):
            samples = take_turns(bench, servers, bench.rounds, SMALL, connections)
            print_heading(f"{SMALL.name}; {connections} connections", "tcp")
            for name, taken in samples.items():
                print_row(name, taken, samples["tcp"])


# --- fastapi -------------------------------------------------------------------------------------

def fastapi(bench):
    """beside FastAPI with PyTorch: the small request at 1, 8 and 64 connections, and 64 bags"""
    if bench.fastapi_missing:
        raise Unusable(f"{bench.fastapi_missing}: install the packages of the group bench")
    with contextlib.ExitStack() as stack:
        servers = [start_bagserve(stack, bench), stack.enter_context(FastApi(bench.tables, bench.server_cpus))]
        for query, connections in ((SMALL, 1), (SMALL, 8), (SMALL, 64), (MEDIUM, 1), (MEDIUM, 64)):
            if not same_answer(*servers, query):
                raise Unusable(f"FastAPI and bagserve differ on {query.name}")
            samples = take_turns(bench, servers, bench.rounds, query, connections)
            print_heading(f"{query.name}; {connections} connections", "bagserve")
            for name, taken in samples.items():
                print_row(name, taken, samples["bagserve"])
            print(f"fastapi / bagserve: {quartiles(paired(samples['fastapi'], samples['bagserve'], 'cpu_us'))} by CPU; "
                  f"bagserve / fastapi: {ratio(samples['bagserve'], samples['fastapi'], 'per_s'):.1f} by requests/s")


# --- redis ---------------------------------------------------------------------------------------

def redis(bench):
    """beside Redis: MGET of 10 rows, which its client must pool, and a bag of 10

    Redis is asked by redis-benchmark, which formats hardly anything; both clients are programs in C.
    The rows are those of the table, 256 bytes each.
    """
    if bench.redis_missing:
        raise Unusable(f"{bench.redis_missing} is missing: install the packages of the group bench")
    with contextlib.ExitStack() as stack:
        bagserve = start_bagserve(stack, bench)
        other = stack.enter_context(Redis(bench.tables[SMALL.model], bench.server_cpus))
        for connections, pipeline in ((1, 1), (8, 1), (64, 1), (64, 16)):
            samples = {"bagserve": [], "redis": []}
            for turn in range(bench.rounds):
                for name in ("redis", "bagserve") if turn % 2 else ("bagserve", "redis"):
                    samples[name].append(
                        measure(bench, bagserve, SMALL, connections) if name == "bagserve" else
                        bench.clients.redis(other, SMALL, connections, pipeline, bench.seconds))
            print_heading(f"{SMALL.name}; {connections} connections" + (f", {pipeline} MGET in flight on each" if
                                                                        pipeline > 1 else ""), "bagserve")
            for name, taken in samples.items():
                print_row(name, taken, samples["bagserve"])
            print(f"redis / bagserve: {quartiles(paired(samples['redis'], samples['bagserve'], 'cpu_us'))} by CPU",
                  flush=True)


# --- dlrm ----------------------------------------------------------------------------------------

def dlrm(bench):
    """the 26 tables of MLPerf's DLRM-v2, shortened to 2 GiB: requests of one sample and of many"""
    with contextlib.ExitStack() as stack:
        server = start_bagserve(stack, bench, "--synthetic", "mlperf-dlrm-v2", "--synthetic-bytes", "2GiB")
        for query in DLRM:
            samples = [measure(bench, server, query, 8) for _ in range(bench.rounds)]
            print_heading(f"{query.name}; 8 connections", "itself")
            print_row("bagserve", samples, samples)


# --- rate ----------------------------------------------------------------------------------------

def peak_of(bench, server, query, connections=8):
    """So few that none is rejected, and enough to keep the server busy."""
    return measure(bench, server, query, connections).per_s


def ask_at_rate(bench, server, query, rate, connections):
    """(the server's CPU for a request in us, answers a second) where requests come at that rate."""
    before = server.cpu_s()
    phase = bench.clients.load(server, query, NORMAL_MS, "--rate", f"{rate:.1f}:{2 * bench.seconds}",
                               "--connections", connections)
    if not phase["ok"] or phase["rejected"] + phase["lost"]:
        raise Unusable(f"{server.name} did not answer all of {query.name}: {phase}")
    return (server.cpu_s() - before) * 1e6 / phase["ok"], phase["answered_per_s"]


def print_rates(title, taken):
    """What each server took, and the ratios of the CPU within each round."""
    print(title)
    for name, asked in taken.items():
        print(f"    {name}: {median(us for us, _ in asked):.2f} us of CPU, "
              f"{median(per_s for _, per_s in asked):,.0f} answers a second")
    for one, base in (("bare", "bagserve"), ("access log", "bagserve")):
        shares = [a / b for (a, _), (b, _) in zip(taken[one], taken[base], strict=True)]
        print(f"    {one} / {base}: {quartiles(shares)} by CPU", flush=True)


def rate(bench):
    """CPU of the small request where as many come to each server, with the access log, too

    In a closed loop the client sleeps while a slower server works, and each reply has to wake it,
    which costs the server time that the faster one does not spend. Here all are asked half as often
    as the slowest can answer. A request that finds all connections busy is not sent: the answers a
    second say whether that was the same for all.
    """
    with contextlib.ExitStack() as stack:
        bagserve = start_bagserve(stack, bench)
        servers = [start_bare(stack, bench, bagserve, SMALL), bagserve,
                   start_bagserve(stack, bench, "--access-log", "on", name="access log")]
        plan = [(SMALL, 8), (SMALL, 64), (VARIED, 64)]
        for query, connections in plan[1:] if bench.quick else plan:
            taken = {server.name: [] for server in servers}
            half = min(peak_of(bench, server, query, connections) for server in servers) / 2
            for turn in range(bench.rounds if bench.quick else 2 * bench.rounds):
                for server in servers[::-1] if turn % 2 else servers:
                    taken[server.name].append(ask_at_rate(bench, server, query, half, connections))
            print_rates(f"{query.name}; {half:,.0f} a second, at most {connections} connections",
                        taken)


# --- inprocess -----------------------------------------------------------------------------------

def inprocess(bench):
    """rows per second over loopback, one worker, against the kernels in one process on one core

    The worker has a processor to itself, which the kernels in one process use in their turn; the
    loop and the client share the other.
    """
    rows = MLPERF.bags * MLPERF.ids
    called, asked, worker_us = [], [], []
    with contextlib.ExitStack() as stack:
        server = start_with_workers(stack, bench, 1)
        for _ in range(bench.rounds):
            called.append(call_in_process(bench, MLPERF, bench.server_cpus, bench.seconds))
            before = server.workers_cpu_s()
            asked.append(measure(bench, server, MLPERF, 4))
            worker_us.append((server.workers_cpu_s() - before) * 1e6 / asked[-1].requests)
    rates = [call["rows_per_s"] for call in called]
    costs = [call["cpu_us_per_query"] for call in called]
    print(f"{MLPERF.name}: {rows:,} rows a query, 4 connections\n"
          f"    in one process  {median(rates) / 1e6:8.1f} million rows/s, {median(costs):8,.0f} "
          "us of CPU a query\n"
          f"    over loopback   {median(a.per_s for a in asked) * rows / 1e6:8.1f} million rows/s, "
          f"{median(worker_us):8,.0f} us of the worker's CPU a query, "
          f"{median(a.cpu_us for a in asked):,.0f} with the loop's")
    share = median(ask.per_s * rows / rate for ask, rate in zip(asked, rates, strict=True))
    work = median(cost / us for cost, us in zip(costs, worker_us, strict=True))
    print(f"    over loopback / in one process: {share:.2f} by rows/s, {work:.2f} by the worker's "
          "CPU")


# --- json ----------------------------------------------------------------------------------------

def json_beside_binary(bench):
    """JSON both ways against binary both ways, 8 connections, 64 bodies in turn"""
    samples = {query: [] for query in (JSON, BINARY)}
    with contextlib.ExitStack() as stack:
        server = start_bagserve(stack, bench)
        for turn in range(2 * bench.rounds):
            for query in list(samples)[::-1 if turn % 2 else 1]:
                samples[query].append(measure(bench, server, query, 8))
    print_heading("1000 ids, dim 64; bagserve bench, 8 connections", BINARY.name)
    for query, taken in samples.items():
        print_row(query.name.partition(",")[0], taken, samples[BINARY])
    for figure, unit in (("cpu_us", "CPU of a request"), ("per_s", "requests/s")):
        print(f"JSON / binary: {quartiles(paired(samples[JSON], samples[BINARY], figure))} {unit}")
