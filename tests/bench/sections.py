"""The sections of tests/bench/serving: what is compared, and how it is printed."""

import contextlib
import statistics

from clients import Query, run_json
from servers import Bagserve, Bare, FastApi, Unusable, reply_size, same_answer
from tables import ITEMS_ROWS, WIDE_ROWS

SMALL = Query("1 bag x 10 ids, dim 64", "items", ITEMS_ROWS, 1, 10)
MEDIUM = Query("64 bags x 20 ids, dim 64", "items", ITEMS_ROWS, 64, 20)
# 270 samples of MLPerf's DLRM-v2 query, 214 ids each over all tables: 57,780 rows.
MLPERF = Query("270 bags x 214 ids, dim 128", "wide", WIDE_ROWS, 270, 214)
JSON = Query("JSON, 1 bag x 1000 ids, dim 64", "items", ITEMS_ROWS, 1, 1000, json=True)

# Open loop: the most connections, and below bagserve's own limit.
OPEN_CONNECTIONS = 3000
WORK_US = (200, 1000)
WORK_BAGS = 8


def median(values):
    return statistics.median(values)


def ratios(samples, base, figure):
    """The median over rounds of a figure's ratio to that of `base` in the same round."""
    return median(getattr(one, figure) / max(1e-9, getattr(other, figure))
                  for one, other in zip(samples, base, strict=True))


def start_bagserve(stack, bench, *arguments, cpus=None, program=None, name="bagserve"):
    return stack.enter_context(Bagserve(program or bench.program, bench.tables,
                                        cpus or bench.server_cpus,
                                        [*bench.arguments, *arguments], name))


def start_bare(stack, bench, like, query):
    """A bare server that answers `query` with as many bytes as the server `like` does."""
    return stack.enter_context(Bare(bench.programs / "bench_bare", *reply_size(like, query),
                                    bench.server_cpus))


# --- tables of figures ---------------------------------------------------------------------------

HEADINGS = (f"{'server':>14} {'requests/s':>11} {'p50 us':>8} {'p99 us':>8} {'CPU us':>8} "
            f"{'busy':>5} {'client':>7} | {'req/s':>6} {'p50':>6} {'p99':>6} {'CPU':>6}")


def print_heading(title, base):
    print(f"\n{title}\n{HEADINGS}  ratios to {base}")


def print_row(name, samples, base):
    """Medians over rounds, and the medians of the paired ratios."""
    figures = {figure: median(getattr(sample, figure) for sample in samples)
               for figure in ("per_s", "p50_us", "p99_us", "cpu_us", "busy", "client_cpu_us")}
    bad = sum(sample.bad for sample in samples)
    print(f"{name:>14} {figures['per_s']:>11,.0f} {figures['p50_us']:>8.0f} "
          f"{figures['p99_us']:>8.0f} {figures['cpu_us']:>8.1f} {figures['busy']:>5.0%} "
          f"{figures['client_cpu_us']:>7.1f} | {ratios(samples, base, 'per_s'):>6.2f} "
          f"{ratios(samples, base, 'p50_us'):>6.2f} {ratios(samples, base, 'p99_us'):>6.2f} "
          f"{ratios(samples, base, 'cpu_us'):>6.2f}" + (f"  {bad} BAD ANSWERS" if bad else ""),
          flush=True)


def take_turns(bench, servers, rounds, measure):
    """A B C A B C ...: the samples of each server by its name."""
    samples = {server.name: [] for server in servers}
    for _ in range(rounds):
        for server in servers:
            samples[server.name].append(measure(server))
            bench.others.append(samples[server.name][-1].others)
    return samples


# --- closed --------------------------------------------------------------------------------------

def plan_closed(bench):
    """(query, client, connections) in the order they are printed."""
    if bench.quick:
        return [(SMALL, "wrk", 1), (SMALL, "wrk", 64), (SMALL, "loadgen", 64),
                (MEDIUM, "wrk", 64), (MLPERF, "wrk", 8), (JSON, "wrk", 64)]
    return [(query, tool, connections) for query in (SMALL, MEDIUM, MLPERF, JSON)
            for connections in (1, 8, 64, 200) for tool in ("wrk", "loadgen")
            if tool == "wrk" or connections in (1, 64)]


