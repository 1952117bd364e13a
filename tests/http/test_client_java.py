"""The Java client: the table of cases that all clients pass (proto/clients/cases.json), and what becomes of
connections. A program is made for each, since Java's own library reads no JSON."""

import json
import shutil
import socket
import subprocess

import numpy as np
import pytest

from cases import CASES, POOLING, check, is_admin, read_line, serve_cases
from clients import BUSY, MODELS, TOKEN, Proxy, Script, address, answer, serve_with_tokens  # noqa: F401
from harness import ROOT, TIMEOUT_S, expect, expect_equal

SOURCE = ROOT / "proto" / "clients" / "java" / "bagserve" / "BagserveClient.java"
pytestmark = pytest.mark.skipif(not shutil.which("javac"), reason="openjdk-17-jdk-headless is not installed")

PROGRAM = r'''
import bagserve.BagserveClient;
import bagserve.BagserveClient.*;
import java.util.*;
import java.util.concurrent.Callable;

public final class Program {
    static void show(Callable<?> call) throws Exception {
        try {
            System.out.println("[\"answer\", " + json(call.call()) + "]");
        } catch (Failure problem) {
            System.out.println("[\"error\", \"" + problem.kind().toString().toLowerCase() + "\", " +
                quoted(problem.getMessage()) + ", " + quoted(problem.code()) + "]");
        }
    }

    static String json(Object value) {
        if (value instanceof Rows rows)
            return json(Map.of("embeddings", rows));
        if (value instanceof Applied applied)
            return "{\"sequence\": " + applied.sequence() + ", \"applied\": " + applied.applied() + "}";
        if (!(value instanceof Map<?, ?> map))
            return quoted(String.valueOf(value));
        StringJoiner all = new StringJoiner(", ", "{", "}");
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            Rows rows = (Rows) entry.getValue();
            StringJoiner lists = new StringJoiner(", ", "[", "]");
            for (int i = 0; i < rows.count(); i++)
                lists.add(Arrays.toString(rows.row(i)));
            all.add("\"" + entry.getKey() + "\": " + lists);
        }
        return all.toString();
    }

    static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    interface Change { void to(Query query); }

    static Query query(Change change) {
        Query query = new Query();
        change.to(query);
        return query;
    }

    public static void main(String[] args) throws Exception {
BODY
    }
}
'''


@pytest.fixture(scope="module", name="run_java")
def make_runner(shared_directory):
    """Compiles a program of that body, and gives the lines that it prints."""
    classes = shared_directory / "classes"
    subprocess.run(["javac", "-Xlint:all", "-Werror", "-d", classes, SOURCE], check=True, timeout=4 * TIMEOUT_S)

    def run(body, *arguments, options=()):
        (shared_directory / "Program.java").write_text(PROGRAM.replace("BODY", body))
        done = subprocess.run(["javac", "-cp", classes, "-d", classes, shared_directory / "Program.java"],
                              capture_output=True, text=True, check=False, timeout=4 * TIMEOUT_S)
        expect_equal((done.returncode, done.stderr), (0, ""), "the compiler")
        done = subprocess.run(["java", "-cp", classes, *options, "Program", *map(str, arguments)],
                              capture_output=True, text=True, check=False, timeout=4 * TIMEOUT_S)
        expect_equal((done.returncode, done.stderr), (0, ""), "the program")
        return done.stdout.splitlines()
    return run


# ---- the cases --------------------------------------------------------------------------------
def array_of(kind, values):
    suffix = {"long": "L", "float": "f"}[kind]
    return f"new {kind}[] {{{', '.join(f'{value}{suffix}' for value in np.ravel(values).tolist())}}}"


def ids_of(values):
    return array_of("long", np.array(values, np.int64))


def query_of(case):
    lines = [f"q.weights = {array_of('float', case['weights'])};"] if "weights" in case else []
    names = {"padding_idx": "paddingIdx", "default_index": "defaultIndex", "include_last_offset": "includeLastOffset"}
    for name, value in case.get("options", {}).items():
        text = f"List.of({', '.join(map(json.dumps, value))})" if name == "outputs" else \
            f"{value}L" if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)
        lines.append(f"q.{names.get(name, name)} = {text};")
    return f"query(q -> {{ {' '.join(lines)} }})"


