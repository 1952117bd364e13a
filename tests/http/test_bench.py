"""`bagserve bench`: what it asks, counts and reports, against servers whose answers are known."""

import contextlib
import html.parser
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from benching import (  # noqa: F401, fixtures
    SHORT, Foreign, bench, bench_model, foreign, foreign_metadata, make_tables, only, start_server)
from harness import PROGRAM, Server, environment, expect, expect_equal, run
from v2 import Client, Tensor

RUN_KEYS = ["rate", "seconds", "sent", "answered", "errors", "requests_per_s", "bags_per_s", "rows_per_s",
            "bytes_gathered_per_s", "latency_ms", "generator_late_ms", "generator_cpu", "percentiles_ms", "over_time"]
REPORT_KEYS = ["url", "model", "workload", "date", "host", "processor", "seed", "mode", "highest_rate", "hindered_by", "slo_ms",
               "limited_by", "deciding_run", "notes", "runs"]


def start_bench(*arguments):
    """The program while it asks, without a warm-up."""
    return subprocess.Popen([PROGRAM, "bench", "--warmup", "0", *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=environment())


def next_progress(asking):
    """What the next line of progress says of a second or more: replies per second, p99 in ms, errors so far."""
    shown = r" *\d+ s(?:  +\S+/s wanted)?  +([\d.]+)(k?) requests/s  p99 ([\d.]+)(k?) ms(?:  (\d+) errors)?\n"
    lines = []
    while not lines or not (found := re.fullmatch(shown, lines[-1])):
        lines.append(asking.stderr.readline())
        expect(lines[-1], f"no more progress was shown: {lines}")
    rate, rate_unit, p99, p99_unit, errors = found.groups()
    return float(rate) * (1000 if rate_unit else 1), float(p99) * (1000 if p99_unit else 1), int(errors or 0)


def pause(server, asking):
    """The server stands still until the generator has shown two lines without a reply: for 2 s at least."""
    server.send(signal.SIGSTOP)
    silent = 0
    while silent < 2:
        silent = 0 if next_progress(asking)[0] else silent + 1
    server.send(signal.SIGCONT)


def wait_for_replies(asking):
    """Until there are replies, and those that a pause held up are behind."""
    rate = 0
    while not rate or p99 >= 1000:
        rate, p99, _ = next_progress(asking)


# ---- what is asked --------------------------------------------------------------------------------

def test_report(server):
    """Keys, and figures that follow from what was asked: 5 bags of 4 ids of 32 bytes."""
    report = bench_model(server, "items", "--closed", *SHORT, "--requests", 30, "--bags", 5, "--ids", 4,
                         "--seed", 9, "--connections", 3)
    expect_equal(list(report), REPORT_KEYS)
    wanted = {"url": server.url, "model": "items", "seed": 9, "mode": "closed", "highest_rate": None, "hindered_by": None,
              "slo_ms": 10, "deciding_run": None, "host": platform.node(),
              "workload": {"bags": 5, "ids": "4", "zipf": 0, "weights": False, "reduction": None, "body": "binary",
                           "connections": 3, "tables": 1, "table_bytes": 32000, "get": None}}
    expect_equal({key: report[key] for key in wanted}, wanted)
    expect(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["date"]) and report["processor"], f"{report}")
    figures = only(report)
    expect_equal(list(figures), RUN_KEYS)
    expect_equal((figures["rate"], figures["sent"], figures["answered"], figures["errors"]), (None, 30, 30, {}))
    for key, factor in (("bags_per_s", 5), ("rows_per_s", 20), ("bytes_gathered_per_s", 640)):
        expect(abs(figures[key] / figures["requests_per_s"] / factor - 1) < 1e-4, f"{key}: {figures}")
    times = list(figures["latency_ms"].values())
    expect_equal(list(figures["latency_ms"]), ["p50", "p90", "p99", "p99.9", "max"])
    expect(times == sorted(times) and times[0] > 0, f"{times}")


@pytest.mark.parametrize("model, bags, arguments", [
    ("items", 2, ["--bags", 2, "--ids", "0-7"]),
    ("items", 3, ["--bags", 3, "--ids", "lognormal:5,1", "--zipf", 1.1]),
    ("items", 3, ["--bags", 3, "--ids", "1,0,9", "--rows", "100,1,800"]),
    ("items", 1, ["--weights", "--body", "json"]),
    ("items", 1, ["--body", "json", "--reduction", "max"]),
    ("halves", 1, ["--rows", 50]),
    ("means", 1, ["--weights"]),
    ("items", 2001, ["--preset", "candidates", "--bodies", 3])])
