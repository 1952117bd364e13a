"""Metrics and statistics: exact counts after a known sequence of requests, and the formats."""

import pathlib
import re
import shutil
import socket
import subprocess
import time

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from example import EXAMPLE, INFER, INPUTS, WANT, check_rows, i64
from harness import ROOT, Server, beside, expect, expect_equal, reads_chunks, wait_until, write_json
from v2 import Client, Raw, Tensor, head, infer_body

STAGES = ("queue", "compute_input", "compute_infer", "compute_output")
DURATIONS = ("success", "fail", *STAGES, "cache_hit", "cache_miss")
TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEAR_IDS = 400_000


def scrape(client, path="/metrics"):
    """Every sample of /metrics: {(name, ((label, value), ...)): number}."""
    reply = client.get(path).expect()
    expect_equal(reply.headers["content-type"], TYPE)
    found = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            name = sample.name
            if name.startswith("nv_"):  # the parser completes counters that are not called so
                name = name.removesuffix("_total")
            key = (name, tuple(sorted(sample.labels.items())))
            expect(key not in found, f"{key} is there twice")
            found[key] = sample.value
    return found


class Counters:
    """What changed between two looks."""

    def __init__(self, client):
        self.client = client
        self.before = scrape(client)

    def changes(self):
        after = scrape(self.client)
        expect_equal(sorted(after), sorted(self.before), "the series")
        return {key: value - self.before[key] for key, value in after.items() if value != self.before[key]}


def of(name, model="items", version="1", **labels):
    return (name, tuple(sorted((labels | {"model": model, "version": version}).items())))


def server_wide(name, **labels):
    return (name, tuple(sorted(labels.items())))


def pick(changes, prefix):
    """The changes of names that begin so, but for durations, which nobody can foretell."""
    return {key: value for key, value in changes.items() if key[0].startswith(prefix)
            and not ("duration" in key[0] and not key[0].endswith("_count"))}


def check_batches(entry):
    """One size of batches, 1, with all executions and the times of the requests in them."""
    want = []
    if entry["execution_count"]:
        stats = entry["inference_stats"]
        want = [{"batch_size": 1} | {key: {"count": entry["execution_count"], "ns": stats[key]["ns"]}
                                     for key in ("compute_input", "compute_infer", "compute_output")}]
    expect_equal(entry["batch_stats"], want, "batch_stats")


def statistics(client, path="/v2/models/stats"):
    """Model statistics by name and version; every key is checked on the way."""
    value = client.get(path).expect().json()
    expect_equal(sorted(value), ["model_stats"])
    found = {}
    for entry in value["model_stats"]:
        expect_equal(sorted(entry), ["batch_stats", "execution_count", "hot_rows", "inference_count",
                                     "inference_stats", "last_inference", "name", "version"])
        expect_equal(sorted(entry["inference_stats"]), sorted(DURATIONS))
        for name, duration in entry["inference_stats"].items():
            expect_equal(sorted(duration), ["count", "ns"], name)
            expect(all(type(number) is int and number >= 0 for number in duration.values()), f"{name}: {duration}")
        expect(all(type(entry[key]) is int for key in
                   ("last_inference", "inference_count", "execution_count")), f"{entry}")
        expect(isinstance(entry["version"], str) and isinstance(entry["batch_stats"], list), f"{entry}")
        check_batches(entry)
        found[entry["name"], entry["version"]] = entry
    return found


def test_failures_take_time(client):
    def failed():
        return statistics(client, "/v2/models/items/stats")["items", "1"]["inference_stats"]["fail"]

    before = failed()
    client.request("POST", "/v2/models/items/infer", b'{"inputs":[{}]}').expect(400)
    after = failed()
    expect_equal(after["count"], before["count"] + 1)
    expect(after["ns"] > before["ns"], f"{after} after {before}")


# ---- counts -----------------------------------------------------------------------------------
def test_successes_are_counted(client):
    """Three requests of two bags and four indices, one of them binary."""
    counters = Counters(client)
    for binary in (False, True, False):
        check_rows(client.infer("items", INPUTS, binary=binary).embeddings(), WANT)
    changes = counters.changes()
    expect_equal(pick(changes, "nv_"), {of("nv_inference_request_success"): 3, of("nv_inference_count"): 6,
                                        of("nv_inference_exec_count"): 3})
    expect_equal(pick(changes, "bagserve_gathered"), {of("bagserve_gathered_rows_total"): 12,
                                                      of("bagserve_gathered_bytes_total"): 96})
    counts = pick(changes, "bagserve_stage") | pick(changes, "bagserve_request")
    expect_equal(counts, {of("bagserve_request_duration_seconds_count"): 3} |
                 {of("bagserve_stage_duration_seconds_count", stage=s): 3 for s in STAGES})
    expect_equal(changes[of("bagserve_batch_requests_bucket", le="1")], 3)
    expect_equal(changes[of("bagserve_batch_requests_sum")], 3)
    # The first look counts itself too late to see itself.
    expect_equal(changes[server_wide("bagserve_http_responses_total", code="200")], 4)
    expect(not pick(changes, "bagserve_refused"), f"{changes}")


