"""Every case of tests/conformance over HTTP, in three ways of asking:

binary  all tensors raw; the model's configuration says how to pool
json    every tensor in JSON that has a JSON form; the same models
mixed   indices in JSON, the rest raw; the request's parameters say how to pool, where they can

FP16 and BF16 have no JSON form: there `json` gets an FP32 answer, rounds it once as the
rules say, and sends the weights raw. Cases of the stage `load` go through `serve --check`.
"""

import json

import numpy as np
import pytest

from harness import ROOT, Failure, Server, expect_equal, expect_words, run, write_json
from v2 import NO_JSON, NUMPY, Client, Tensor, bf16_from_f32, f32_from_bf16

WAYS = ("binary", "json", "mixed")
EXPECTED_CASES = 541
DATATYPES = {"f16": "FP16", "bf16": "BF16", "f32": "FP32", "f64": "FP64", "i8": "INT8",
             "i16": "INT16", "i32": "INT32", "i64": "INT64", "u8": "UINT8", "u16": "UINT16",
             "u32": "UINT32", "u64": "UINT64"}
INPUTS = ("indices", "offsets", "segment_ids", "num_segments", "default_index", "per_sample_weights")
PARAMETERS = ("padding_idx", "include_last_offset")


# ---- cases ------------------------------------------------------------------------------------
def load_cases():
    cases = []
    for path in sorted((ROOT / "tests" / "conformance").glob("*.json")):
        cases += json.loads(path.read_text())["cases"]
    return cases


def array_of(tensor):
    """The NumPy array of a tensor of the data files; bf16 as uint16."""
    datatype = DATATYPES[tensor["dtype"]]
    if datatype == "BF16":
        values = bf16_from_f32(np.array(tensor["data"], np.float64).astype(np.float32))
    elif datatype.startswith("FP"):
        values = np.array(tensor["data"], np.float64).astype(NUMPY[datatype])
    else:
        values = np.array(tensor["data"], NUMPY[datatype])
    return values.reshape(tensor["shape"])


def inputs_of(case, number):
    """The tensors of a request; plain integers become scalars, their type and shape alternating."""
    tensors = []
    for name in INPUTS:
        value = case.get(name)
        if value is None:
            continue
        if isinstance(value, dict):
            tensors.append(Tensor(name, array_of(value), DATATYPES[value["dtype"]]))
        else:
            narrow = number % 2 == 0 and abs(value) < 2**31
            shape = [] if number % 4 < 2 else [1]
            dtype = np.int32 if narrow else np.int64
            tensors.append(Tensor(name, np.full(shape, value, dtype)))
    return tensors


def rules_of(case):
    rules = {"reduction": case["reduction"]}
    rules |= {key: case[key] for key in PARAMETERS if key in case}
    return rules


# ---- models -----------------------------------------------------------------------------------
class Models:
    """One model for each distinct table and configuration, one file for each distinct table."""

    def __init__(self, directory):
        self.directory = directory
        self.entries = []
        self._tables = {}
        self._names = {}

    def table(self, tensor):
        key = json.dumps(tensor)
        if key not in self._tables:
            path = self.directory / f"table{len(self._tables)}.npy"
            np.save(path, array_of(tensor))
            self._tables[key] = str(path)
        return self._tables[key]

    def model(self, case, with_rules):
        """The name of the model for the case; without rules, those are left to the request."""
        entry = {"path": self.table(case["table"])} | case.get("options", {})
        if case["table"]["dtype"] == "bf16":
            entry["datatype"] = "BF16"
        if with_rules:
            entry |= rules_of(case)
        key = json.dumps(entry, sort_keys=True)
        if key not in self._names:
            self._names[key] = f"m{len(self._names)}"
            self.entries.append({"name": self._names[key]} | entry)
        return self._names[key]


# ---- results ----------------------------------------------------------------------------------
def as_reals(array, datatype):
    return f32_from_bf16(array) if datatype == "BF16" else array


def compare(got, datatype, case):
    """Compares as the data's README says: type, shape, integers exactly, floats by tolerance."""
    expected = case["expected"]
    want_type, want = DATATYPES[expected["dtype"]], array_of(expected)
    if datatype != want_type:
        raise Failure(f"datatype {datatype} instead of {want_type}")
    if list(got.shape) != expected["shape"]:
        raise Failure(f"shape {list(got.shape)} instead of {expected['shape']}")
    if want_type.startswith(("INT", "UINT")):
        same = got == want
    else:
        tolerance = case.get("tolerance", {"abs": 0, "rel": 0})
        g = as_reals(got, datatype).astype(np.float64)
        e = as_reals(want, datatype).astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(g - e) <= tolerance["abs"] + tolerance["rel"] * np.abs(e)
        same = (np.isnan(g) & np.isnan(e)) | (g == e) | (np.isfinite(g) & np.isfinite(e) & near)
    if not np.all(same):
        at = tuple(int(i[0]) for i in np.nonzero(~same))
        raise Failure(f"at {list(at)}: {as_reals(got, datatype)[at]!r} instead of "
                      f"{as_reals(want, want_type)[at]!r}")


def first(values, wrong):
    """Position and value of the first wrong one, as words that the message must contain."""
    return next([str(i), str(v)] for i, v in enumerate(values) if wrong(i, v))


