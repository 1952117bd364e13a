"""The description at /openapi.json: that it is valid, names every route, and is true: each operation
is called, rightly and wrongly, and every answer must be one that is described.
"""

import json
import re

import numpy as np
import pytest
from jsonschema import Draft202012Validator, RefResolver

import control
from control import BEARER, publish
from example import EXAMPLE, INPUTS
from harness import ROOT, Server, expect, expect_equal, scratch
from v2 import HEADER_LENGTH, Client, infer_body

METHODS = {"GET": "get", "POST": "post", "INFER": "post", "ROWS": "post", "CONTROL": "post"}
DOCUMENT = json.loads((ROOT / "proto" / "openapi.json").read_text())


def resolve(value):
    """What a {"$ref": "#/..."} stands for; other values are themselves."""
    while isinstance(value, dict) and "$ref" in value:
        path = value["$ref"]
        expect(path.startswith("#/"), f"{path} leaves the document")
        value = DOCUMENT
        for key in path[2:].split("/"):
            expect(key in value, f"{path} leads nowhere")
            value = value[key]
    return value


def operations():
    """(path, method, path item, operation) of each."""
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield path, method, item, operation


def enabled(by=None):
    """Those of operations() that the option `by` enables; None: that need none."""
    return [entry for entry in operations() if entry[3].get("x-enabled-by") == by]


def all_values(value):
    yield value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, (dict, list)):
            yield from all_values(part)


# ---- the document -----------------------------------------------------------------------------
def test_is_served(client):
    reply = client.get("/openapi.json").expect()
    expect_equal(reply.headers["content-type"], "application/json")
    expect_equal(reply.json(), DOCUMENT)


def test_head_of_the_document(client):
    expect_equal(DOCUMENT["openapi"], "3.1.0")
    expect_equal(DOCUMENT["info"]["version"], client.get("/v2").json()["version"])
    expect_equal(client.get("/").json()["links"]["openapi"], "/openapi.json")


def test_every_route_is_described():
    text = (ROOT / "server" / "http" / "routes.c").read_text()
    routes = set(re.findall(r'^    \{"(/[^"]*)", (GET|POST|INFER|ROWS|CONTROL)(?:, \w+)*\},$', text, re.MULTILINE))
    expect(len(routes) > 10, "the routes were not found in routes.c")
    expect_equal({(path, METHODS[methods]) for path, methods in routes},
                 {(path, method) for path, method, _, _ in operations()}, "routes")


def test_every_code_is_described():
    """Those of the kinds of errors, but of those of the command line, which no request has."""
    text = (ROOT / "proto" / "problem.h").read_text()
    codes = re.findall(r'^    X\(\w+, +"(\w+)"\)', text, re.MULTILINE)
    expect(len(codes) > 30 and len(set(codes)) == len(codes), "the codes were not found in problem.h")
    expect_equal(DOCUMENT["components"]["schemas"]["ErrorCode"]["enum"], [code for code in codes if code != "usage"])
    page = (ROOT / "proto" / "PROTOCOL.md").read_text()
    expect_equal([code for code in codes if code != "usage" and f"`{code}`" not in page], [], "codes that PROTOCOL.md lacks")


def test_is_well_formed():
    names = [operation["operationId"] for *_, operation in operations()]
    expect_equal(len(names), len(set(names)), "operationId that are duplicated")
    for value in all_values(DOCUMENT):
        resolve(value)
    used = {v["$ref"] for v in all_values(DOCUMENT) if isinstance(v, dict) and "$ref" in v}
    for kind in ("schemas", "responses"):
        for name in DOCUMENT["components"][kind]:
            expect(f"#/components/{kind}/{name}" in used, f"{name} is not used")
    for path, method, item, operation in operations():
        where = f"{method} {path}"
        given = item.get("parameters", []) + operation.get("parameters", [])
        in_path = [p["name"] for p in given if p["in"] == "path"]
        expect_equal(in_path, re.findall(r"\{(\w+)\}", path), where)
        expect(all(p["required"] for p in given if p["in"] == "path"), where)
        expect(operation["summary"] and operation["responses"], where)
        for status, response in operation["responses"].items():
            expect(re.fullmatch(r"[2-5]\d\d", status), f"{where}: {status}")
            expect(resolve(response)["description"], f"{where}: {status}")


def validator(schema):
    return Draft202012Validator(schema, resolver=RefResolver("", DOCUMENT))


def test_schemas_are_sound():
    for value in all_values(DOCUMENT):
        if isinstance(value, dict) and isinstance(value.get("schema"), dict):
            Draft202012Validator.check_schema(value["schema"])
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


# ---- the server -------------------------------------------------------------------------------
def check_answer(operation, reply, where):
    """That the answer's status, type, headers and body are described."""
    responses = operation["responses"]
    expect(str(reply.status) in responses, f"{where}: {reply.status} is not described")
    response = resolve(responses[str(reply.status)])
    kind = reply.headers["content-type"]
    expect(kind in response["content"], f"{where}: {kind} is not described")
    schema = response["content"][kind]["schema"]
    value = reply.body.decode() if kind.startswith("text/") else reply.header()[0]
    if kind == "application/octet-stream":
        schema = DOCUMENT["components"]["schemas"]["InferReply"]
        expect(HEADER_LENGTH in response["headers"], where)
    for name in ("Retry-After", "WWW-Authenticate"):
        if name.lower() in reply.headers:
            expect(name in response.get("headers", {}), f"{where}: {name}")
    for problem in validator(schema).iter_errors(value):
        raise AssertionError(f"{where}: {problem.message} in {value}")


