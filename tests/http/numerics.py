"""What stored rows stand for, and what pooling makes of them: every datatype and row format, in NumPy.

Rows are arrays [rows, elements] here, whatever the table's shape: of f32 for FP16, BF16, FP32 and
quantised rows, of f64 for FP64, of their own type for integers. kernels/README.md has the rules.
"""

import dataclasses
from fractions import Fraction

import numpy as np

from v2 import NUMPY, bf16_from_f32, f32_from_bf16

F16, F32, F64, U8 = np.float16, np.float32, np.float64, np.uint8
HALVES = ("FP16", "BF16")
CONVERTIBLE = (*HALVES, "FP32")
INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
# name -> (codes, datatype of the parameters, how many there are, whether they are in front)
ROW_FORMATS = {
    "int8": ("int8", F32, 2, False), "int8_f16_front": ("int8", F16, 2, True),
    "int4": ("int4", F16, 2, False), "int4_f16_front": ("int4", F16, 2, True),
    "f8_e4m3": ("e4m3", F32, 0, False), "f8_e5m2": ("e5m2", F32, 0, False),
    "f8_e4m3_scaled": ("e4m3", F32, 1, False), "f8_e5m2_scaled": ("e5m2", F32, 1, False),
    "int8_f16_back": ("int8", F16, 2, False), "int8_symmetric": ("sint8", F32, 1, False),
    "int8_symmetric_f16": ("sint8", F16, 1, False), "int2": ("int2", F16, 2, False),
    "int2_f16_front": ("int2", F16, 2, True)}
BITS = {"int4": 4, "int2": 2}  # of codes of which a byte has several, the first in the lowest bits


def pack(codes, bits):
    """Codes [rows, elements] as bytes."""
    per_byte = 8 // bits
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_byte))).astype(U8)
    return sum(codes[:, i::per_byte] << (i * bits) for i in range(per_byte)).astype(U8)


def unpack(packed, bits, elements):
    parts = [packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, 2).reshape(len(packed), packed.shape[1] * len(parts))[:, :elements]


def quiet(function):
    """Infinities and NaNs are among what is compared."""
    return np.errstate(all="ignore")(function)


# ---- numbers of eight bits -------------------------------------------------------------------------
def _e4m3():
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, (codes & 7).astype(F64)
    values = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0**(exponent - 10))
    values[codes & 127 == 127] = np.nan
    return np.where(codes & 128, -values, values).astype(F32)


F8 = {"e4m3": _e4m3(), "e5m2": (np.arange(256, dtype=np.uint16) << 8).view(F16).astype(F32)}
# The number after the largest finite one if there were more of them. It ends the range that rounds to the largest.
F8_BEYOND = {"e4m3": 480.0, "e5m2": 65536.0}


@quiet
def encode_f8(codes, values):
    """The nearest codes, ties to even ones; None where a finite value would not be finite any more, or
    an infinity becomes a NaN."""
    numbers = F8[codes][:128].astype(F64)
    top = int(np.nonzero(~np.isfinite(numbers))[0][0])
    numbers = np.append(numbers[:top], F8_BEYOND[codes])
    magnitude = np.abs(values.astype(F64))
    finite = np.where(np.isfinite(magnitude), np.minimum(magnitude, F8_BEYOND[codes]), 0)
    above = np.clip(np.searchsorted(numbers, finite), 1, top)
    low, high = numbers[above - 1], numbers[above]
    up = (finite - low > high - finite) | ((finite - low == high - finite) & (above % 2 == 0))
    found = np.where(up, above, above - 1)
    if (np.isfinite(values) & (found == top)).any() or (codes == "e4m3" and np.isinf(values).any()):
        return None
    found = np.where(np.isinf(values), top, np.where(np.isnan(values), 127, found))
    return (found | np.where(np.signbit(values), 128, 0)).astype(U8)


