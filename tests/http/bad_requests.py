"""Wrong infer requests as tables, for test_bad_requests.py.

Each table holds (name, request, words): the answer to every one is status 400 with a message that
contains all the words. A request is a str or bytes (a JSON body), or (headers, body).

The models: `items` is 5 x 2 FP32 and sums, `half` the same in FP16, `mean` takes means, `whole` is
INT32, `strict` requires what OpenVINO and PyTorch require.
"""

import copy
import json
import struct

from v2 import HEADER_LENGTH

GOOD = {"inputs": [{"name": "indices", "shape": [4], "datatype": "INT64", "data": [0, 2, 3, 4]},
                   {"name": "offsets", "shape": [2], "datatype": "INT64", "data": [0, 3]}]}
TEXT = json.dumps(GOOD)
DROP = object()


def tensor(name, data, shape=None, datatype="INT64"):
    return {"name": name, "shape": [len(data)] if shape is None else shape, "datatype": datatype,
            "data": data}


def ask(*tensors, **top):
    """The text of a request of these tensors."""
    return json.dumps({"inputs": list(tensors)} | top)


def change(which, **keys):
    """GOOD with keys of one input set, or taken out where they are DROP."""
    request = copy.deepcopy(GOOD)
    for key, value in keys.items():
        if value is DROP:
            del request["inputs"][which][key]
        else:
            request["inputs"][which][key] = value
    return json.dumps(request)


def plus(*tensors, **top):
    """GOOD with further tensors and top-level keys."""
    return json.dumps({"inputs": GOOD["inputs"] + list(tensors)} | top)


def swap(old, new):
    """The text of GOOD with a part replaced, for what json.dumps would not write."""
    assert old in TEXT, old
    return TEXT.replace(old, new, 1)


def data_text(new):
    return swap("[0, 2, 3, 4]", new)


def packed(indices, **keys):
    return ask(tensor("indices", sum(indices, []), [len(indices), len(indices[0])]), **keys)


def segments(ids, *others, indices=(0, 1, 2), **keys):
    return ask(tensor("indices", list(indices)), tensor("segment_ids", list(ids)), *others, **keys)


def scalar(name, value, datatype="INT64"):
    return tensor(name, [value], [], datatype)


# ---- shapes -----------------------------------------------------------------------------------
SHAPES = [
    ("too few numbers", change(0, data=[0, 2, 3]), ["indices", "4", "3"]),
    ("too many numbers", change(0, data=[0, 2, 3, 4, 1]), ["indices", "4"]),
    ("no numbers", change(0, data=[]), ["indices", "4", "0"]),
    ("too few nested numbers", change(0, shape=[2, 2], data=[[0, 2], [3]]), ["indices", "4", "3"]),
    ("negative dimension", change(0, shape=[-1]), ["indices", "shape"]),
    ("shape a number", change(0, shape=4), ["indices", "shape"]),
    ("shape an object", change(0, shape={"0": 4}), ["indices", "shape"]),
    ("fractional dimension", change(0, shape=[4.5]), ["indices", "shape"]),
    ("dimension a string", change(0, shape=["4"]), ["indices", "shape"]),
    ("dimension true", change(0, shape=[True]), ["indices", "shape"]),
    ("dimension null", change(0, shape=[None]), ["indices", "shape"]),
    ("nested shape", change(0, shape=[[4]]), ["indices", "shape"]),
    ("no shape", change(0, shape=DROP), ["indices", "shape"]),
    ("shape whose product overflows", change(0, shape=[2**32, 2**32]), ["indices", "shape"]),
    ("dimension of 2^63", change(0, shape=[2**63]), ["indices", "shape"]),
    ("33 dimensions", change(0, shape=[4] + [1] * 32), ["indices", "32"]),
    ("indices without dimensions", change(0, shape=[], data=[0]), ["indices"]),
    ("indices of three dimensions", ask(tensor("indices", [0, 1], [1, 2, 1])), ["indices"]),
    ("offsets of two dimensions", change(1, shape=[1, 2]), ["offsets"]),
    ("offsets without dimensions", change(1, shape=[], data=[0]), ["offsets"]),
    ("segment_ids of two dimensions",
     ask(tensor("indices", [0, 1]), tensor("segment_ids", [0, 1], [1, 2])), ["segment_ids"]),
    ("fewer segment_ids than indices", segments([0, 1]), ["segment_ids", "2", "3"]),
    ("num_segments of two elements", segments([0, 1, 2], tensor("num_segments", [3, 3])),
     ["num_segments", "2"]),
    ("num_segments of no elements", segments([0, 1, 2], tensor("num_segments", [])),
     ["num_segments", "0"]),
    ("default_index of two elements", plus(tensor("default_index", [0, 1])),
     ["default_index", "2"]),
    ("fewer weights than indices", plus(tensor("per_sample_weights", [1, 1, 1], None, "FP32")),
     ["per_sample_weights", "3", "4"]),
    ("weights of another shape",
     plus(tensor("per_sample_weights", [1, 1, 1, 1], [2, 2], "FP32")), ["per_sample_weights"]),
]