def test_dear_requests_are_counted(client):
    """A request that a worker does: batches and stages of each are complete when it is answered."""
    ids = Tensor("indices", np.arange(DEAR_IDS, dtype=np.int64) % 5)
    tensors = [ids, Tensor("offsets", np.array([0, 7], np.int64))]
    counters = Counters(client)
    for _ in range(3):
        client.infer("items", tensors, binary=True).expect()
    changes = counters.changes()
    expect_equal(pick(changes, "nv_"), {of("nv_inference_request_success"): 3, of("nv_inference_count"): 6,
                                        of("nv_inference_exec_count"): 3})
    expect_equal(changes[of("bagserve_gathered_rows_total")], 3 * DEAR_IDS)
    for stage in STAGES[:3]:
        expect(changes[of("bagserve_stage_duration_seconds_sum", stage=stage)] > 0, stage)
    whole = changes[of("bagserve_request_duration_seconds_sum")]
    parts = sum(changes.get(of("bagserve_stage_duration_seconds_sum", stage=s), 0) for s in STAGES)
    expect(abs(whole - parts) < 1e-6, f"{whole} s in all, {parts} s in stages")


def test_failures_are_counted(client):
    """Each rejection under its status, its reason, and Triton's reason where a model was named."""
    asked = [(400, "bad_request", lambda: client.request("POST", INFER, b"{")),
             (400, "bad_request", lambda: client.infer("items", [i64("indices", [5], (1, 1))])),
             (400, "bad_request", lambda: client.infer("items", INPUTS, headers={
                 "Inference-Header-Content-Length": "0"})),
             (404, "not_found", lambda: client.get("/nowhere")),
             (404, "not_found", lambda: client.infer("nobody", INPUTS)),
             (405, "method_not_allowed", lambda: client.get(INFER)),
             (413, "body_too_large", lambda: client.request("POST", INFER, b" " * (1 << 23))),
             (415, "content_encoding", lambda: client.infer("items", INPUTS, headers={
                 "Content-Encoding": "br"}))]
    counters = Counters(client)
    for status, _, ask in asked:
        ask().expect(status)
        client.close()
    changes = counters.changes()
    rejected = {}
    for _, reason, _ in asked:
        key = server_wide("bagserve_refused_requests_total", reason=reason)
        rejected[key] = rejected.get(key, 0) + 1
    expect_equal(pick(changes, "bagserve_refused"), rejected)
    expect_equal(pick(changes, "nv_"), {of("nv_inference_request_failure", reason="OTHER"): 5})
    answers = pick(changes, "bagserve_http_responses")
    expect_equal(answers, {server_wide("bagserve_http_responses_total", code=code): count for
                           code, count in (("200", 1), ("400", 3), ("404", 2), ("405", 1),
                                           ("413", 1), ("415", 1))})


def test_unsupported_http_is_the_clients_fault(client):
    """501 and 505 are not counted as faults of the server. libmicrohttpd 1.0 has a 400 of its own for
    an unknown coding."""
    counters = Counters(client)
    coding = 400 if reads_chunks() else 501
    for status, version, header in ((coding, "1.1", "Transfer-Encoding: gzip"), (505, "1.2", "Accept: */*")):
        with socket.create_connection((client.server.host, client.server.port), 10) as raw:
            raw.sendall(f"GET / HTTP/{version}\r\nHost: localhost\r\n{header}\r\n\r\n".encode())
            expect(raw.recv(4096).startswith(f"HTTP/1.1 {status} ".encode()), str(status))
    changes = counters.changes()
    expect_equal(pick(changes, "bagserve_refused"),
                 {server_wide("bagserve_refused_requests_total", reason="not_supported"): 2} if coding == 501 else
                 {server_wide("bagserve_refused_requests_total", reason="not_supported"): 1,
                  server_wide("bagserve_refused_requests_total", reason="bad_request"): 1})
    expect_equal(pick(changes, "bagserve_http_responses"),
                 {server_wide("bagserve_http_responses_total", code=code): 1 for code in ("200", str(coding), "505")})