# ---- how rows are stored ---------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Storage:
    """Of a table: the datatype that its elements have for a client, and the bytes of a row."""

    datatype: str
    row_format: str = "plain"

    @property
    def quantised(self):
        return self.row_format != "plain"

    @property
    def stored(self):
        return np.dtype(U8 if self.quantised else NUMPY[self.datatype])

    @property
    def is_float(self):
        return self.datatype in (*CONVERTIBLE, "FP64")

    @property
    def computed(self):
        """What elements are computed in."""
        return F32 if self.datatype in CONVERTIBLE else NUMPY[self.datatype]

    def width(self, elements):
        """Stored elements of a row."""
        if not self.quantised:
            return elements
        codes, parameter, count, _ = ROW_FORMATS[self.row_format]
        return count * np.dtype(parameter).itemsize + -(-elements * BITS.get(codes, 8) // 8)

    def split(self, stored, elements):
        """Codes [rows, elements] of quantised rows, and their parameters as f32."""
        codes, parameter, count, in_front = ROW_FORMATS[self.row_format]
        size = count * np.dtype(parameter).itemsize
        front, back = (stored[:, :size], stored[:, size:]) if in_front else (
            stored[:, :stored.shape[1] - size], stored[:, stored.shape[1] - size:])
        packed, raw = (back, front) if in_front else (front, back)
        if codes in BITS:
            packed = unpack(packed, BITS[codes], elements)
        if codes == "sint8":
            packed = packed.view(np.int8)
        return packed, np.ascontiguousarray(raw).view(parameter).astype(F32).reshape(len(stored), count)

    @quiet
    def decode(self, stored, elements):
        """[rows, width] -> [rows, elements] as they are computed with."""
        if self.row_format == "plain":
            return f32_from_bf16(stored) if self.datatype == "BF16" else stored.astype(self.computed)
        packed, parameters = self.split(stored, elements)
        codes, _, count, _ = ROW_FORMATS[self.row_format]
        if codes == "sint8":
            return packed.astype(F32) * parameters
        if codes in F8:
            values = F8[codes][packed]
            return values * parameters if count else values
        scale, bias = parameters[:, :1], parameters[:, 1:]
        return multiply_add(packed.astype(F32), scale, bias + np.zeros_like(packed, F32))

    def join(self, codes, parameters):
        """Codes [rows, elements] and their parameters as rows are stored."""
        kind, number, count, in_front = ROW_FORMATS[self.row_format]
        if kind in BITS:
            codes = pack(codes, BITS[kind])
        raw = np.ascontiguousarray(parameters.astype(number)).view(U8).reshape(
            len(codes), count * np.dtype(number).itemsize)
        parts = [codes.astype(U8), raw]
        return np.hstack(parts[::-1] if in_front else parts)

    @quiet
    def encode(self, values):
        """Rows of f32 as they are stored; None where one does not fit. Of integers' codes with
        parameters of f16, which the server searches for, only `exact_rows`."""
        if not self.quantised:
            return self._encode_plain(values)
        codes, _, count, _ = ROW_FORMATS[self.row_format]
        if codes in F8:
            return self._encode_f8(codes, values, count)
        if not np.isfinite(values).all():
            return None
        if codes == "sint8":
            return self._encode_symmetric(values)
        return self._encode_affine(values)

    def _encode_affine(self, values):
        """As FBGEMM: from the least value to the largest; f16 scale and bias are not searched for."""
        codes, number, _, _ = ROW_FORMATS[self.row_format]
        most = F32((1 << BITS.get(codes, 8)) - 1)
        low, high = values.min(axis=1) + F32(0), values.max(axis=1) + F32(0)
        if number is F16:
            low = low.astype(F16).astype(F32)
            scale = np.maximum(((high - low) / most).astype(F16).astype(F32), F32(2.0**-24))
        else:
            scale = (high - low) / most
            scale = np.where((high > low) & (scale < F32(2.0**-126)), F32(2.0**-126), scale)
        if not np.isfinite(high - low + multiply_add(np.full_like(scale, most), scale, low)).all():
            return None
        places = (values - low[:, None]) * (F32(1) / scale)[:, None]
        places = np.where(np.isnan(places), 0, np.clip(places, 0, most))
        return self.join(np.rint(places).astype(U8), np.stack([scale, low], 1))

    def _encode_symmetric(self, values):
        number = ROW_FORMATS[self.row_format][1]
        largest = np.abs(values).max(axis=1, initial=0) / F32(127)
        scale = largest.astype(number)
        scale = np.where(scale < largest, np.nextafter(scale, number(np.inf)), scale).astype(F32)
        scale = np.maximum(scale, F32(2.0**-24 if number is F16 else 2.0**-126))[:, None]
        if not np.isfinite(scale).all():
            return None
        codes = np.rint(np.clip(values * (F32(1) / scale), -127, 127)).astype(np.int8)
        return self.join(codes.view(U8), scale)

    def _encode_plain(self, values):
        if self.datatype in ("FP32", "FP64"):
            return values.astype(self.stored)
        stored = round_halves(values, self.datatype)
        lost = np.isinf(widened(stored, self.datatype)) & np.isfinite(values)
        return None if lost.any() else stored

    def _encode_f8(self, codes, values, count):
        if not count:
            packed = encode_f8(codes, values)
            return packed if packed is None else self.join(packed, np.zeros((len(values), 0)))
        if not np.isfinite(values).all():
            return None
        largest = np.abs(values).max(axis=1, initial=0) / F32(448 if codes == "e4m3" else 57344)
        scale = np.maximum(largest, F32(2.0**-126)).astype(F32)[:, None]
        packed = encode_f8(codes, values / scale)
        return packed if packed is None else self.join(packed, scale)

    @property
    def is_searched(self):
        """Whether the server searches for parameters when it encodes."""
        return self.quantised and ROW_FORMATS[self.row_format][1:3] == (F16, 2)


# ---- random rows -----------------------------------------------------------------------------------
def random_stored(rng, storage, count, elements, is_finite=False):
    """Rows as they are stored: any bits that such rows may have, but for scales that overflow. Codes of eight-bit floats
    that are no numbers can be left out."""
    shape = (count, elements)
    if not storage.quantised and not storage.is_float:
        limits = np.iinfo(storage.stored)
        low, high = (limits.min, limits.max) if rng.integers(2) else (max(limits.min, -100), 100)
        return rng.integers(low, high, shape, storage.stored, endpoint=True)
    if not storage.quantised:
        values = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, (count, 1)))
        if rng.random() < 0.15:
            special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 2.0**-24, 60000.0])
            where = rng.random(shape) < 0.1
            values[where] = rng.choice(special, int(where.sum()))
        if storage.datatype == "BF16":
            return bf16_from_f32(values.astype(F32))
        return values.astype(storage.stored)
    codes, _, parameters, _ = ROW_FORMATS[storage.row_format]
    packed = rng.integers(0, 1 << BITS.get(codes, 8), shape).astype(U8)
    if codes in F8 and (is_finite or rng.random() < 0.8):
        packed &= 0xBF
    chosen = np.stack([rng.random(count) / 8 + 0.01, rng.standard_normal(count)], 1)[:, :parameters]
    return storage.join(packed, chosen)


