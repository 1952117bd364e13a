"""The specification's 5 x 2 table, one request that its model `items` answers, and the answer."""

import numpy as np

from harness import expect
from v2 import Tensor, infer_body

EXAMPLE = np.array([[-0.2, -0.6], [-0.1, -0.4], [-1.9, -1.8], [-1.0, 1.5], [0.8, -0.7]], np.float32)
INFER = "/v2/models/items/infer"


def i64(name, values, shape=None):
    array = np.asarray(values, np.int64)
    return Tensor(name, array if shape is None else array.reshape(shape))


INPUTS = [i64("indices", [0, 2, 3, 4]), i64("offsets", [0, 3])]
WANT = np.array([EXAMPLE[0] + EXAMPLE[2] + EXAMPLE[3], EXAMPLE[4]])
BODY = infer_body(INPUTS)[0]


def check_rows(got, want):
    """Equal in shape and value; a NaN equals a NaN."""
    got, want = np.asarray(got), np.asarray(want)
    expect(got.shape == want.shape and np.array_equal(got, want, equal_nan=got.dtype.kind == "f"),
           f"{got} instead of {want}")