def test_default_rows_are_counted(client):
    """Bags without an index, in each form; none where they get zeros."""
    default = Tensor("default_index", np.int64(1))
    asked = [([i64("indices", [0, 1]), i64("offsets", [0, 0, 1, 2, 2])], 3),
             ([i64("indices", [], (4, 0))], 4),
             ([i64("indices", [0, 1]), i64("segment_ids", [1, 3]), i64("num_segments", [6])], 4),
             ([i64("indices", [0, 1, 2], (3, 1))], 0)]
    for inputs, count in asked:
        counters = Counters(client)
        client.infer("items", inputs).expect()
        expect_equal(pick(counters.changes(), "bagserve_default"), {}, "without default_index")
        counters = Counters(client)
        client.infer("items", inputs + [default]).expect()
        expect_equal(pick(counters.changes(), "bagserve_default"),
                     {of("bagserve_default_rows_total"): count} if count else {})


def test_bodies_are_counted(client):
    body, headers = infer_body(INPUTS)
    counters = Counters(client)
    reply = client.request("POST", INFER, body, headers).expect()
    changes = counters.changes()
    expect_equal(changes[server_wide("bagserve_http_request_body_bytes_total")], len(body))
    sent = changes[server_wide("bagserve_http_response_body_bytes_total")]
    expect(sent > len(reply.body) + 1000, f"{sent} bytes with one look, which is longer")


def test_vanished_clients_are_counted(client):
    """A client that leaves in the midst of its body."""
    aborted = server_wide("bagserve_aborted_requests_total")
    in_flight = server_wide("bagserve_http_requests_in_flight")
    before = scrape(client)[aborted]
    with Raw(client.server) as raw:
        raw.send(head("POST", INFER, {"Content-Length": "100"}) + b"{")
        wait_until(lambda: scrape(client)[in_flight] >= 1, "the request is not in flight")
    wait_until(lambda: scrape(client)[aborted] == before + 1, "the client is not missed")


def test_levels(client):
    """Connections are counted while they are open."""
    connections = server_wide("bagserve_http_connections")
    wait_until(lambda: scrape(client)[connections] == 1, "there are other connections")
    raws = [Raw(client.server) for _ in range(5)]
    wait_until(lambda: scrape(client)[connections] == 6, "not all connections are counted")
    for raw in raws:
        raw.close()
    wait_until(lambda: scrape(client)[connections] == 1, "closed connections are counted")


def test_process(client):
    counters = scrape(client)
    process = client.server
    started = counters[server_wide("process_start_time_seconds")]
    expect(0 < time.time() - started < 3600, f"started at {started}")
    expect(counters[server_wide("process_open_fds")] >= 5, "too few descriptors")
    expect(counters[server_wide("process_max_fds")] >= 256, "too low a limit")
    resident = counters[server_wide("process_resident_memory_bytes")]
    expect(0.5 < resident / process.memory_bytes() < 2, f"{resident} bytes resident")
    virtual = server_wide("process_virtual_memory_bytes")
    wait_until(lambda: scrape(client)[virtual] == process.memory_bytes("VmSize"), "another size of virtual memory")
    expect(0 < counters[server_wide("process_cpu_seconds_total")] < 3600, "CPU time")


def test_counters_never_fall(client):
    """Scraped while other connections ask, from one look to the next."""
    def ask(stop):
        with Client(client.server) as other:
            while not stop.is_set():
                other.infer("items", INPUTS).expect()
                other.infer("items", [i64("indices", [9], (1, 1))]).expect(400)

    with beside(ask, ask, ask):
        before = scrape(client)
        for _ in range(20):
            after = scrape(client)
            for key, value in after.items():
                if key[0].endswith(("_total", "_bucket", "_count", "_sum", "_success", "_us")):
                    expect(value >= before[key], f"{key} fell from {before[key]} to {value}")
            before = after