def call_of(case):
    client, call = "admin" if is_admin(case) else "client", case["call"].replace("_on_admin", "")
    start, query = f'show(() -> {client}.{call}("{case["model"]}", ', query_of(case)
    if call in POOLING:
        rest = {"offsets": lambda: ids_of(case["offsets"]), "packed": lambda: len(case["indices"]),
                "segments": lambda: f"{ids_of(case['segment_ids'])}, {case['num_segments']}L"}[call]()
        return f"{start}{ids_of(case['indices'])}, {rest}, {query}));"
    if call == "kjt":
        return f"{start}{ids_of(case['values'])}, {ids_of(case['lengths'])}, {query}));"
    if call == "collection":
        features = ", ".join(f'"{name}", Bags.of({", ".join(ids_of(bag) for bag in bags)})'
                             for name, bags in case["features"].items())
        return f"{start}new TreeMap<>(Map.of({features})), {query}));"
    call = {"update": "update", "update_keys": "updateKeys", "delete_keys": "deleteKeys"}[call]
    rows = f"{array_of('float', np.array(case['rows'], float))}, " if "rows" in case else ""
    return (f'show(() -> admin.{call}("{case["model"]}", {ids_of(case.get("indices", case.get("keys")))}, {rows}'
            f'{case.get("first_sequence", 0)}L, {case.get("sequence", 0)}L));')


def test_cases(directory, run_java):
    calls = "\n".join("            " + call_of(case) for case in CASES)
    body = ("        try (var client = new BagserveClient(args[0]); var admin = new BagserveClient(args[1])) {\n"
            + calls + "\n        }")
    with serve_cases(directory) as (inference, admin):
        lines = run_java(body, inference, admin)
    for case, line in zip(CASES, lines, strict=True):
        check(case, read_line(line))


# ---- connections ------------------------------------------------------------------------------
ASK = '''
        Options options = new Options();
        options.retries = Integer.parseInt(args[1]);
        options.timeout = java.time.Duration.ofMillis(Long.parseLong(args[2]));
        try (var client = new BagserveClient(args[0], options)) {
            for (int i = 0; i < Integer.parseInt(args[3]); i++)
                show(() -> client.models());
        }
'''


def test_retries(run_java):
    """After 503 with Retry-After alone."""
    plain = answer(503, {"error": "loading"})
    for connections, retries, asked, want, requests in (
            ([[BUSY, BUSY, MODELS]], 2, 1, [["answer", "[m]"]], 3),
            ([[BUSY, BUSY, BUSY]], 2, 1, [["error", "unavailable", "busy", ""]], 3),
            ([[plain]], 2, 1, [["error", "unavailable", "loading", ""]], 1),
            ([[MODELS, MODELS]], 0, 2, [["answer", "[m]"]] * 2, 2)):
        script = Script(*connections)
        got = [json.loads(line) for line in run_java(ASK, script.address, retries, 20000, asked)]
        script.close()
        expect_equal((got, script.requests), (want, requests))


def test_closed_connections(run_java):
    """The server has closed the first one before it accepts the second."""
    script = Script([MODELS], [MODELS], [MODELS])
    body = '''
        Options options = new Options();
        options.retries = 0;
        try (var client = new BagserveClient(args[0], options); var other = new BagserveClient(args[0], options)) {
            show(() -> client.models());
            show(() -> other.models());
            show(() -> client.models());
        }'''
    expect_equal(run_java(body, script.address), ['["answer", "[m]"]'] * 3)
    script.close()


def test_broken_answers(run_java):
    """What was sent is not sent again."""
    for text in (b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
                 b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nInference-Header-Content-Length: 9\r\n\r\n{}"):
        script = Script([text])
        (kind, name, *_), = (json.loads(line) for line in run_java(ASK, script.address, 2, 20000, 1))
        script.close()
        expect_equal((kind, name, script.requests), ("error", "connection_failed", 1), text)
    script = Script([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                     b'7;x\r\n{"model\r\n9\r\ns":["m"]}\r\n0\r\nA: b\r\n\r\n'])
    expect_equal(run_java(ASK, script.address, 0, 20000, 1), ['["answer", "[m]"]'])
    script.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said, = run_java(ASK, "127.0.0.1:%d" % silent.getsockname()[1], 2, 200, 1)
        expect("connection_failed" in said and "not in time" in said, said)
        for nobody in ("127.0.0.1:1", "unix:///nowhere/bagserve.sock"):
            said, = run_java(ASK, nobody, 1, 20000, 1)
            expect("connection_failed" in said and "cannot connect" in said, said)


LARGE = 2**31 + 5


def test_lengths_beyond_31_bits(run_java):
    """Java's arrays end there: lengths from 2^31 on are not cut to 31 bits, which would be another answer."""
    head = json.dumps({"model_name": "m", "model_version": "1", "outputs": [
        {"name": "embeddings", "datatype": "FP32", "shape": [2**32 + 1, 2],
         "parameters": {"binary_data_size": 2**32 + 8}}]})
    shape = head.replace(str(2**32 + 8), "8")
    kinds = (f"Content-Length: {LARGE}\r\n\r\n" + '{"models":["m"]}', f"Content-Length: {2**64 - 1}\r\n\r\n{{}}",
             f"Inference-Header-Content-Length: {LARGE}\r\nContent-Length: 16\r\n\r\n" + '{"models":["m"]}',
             f"Transfer-Encoding: chunked\r\n\r\n{LARGE:x}\r\n" + '{"models":["m"]}',
             f"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n7ffffff7\r\n" + '{"models":["m"]}')
    for text in kinds:
        script = Script([f"HTTP/1.1 200 OK\r\n{text}".encode()])
        said, = run_java(ASK, script.address, 0, 20000, 1)
        script.close()
        expect("connection_failed" in said and "at most 2147483639" in said, said)
    body = '''
        try (var client = new BagserveClient(args[0])) {
            show(() -> client.packed("m", new long[] {0}, 1, null));
        } catch (IllegalArgumentException problem) {
            System.out.println(problem.getMessage());
        }'''
    for text, words in ((head, "of 4294967304 bytes"), (shape, "has the size 4294967297")):
        lines = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + 8}\r\n\r\n"
        script = Script([b"HTTP/1.1 200 OK\r\n" + (lines + text).encode() + b"12345678"])
        said, = run_java(body, script.address)
        script.close()
        expect(words in said, said)


