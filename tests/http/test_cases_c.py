"""The C client, by the table of cases that all clients pass (proto/clients/cases.json).

It has no options of a request but a version, and no features by name: the cases of these are left out. A program
is made of the others, each a call, and prints what came of them.
"""

import json
import subprocess

import numpy as np

from cases import CASES, POOLING, TABLE, check, is_admin, serve_cases
from clients import compile_c
from harness import TIMEOUT_S, expect_equal

MINE = [case for case in CASES if case.get("options", {}).keys() <= {"version"} and "features" not in case]
# The kinds of errors that bagserve_result distinguishes.
KINDS = {"bad_request": "3", "not_found": "3", "too_large": "3", "unavailable": "4", "storage_full": "4",
         "unauthorized": "6", "conflict": "7"}

PROGRAM = r'''
#include "bagserve_admin.h"

static struct bagserve_client *client, *admin;
static struct bagserve_output outputs[8];
static struct bagserve_applied applied;
static size_t count;

static void show(struct bagserve_client *of, enum bagserve_result result)
{
    if (result != BAGSERVE_OK) {
        printf("%d %s %s\n", (int)result, bagserve_error_code(of), bagserve_error(of));
        return;
    }
    printf("0");
    for (size_t i = 0; i < count; i++) {
        printf(" %s %zu %zu", outputs[i].name, outputs[i].rows.count, outputs[i].rows.width);
        for (size_t j = 0; j < outputs[i].rows.count * outputs[i].rows.width; j++)
            printf(" %.9g", (double)outputs[i].rows.values[j]);
    }
    printf("\n");
}

static void show_rows(struct bagserve_client *of, enum bagserve_result result)
{
    strcpy(outputs[0].name, "embeddings");
    count = 1;
    show(of, result);
}

static void show_applied(enum bagserve_result result)
{
    if (result == BAGSERVE_OK)
        printf("0 %llu %d\n", (unsigned long long)applied.sequence, applied.is_new);
    else
        printf("%d %s %s\n", (int)result, bagserve_error_code(admin), bagserve_error(admin));
}

int main(int argc, char *argv[])
{
    client = bagserve_open(argv[argc - 2], 20000);
    admin = bagserve_open(argv[argc - 1], 20000);
CALLS
    bagserve_close(client);
    bagserve_close(admin);
    return 0;
}
'''


def array_of(kind, values):
    """A compound literal; never an empty one."""
    flat = np.ravel(values).tolist() or [0]
    suffix = "f" if kind == "float" else "LL"
    numbers = [f"{float(v)}f" if suffix == "f" else f"{int(v)}{suffix}" for v in flat]
    return f"(const {kind}[]){{{', '.join(numbers)}}}"


def format_of(case):
    """The call that asks for the row format of the table's replies; other cases ask for FP32."""
    row_format = TABLE["tables"].get(case["model"], {}).get("output_row_format")
    return f'bagserve_set_row_format(client, {json.dumps(row_format) if row_format else "NULL"});' \
        f'bagserve_set_version(client, {case.get("options", {}).get("version", 0)});'


def call_of(case):
    of, call = "admin" if is_admin(case) else "client", case["call"].replace("_on_admin", "")
    weights = array_of("float", case["weights"]) if "weights" in case else "NULL"
    start = f'bagserve_{call}({of}, "{case["model"]}", '
    if call in POOLING:
        indices = array_of("int64_t", case["indices"])
        shape = {"offsets": [len(case["indices"])], "segments": [], "packed": np.shape(case["indices"])}[call]
        rest = {"offsets": lambda: [array_of("int64_t", case["offsets"]), len(case["offsets"])],
                "segments": lambda: [array_of("int64_t", case["segment_ids"]), len(case["indices"]),
                                     case["num_segments"]], "packed": lambda: []}[call]()
        return f"show_rows({of}, {start}{', '.join(map(str, [indices, *shape, *rest, weights, '&outputs[0].rows']))}));"
    if call == "kjt":
        return (f"show({of}, {start}{array_of('int64_t', case['values'])}, {len(case['values'])}, "
                f"{array_of('int64_t', case['lengths'])}, {len(case['lengths'])}, {weights}, outputs, 8, &count));")
    ids = case.get("indices", case.get("keys"))
    rows = "" if "rows" not in case else \
        f"{array_of('float', case['rows'])}, {len(case['rows'][0])}, "
    kind = "int64_t" if "indices" in case else "uint64_t"
    return (f"show_applied({start}{array_of(kind, ids)}, {len(ids)}, {rows}{case.get('first_sequence', 0)}, "
            f"{case.get('sequence', 0)}, &applied));")


def came_of(case, line):
    result, _, rest = line.partition(" ")
    if result != "0":
        code, _, text = rest.partition(" ")
        return "error", result, text, code
    words = rest.split()
    if case["call"].partition("_")[0] in ("update", "delete"):
        return "answer", {"sequence": int(words[0]), "applied": words[1] == "1"}
    answer = {}
    while words:
        name, rows, width = words[0], int(words[1]), int(words[2])
        numbers, words = words[3:3 + rows * width], words[3 + rows * width:]
        answer[name] = np.array(numbers, np.float32).reshape(rows, width).tolist()
    return "answer", answer


def test_cases(directory):
    calls = "\n".join(f"    {format_of(case)}\n    {call_of(case)}" for case in MINE)
    program = compile_c(directory, PROGRAM.replace("CALLS", calls))
    (directory / "served").mkdir()
    with serve_cases(directory / "served") as (address, admin):
        done = subprocess.run([program, address, admin], capture_output=True, text=True, check=False,
                              timeout=TIMEOUT_S)
    expect_equal((done.returncode, done.stderr), (0, ""), "the C program")
    for case, line in zip(MINE, done.stdout.splitlines(), strict=True):
        check(case, came_of(case, line), KINDS)
