"""The table of cases that all clients pass (proto/clients/cases.json): its server, and how answers compare.

A client's own test gives what each case came to: ("answer", value) or ("error", kind, text, code).
"""

import contextlib
import json

import numpy as np

from harness import ROOT, Server, expect, expect_equal, write_json

TABLE = json.loads((ROOT / "proto" / "clients" / "cases.json").read_text())
CASES = TABLE["cases"]
POOLING = ("offsets", "packed", "segments")


@contextlib.contextmanager
def serve_cases(directory):
    """(address of inference, that of the admin socket), with the tables as they begin."""
    for name, table in TABLE["tables"].items():
        folder = directory / "models" / name / "1"
        folder.mkdir(parents=True)
        settings = {key: value for key, value in table.items() if key not in ("rows", "keys")}
        write_json(folder / "config.json", settings)
        keyed = "keys" in table
        np.save(folder / ("values.npy" if keyed else "table.npy"), np.array(table["rows"], np.float32))
        if keyed:
            np.save(folder / "keys.npy", np.array(table["keys"], np.int64))
    for name, features in TABLE["collections"].items():
        (directory / "models" / name / "1").mkdir(parents=True)
        write_json(directory / "models" / name / "1" / "config.json", {"features": features})
    admin = directory / "admin.sock"
    with Server("--models", directory / "models", "--updates", "on", "--admin-socket", admin) as server:
        yield f"http://{server.host}:{server.port}", f"unix://{admin}"


def is_admin(case):
    """Whether the case is for the admin socket."""
    return case["call"].endswith("_on_admin") or case["call"].partition("_")[0] in ("update", "delete")


def signs(answer):
    return {name: np.signbit(np.array(numbers, float)).tolist() for name, numbers in answer.items()}


def read_line(line):
    """What a client printed, in which -0 is no integer."""
    return json.loads(line, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))


def check(case, came, kinds=None):
    """`kinds` are what the client calls the errors of the table, where it has other names for them."""
    name, wanted = case["name"], case.get("error")
    if wanted is None:
        expect_equal(came[0], "answer", f"{name}: {came}")
        expect_equal(came[1], case["answer"], name)
        expect_equal(signs(came[1]), signs(case["answer"]), f"{name}: signs, those of zeros, too")
        return
    expect_equal(came[0], "error", f"{name}: {came}")
    expect_equal(came[1], (kinds or {}).get(wanted["kind"], wanted["kind"]), name)
    for word in wanted["words"]:
        expect(word in came[2], f"{name}: '{came[2]}' lacks '{word}'")
    expect_equal(came[3], wanted.get("code", wanted["kind"]), f"{name}: the server's code")