# ---- datatypes --------------------------------------------------------------------------------
DATATYPES = [
    ("no datatype", change(0, datatype=DROP), ["indices", "datatype"]),
    ("datatype a number", change(0, datatype=64), ["indices", "datatype"]),
    ("unknown datatype", change(0, datatype="INT128"), ["indices", "INT128"]),
    ("datatype in small letters", change(0, datatype="int64"), ["indices", "int64"]),
    ("FP32 indices", change(0, datatype="FP32"), ["indices", "FP32", "INT32", "INT64"]),
    ("INT8 indices", change(0, datatype="INT8"), ["indices", "INT8", "INT32", "INT64"]),
    ("BOOL indices", change(0, datatype="BOOL", data=[True, False, True, True]),
     ["indices", "BOOL", "INT32", "INT64"]),
    ("BYTES indices", change(0, datatype="BYTES", data=["a", "b", "c", "d"]),
     ["indices", "BYTES"]),
    ("UINT64 offsets", change(1, datatype="UINT64"), ["offsets", "UINT64", "INT64"]),
    ("FP64 segment_ids",
     ask(tensor("indices", [0]), tensor("segment_ids", [0], None, "FP64")),
     ["segment_ids", "FP64"]),
    ("FP32 num_segments", segments([0, 1, 2], scalar("num_segments", 3, "FP32")),
     ["num_segments", "FP32"]),
    ("FP32 default_index", plus(scalar("default_index", 0, "FP32")), ["default_index", "FP32"]),
    ("FP64 weights for FP32 rows", plus(tensor("per_sample_weights", [1] * 4, None, "FP64")),
     ["per_sample_weights", "FP64", "FP32"]),
    ("INT32 weights for FP32 rows", plus(tensor("per_sample_weights", [1] * 4, None, "INT32")),
     ["per_sample_weights", "INT32", "FP32"]),
    ("FP16 weights in JSON", plus(tensor("per_sample_weights", [1] * 4, None, "FP16")),
     ["per_sample_weights", "FP16", "binary"]),
    ("BF16 weights in JSON", plus(tensor("per_sample_weights", [1] * 4, None, "BF16")),
     ["per_sample_weights", "BF16", "binary"]),
    ("FP16 indices in JSON", change(0, datatype="FP16"), ["indices", "FP16"]),
]