def words_for(case):
    """What the message of a rejected case must name: the tensor, and where and what the fault is."""
    reason = case["error"]["reason"]

    def data(name):
        return case[name]["data"]

    def value(name):
        return str(case[name]["data"][0] if isinstance(case[name], dict) else case[name])

    def datatype(name):
        return DATATYPES[case[name]["dtype"]]

    def falls(values):
        return first(values, lambda i, v: i > 0 and v < values[i - 1])

    if reason == "index_out_of_range":
        rows = case["table"]["shape"][0]
        return ["indices"] + first(data("indices"), lambda _, v: not 0 <= v < rows)
    if reason == "offset_out_of_range":
        count = len(data("indices"))
        return ["offsets"] + first(data("offsets"), lambda _, v: not 0 <= v <= count)
    if reason == "segment_id_out_of_range":
        limit = case.get("num_segments", 2**63)
        return ["segment_ids"] + first(data("segment_ids"), lambda _, v: not 0 <= v < limit)
    if reason in ("offsets_not_monotonic", "segment_ids_not_sorted"):
        name = "offsets" if reason.startswith("offsets") else "segment_ids"
        return [name] + falls(data(name))
    if reason.endswith("_dtype"):
        name = reason[:-len("_dtype")]
        return [name, datatype(name), "INT32", "INT64"]
    return {
        "default_index_out_of_range": lambda: ["default_index", value("default_index")],
        "indices_rank": lambda: ["indices"], "offsets_rank": lambda: ["offsets"],
        "segment_ids_rank": lambda: ["segment_ids"], "segment_ids_shape_mismatch": lambda: ["segment_ids", "indices"],
        "num_segments_not_scalar": lambda: ["num_segments"],
        "num_segments_negative": lambda: ["num_segments", value("num_segments")],
        "index_type_mismatch": lambda: ["INT32", "INT64"], "weights_not_supported": lambda: ["per_sample_weights"],
        "weights_dtype_mismatch": lambda: ["per_sample_weights", datatype("per_sample_weights"), datatype("table")],
        "weights_shape_mismatch": lambda: ["per_sample_weights", "indices"],
        "offsets_not_starting_at_zero": lambda: ["offsets", "0", value("offsets")],
        "offsets_too_short": lambda: ["offsets", "include_last_offset"],
        "result_too_large": lambda: ["max_reply_bytes"], "table_rank": lambda: ["table", "scalar"],
        "unsupported_reduction": lambda: [case["reduction"], datatype("table")],
        "padding_idx_out_of_range": lambda: ["padding_idx", value("padding_idx")],}[reason]()


# ---- asking -----------------------------------------------------------------------------------
def ask(client, name, case, number, way):
    """Sends the case in one of the WAYS; the reply."""
    inputs = inputs_of(case, number)
    parameters = {}
    if way == "mixed":
        parameters = rules_of(case)
        binary = [t.name for t in inputs if t.name != "indices"]
    elif way == "json":
        binary = [t.name for t in inputs if t.datatype in NO_JSON]
    else:
        binary = True
    outputs = [{"name": "embeddings", "parameters": {"binary_data": way != "json"}}]
    extra = {"parameters": parameters} if parameters else {}
    return client.infer(name, inputs, binary=binary, outputs=outputs, **extra)


def check_answer(reply, case):
    """The answer to a case that has one."""
    output = reply.outputs()["embeddings"]
    array, datatype = output.array, output.datatype
    if "data" in reply.header()[0]["outputs"][0] and case["table"]["dtype"] in ("f16", "bf16"):
        if datatype != "FP32":
            raise Failure(f"datatype {datatype} instead of FP32")
        datatype = DATATYPES[case["table"]["dtype"]]
        with np.errstate(over="ignore"):
            array = bf16_from_f32(array) if datatype == "BF16" else array.astype(np.float16)
    compare(array, datatype, case)


def check_case(client, name, case, number, way):
    reply = ask(client, name, case, number, way)
    if "error" not in case:
        check_answer(reply, case)
        return
    text = reply.expect(400).error()
    expect_words(text, words_for(case))


# ---- the tests --------------------------------------------------------------------------------
CASES = load_cases()
AT_LOAD = [case for case in CASES if case.get("error", {}).get("stage") == "load"]
SERVED = [case for case in CASES if case not in AT_LOAD]


@pytest.fixture(scope="module", name="models")
def make_models(shared_directory):
    """All models of the cases that are served, in one configuration."""
    models = Models(shared_directory)
    for case in SERVED:
        for way in WAYS:
            models.model(case, with_rules=way != "mixed")
    return models


@pytest.fixture(scope="module", name="server")
def serve(models, shared_directory):
    config = write_json(shared_directory / "models.json", {"models": models.entries})
    with Server("--config", config) as server:
        yield server


@pytest.fixture(scope="module", name="client")
def connect(server):
    """One connection for all cases."""
    with Client(server) as client:
        yield client


def test_number_of_cases():
    expect_equal(len(CASES), EXPECTED_CASES, "cases")


@pytest.mark.parametrize("number", range(len(SERVED)), ids=[case["name"] for case in SERVED])
@pytest.mark.parametrize("way", WAYS)
def test_case(client, models, number, way):
    case = SERVED[number]
    name = models.model(case, with_rules=way != "mixed")
    check_case(client, name, case, number, way)


@pytest.mark.parametrize("case", AT_LOAD, ids=[case["name"] for case in AT_LOAD])
def test_load(directory, case):
    """A case whose fault is the model's: the check and the start both reject it in one line."""
    models = Models(directory)
    name = models.model(case, with_rules=True)
    config = write_json(directory / "load.json", {"models": models.entries})
    for command in (["serve", "--check"], ["serve", "--port", "0"]):
        ended = run(*command, "--config", config)
        lines = ended.stderr.strip().splitlines()
        if ended.returncode == 0:
            raise Failure(f"{command}: exit code 0; standard error: {ended.stderr}")
        if len(lines) != 1:
            raise Failure(f"{command}: {len(lines)} lines instead of 1: {ended.stderr}")
        expect_words(lines[0], words_for(case))
        if name not in lines[0] and models.entries[0]["path"] not in lines[0]:
            raise Failure(f"{command}: neither model nor file is named: {lines[0]}")
