"""Files of tables and quantised rows, written and read by NumPy as their descriptions say (safetensors by
the format's own, rows by config/examples/README.md), and converted by the program."""

import json
import struct

import numpy as np

from harness import expect, expect_equal, run

F32, F16, U8 = np.float32, np.float16, np.uint8


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
         "F8_E5M2": "u1", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8", "U16": "u2", "U32": "u4",
         "U64": "u8"}


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
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# ---- rows, decoded ----------------------------------------------------------------------------
def e4m3(codes):
    """Numbers with 4 bits of exponent, without NaN."""
    exponent, fraction = codes >> 3 & 15, (codes & 7).astype(float)
    normal = (8 + fraction) * 2.0 ** (exponent.astype(int) - 10)
    return np.where(codes & 128, -1, 1) * np.where(exponent == 0, fraction * 2.0 ** -9, normal)


def e5m2(codes):
    """The upper halves of f16 numbers."""
    return (codes.astype(np.uint16) << 8).view(F16).astype(float)


def affine(codes, params):
    """What codes stand for; `params` has a scale and a bias for each row."""
    scale, bias = params[:, :1].astype(float), params[:, 1:].astype(float)
    return codes * scale + bias


def nibbles(pairs):
    """Codes of four bits, two from each byte; the last one may be padding."""
    return np.stack([pairs & 15, pairs >> 4], 2).reshape(len(pairs), -1)


def params_of(rows, number):
    """The numbers of that type whose bytes the rows are."""
    return np.ascontiguousarray(rows).view(number).astype(F32)


# ---- rows, encoded ----------------------------------------------------------------------------
def bytes_of(numbers):
    return np.ascontiguousarray(numbers).view(U8).reshape(len(numbers), -1)


def packed(codes):
    """Two codes of four bits in a byte, the first one in the low bits."""
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(U8)


def packed_in_fours(codes):
    """Four codes of two bits in a byte, the first one in the lowest bits."""
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 4)))
    return (codes[:, ::4] | codes[:, 1::4] << 2 | codes[:, 2::4] << 4 | codes[:, 3::4] << 6).astype(U8)


PACK = {"int8": lambda codes: codes, "int4": packed, "int2": packed_in_fours}


def random_affine_rows(rng, row_format, count, elements):
    number = F32 if row_format == "int8" else F16
    width = row_format[:4]
    codes = rng.integers(0, 2 ** int(width[3:]), (count, elements)).astype(U8)
    params = np.stack([rng.random(count) / 8 + 0.01, rng.standard_normal(count)], 1).astype(number)
    parts = [PACK[width](codes), bytes_of(params)]
    return np.hstack(parts[::-1] if "front" in row_format else parts), affine(codes, params).astype(F32)


def random_symmetric_rows(rng, row_format, count, elements):
    codes = rng.integers(-128, 128, (count, elements)).astype(np.int8)
    scales = (rng.random((count, 1)) / 8 + 0.01).astype(F16 if row_format.endswith("f16") else F32)
    return np.hstack([codes.view(U8), bytes_of(scales)]), codes.astype(F32) * scales.astype(F32)


def random_rows(rng, row_format, elements, count=30):
    """Stored rows, and the f32 rows that they stand for."""
    if "symmetric" in row_format:
        return random_symmetric_rows(rng, row_format, count, elements)
    if row_format.startswith("int"):
        return random_affine_rows(rng, row_format, count, elements)
    codes = rng.integers(0, 256, (count, elements)).astype(U8) & 0xBF
    rows = (e4m3(codes) if "e4m3" in row_format else e5m2(codes)).astype(F32)
    if not row_format.endswith("scaled"):
        return codes, rows
    scales = (rng.random((count, 1)) / 100).astype(F32)
    return np.hstack([codes, bytes_of(scales)]), rows * scales