def closed(bench):
    """closed loop: every client waits for its answer"""
    with contextlib.ExitStack() as stack:
        bagserve = start_bagserve(stack, bench)
        fastapi = stack.enter_context(FastApi(bench.tables, bench.server_cpus)) \
            if bench.fastapi else None
        bares = {}
        for query, tool, connections in plan_closed(bench):
            if query not in bares:
                bares[query] = start_bare(stack, bench, bagserve, query)
                if fastapi and not same_answer(bagserve, fastapi, query):
                    raise Unusable(f"FastAPI and bagserve differ on {query.name}")
            servers = [bares[query], bagserve]
            # FastAPI is far from the limits that other numbers of connections would show.
            if fastapi and tool == "wrk" and connections in (1, 64):
                servers.append(fastapi)
            samples = take_turns(bench, servers, bench.rounds,
                                 lambda server, q=query, t=tool, c=connections:
                                 bench.clients.closed(t, server, q, c, bench.seconds))
            print_heading(f"{query.name}; {tool}, {connections} connections", "bare")
            for name, taken in samples.items():
                print_row(name, taken, samples["bare"])
            if fastapi in servers:
                factor = ratios(samples["bagserve"], samples["fastapi"], "per_s")
                print(f"bagserve / fastapi: {factor:.1f}")
    print("\nbusy: share of its processor that the server used; well below 100 % with many "
          "connections,\nthe client is the limit, and CPU per request tells more than requests/s. "
          "client: its own us per request.")


# --- inprocess -----------------------------------------------------------------------------------

def call_in_process(bench, query, cpus, seconds):
    return run_json([bench.programs / "bench_inprocess", bench.tables[query.model], query.bags,
                     query.ids, seconds], cpus)


def give_worker_a_processor(bench, server, query):
    """The worker, which starts with the first work, on one; the loop and the client on the other."""
    bench.clients.closed("loadgen", server, query, 4, 0.3)
    if bench.apart:
        server.pin_workers(bench.client_cpus, bench.server_cpus)


def inprocess(bench):
    """rows per second over loopback, one worker, against the kernels in one process on one core

    The worker has a processor to itself, which the kernels in one process use in their turn; the
    loop and the client share the other.
    """
    rows = MLPERF.bags * MLPERF.ids
    called, asked, worker_us = [], [], []
    with contextlib.ExitStack() as stack:
        server = start_bagserve(stack, bench, "--workers", 1, cpus=bench.client_cpus)
        give_worker_a_processor(bench, server, MLPERF)
        for _ in range(bench.rounds):
            called.append(call_in_process(bench, MLPERF, bench.server_cpus, bench.seconds))
            before = server.workers_cpu_s()
            asked.append(bench.clients.closed("loadgen", server, MLPERF, 4, bench.seconds))
            worker_us.append((server.workers_cpu_s() - before) * 1e6 / asked[-1].requests)
            bench.others.append(asked[-1].others)
    rates = [call["rows_per_s"] for call in called]
    costs = [call["cpu_us_per_query"] for call in called]
    print(f"{MLPERF.name}: {rows:,} rows a query, 4 connections")
    print(f"    in one process  {median(rates) / 1e6:8.1f} million rows/s, {median(costs):8,.0f} us "
          "of CPU a query")
    print(f"    over loopback   {median(a.per_s for a in asked) * rows / 1e6:8.1f} million rows/s, "
          f"{median(worker_us):8,.0f} us of the worker's CPU a query, "
          f"{median(a.cpu_us for a in asked):,.0f} with the loop's")
    share = median(ask.per_s * rows / rate for ask, rate in zip(asked, rates, strict=True))
    work = median(cost / us for cost, us in zip(costs, worker_us, strict=True))
    print(f"    over loopback / in one process: {share:.2f} by rows/s, {work:.2f} by the worker's CPU")


# --- workers -------------------------------------------------------------------------------------

def query_of_work(bench, work_us):
    """A query that keeps the kernels busy for about that long on one processor."""
    trial = Query("", "wide", WIDE_ROWS, WORK_BAGS, 200)
    took = call_in_process(bench, trial, bench.server_cpus, 0.3)["cpu_us_per_query"]
    ids = max(1, round(trial.ids * work_us / took))
    return Query(f"{work_us} us of work: {WORK_BAGS} bags x {ids} ids, dim 128", "wide",
                 WIDE_ROWS, WORK_BAGS, ids)


def workers(bench):
    """two workers against one on dear requests, 64 connections

    With one worker that has a processor to itself, and the loop and the client on another. Two
    workers share both with them, so that two processors cannot give twice as much: `limit` is what
    they could at best, by the CPU that a request takes with one worker.
    """
    with contextlib.ExitStack() as stack:
        servers = [start_bagserve(stack, bench, "--workers", count, name=f"{count} workers",
                                  cpus=[*bench.server_cpus, *bench.client_cpus]
                                  if bench.apart else None) for count in (1, 2)]
        for work_us in WORK_US:
            query = query_of_work(bench, work_us)
            give_worker_a_processor(bench, servers[0], query)
            samples = take_turns(bench, servers, bench.rounds,
                                 lambda server, q=query: bench.clients.closed(
                                     "loadgen", server, q, 64, bench.seconds))
            print_heading(query.name, "1 worker")
            for name, taken in samples.items():
                print_row(name, taken, samples["1 workers"])
            one = samples["1 workers"]
            limit = median(2e6 / (s.cpu_us + s.client_cpu_us) / s.per_s for s in one)
            print(f"limit on two processors: {limit:.2f}")