def test_tokens_and_tls(guarded, directory, run_java):
    store = directory / "store"
    body = '''
        for (String token : new String[] {"%s", null, "read-0123456789abcdef"}) {
            Options options = new Options();
            options.token = token;
            try (var client = new BagserveClient(args[0], options)) {
                for (int i = 0; i < 2; i++)
                    show(() -> client.packed("example", new long[] {0, 2}, 1, null));
            }
        }''' % TOKEN
    want = ['["answer", {"embeddings": [[-2.1, -2.4]]}]'] * 2
    with Proxy(guarded, directory) as proxy:
        subprocess.run(["keytool", "-importcert", "-noprompt", "-file", proxy.certificate, "-keystore", store,
                        "-storepass", "password"], check=True, capture_output=True, timeout=TIMEOUT_S)
        trust = [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=password"]
        for url, options in ((f"http://{address(guarded)}", []), (proxy.url, trust)):
            lines = run_java(body, url, options=options)
            expect_equal(lines[:2], want)
            expect(all('"unauthorized"' in line for line in lines[2:]) and len(lines) == 6, lines)
        said = run_java(body, proxy.url)
        expect(all("connection_failed" in line and "cannot connect" in line for line in said), said)


def test_threads_and_arguments(guarded, run_java):
    """One client for many threads, on three connections; what is wrong is said before anything is sent."""
    body = '''
        Options options = new Options();
        options.token = "%s";
        options.connections = 3;
        var client = new BagserveClient(args[0], options);
        List<Thread> threads = new ArrayList<>();
        var right = new java.util.concurrent.atomic.AtomicInteger();
        for (int i = 1; i <= 12; i++) {
            int bags = i;
            Thread thread = new Thread(() -> {
                try {
                    for (int n = 0; n < 20; n++)
                        if (client.packed("items", new long[bags], bags, null).count() == bags)
                            right.incrementAndGet();
                } catch (java.io.IOException problem) {
                    System.out.println(problem);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads)
            thread.join();
        System.out.println(right.get());
        client.close();
        for (Callable<?> call : List.<Callable<?>>of(() -> client.models(),
                () -> client.packed("items", new long[] {1, 2, 3}, 2, null),
                () -> client.update("items", new long[] {1, 2}, new float[] {1, 2, 3}, 0, 0),
                () -> client.infer("items", List.of(new Tensor("indices", "UINT8", new long[] {1, 4}, new byte[4], "int8", 4)),
                    null),
                () -> new BagserveClient("ftp://x"), () -> new BagserveClient("x/v2"),
                () -> new BagserveClient("unix:///"), () -> new BagserveClient(""))) {
            try {
                System.out.println(call.call());
            } catch (IllegalStateException | IllegalArgumentException problem) {
                System.out.println("wrong: " + problem.getMessage());
            }
        }''' % TOKEN
    count, *said = run_java(body, f"http://{address(guarded)}")
    expect_equal(count, "240")
    for line, words in zip(said, ("the client is closed", "2 bags", "3 numbers", "'indices' has rows in the format 'int8'",
                                  "'ftp://x' is not HOST:PORT",
                                  "'x/v2' is not", "'unix:///' is not", "'' is not"), strict=True):
        expect(line.startswith("wrong: ") and words in line, line)
