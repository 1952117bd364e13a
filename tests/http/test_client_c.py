"""The C client against a server: its calls, tokens and TLS, and the example that its header shows."""

import subprocess

import numpy as np
import pytest

from clients import (  # noqa: F401
    C_HEADER, Proxy, address, bc, compile_c, connect, serve, serve_with_tokens)
from harness import TIMEOUT_S, Server, expect, expect_equal, scratch, write_json
from numerics import BITS, ROW_FORMATS, Storage


# Beside the cases of test_cases_c.py: more features than there is room for, and nobody who listens.
C_FAILURES = r'''
int main(int argc, char *argv[])
{
    const int64_t values[] = {0, 2}, lengths[] = {1, 1};
    struct bagserve_output outputs[1];
    struct bagserve_rows rows;
    size_t count = 0;
    struct bagserve_client *client = bagserve_open(argv[argc - 1], 20000);
    int result = bagserve_kjt(client, "pair", values, 2, lengths, 2, NULL, outputs, 1, &count);
    printf("%d %s\n", result, bagserve_error(client));
    bagserve_close(client);
    client = bagserve_open("http://127.0.0.1:1", 20000);
    result = bagserve_packed(client, "items", values, 1, 1, NULL, &rows);
    printf("%d %s\n", result, bagserve_error(client));
    bagserve_close(client);
    return 0;
}
'''


def test_c_failures(client):
    with scratch() as directory:
        done = subprocess.run([compile_c(directory, C_FAILURES), f"http://{client._host}:{client._port}"],
                              capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal((done.returncode, done.stderr), (0, ""), "the C program")
    for line, (code, words) in zip(done.stdout.splitlines(), (("5 ", "room"), ("2 ", "127.0.0.1 port 1 ")), strict=True):
        expect(line.startswith(code) and words in line, line)


C_ROW_FORMATS = r'''
int main(int argc, char *argv[])
{
    const int64_t indices[] = {0, 2, 3, 4};
    struct bagserve_client *client = bagserve_open(argv[1], 20000);
    struct bagserve_rows rows;
    for (int i = 2; i < argc; i++) {
        enum bagserve_result result = bagserve_set_row_format(client, argv[i]);
        if (result == BAGSERVE_OK)
            result = bagserve_packed(client, "items", indices, 4, 1, NULL, &rows);
        printf("%d", (int)result);
        for (size_t j = 0; result == BAGSERVE_OK && j < rows.count * rows.width; j++)
            printf(" %.9g", (double)rows.values[j]);
        printf(" %s\n", result == BAGSERVE_OK ? "" : bagserve_error(client));
    }
    bagserve_close(client);
    return 0;
}
'''


def decoded_by_c(directory, server, formats):
    """A line for each format: the code of the call's result and the rows, or the error."""
    done = subprocess.run([compile_c(directory, C_ROW_FORMATS), f"http://{server}", *formats],
                          capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal((done.returncode, done.stderr), (0, ""), "the C program")
    return done.stdout.splitlines()


def test_c_row_formats(client):
    """Encoded rows are what the Python client decodes; a format that this client does not know is rejected here."""
    with scratch() as directory:
        *lines, last = decoded_by_c(directory, f"{client._host}:{client._port}", [*ROW_FORMATS, "int9"])
    for row_format, line in zip(ROW_FORMATS, lines, strict=True):
        want = client.packed("items", [[0], [2], [3], [4]], output_row_format=row_format)
        code, *numbers = line.split()
        expect_equal((code, np.array(numbers, np.float32).tolist()), ("0", want.ravel().tolist()), row_format)
    expect_equal(last.split(" ", 1), ["3", "no row format that this client decodes"])


@pytest.mark.parametrize("row_format", ROW_FORMATS)
def test_every_code(directory, rng, row_format):
    """Stored rows with every code are copied into the reply; C and Python decode them to what NumPy says."""
    storage, (codes, _, count, _) = Storage("FP32", row_format), ROW_FORMATS[row_format]
    stored = storage.join(rng.permuted(np.tile(np.arange(256) % (1 << BITS.get(codes, 8)), (5, 1)), axis=1),
                          rng.integers(-1000, 1000, (5, count)) / 1024)
    np.save(directory / "items.npy", stored)
    write_json(directory / "c.json", {"models": [{
        "name": "items", "path": "items.npy", "row_format": row_format, "row_elements": 256, "reduction": "none"}]})
    with Server("--config", directory / "c.json") as server, bc.Client(address(server)) as python:
        line, = decoded_by_c(directory, address(server), [row_format])
        want = storage.decode(stored, 256)[[0, 2, 3, 4]]
        got = python.rows("items", [0, 2, 3, 4], output_row_format=row_format)
    code, *numbers = line.split()
    expect_equal(code, "0")
    for by, rows in (("C", np.array(numbers, np.float32).reshape(want.shape)), ("Python", got)):
        same = np.array_equal(rows, want, equal_nan=True) and np.array_equal(np.signbit(rows), np.signbit(want))
        expect(same, f"{by}, {row_format}: {rows} instead of {want}")


C_TOKENS = r'''
static void ask(struct bagserve_client *client, const char *token)
{
    const int64_t ids[] = {1, 2};
    struct bagserve_rows rows;
    enum bagserve_result result = bagserve_set_token(client, token);
    if (result == BAGSERVE_OK)
        result = bagserve_packed(client, "items", ids, 1, 2, NULL, &rows);
    printf("%d %s\n", (int)result, bagserve_error(client));
}

int main(int argc, char *argv[])
{
    struct bagserve_client *client = bagserve_open(argv[argc - 2], 20000);
    if (argv[argc - 1][0])
        curl_easy_setopt(client->curl, CURLOPT_CAINFO, argv[argc - 1]);
    ask(client, "infer-0123456789abcdef");
    ask(client, "read-0123456789abcdef");
    ask(client, "a\r\nX: b");
    ask(client, NULL);
    bagserve_close(client);
    return 0;
}
'''


def test_c_tokens(guarded, directory):
    program = compile_c(directory, C_TOKENS)
    with Proxy(guarded, directory) as proxy:
        for url, authority in ((f"http://{address(guarded)}", ""), (proxy.url, str(proxy.certificate))):
            done = subprocess.run([program, url, authority], capture_output=True, text=True,
                                  check=False, timeout=TIMEOUT_S)
            expect_equal((done.returncode, done.stderr), (0, ""), "the C program")
            lines = done.stdout.splitlines()
            for line, code, words in zip(lines, "0636", ("", "scope infer", "ASCII", "is needed"), strict=True):
                expect(line.startswith(code + " ") and words in line, f"{url}: {line}")
        done = subprocess.run([program, proxy.url, ""], capture_output=True, text=True, check=False,
                              timeout=TIMEOUT_S)
        expect(done.stdout.startswith("2 ") and "certificate" in done.stdout, done.stdout)


def test_c_example():
    """The lines at the top of the header, against the demo tables."""
    comment = (C_HEADER / "bagserve_client.h").read_text().partition("*/")[0]
    example = "\n".join(line[7:] for line in comment.splitlines() if line.startswith(" *     "))
    expect("bagserve_open" in example, example)
    with scratch() as directory, Server("--demo") as server:
        program = compile_c(directory, "int main(void)\n{\n" + example.replace(
            "127.0.0.1:8000", address(server)) + "\nreturn 0;\n}\n")
        done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal((done.stdout, done.stderr), ("2 rows of 64\nhistory has 2 rows\n", ""))