def url(path, model="example", version="1"):
    return path.replace("{model}", model).replace("{version}", version)


def check_right_calls(client, called, headers=None):
    for path, method, _, operation in called:
        media = resolve(operation).get("requestBody", {}).get("content", {})
        example = media.get("application/json", {}).get("example")
        body = json.dumps(example) if example else None
        where = f"{method} {path}"
        reply = client.request(method.upper(), url(path), body, headers).expect(200)
        check_answer(operation, reply, where)
        want = operation["responses"]["200"]["content"].get("application/json", {}).get("example")
        if want:
            expect_equal(reply.json(), want, f"{where}: the example's answer")
        if example:
            validator(media["application/json"]["schema"]).validate(example)


def check_unknown_models(client, called, headers=None):
    for path, method, _, operation in called:
        for wrong in ({"model": "nobody"}, {"version": "7"}):
            if url(path, **wrong) != url(path):
                reply = client.request(method.upper(), url(path, **wrong), "{}", headers)
                reply.expect(404)
                check_answer(operation, reply, f"{method} {url(path, **wrong)}")


def check_bad_bodies(client, called, headers=None):
    for path, method, _, operation in called:
        if "requestBody" not in operation:
            continue
        for body, more, status in ((b"{", {}, 400), (b" " * (2 << 20), {}, 413),
                                      (b"{}", {"Content-Encoding": "br"}, 415)):
            reply = client.request("POST", url(path), body, more | (headers or {})).expect(status)
            check_answer(operation, reply, f"{method} {path}")


def test_calls(client):
    check_right_calls(client, enabled())
    check_unknown_models(client, enabled())
    check_bad_bodies(client, enabled())


def test_updates(directory):
    """What changes rows, where that is enabled."""
    tokens = directory / "tokens"
    tokens.touch(0o600)
    tokens.write_text("admin 0123456789abcdef\n")
    np.save(directory / "example.npy", EXAMPLE)
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    with Server("--table", f"example={directory}/example.npy", "--max-body-bytes", 1 << 20,
                "--updates", "on", "--token-file", tokens) as server, Client(server) as client:
        called = enabled("updates")
        expect(called, "nothing is enabled by updates")
        check_right_calls(client, called, headers)
        check_unknown_models(client, called, headers)
        check_bad_bodies(client, called, headers)
        for path, method, _, operation in called:
            body = operation["requestBody"]["content"]["application/json"]["example"]
            body = json.dumps(body | {"parameters": {"sequence": 9}})
            reply = client.request(method.upper(), url(path), body, headers).expect(409)
            check_answer(operation, reply, path)


def test_model_control(directory):
    """What loads and unloads, where that is enabled."""
    publish(directory / "models", "example", 1)
    with control.serve(directory, "--max-body-bytes", 1 << 20) as server:
        client, called = server.admin.client, enabled("model_control")
        expect_equal(len(called), 3)
        check_right_calls(client, called, BEARER)
        check_unknown_models(client, called, BEARER)
        check_bad_bodies(client, [c for c in called if "{model}" in c[0]], BEARER)
        for path, method, _, operation in called:
            body = operation["requestBody"]["content"]["application/json"]["example"]
            body = json.dumps(body | {"wait": False})
            reply = client.request(method.upper(), url(path), body, BEARER).expect(202)
            check_answer(operation, reply, path)
        check_answer(called[1][3], server.client.request("POST", url(called[1][0]), "{}").expect(403),
                     "the main listener")


def test_without_a_token(directory):
    """401 where a token is needed, and 403 for one of another scope."""
    tokens = directory / "tokens"
    tokens.touch(0o600)
    tokens.write_text("infer 0123456789abcdef\nread fedcba9876543210\n")
    with Server("--demo", "--token-file", tokens) as server, Client(server) as client:
        for path, method, _, operation in operations():
            where = f"{method} {path}"
            is_open = operation.get("security") == []
            other = "fedcba9876543210" if path.endswith("/infer") else "0123456789abcdef"
            reply = client.request(method.upper(), url(path), "{}")
            check_answer(operation, reply.expect(200 if is_open else 401), where)
            reply = client.request(method.upper(), url(path), "{}", {"Authorization": f"Bearer {other}"})
            check_answer(operation, reply.expect(200 if is_open else 403), where)


def test_binary_infer(client):
    operation = DOCUMENT["paths"]["/v2/models/{model}/infer"]["post"]
    body, headers = infer_body(INPUTS, binary=True, parameters={"binary_data_output": True})
    reply = client.request("POST", "/v2/models/example/infer", body, headers).expect(200)
    expect_equal(reply.headers["content-type"], "application/octet-stream")
    check_answer(operation, reply, "binary infer")
    described = {p["name"] for p in operation["parameters"]}
    expect(set(headers) <= described, f"{headers} are not all described")


def test_while_loading():
    """503 as described, as long as the table is not there."""
    with scratch() as directory:
        np.save(directory / "example.npy", np.zeros((3000, 10000), np.float32))
        with Server("--table", f"example={directory}/example.npy", until="listening") as server, \
                Client(server) as client:
            for path, method, _, operation in operations():
                reply = client.request(method.upper(), url(path), "{}")
                check_answer(operation, reply, f"{method} {path} while loading")


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    np.save(shared_directory / "example.npy", EXAMPLE)
    with Server("--table", f"example={shared_directory}/example.npy", "--max-body-bytes", 1 << 20) as server:
        yield server