# ---- statistics -------------------------------------------------------------------------------
def test_statistics(client):
    before = statistics(client)["items", "1"]
    expect_equal(list(statistics(client)), [("items", "1"), ("other", "3"), ("other", "12")])
    for _ in range(2):
        client.infer("items", INPUTS).expect()
    client.request("POST", INFER, b"x").expect(400)
    after = statistics(client)["items", "1"]
    for key, change in (("inference_count", 4), ("execution_count", 2)):
        expect_equal(after[key] - before[key], change, key)
    for key in DURATIONS:
        want = {"fail": 1, "cache_hit": 0, "cache_miss": 0}.get(key, 2)
        change = after["inference_stats"][key]["count"] - before["inference_stats"][key]["count"]
        expect_equal(change, want, key)
    spent = {key: after["inference_stats"][key]["ns"] for key in DURATIONS}
    expect_equal(spent["success"], sum(spent[s] for s in STAGES), "ns of all stages")
    expect(abs(after["last_inference"] / 1000 - time.time()) < 60, f"{after['last_inference']}")


def test_statistics_of_versions(client):
    client.infer("other", INPUTS, path="/v2/models/other/versions/3/infer").expect()
    whole = statistics(client)
    expect_equal(statistics(client, "/v2/models/other/stats"),
                 {key: whole[key] for key in (("other", "3"), ("other", "12"))})
    expect_equal(statistics(client, "/v2/models/other/versions/3/stats"), {("other", "3"): whole["other", "3"]})
    client.get("/v2/models/nobody/stats").expect(404).error()
    client.get("/v2/models/other/versions/4/stats").expect(404).error()
    client.request("POST", "/v2/models/stats", b"").expect(405).error()


def test_links(client):
    expect("statistics" in client.get("/v2").json()["extensions"], "no extension 'statistics'")
    links = client.get("/").json()["links"]
    expect_equal((links["metrics"], links["stats"]), ("/metrics", "/v2/models/stats"))


# ---- formats ----------------------------------------------------------------------------------
def test_histograms_are_cumulative(client):
    client.infer("items", INPUTS).expect()
    buckets = {}
    for (name, labels), value in scrape(client).items():
        if name.endswith("_bucket"):
            rest = tuple(label for label in labels if label[0] != "le")
            buckets.setdefault((name, rest), []).append((float(dict(labels)["le"]), value))
    counters = scrape(client)
    expect(len(buckets) == 3 * (1 + 4 + 1), f"{len(buckets)} histograms")
    for (name, labels), found in buckets.items():
        expect_equal(found, sorted(found), name)
        expect_equal([value for _, value in found], sorted(value for _, value in found), name)
        expect_equal(found[-1], (float("inf"), counters[name[:-7] + "_count", labels]), name)


def test_head(client):
    for path in ("/metrics", "/v2/models/stats", "/v2/models/items/stats"):
        got, want = client.request("HEAD", path), client.get(path)
        expect_equal((got.status, got.body), (200, b""), path)
        expect_equal(got.headers["content-type"], want.headers["content-type"], path)
        expect(int(got.headers["content-length"]) > 100, path)


def test_promtool(client):
    """Prometheus' own checker, where it is installed, minds nothing but Triton's names."""
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not installed")
    done = subprocess.run([promtool, "check", "metrics"], input=client.get("/metrics").body,
                          capture_output=True, check=False)
    minded = (done.stdout + done.stderr).decode().splitlines()
    own = [line for line in minded if not line.startswith("nv_inference_")]
    expect_equal((own, done.returncode), ([], 3 if minded else 0))


def test_documented(client):
    """The README of the metrics names every family, but for those of the process."""
    readme = (ROOT / "server" / "metrics" / "README.md").read_text()
    families = re.findall(r"^# HELP (\S+)", client.get("/metrics").body.decode(), re.MULTILINE)
    expect(len(families) > 20, f"{families}")
    expect_equal([name for name in families if not name.startswith("process_") and f"`{name}`" not in readme], [])


def test_switched_off(client):
    with Server("--table", f"items={client.server.table}", "--metrics", "off") as server, \
            Client(server) as other:
        check_rows(other.infer("items", INPUTS).embeddings(), WANT)
        for path in ("/metrics", "/v2/models/stats", "/v2/models/items/stats"):
            expect("metrics" in other.get(path).expect(404).error(), path)
        expect("statistics" not in other.get("/v2").json()["extensions"], "still an extension")
        links = other.get("/").json()["links"]
        expect(not {"stats", "metrics"} & set(links), f"{links}")


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    for path in ("items/1", "other/3", "other/12"):
        (shared_directory / "models" / path).mkdir(parents=True)
        np.save(shared_directory / "models" / path / "table.npy", EXAMPLE)
    write_json(shared_directory / "models" / "other" / "config.json", {"version_policy": "all"})
    with Server("--models", shared_directory / "models", "--max-body-bytes", "4MiB") as server:
        server.table = shared_directory / "models" / "items" / "1" / "table.npy"
        yield server


