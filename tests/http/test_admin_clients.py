"""The C client's calls that change what is served (proto/clients/c/bagserve_admin.h)."""

import subprocess

import numpy as np

from clients import compile_c
from control import BEARER, TOKEN, publish, rows_of, serve, served
from harness import TIMEOUT_S, expect, expect_equal, write_json

CALLS = r'''
#include "bagserve_admin.h"

static void show(struct bagserve_client *client, enum bagserve_result result)
{
    printf("%d %s\n", (int)result, result == BAGSERVE_OK ? "" : bagserve_error(client));
}

static void show_applied(struct bagserve_client *client, enum bagserve_result result,
                         const struct bagserve_applied *applied)
{
    if (result == BAGSERVE_OK)
        printf("0 %llu %d\n", (unsigned long long)applied->sequence, applied->is_new);
    else
        show(client, result);
}

int main(int argc, char *argv[])
{
    const char *both[] = {"t", "k"}, *wrong[] = {"t", "none"}, *quoted[] = {"a\"b"};
    const int64_t indices[] = {2, 5}, twice[] = {4, 4};
    const uint64_t keys[] = {10, UINT64_MAX}, missing[] = {11};
    const float rows[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct bagserve_applied applied;
    struct bagserve_client *client = bagserve_open(argv[argc - 2], 20000);
    show(client, bagserve_load(client, both, 2));
    show(client, bagserve_set_token(client, argv[argc - 1]));
    show(client, bagserve_load(client, both, 2));
    show(client, bagserve_load(client, wrong, 2));
    show(client, bagserve_load(client, quoted, 1));
    show(client, bagserve_load_version(client, "t", 1));
    show(client, bagserve_load_version(client, "t", 9));
    show_applied(client, bagserve_update(client, "t", indices, 2, rows, 4, 0, 1, &applied), &applied);
    show_applied(client, bagserve_update(client, "t", indices, 2, rows, 4, 0, 1, &applied), &applied);
    show_applied(client, bagserve_update(client, "t", indices, 2, rows, 4, 0, 0, &applied), &applied);
    show_applied(client, bagserve_update(client, "t", indices, 2, rows, 4, 0, 9, &applied), &applied);
    show_applied(client, bagserve_update(client, "t", twice, 2, rows, 4, 3, 9, &applied), &applied);
    show_applied(client, bagserve_update(client, "t", indices, 2, rows, 4, 11, 12, &applied), &applied);
    show_applied(client, bagserve_update(client, "t", indices, 2, rows, 3, 0, 0, &applied), &applied);
    show_applied(client, bagserve_update_keys(client, "k", keys, 2, rows, 4, 0, 1, &applied), &applied);
    show_applied(client, bagserve_delete_keys(client, "k", keys, 1, 0, 2, &applied), &applied);
    show_applied(client, bagserve_delete_keys(client, "k", missing, 1, 0, 0, &applied), &applied);
    show(client, bagserve_unload(client, "t", 0));
    show(client, bagserve_unload(client, "t", 1));
    bagserve_close(client);
    return 0;
}
'''
WANT = (("6", "is needed"), ("0", ""), ("0", ""), ("3", "no model 'none'"),
        ("3", "other characters"), ("0", ""), ("3", "no version '9'"), ("0", "1 1"), ("0", "1 0"),
        ("0", "2 1"), ("7", "the next update of model 't' is 3"), ("0", "9 1"),
        ("7", "first_sequence is 11; the next update of model 't' is 10"), ("3", "'rows' is FP32"),
        ("0", "1 1"), ("0", "2 1"), ("3", "'keys' has 11"), ("7", "unload_dependents"), ("0", ""))


def test_c_changes(directory, root):
    publish(root, "t", 1)
    (root / "k" / "1").mkdir(parents=True)
    np.save(root / "k" / "1" / "keys.npy", np.array([1, 10], np.uint64))
    np.save(root / "k" / "1" / "values.npy", rows_of(3, rows=2))
    write_json(root / "k" / "1" / "config.json", {"spare_rows": 2})
    (root / "c" / "1").mkdir(parents=True)
    write_json(root / "c" / "1" / "config.json", {"features": [{"name": "f", "model": "t"}]})
    program = compile_c(directory, CALLS)
    with serve(directory, "--updates", "on") as server:
        publish(root, "t", 2)
        admin = server.admin.client.server
        done = subprocess.run([program, f"http://{admin.host}:{admin.port}", TOKEN], check=False,
                              capture_output=True, text=True, timeout=TIMEOUT_S)
        expect_equal((done.returncode, done.stderr), (0, ""), "the C program")
        for line, (code, words) in zip(done.stdout.splitlines(), WANT, strict=True):
            expect(line.startswith(code + " ") and words in line, f"'{line}' is not {code} {words}")
        expect_equal(served(server.client), 404)
        expect_equal(server.client.metrics()['bagserve_updates_applied_total{model="k"}'], "2")
        server.client.request("GET", "/v2/models/k", headers=BEARER).expect(200)