# ---- numbers ----------------------------------------------------------------------------------
NUMBERS = [
    ("a fraction among integers", data_text("[0, 2, 1.5, 4]"), ["indices", "2", "1.5"]),
    ("1.0 among integers", data_text("[0, 1.0, 3, 4]"), ["indices", "1", "1.0"]),
    ("an exponent among integers", data_text("[0, 2, 3, 1e0]"), ["indices", "3", "1e0"]),
    ("a string among integers", data_text('["0", 2, 3, 4]'), ["indices", "0"]),
    ("null among integers", data_text("[0, null, 3, 4]"), ["indices", "1", "null"]),
    ("true among integers", data_text("[0, 2, true, 4]"), ["indices", "2", "true"]),
    ("an object among integers", data_text("[0, 2, {}, 4]"), ["indices", "2"]),
    ("2^63 as INT64", data_text("[0, 2, 3, 9223372036854775808]"),
     ["indices", "3", "9223372036854775808"]),
    ("-2^63 - 1 as INT64", data_text("[-9223372036854775809, 2, 3, 4]"),
     ["indices", "0", "-9223372036854775809"]),
    ("2^31 as INT32", change(0, datatype="INT32", data=[0, 2**31, 3, 4]),
     ["indices", "1", "2147483648"]),
    ("a leading zero", data_text("[0, 02, 3, 4]"), ["indices"]),
    ("a leading plus", data_text("[0, +2, 3, 4]"), ["indices"]),
    ("a lone minus", data_text("[0, -, 3, 4]"), ["indices"]),
    ("hexadecimal", data_text("[0, 0x2, 3, 4]"), ["indices"]),
    ("NaN among integers", data_text("[0, NaN, 3, 4]"), ["indices", "NaN"]),
    ("two commas", data_text("[0,, 2, 3, 4]"), ["indices"]),
    ("a trailing comma in data", data_text("[0, 2, 3, 4,]"), ["indices", "no comma may precede ']'"]),
    ("a missing comma in data", data_text("[0, 2 3, 4]"), ["indices"]),
    ("data an object", data_text("{}"), ["indices", "data"]),
    ("data a string", data_text('"0234"'), ["indices", "data"]),
    ("data a number", data_text("5"), ["indices", "data"]),
    ("data true", data_text("true"), ["indices", "data"]),
    ("no data", change(0, data=DROP), ["indices", "data"]),
    ("null data and no binary_data_size", data_text("null"), ["indices", "data"]),
    ("data nested 33 deep", data_text("[" * 33 + "0, 2, 3, 4" + "]" * 33), ["indices"]),
] + [
    (f"{what} as FP32 weight",
     plus(tensor("per_sample_weights", [1, 7, 1, 1], None, "FP32")).replace("7,", text + ","),
     ["per_sample_weights"])
    for what, text in [("1e999", "1e999"), ("1e39", "1e39"), ("-1e400", "-1e400"), (".5", ".5"),
                       ("1.", "1."), ("1e", "1e"), ("nan", "nan"), ("inf", "inf"),
                       ("+Infinity", "+Infinity"), ("-NaN", "-NaN"), ("a string", '"1"'),
                       ("null", "null"), ("true", "true")]
]