def test_mapped_tables_and_the_target(client):
    def values_of(other):
        values = other.metrics()
        expect(float(values["bagserve_last_model_change_timestamp_seconds"]) > 1e9, "no change")
        return (values["bagserve_latency_target_seconds"],
                values['bagserve_table_mapped_bytes{model="items",version="1"}'])

    expect_equal(values_of(client), ("0", "0"))
    with Server("--table", f"items={client.server.table}", "--load", "map", "--latency-target-ms",
                50) as server, Client(server) as other:
        expect_equal(values_of(other), ("0.05", str(EXAMPLE.nbytes)))


def test_scrapes_of_many_models(directory):
    """What all models make is written by a worker: the loop, which is the process's first thread, only
    sends it."""
    np.save(directory / "t.npy", EXAMPLE)
    config = write_json(directory / "config.json", {"models": [
        {"name": f"m{i}", "path": "t.npy"} for i in range(300)]})
    with Server("--config", config, "--workers", 1) as server, Client(server) as client:
        def cpu_ns():
            tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
            spent = {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()}
            return spent[server.process.pid], sum(spent.values())

        client.get("/metrics").expect()
        loop_before, all_before = cpu_ns()
        for path in ("/metrics", "/v2/models/stats") * 10:
            client.get(path).expect()
        loop_after, all_after = cpu_ns()
        share = (loop_after - loop_before) / (all_after - all_before)
        print(f"the loop's share is {share:.2f}", flush=True)
        expect(share < 0.5, f"{share:.2f} of the time is the loop's")


def test_lines_of_a_model(directory):
    """What server/metrics/README.md says that each model costs."""
    np.save(directory / "t.npy", EXAMPLE)
    arguments = ["--table", f"a={directory / 't.npy'}", "--table", f"b={directory / 't.npy'}",
                 "--metric-histograms", 1]

    def lines(*more):
        with Server(*arguments, *more) as server, Client(server) as client:
            text = client.get("/metrics").expect().body.decode()
        return [len(re.findall(rf'^[^#].*model="{name}"', text, re.MULTILINE)) for name in "ab"]

    readme = (ROOT / "server" / "metrics" / "README.md").read_text()
    said = re.search(r"A model has (\d+) lines of metrics, (\d+) more if its rows may change,.* and (\d+) lines of hist", readme)
    counters, updates, histograms = map(int, said.groups())
    features = int(re.search(r"A feature has (\d+) lines", readme)[1])
    expect_equal(lines(), [counters + histograms + features, counters])
    expect_equal(lines("--updates", "on", "--admin-socket", directory / "admin"),
                 [counters + updates + histograms + features, counters + updates])


def metrics_of(directory, models, histograms):
    """The metrics of so many models over one table."""
    np.save(directory / "t.npy", EXAMPLE)
    config = write_json(directory / "config.json", {"models": [
        {"name": f"m{i}", "path": "t.npy"} for i in range(models)]})
    with Server("--config", config, "--metric-histograms", histograms) as server, \
            Client(server) as client:
        return client.get("/metrics").expect().body.decode()


@pytest.mark.parametrize("histograms, which", [(0, "no"), (100, "100"), (1000, "all")])
def test_lines_of_200_models(directory, histograms, which):
    """What server/metrics/README.md says of them."""
    page = (ROOT / "server" / "metrics" / "README.md").read_text()
    said, = re.findall(rf"^\| {which} models \| ([\d,]+) \|", page, re.MULTILINE)
    text = metrics_of(directory, 200, histograms)
    lines = len(re.findall("^[^#]", text, re.MULTILINE))
    expect(abs(lines - int(said.replace(",", ""))) < 0.03 * lines, f"{lines} lines, not {said}")


@pytest.mark.parametrize("histograms", [0, 1, 2, 3, 100])
def test_histograms_of_the_first_models(directory, histograms):
    """--metric-histograms bounds what each further model adds; counters and Triton's sums stay."""
    text = metrics_of(directory, 3, histograms)
    def count(line):
        return len(re.findall(rf"^{line}", text, re.MULTILINE))
    shown = min(histograms, 3)
    expect_equal(count(r'bagserve_request_duration_seconds_count\{'), shown)
    expect_equal(count(r'bagserve_stage_duration_seconds_count\{'), 4 * shown)
    expect_equal(count(r'bagserve_batch_requests_count\{'), shown)
    expect_equal(count(r'nv_inference_request_success\{'), 3)
    expect_equal(count(r'nv_inference_queue_duration_us\{'), 3)
