"""Files of tables and quantised rows, written and read by NumPy as their descriptions say (safetensors by
the format's own, rows by config/examples/README.md), and converted by the program."""

import json
import struct

import numpy as np

from harness import expect, expect_equal, run
from numerics import Storage, random_stored


def file_names(directory):
    return sorted(path.name for path in directory.iterdir())


def convert(*arguments, code=0, words=(), **options):
    """bagserve convert, its exit code, and words of what it says."""
    done = run("convert", *arguments, **options)
    expect_equal(done.returncode, code, f"{arguments}: {done.stderr}")
    for word in words:
        expect(word in done.stderr, f"{word!r} is not in {done.stderr!r}")
    return done


# ---- safetensors ------------------------------------------------------------------------------
TYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "U8": "u1", "F8_E4M3": "u1",
         "F8_E5M2": "u1", "F8_E8M0": "u1", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8", "U16": "u2", "U32": "u4", "U64": "u8"}


def read_safetensors(path):
    """(metadata, tensors by name, where the data begins)."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    metadata, tensors, end = header.pop("__metadata__"), {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        expect_equal(begin, end, f"{name} begins")
        end = stop
        raw = data[8 + size + begin:8 + size + stop]
        tensors[name] = np.frombuffer(raw, "<" + TYPES[entry["dtype"]]).reshape(entry["shape"])
    expect_equal(8 + size + end, len(data), "the end of the file")
    return metadata, tensors, 8 + size


def write_safetensors(path, tensors, metadata=None):
    """The format's own description, in a few lines: name -> (dtype, array)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# ---- quantised rows ---------------------------------------------------------------------------
def random_rows(rng, row_format, elements, count=30):
    """Stored rows, and the f32 rows that they stand for."""
    storage = Storage("FP32", row_format)
    stored = random_stored(rng, storage, count, elements, is_finite=True)
    return stored, storage.decode(stored, elements)