def exact_rows(rng, storage, count, elements):
    """Rows of f32, and how they are stored: of formats whose parameters are searched for such as have an
    exact grid with its first and last code."""
    if storage.is_searched:
        most = (1 << BITS.get(ROW_FORMATS[storage.row_format][0], 8)) - 1
        codes = rng.integers(0, most + 1, (count, elements)).astype(U8)
        scale = np.exp2(rng.integers(-6, 1, count))
        bias = rng.integers(-7, 8, count) * scale
        codes[:, 0], codes[:, -1] = 0, most
        if elements == 1:
            codes[:] = 0
        stored = storage.join(codes, np.stack([scale, bias], 1))
        return storage.decode(stored, elements), stored
    values = (rng.standard_normal((count, elements)) * np.exp2(rng.integers(-4, 5, (count, 1)))).astype(F32)
    return values, storage.encode(values)


# ---- halves ----------------------------------------------------------------------------------------
@quiet
def round_halves(values, datatype):
    """f32 as FP16 or BF16 elements (the bits of BF16), rounded to nearest even."""
    if datatype == "BF16":
        return bf16_from_f32(values)
    halves = values.astype(F16)
    return np.where(np.isnan(halves), np.copysign(F16(np.nan), halves), halves)  # NaNs lose their payload, as NumPy's do not