def test_forms(server, model, bags, arguments):
    """Every request is a valid one."""
    figures = only(bench_model(server, model, *arguments, "--closed", *SHORT))
    expect(figures["answered"] > 0 and figures["errors"] == {}, f"{figures}")
    expect(abs(figures["bags_per_s"] / figures["requests_per_s"] / bags - 1) < 1e-4, f"{figures}")


@pytest.mark.parametrize("body", ["binary", "json"])
def test_keyed(server, tables, body):
    """Keys from a file or a folder, of a table and of one feature of a collection; all are found."""
    for model, keys in (("users", tables / "users" / "keys.npy"), ("users", tables / "users"),
                        ("all", f"user={tables / 'users'}")):
        figures = only(bench_model(server, model, "--keys", keys, "--body", body, "--weights", "--closed", *SHORT))
        expect(figures["answered"] > 0 and figures["errors"] == {}, f"{figures}")
    said = bench_model(server, "users", code=2)
    expect("--keys FILE" in said, said)


def test_lengths_from_a_file(server, directory):
    """Text and .npy: bags have 3 or 5 ids, 4 on average."""
    (directory / "lengths.txt").write_text("3 5\n")
    np.save(directory / "lengths.npy", np.array([3, 5], np.int32))
    for name in ("lengths.txt", "lengths.npy"):
        figures = only(bench_model(server, "items", "--bags", 1000, "--ids", directory / name, "--closed", *SHORT))
        expect(3.8 < figures["rows_per_s"] / figures["bags_per_s"] < 4.2, f"{figures}")
    for text in ("", "3 x", "-1", "99999999999"):
        (directory / "lengths.txt").write_text(text)
        said = bench_model(server, "items", "--ids", directory / "lengths.txt", code=2)
        expect("whole numbers from 0 to 10000000" in said, said)


def test_same_seed_asks_the_same(server, directory):
    """Bodies are those of the seed: a server that keeps them sees them again."""
    class Handler(Foreign):
        seen = []

        def infer(self, body):
            self.seen.append(body)
            self.answer(200, {})

    Handler.metadata = "/v2/models/t", foreign_metadata(rows=100)
    bodies = []
    with foreign(Handler) as url:
        for seed in (5, 5, 6):
            Handler.seen.clear()
            bench(url, "--closed", *SHORT, "--requests", 20, "--connections", 1, "--seed", seed)
            bodies.append(list(Handler.seen))
    expect(bodies[0] == bodies[1] and bodies[0] != bodies[2], "seeds do not decide")


# ---- how it is asked ------------------------------------------------------------------------------

def test_rates(server, directory):
    """Two rates; each request is due by itself, and has its line in the log."""
    log = directory / "log"
    report = bench_model(server, "items", "--rate", "200:0.5,400:0.5", "--constant", "--warmup", 0, "--log", log)
    expect_equal(report["mode"], "open")
    expect_equal([figures["rate"] for figures in report["runs"]], [200, 400])
    expect_equal([figures["sent"] for figures in report["runs"]], [99, 199])
    lines = [list(map(float, line.split())) for line in log.read_text().splitlines()]
    due = sorted(line[0] for line in lines)
    expect_equal(len(lines), 298)
    expect(np.allclose(due[:99], np.arange(1, 100) / 200), f"{due[:99]}")
    expect(all(line[1] <= line[2] and line[3] == 200 for line in lines), "a line is wrong")


def test_poisson(server):
    """Arrivals at random times: as many as the rate says, but for chance."""
    figures = only(bench_model(server, "items", "--rate", 2000, "--duration", 1, "--warmup", 0))
    expect(1700 < figures["sent"] < 2300, f"{figures}")


