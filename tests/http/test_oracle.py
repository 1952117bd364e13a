"""The oracle that all answers are compared with (numerics.py): its fused multiply-add."""

from fractions import Fraction

import numpy as np

import numerics
from harness import Failure


def rounded(exact):
    """A fraction as the nearest float32, ties to even, by exact comparison."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(s)) for s in (-np.inf, guess, np.inf)]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1))


def test_the_oracle(rng):
    """The oracle's fused multiply-add is right, also where rounding twice would go wrong."""
    w, r, s = rng.standard_normal((3, 1000)).astype(np.float32)
    s *= np.exp2(rng.integers(-30, 30, 1000)).astype(np.float32)
    # 641 * 6700417 = 2^32 + 1: added to 1, a hair above the middle between two floats.
    w[0], r[0], s[0] = 641 * 2.0**-28, 6700417 * 2.0**-28, 1
    for i, got in enumerate(numerics.fused_multiply_add(w, r, s)):
        exact = Fraction(float(w[i])) * Fraction(float(r[i])) + Fraction(float(s[i]))
        if got != rounded(exact):
            raise Failure(f"the oracle's fma({w[i]!r}, {r[i]!r}, {s[i]!r}) is {got!r}")
