"""The Python client, by the table of cases that all clients pass (proto/clients/cases.json)."""

import numpy as np
import pytest

from cases import CASES, POOLING, check, is_admin, serve_cases
from clients import bc

KINDS = {bc.BadRequest: "bad_request", bc.Unauthorized: "unauthorized", bc.NotFound: "not_found",
         bc.Conflict: "conflict", bc.TooLarge: "too_large", bc.Unavailable: "unavailable",
         bc.StorageFull: "storage_full"}


@pytest.fixture(scope="module", name="served")
def serve(shared_directory):
    with serve_cases(shared_directory) as (address, admin), bc.Client(address) as client, \
            bc.Client(admin) as admin_client:
        yield client, admin_client


def ask(client, case):
    call, model, options = case["call"].replace("_on_admin", ""), case["model"], case.get("options", {})
    given = {name: case[name] for name in ("indices", "offsets", "segment_ids", "num_segments", "weights",
                                           "values", "lengths", "features") if name in case}
    if "indices" in given and call != "update":
        given["indices"] = np.array(given["indices"], np.int64)
    if call in POOLING:
        return {"embeddings": getattr(client, call)(model, **given, **options).tolist()}
    if call in ("kjt", "collection"):
        return {name: rows.tolist() for name, rows in getattr(client, call)(model, **given, **options).items()}
    numbers = {name: case.get(name) for name in ("sequence", "first_sequence")}
    if call == "delete_keys":
        applied = client.delete(model, case["keys"], **numbers)
    else:
        applied = client.update(model, np.array(case["rows"], np.float32), indices=case.get("indices"),
                                keys=case.get("keys"), **numbers)
    return {name: applied[name] for name in ("sequence", "applied")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(served, case):
    client = served[is_admin(case)]
    try:
        came = "answer", ask(client, case)
    except bc.ServerError as problem:
        came = "error", KINDS[type(problem)], str(problem), problem.code
    check(case, came)