def test_sweep(server):
    """The highest rate that holds was measured, and held. Only another program beside the generator hinders a verdict."""
    ended = run("bench", "--report", "-", "--sweep", "--slo-ms", 200, "--duration", 0.5, "--connections", 1, "--warmup", 0,
                server.url, "items")
    report = json.loads(ended.stdout)
    expect_equal(report["mode"], "sweep")
    expect_equal(report["runs"][0]["rate"], None)
    rates = [figures["rate"] for figures in report["runs"][1:]]
    expect_equal(rates, sorted(rates), "runs by rate")
    if report["limited_by"] == "generator":
        expect_equal((ended.returncode, report["highest_rate"], report["deciding_run"]), (3, None, None), ended.stderr)
        return
    expect_equal(ended.returncode, 0, ended.stderr)
    deciding = report["runs"][report["deciding_run"]]
    expect(abs(deciding["rate"] / report["highest_rate"] - 1) < 1e-4, f"{report}")
    expect(deciding["latency_ms"]["p99"] <= 200, f"{deciding}")


def test_late_generator():
    """Two busy loops before the generator make it late, which is reported. test_bench_sweep.c has the verdict of a sweep."""
    with Server("--demo") as server, contextlib.ExitStack() as stack:
        processor = sorted(os.sched_getaffinity(0))[-1:]
        for _ in range(2):
            loop = stack.enter_context(subprocess.Popen(
                [sys.executable, "-c", "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"]))
            stack.callback(loop.kill)
            os.sched_setaffinity(loop.pid, processor)
        # The generator inherits both: where it runs, and that it takes the processor from nobody when it wakes up.
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, processor)
        stack.callback(os.sched_setscheduler, 0, os.sched_getscheduler(0), os.sched_getparam(0))
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        figures = only(bench(server.url, "--rate", 100, "--duration", 2, "--warmup", 0, "--get", "/v2/health/live"))
    expect(figures["generator_late_ms"]["p99"] >= 1, f"{figures}")


def test_no_verdict():
    """A server that takes a second for each reply cannot meet 10 ms at any rate. Text and JSON say so alike."""
    class Slow(Foreign):
        def infer(self, _):
            time.sleep(1)
            self.answer(200, {})
    with foreign(Slow) as url:
        ended = run("bench", "--sweep", "--report", "-", "--warmup", 0, "--rows", 10, "--connections", 16, "--duration", 3, url)
    expect_equal(ended.returncode, 3, ended.stderr)
    report = json.loads(ended.stdout)
    expect_equal((report["highest_rate"], report["deciding_run"], len(report["runs"])), (None, None, 2))
    expect(report["hindered_by"].startswith("No rate holds."), report["hindered_by"])
    expect(f"\nNo verdict. {report['hindered_by']}\n" in ended.stderr, ended.stderr)
    expect("highest rate that holds" not in ended.stderr, ended.stderr)


def test_progress_is_of_each_second():
    """A pause is in the p99 of the seconds whose replies it held up, and not in those after them."""
    with Server("--demo") as server, start_bench("--rate", 500, "--duration", 30, server.url, "items") as asking:
        next_progress(asking)
        pause(server, asking)
        while next_progress(asking)[1] < 1000:
            pass
        wait_for_replies(asking)
        asking.send_signal(signal.SIGINT)
        asking.communicate()


def paused(server, *arguments):
    """The figures of some seconds in which the server stood still for 2 s or more."""
    with start_bench("--report", "-", "--duration", 60, *arguments, server.url, "items") as asking:
        next_progress(asking)
        pause(server, asking)
        wait_for_replies(asking)
        asking.send_signal(signal.SIGINT)
        out, _ = asking.communicate()
    return only(json.loads(out))["latency_ms"]


def test_pause():
    """A server that stands still: seen by all requests that were due meanwhile, at a rate; in a closed loop by one for each
    connection, which is less than 1 %."""
    with Server("--demo") as server:
        at_rate = paused(server, "--rate", "500")
        closed = paused(server, "--closed", "--connections", "4")
    expect(at_rate["max"] >= 1900 and at_rate["p99"] >= 1000, f"{at_rate}")
    expect(closed["max"] >= 1900 and closed["p99"] < 1000, f"{closed}")