# ---- which tensors ----------------------------------------------------------------------------
TENSORS = [
    ("no inputs key", "{}", ["inputs"]),
    ("inputs null", '{"inputs": null}', ["inputs"]),
    ("inputs an object", '{"inputs": {}}', ["inputs"]),
    ("no inputs", ask(), ["indices"]),
    ("an input that is a number", '{"inputs": [5]}', ["inputs"]),
    ("an input without name", change(0, name=DROP), ["name"]),
    ("an input whose name is a number", change(0, name=7), ["name"]),
    ("an input with an empty name", change(0, name=""), ["input", "indices"]),
    ("an unknown input", change(0, name="index"), ["index", "indices"]),
    ("an input named in capitals", change(0, name="Indices"), ["Indices"]),
    ("a repeated input", plus(GOOD["inputs"][0]), ["indices"]),
    ("only indices of one dimension", ask(GOOD["inputs"][0]), ["offsets", "segment_ids"]),
    ("only offsets", ask(GOOD["inputs"][1]), ["indices"]),
    ("only segment_ids", ask(tensor("segment_ids", [0])), ["indices"]),
    ("offsets and segment_ids", plus(tensor("segment_ids", [0, 0, 1, 1])), ["segment_ids"]),
    ("num_segments with offsets", plus(scalar("num_segments", 2)), ["num_segments"]),
    ("num_segments with packed indices",
     ask(tensor("indices", [0, 1], [1, 2]), scalar("num_segments", 1)), ["num_segments"]),
    ("packed indices and offsets", change(0, shape=[2, 2]), ["indices"]),
    ("both data and binary_data_size", change(0, parameters={"binary_data_size": 32}),
     ["indices", "binary_data_size"]),
    ("shared memory for an input",
     change(0, data=DROP, parameters={"shared_memory_region": "r", "shared_memory_byte_size": 32}),
     ["indices", "shared_memory_region"]),
    ("shared memory for the output",
     plus(outputs=[{"name": "embeddings", "parameters": {"shared_memory_region": "r"}}]),
     ["embeddings", "shared_memory_region"]),
    ("an unknown output", plus(outputs=[{"name": "embedding"}]), ["embedding", "embeddings"]),
    ("an output without name", plus(outputs=[{}]), ["outputs", "name"]),
    ("an output that is a string", plus(outputs=["embeddings"]), ["outputs"]),
    ("outputs an object", plus(outputs={"name": "embeddings"}), ["outputs"]),
    ("parameters of an input an array", change(0, parameters=[]), ["indices", "parameters"]),
    ("id a number", plus(id=5), ["id"]),
    ("parameters an array", plus(parameters=[]), ["parameters"]),
    ("binary_data_output a string", plus(parameters={"binary_data_output": "yes"}),
     ["binary_data_output"]),
    ("binary_data a number",
     plus(outputs=[{"name": "embeddings", "parameters": {"binary_data": 1}}]), ["binary_data"]),
    *((f"an output's parameters {wrong!r}",
       plus(outputs=[{"name": "embeddings", "parameters": wrong}]),
       ["output 'embeddings': \"parameters\" must be an object"])
      for wrong in ([1], [], [{"binary_data": True}], 5, "text", True)),
    ("unknown reduction", plus(parameters={"reduction": "median"}),
     ["reduction", "median", "sum", "mean", "max", "sqrtn", "none"]),
    ("reduction a number", plus(parameters={"reduction": 0}), ["reduction"]),
    ("padding_idx a string", plus(parameters={"padding_idx": "0"}), ["padding_idx"]),
    ("padding_idx a fraction", plus(parameters={"padding_idx": 0.5}), ["padding_idx"]),
    ("padding_idx past the table", plus(parameters={"padding_idx": 5}),
     ["padding_idx", "5", "-5", "4"]),
    ("padding_idx before the table", plus(parameters={"padding_idx": -6}),
     ["padding_idx", "-6", "-5", "4"]),
    ("padding_idx of 2^63", plus(parameters={"padding_idx": 2**63}), ["padding_idx"]),
    ("include_last_offset a number", plus(parameters={"include_last_offset": 1}),
     ["include_last_offset"]),
    ("unknown output_datatype", plus(parameters={"output_datatype": "float"}),
     ["output_datatype", "float"]),
    ("output_datatype that does not convert", plus(parameters={"output_datatype": "INT8"}),
     ["output_datatype", "INT8", "FP32"]),
    ("FP64 of FP32 rows", plus(parameters={"output_datatype": "FP64"}),
     ["output_datatype", "FP64", "FP32"]),
    ("FP16 answer in JSON", plus(parameters={"output_datatype": "FP16"}),
     ["FP16", "binary", "FP32"]),
]