def widened(elements, datatype):
    """Elements of a reply as numbers that can be compared."""
    return f32_from_bf16(elements) if datatype == "BF16" else elements


# ---- sums ------------------------------------------------------------------------------------------
def fused_multiply_add(weights, rows, sums):
    """weights * rows + sums in f32, rounded once.

    A product of two f32 is exact in f64. Its sum with a third is not, but rounded to odd instead
    of to nearest it still decides correctly when it is then rounded to f32: an inexact sum whose
    last bit is even is moved one step towards its error, which Knuth's two-sum gives exactly.
    """
    product = weights.astype(np.float64) * rows.astype(np.float64)
    addend = sums.astype(np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, total).astype(np.float32)


@quiet
def multiply_add(weights, rows, sums):
    """weights * rows + sums, rounded once."""
    if sums.dtype == F32:
        plain = weights.astype(F64) * rows.astype(F64) + sums.astype(F64)
        exact = fused_multiply_add(np.asarray(weights), rows, sums)
        return np.where(np.isfinite(plain), exact, plain.astype(F32))
    plain = weights * rows + sums
    each = [float(Fraction(float(w)) * Fraction(float(r)) + Fraction(float(s))) if np.isfinite(p) else p
            for w, r, s, p in np.nditer([np.broadcast_to(weights, sums.shape), rows, sums, plain])]
    return np.array(each, F64).reshape(sums.shape)


def float_sum(rows, weights):
    if weights is None:
        return np.add.accumulate(rows, axis=0)[-1]
    total = np.zeros(rows.shape[1:], rows.dtype)
    for weight, row in zip(weights, rows):
        total = multiply_add(weight, row, total)
    return total


def rounding_bound(rows, weights):
    """How far the sum of rows with weights may be from one that rounds each product before it is added: half
    a unit in the last place for each product and each addition of both, of the sum of all magnitudes."""
    return 2 * (len(rows) + 1) * 2.0**-24 * np.abs(rows.astype(np.float64) * weights[:, None]).sum(axis=0)


def float_divisor(reduction, rows, weights):
    if weights is None:
        by = rows.dtype.type(len(rows))
    elif reduction == "mean":
        by = np.add.accumulate(weights)[-1]
    else:
        by = float_sum(weights[:, None], weights)[0]
    return np.sqrt(by) if reduction == "sqrtn" else by


@quiet
def pool_floats(reduction, rows, weights):
    """A bag that is not empty; weights have the rows' type."""
    if reduction == "max":
        return np.maximum.reduce(rows, axis=0)
    total = float_sum(rows, weights)
    if reduction == "sum":
        return total
    by = float_divisor(reduction, rows, weights)
    return np.zeros_like(total) if by == 0 else total / by


def truncated(value, by):
    """The quotient of whole numbers, rounded toward zero."""
    return 0 if by == 0 else abs(value) // abs(by) * (1 if (value < 0) == (by < 0) else -1)


def pool_integers(reduction, rows, weights):
    """Exactly, then modulo 2^width."""
    bits, kind = 8 * rows.dtype.itemsize, rows.dtype
    exact = rows.astype(object)
    if reduction == "max":
        return rows.max(axis=0)
    factors = [1] * len(rows) if weights is None else [int(weight) for weight in weights]
    totals = sum((row * factor for row, factor in zip(exact, factors)), start=np.zeros(rows.shape[1], object))
    if reduction == "mean":
        totals = [truncated(total, sum(factors)) for total in totals]
    return np.array([total % 2**bits for total in totals], f"u{kind.itemsize}").view(kind)