def test_unix_and_token(directory):
    """Over a Unix-domain socket, with a token of the server's own file."""
    tokens, path = directory / "tokens", directory / "socket"
    tokens.touch(0o600)
    tokens.write_text("# comment\ninfer abcdefghijklmnop\nread abcdefghijklmnop\n")
    with Server("--demo", "--unix", path, "--token-file", tokens):
        arguments = ["bench", "--report", "-", "--unix", path, "--closed", *SHORT]
        ended = run(*arguments, "--token-file", tokens, "items")
        expect_equal(ended.returncode, 0, ended.stderr)
        expect(only(json.loads(ended.stdout))["answered"] > 0, ended.stdout)
        ended = run(*arguments, "items")
        expect(ended.returncode == 1 and "401" in ended.stderr and "--token-file" in ended.stderr, ended.stderr)
        wrong = directory / "wrong"
        wrong.touch(0o600)
        wrong.write_text("infer bcdefghijklmnopq\n")
        ended = run(*arguments, "--token-file", wrong, "items")
        expect(ended.returncode == 1 and "401" in ended.stderr, ended.stderr)


def test_synthetic_preset():
    """The preset and the tables that it is for."""
    with Server("--synthetic", "mlperf-dlrm-v2", "--synthetic-bytes", "16MiB") as server:
        figures = only(bench(server.url, "--preset", "mlperf-dlrm-v2", "--closed", *SHORT, "--bodies", 16))
        expect(figures["errors"] == {}, f"{figures}")
        expect(abs(figures["rows_per_s"] / figures["requests_per_s"] / 214 - 1) < 1e-4, f"{figures}")
        expect(abs(figures["bags_per_s"] / figures["requests_per_s"] / 26 - 1) < 1e-4, f"{figures}")
    with Server("--synthetic", "a=10x2") as server:
        said = bench(server.url, "--preset", "mlperf-dlrm-v2", code=2)
        expect("1 features; the preset's has 26" in said, said)