# ---- values -----------------------------------------------------------------------------------
VALUES = [
    ("index past the table", change(0, data=[0, 2, 5, 9]), ["indices", "2", "5", "0", "4"]),
    ("negative index", change(0, data=[0, 2, 3, -1]), ["indices", "3", "-1", "0", "4"]),
    ("index of 2^32", change(0, data=[0, 2**32, 3, 4]), ["indices", "1", "4294967296"]),
    ("index of 2^61", change(0, data=[2**61, 2, 3, 4]), ["indices", "0", str(2**61)]),
    ("least index", change(0, data=[0, 2, 3, -2**63]), ["indices", "3", str(-2**63)]),
    ("wrong index that no bag has",
     ask(tensor("indices", [99, 0]), tensor("offsets", [1])), ["indices", "0", "99"]),
    ("wrong packed index", packed([[0, 1], [2, 7]]), ["indices", "3", "7", "4"]),
    ("wrong index of a segment", segments([0, 1, 2], indices=[0, 5, 1]), ["indices", "1", "5"]),
    ("offsets that fall", change(1, shape=[3], data=[0, 3, 2]), ["offsets", "2", "3"]),
    ("offset past the end", change(1, data=[0, 5]), ["offsets", "1", "5", "4"]),
    ("negative offset", change(1, data=[-1, 0]), ["offsets", "0", "-1"]),
    ("offset of 2^32", change(1, data=[0, 2**32]), ["offsets", "1", "4294967296"]),
    ("no offsets with include_last_offset",
     ask(tensor("indices", []), tensor("offsets", []), parameters={"include_last_offset": True}),
     ["offsets", "include_last_offset"]),
    ("last offset past the end",
     change(1, shape=[3], data=[0, 2, 5])[:-1] + ', "parameters": {"include_last_offset": true}}',
     ["offsets", "2", "5", "4"]),
    ("segment ids that fall", segments([1, 0, 1]), ["segment_ids", "1", "0"]),
    ("negative segment id", segments([-1, 0, 1]), ["segment_ids", "0", "-1"]),
    ("segment id at num_segments", segments([0, 1, 2], scalar("num_segments", 2)),
     ["segment_ids", "2", "1"]),
    ("segment id with no segments", segments([0, 0, 0], scalar("num_segments", 0)),
     ["segment_ids", "0"]),
    ("negative num_segments", segments([0, 1, 2], scalar("num_segments", -1)),
     ["num_segments", "-1"]),
    ("2^40 segments", segments([0, 1, 2], scalar("num_segments", 2**40)),
     ["max_reply_bytes", str(2**40)]),
    ("2^61 segments", segments([0, 1, 2], scalar("num_segments", 2**61)),
     ["max_reply_bytes", str(2**61)]),
    ("2^63 - 1 segments", segments([0, 1, 2], scalar("num_segments", 2**63 - 1)),
     ["max_reply_bytes"]),
    ("2^61 segments by the last id", segments([0, 1, 2**61]), ["max_reply_bytes"]),
    ("2^63 segments by the last id", segments([0, 1, 2**63 - 1]), ["max_reply_bytes"]),
    ("2^40 packed bags of no index", ask(tensor("indices", [], [2**40, 0])), ["max_reply_bytes"]),
    ("2^62 packed bags of no index", ask(tensor("indices", [], [2**62, 0])),
     ["indices", "9007199254740991"]),
    ("default_index past the table", plus(scalar("default_index", 5)),
     ["default_index", "5", "4"]),
    ("default_index of -2", plus(scalar("default_index", -2)), ["default_index", "-2", "-1"]),
    ("default_index of 2^32", plus(scalar("default_index", 2**32)),
     ["default_index", "4294967296"]),
    ("weights with max by parameter",
     plus(tensor("per_sample_weights", [1] * 4, None, "FP32"), parameters={"reduction": "max"}),
     ["per_sample_weights", "max"]),
]

# (name, model, request, words) for the other models.
OTHER_MODELS = [
    ("weights with mean", "mean", plus(tensor("per_sample_weights", [1] * 4, None, "FP32")),
     ["per_sample_weights", "mean"]),
    ("FP16 answer in JSON of FP16 rows", "half", plus(parameters={"output_datatype": "FP16"}),
     ["FP16", "binary", "FP32"]),
    ("FP64 weights for FP16 rows", "half",
     plus(tensor("per_sample_weights", [1] * 4, None, "FP64")),
     ["per_sample_weights", "FP64", "FP32"]),
    ("sqrtn of integers", "whole", plus(parameters={"reduction": "sqrtn"}), ["sqrtn", "INT32"]),
    ("FP32 of integers", "whole", plus(parameters={"output_datatype": "FP32"}),
     ["output_datatype", "INT32"]),
    ("first offset not zero", "strict", change(1, data=[1, 3]), ["offsets", "0", "1"]),
    ("mixed index types", "strict", change(1, datatype="INT32"), ["offsets", "INT32", "INT64"]),
    ("mixed type of default_index", "strict", plus(scalar("default_index", 0, "INT32")),
     ["default_index", "INT32", "INT64"]),
]