# --- open ----------------------------------------------------------------------------------------

def print_phases(name, phases, labels, peak):
    for label, phase in zip(labels, phases, strict=True):
        spread = phase["p99_us"] / phase["p50_us"] if phase["p50_us"] else 0
        print(f"{name:>9} {label:>9} {phase['rate']:>8,.0f} {phase['answered_per_s']:>8,.0f} "
              f"{phase['answered_per_s'] / peak:>6.0%} {phase['p50_us']:>8.0f} "
              f"{phase['p99_us']:>9.0f} {spread:>7.1f} {phase['refused']:>7} "
              f"{phase['refused_p99_us']:>9.0f} {phase['unsent']:>7} "
              f"{phase['lost'] + phase['other']:>5} {phase['unanswered']:>8} "
              f"{phase['late_p99_us']:>8.0f} {phase['normal_after_ms']:>6.0f}", flush=True)


OPEN_HEADINGS = (f"{'server':>9} {'load':>9} {'rate/s':>8} {'200s/s':>8} {'good':>6} {'p50 us':>8} "
                 f"{'p99 us':>9} {'p99/p50':>7} {'503s':>7} {'their p99':>9} {'unsent':>7} "
                 f"{'lost':>5} {'no reply':>8} {'late p99':>8} {'normal':>6}")


def peak_of(bench, server, query):
    return median(bench.clients.closed("loadgen", server, query, 64, bench.seconds).per_s
                  for _ in range(3))


def open_at_70(bench, stack, query):
    """The small request at 70 % of each server's own peak."""
    bagserve = start_bagserve(stack, bench)
    servers = [start_bare(stack, bench, bagserve, query), bagserve]
    print(f"\n{query.name}; at 70 % of each server's own peak\n{OPEN_HEADINGS}")
    peaks = {server.name: peak_of(bench, server, query) for server in servers}
    for _ in range(1 if bench.quick else 3):
        for server in servers:
            peak = peaks[server.name]
            phases = bench.clients.open(server, query, [(0.7 * peak, 2 * bench.seconds)],
                                        OPEN_CONNECTIONS, 10)
            print_phases(server.name, phases, ["70 %"], peak)
    bagserve.stop()


def open_overload(bench, stack, query):
    """2x and 5x of the peak, with 70 % before, between and after."""
    server = start_bagserve(stack, bench, "--workers", 1, cpus=bench.client_cpus)
    give_worker_a_processor(bench, server, query)
    peak = peak_of(bench, server, query)
    print(f"\n{query.name}; 1 worker, peak {peak:,.0f}/s\n{OPEN_HEADINGS}")
    seconds = (2 if bench.quick else 4) * bench.seconds
    labels = ["70 %", "2x", "70 % again", "5x", "70 % again"]
    rates = [0.7 * peak, 2 * peak, 0.7 * peak, 5 * peak, 0.7 * peak]
    phases = bench.clients.open(server, query, [(rate, seconds) for rate in rates],
                                OPEN_CONNECTIONS, 50)
    print_phases("bagserve", phases, labels, peak)
    server.stop()


def open_loop(bench):
    """open loop: arrivals at random times, timed from when they were due"""
    with contextlib.ExitStack() as stack:
        open_at_70(bench, stack, SMALL)
    for work_us in WORK_US[:1] if bench.quick else WORK_US:
        with contextlib.ExitStack() as stack:
            open_overload(bench, stack, query_of_work(bench, work_us))
    print("\ngood: 200s per second of the peak. unsent: every connection of the generator was busy. "
          "late p99: of the\ngenerator itself, us. normal: ms from the start of the phase until "
          "99 % of answers were 200 in time (10 ms,\n50 ms under overload); -1: never.")


# --- compare -------------------------------------------------------------------------------------

def compare(bench):
    """bagserve against bagserve with other arguments or another program, 64 connections"""
    with contextlib.ExitStack() as stack:
        servers = [start_bagserve(stack, bench, name="this"),
                   start_bagserve(stack, bench, *bench.compare_arguments, name="other",
                                  program=bench.compare_program)]
        for query in (SMALL, MEDIUM):
            samples = take_turns(bench, servers, max(10, bench.rounds),
                                 lambda server, q=query: bench.clients.closed(
                                     "loadgen", server, q, 64, bench.seconds))
            print_heading(query.name, "other")
            for name, taken in samples.items():
                print_row(name, taken, samples["other"])