def test_synthetic_sequences():
    """DLRM-v3's request, and the same with each id sent once: at most 0.51 of the rows of the reply."""
    arguments = ("--preset", "mlperf-dlrm-v3", "--closed", *SHORT, "--requests", 16, "--bodies", 16, "--connections", 1)
    with Server("--synthetic", "mlperf-dlrm-v3", "--synthetic-bytes", "256MiB") as server, Client(server) as client:
        rows = []
        for unique in ((), ("--unique",)):
            figures = only(bench(server.url, *arguments, *unique))
            expect_equal((figures["errors"], figures["answered"]), ({}, 16))
            rows.append(figures["rows_per_s"] / figures["requests_per_s"])
        expect(4097 < rows[0] <= 2 * (16384 + 2048) + 1 and rows[1] <= 0.51 * rows[0], f"{rows}")
        metadata = client.get("/v2/models/dlrm_v3").expect().json()
        expect_equal([(output["name"], output["datatype"], output["shape"]) for output in metadata["outputs"]],
                     [(name, "FP16", [-1, 512]) for name in ("item_id", "item_candidate_id", "item_category_id",
                                                             "item_candidate_category_id", "user_id")])
        ids = np.array([[0], [127]])
        got = client.infer("item_category_id", [Tensor("indices", ids)]).outputs()["embeddings"].array.reshape(2, 512)
        hashes = (ids * 2654435769 + np.arange(512) * 2246822507) % 2**32
        expect_equal(got.tolist(), ((hashes // 2**20 - 2048) / 2048).tolist())
        said = bench(server.url, "--preset", "mlperf-dlrm-v2", code=2)
        expect("mlperf-dlrm-v2' serves it" in said, said)
    with Server("--synthetic", "a=10x2") as server:
        said = bench(server.url, "--unique", code=2)
        expect("--unique is for rows that are not pooled, and model 'a' pools" in said, said)
        said = bench(server.url, "--preset", "mlperf-dlrm-v3", code=2)
        expect("1 features; the preset's has 5" in said, said)
    ended = run("serve", "--synthetic", "a=10x2,datatype=BF16")
    expect("datatype BF16: rows that are made up are FP32 or FP16" in ended.stderr, ended.stderr)


# ---- servers that are not as they should be -------------------------------------------------------

def test_foreign_server():
    """Works where it can, and says what it needs; errors are counted by status with their text."""
    with foreign(Foreign) as url:
        said = bench(url, code=2)
        expect("does not say how many rows it has: --rows" in said, said)
        figures = only(bench(url, "--rows", 10, "--closed", *SHORT, "--requests", 40, "--connections", 2))
        expect_equal((figures["sent"], figures["answered"]), (40, 30))
        expect_equal(figures["errors"], {"503": {"count": 10, "first": "come back later"}})
        said = bench(url, "--weights", "--rows", 10, code=2)
        expect("takes no weights" in said, said)
    class Other(Foreign):
        metadata = "/v2/models/t", {"name": "t", "inputs": [{"name": "INPUT0"}]}
    with foreign(Other) as url:
        said = bench(url, code=1)
        expect("model 't': it takes 'INPUT0'; bags are 'indices' and 'offsets'" in said, said)


def test_lost_answers():
    """A server that closes connections in place of answers."""
    class Closing(Foreign):
        answers = 20
    with foreign(Closing) as url:
        ended = run("bench", "--report", "-", "--rows", 10, "--rate", 200, "--duration", 0.5, "--warmup", 0, url)
    figures = only(json.loads(ended.stdout))
    expect_equal(figures["answered"], 15)
    expect_equal(figures["errors"]["lost"]["first"], "the connection was closed without an answer")


def test_sent_counts_what_left():
    """Requests that found no connection were due, and are errors, but were not sent."""
    class Silent(Foreign):
        def infer(self, _):
            self.rfile.read(1)  # until the client closes the connection
            self.close_connection = True
    with foreign(Silent) as url:
        ended = run("bench", "--report", "-", "--rows", 10, "--rate", 100, "--constant", "--duration", 0.5, "--warmup", 0,
                    "--connections", 1, url)
    figures = only(json.loads(ended.stdout))
    expect_equal((figures["sent"], figures["answered"], figures["errors"]["lost"]["count"]), (1, 0, 49))


def test_hostile_names(directory):
    """A model's name and version reach the terminal, the report and the page without control characters."""
    name = "t\x1b[31m"
    class Hostile(Foreign):
        metadata = "/v2/models/t%1B%5B31m", foreign_metadata(rows=10) | {"name": name, "versions": ["\x1b[5m"]}

        def do_POST(self):
            if self.path != "/v2/repository/index":
                super().do_POST()
            else:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(200, [{"name": name, "version": "1", "state": "READY"}])
    with foreign(Hostile) as url:
        ended = run("bench", "--closed", *SHORT, "--html", directory / "page", "--report", directory / "report", url)
    expect_equal(json.loads((directory / "report").read_text())["model"], "t\\x1b[31m")
    for text in (ended.stderr, ended.stdout, (directory / "page").read_text()):
        expect("\x1b" not in text, text)
    expect("t\\x1b[31m of " in ended.stderr and "version \\x1b[5m" in ended.stderr, ended.stderr)


@pytest.mark.parametrize("arguments", [["--rate", "300"], ["--closed"]])
def test_server_dies(arguments, directory):
    """What was measured until then is reported, and the exit code is 1."""
    with Server("--demo") as server:
        with start_bench("--report", directory / "report", "--duration", 60, *arguments, server.url, "items") as asking:
            next_progress(asking)
            server.send(signal.SIGKILL)
            _, said = asking.communicate()
        server.check_end(-signal.SIGKILL)
    expect_equal(asking.returncode, 1, said)
    expect("the server has gone after" in said, said)
    figures = only(json.loads((directory / "report").read_text()))
    expect(figures["answered"] > 0 and figures["seconds"] < 50, f"{figures}")


def test_interrupted(server, directory):
    """SIGINT ends it early, with what was measured."""
    with start_bench("--report", directory / "report", "--duration", 60, "--closed", server.url, "items") as asking:
        next_progress(asking)
        asking.send_signal(signal.SIGINT)
        _, said = asking.communicate()
    expect(asking.returncode == 1 and "stopped by a signal" in said, said)
    expect(only(json.loads((directory / "report").read_text()))["answered"] > 0, "nothing was counted")


def test_table_that_changes(directory):
    """A reload while it is asked: fewer rows are errors with their text, and the end says so."""
    np.save(directory / "t.npy", np.ones((1000, 2), np.float32))
    with Server("--table", f"t={directory / 't.npy'}", "--model-control", "explicit", "--admin-socket",
                directory / "admin") as server:
        with start_bench("--duration", 60, "--closed", "--connections", 2, server.url) as asking:
            next_progress(asking)
            np.save(directory / "new.npy", np.ones((10, 2), np.float32))
            (directory / "new.npy").rename(directory / "t.npy")
            server.send(signal.SIGHUP)
            while not next_progress(asking)[2]:
                pass
            asking.send_signal(signal.SIGINT)
            out, _ = asking.communicate()
    expect("400: " in out and "must be from 0 to 9" in out, out)
    expect("changed while it was asked" in out, out)


# ---- the command line -----------------------------------------------------------------------------

@pytest.mark.parametrize("arguments, code, words", [
    ([], 2, "an argument is missing"), (["https://x"], 2, "https is not spoken"), (["http://x:99999"], 2, "URL"),
    (["http://127.0.0.1:1"], 1, "Connection refused"), (["http://no-such-host.invalid"], 1, "no-such-host"),
    (["--rate", "0", "x"], 2, "--rate is '0'"), (["--rate", "5:", "x"], 2, "--rate"),
    (["--rate", "5", "--closed", "x"], 2, "only one of"), (["--ids", "no-file", "x"], 2, "no-file"),
    (["--body", "xml", "x"], 2, "binary|json"), (["--preset", "large", "x"], 2, "small|candidates"),
    (["--preset", "mlperf", "x"], 2, "did you mean mlperf-dlrm-v2?"), (["--body", "JSON", "x"], 2, "did you mean json?"),
    (["--conections", "5", "x"], 2, "unknown flag --conections; did you mean --connections?"),
    (["--rate=nan", "x"], 2, "--rate is 'nan'"), (["--zipf", "-1", "x"], 2, "--zipf"), (["--slo-ms", "nan", "x"], 2, "--slo-ms"),
    (["--duration=-inf", "x"], 2, "--duration"), (["--warmup", "nan", "x"], 2, "--warmup"),
    (["--reduction", "avg", "x"], 2, "sum|mean"), (["--bags", "0", "x"], 2, "--bags"),
    (["--duration", "0", "x"], 2, "--duration"), (["--connections", "x", "x"], 2, "--connections"),
    (["--modell", "items", "x"], 2,
     "unknown flag --modell; did you mean the argument without a flag? usage: bagserve bench [flags] URL [MODEL]"),
    (["--modle=items", "x"], 2, "did you mean the argument without a flag?"),
    (["--bod", "json", "x"], 2, "unknown flag --bod; did you mean --body?"),
    (["--nonsense", "x"], 2, "unknown flag"), (["--check", "5", "x"], 2, "--table NAME=PATH"),
    (["--requests", "5", "x"], 2, "--closed"), (["--compare", "/nowhere", "x"], 2, "/nowhere"),
    (["--token-file", "/nowhere", "x"], 2, "/nowhere"), (["--get", "x", "x"], 2, "slash")])
def test_wrong_usage(arguments, code, words):
    ended = run("bench", *arguments)
    expect(ended.returncode == code and words in ended.stderr, f"{arguments}: {ended}")


@pytest.mark.parametrize("command", ["bench", "convert", "inspect", "verify"])
def test_help_fits_a_terminal(command):
    ended = run(command, "--help")
    expect_equal((ended.returncode, ended.stderr), (0, ""))
    expect_equal([line for line in ended.stdout.splitlines() if len(line) > 80 or line.endswith(" ")], [])


def test_lines_fit_a_terminal(server):
    """What is printed of a run has at most 100 columns."""
    ended = run("bench", "--rate", "200,400", "--duration", "0.3", "--warmup", "0", server.url, "items")
    expect_equal(ended.returncode, 0, ended.stderr)
    lines = (ended.stderr + ended.stdout).splitlines()
    expect(any("p99.9" in line for line in lines) and any("different requests" in line for line in lines), f"{lines}")
    # A note is wrapped on a terminal, which this is not.
    expect_equal([line for line in lines if len(line) > 100 and not line.startswith("The generator was")], [])


def test_models_by_name(server):
    for model, words in (("item", "there is no model 'item'; did you mean items?"), ("\x1b[0m", "\\x1b[0m")):
        said = bench_model(server, model, code=1)
        expect(words in said, said)
    report = bench(server.url, "--closed", *SHORT, "--rows", 100, code=2)
    expect("--keys" in report, report)  # the only collection was chosen
    with Server("--synthetic", "a=10x2", "--synthetic", "b=10x2") as other:
        said = bench(other.url, code=2)
        expect("name one of the 2 models that are served: a, b" in said, said)


def test_compare(server, directory):
    """An earlier report beside this one; files that are none are rejected."""
    for _ in range(2):
        ended = run("bench", "--closed", *SHORT, "--report", directory / "before", server.url, "items",
                    *(["--compare", directory / "before"] if (directory / "before").exists() else []))
        expect_equal(ended.returncode, 0, ended.stderr)
    expect(f"Before, items of {server.url}:" in ended.stdout, ended.stdout)
    ratios = "requests/s [0-9.]+, p50 [0-9.]+, p99 [0-9.]+ of those before"
    expect(re.search(f"^As fast as answers come: {ratios}$", ended.stdout, re.MULTILINE), ended.stdout)
    expect("was another one" not in ended.stdout and "of another machine" not in ended.stdout, ended.stdout)
    ended = run("bench", "--closed", *SHORT, "--bags", 3, "--zipf", 1.1, "--compare", directory / "before", server.url,
                "items")
    expect("\nThe workload before was another one (before and now): bags 1 and 3, zipf 0 and 1.1.\n" in ended.stdout,
           ended.stdout)
    for _ in range(2):
        ended = run("bench", "--rate", "50:0.2", "--warmup", 0, "--report", directory / "rates", server.url, "items",
                    *(["--compare", directory / "rates"] if (directory / "rates").exists() else []))
    expect(re.search(f"^At 50.0/s: {ratios}$", ended.stdout, re.MULTILINE), ended.stdout)
    ended = run("bench", "--closed", *SHORT, "--compare", directory / "rates", server.url, "items")
    expect("\nNo run before was at the same rate.\n" in ended.stdout, ended.stdout)
    (directory / "before").write_text("{}")
    ended = run("bench", "--compare", directory / "before", server.url, "items")
    expect(ended.returncode == 2 and "it is no report" in ended.stderr, ended.stderr)


class Page(html.parser.HTMLParser):
    """What a page has: what it would load, elements that were not closed, and its scripts by type."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.scripts = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        if tag not in ("meta",):
            self.open.append(tag)
        if tag == "script":
            self.type = dict(attrs).get("id") or dict(attrs).get("type")
            self.scripts[self.type] = ""

    def handle_endtag(self, tag):
        expect_equal(self.open.pop(), tag, "an element that ends")

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts[self.type] += data


def test_page(server, directory):
    """One file that loads nothing, with the reports inside, and another server's texts in them alone; what a browser
    makes of it is tested in tests/browser."""
    page, report = directory / "page.html", directory / "report"
    run("bench", "--closed", *SHORT, "--html", page, "--report", report, server.url, "items")
    parsed = Page(page.read_text())
    expect_equal((parsed.loads, parsed.open), ([], []))
    expect_equal(json.loads(parsed.scripts["report"]), json.loads(report.read_text()))
    expect_equal(json.loads(parsed.scripts["before"]), None)
    expect("Chart.js v" in parsed.scripts[None] and "Permission is hereby granted" in parsed.scripts["text/plain"],
           "Chart.js with its licence")
    run("bench", "--rate", "100:0.2,200:0.2", "--warmup", 0, "--html", page, "--compare", report, server.url, "items")
    before = json.loads(Page(page.read_text()).scripts["before"])
    expect_equal(only(before)["latency_ms"], only(json.loads(report.read_text()))["latency_ms"])

    class Hostile(Foreign):
        def infer(self, _):
            self.answer(500, {"error": "</script><script>alert(1)</script>&"})

    with foreign(Hostile) as url:
        run("bench", "--rows", 10, "--closed", *SHORT, "--html", page, url)
    text = page.read_text()
    parsed = Page(text)
    expect("<script>alert" not in text and len(parsed.scripts) == 5, text)
    expect_equal(only(json.loads(parsed.scripts["report"]))["errors"]["500"]["first"], "</script><script>alert(1)</script>&")
    ended = run("bench", "--closed", *SHORT, "--html", directory / "no" / "page", server.url, "items")
    expect(ended.returncode == 1 and "No such file" in ended.stderr, ended.stderr)


def test_get(server):
    figures = only(bench(server.url, "--get", "/v2/health/ready", "--closed", *SHORT))
    expect(figures["answered"] > 0 and figures["rows_per_s"] == 0, f"{figures}")
    figures = bench(server.url, "--get", "/nothing", "--closed", *SHORT, code=1)
    expect(only(figures)["errors"]["404"]["count"] > 0, f"{figures}")