# ---- JSON -------------------------------------------------------------------------------------
JSON = [
    ("an empty body", "", ["body is empty", "JSON", "inputs"]),
    ("spaces alone", "   ", ["JSON"]),
    ("null", "null", ["object"]),
    ("an array", "[]", ["object"]),
    ("a string", '"inputs"', ["object"]),
    ("a number", "7", ["object"]),
    ("half a request", TEXT[:len(TEXT) // 2], []),
    ("no closing brace", TEXT[:-1], []),
    ("a second brace", TEXT + "}", []),
    ("garbage at the end", TEXT + " x", []),
    ("a NUL at the end", TEXT + "\0", []),
    ("a second document", TEXT + TEXT, []),
    ("a trailing comma in an object", TEXT[:-1] + ",}", []),
    ("a trailing comma in inputs", TEXT[:-2] + ",]}", ["no comma may precede ']'"]),
    ("a key without quotes", swap('"inputs"', "inputs"), []),
    ("single quotes", TEXT.replace('"', "'"), []),
    ("a comment", swap("{", "{/* hello */"), []),
    ("a byte order mark", b"\xef\xbb\xbf" + TEXT.encode(), []),
    ("UTF-16", TEXT.encode("utf-16"), []),
    ("a repeated top-level key", TEXT[:-1] + ', "inputs": []}', ["inputs"]),
    ("a repeated key of an input", swap('"shape"', '"shape": [4], "shape"'), ["shape"]),
    ("a repeated data key", swap('"data"', '"data": [0, 2, 3, 4], "data"'), ["data"]),
    ("a repeated key, once escaped", TEXT[:-1] + ', "input\\u0073": []}', ["inputs"]),
    ("a repeated unknown key", TEXT[:-1] + ', "x": 1, "x": 2}', ["x"]),
    ("a repeated parameter",
     TEXT[:-1] + ', "parameters": {"reduction": "sum", "reduction": "max"}}', ["reduction"]),
    ("invalid UTF-8", TEXT[:-1].encode() + b', "id": "\xff"}', ["UTF-8"]),
    ("overlong UTF-8", TEXT[:-1].encode() + b', "id": "\xc0\xaf"}', ["UTF-8"]),
    ("a surrogate in UTF-8", TEXT[:-1].encode() + b', "id": "\xed\xa0\x80"}', ["UTF-8"]),
    ("invalid UTF-8 in an unknown key", TEXT[:-1].encode() + b', "\x80": 1}', ["UTF-8"]),
    ("half a surrogate pair", TEXT[:-1] + ', "id": "\\ud800"}', []),
    ("an unknown escape", TEXT[:-1] + ', "id": "\\x41"}', []),
    ("a newline in a string", TEXT[:-1] + ', "id": "a\nb"}', []),
    ("a NUL in a string", TEXT[:-1] + ', "id": "a\0b"}', []),
    ("01 in an unknown key", TEXT[:-1] + ', "x": 01}', []),
    ("1. in an unknown key", TEXT[:-1] + ', "x": 1.}', []),
    ("NaN outside data", TEXT[:-1] + ', "x": NaN}', []),
    ("True in capitals", TEXT[:-1] + ', "x": True}', []),
    ("100,000 open brackets", "[" * 100_000, []),
    ("100,000 open objects", '{"a":' * 100_000, []),
    ("100,000 brackets in an unknown key",
     TEXT[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}", []),
    ("100,000 brackets as data", data_text("[" * 100_000 + "]" * 100_000), ["indices"]),
]


# ---- binary -----------------------------------------------------------------------------------
def binary(size=32, length=None, raw=None, described=None, **keys):
    """GOOD with `indices` in binary; what is not given is right."""
    entry = {"name": "indices", "shape": [4], "datatype": "INT64",
             "parameters": {"binary_data_size": size}} | keys
    text = json.dumps({"inputs": [entry, GOOD["inputs"][1]]} if described is None else described)
    data = struct.pack("<4q", 0, 2, 3, 4) if raw is None else raw
    return {HEADER_LENGTH: str(len(text)) if length is None else str(length)}, text.encode() + data


_RIGHT_LENGTH = int(binary()[0][HEADER_LENGTH])

BINARY = [
    ("header length 0", binary(length=0), [HEADER_LENGTH, "0"]),
    ("header longer than the body", binary(length=100_000), [HEADER_LENGTH, "100000"]),
    ("header one byte longer than the body", binary(length=_RIGHT_LENGTH + 33), [HEADER_LENGTH]),
    ("header of 2^64 bytes", binary(length=2**64), [HEADER_LENGTH]),
    ("header of 2^64 + the right length", binary(length=2**64 + _RIGHT_LENGTH), [HEADER_LENGTH]),
    ("header of -1 bytes", binary(length=-1), [HEADER_LENGTH, "-1"]),
    ("header of x bytes", binary(length="x"), [HEADER_LENGTH, "x"]),
    ("header with a unit", binary(length=f"{_RIGHT_LENGTH}B"), [HEADER_LENGTH]),
    ("header with a plus", binary(length=f"+{_RIGHT_LENGTH}"), [HEADER_LENGTH]),
    ("header in hexadecimal", binary(length=hex(_RIGHT_LENGTH)), [HEADER_LENGTH]),
    ("header with nothing", binary(length=""), [HEADER_LENGTH]),
    ("header one byte short", binary(length=_RIGHT_LENGTH - 1), []),
    ("header one byte long", binary(length=_RIGHT_LENGTH + 1), [HEADER_LENGTH]),
    ("no header length", ({}, binary()[1]), [HEADER_LENGTH]),
    ("binary_data_size without header length", ({}, binary(raw=b"")[1]), ["indices"]),
    ("one byte left over", binary(raw=bytes(33)), ["1"]),
    ("one byte missing", binary(raw=bytes(31)), ["indices", "32", "31"]),
    ("all bytes missing", binary(raw=b""), ["indices", "32"]),
    ("bytes nobody asked for", binary(described=GOOD, raw=b"\0"), ["1"]),
    ("binary_data_size too small", binary(size=24, raw=bytes(24)), ["indices", "24", "32"]),
    ("binary_data_size too large", binary(size=40, raw=bytes(40)), ["indices", "40", "32"]),
    ("binary_data_size 0", binary(size=0, raw=b""), ["indices", "0", "32"]),
    ("binary_data_size negative", binary(size=-32), ["indices", "binary_data_size"]),
    ("binary_data_size fractional", binary(size=32.5), ["indices", "binary_data_size"]),
    ("binary_data_size a string", binary(size="32"), ["indices", "binary_data_size"]),
    ("binary_data_size null", binary(size=None), ["indices"]),
    ("binary_data_size of 2^63", binary(size=2**63), ["indices", "binary_data_size"]),
    ("binary_data_size of 2^64 + 32", binary(size=2**64 + 32), ["indices", "binary_data_size"]),
    ("a shape of 2^61 INT64", binary(shape=[2**61]), ["indices"]),
    ("a shape of 2^61 + 4 INT64", binary(shape=[2**61 + 4]), ["indices"]),
    ("BYTES indices in binary", binary(datatype="BYTES"), ["indices", "BYTES"]),
    ("FP16 indices in binary", binary(datatype="FP16", shape=[16]), ["indices", "FP16"]),
    ("a wrong index in binary", binary(raw=struct.pack("<4q", 0, 2, 5, 4)),
     ["indices", "2", "5", "4"]),
]
