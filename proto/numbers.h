/* Arrays of numbers <-> JSON text: the data of tensors, exact in both directions.
 * Allocates nothing. Safe on any thread. */
#ifndef BAG_NUMBERS_H
#define BAG_NUMBERS_H

#include "problem.h"

/* Reads the JSON array at text[0] (which must be '[') up to its matching ']', nested to any depth
 * up to BAG_MAX_RANK, flattened in order, into `count` elements of `dtype` at `out`, which may be
 * unaligned. Never reads at or after `text + text_bytes`.
 *
 * Strict JSON: 01, +1, .5, 1., trailing commas and the like are rejected. Integers must be JSON
 * integers (no fraction, no exponent) in the dtype's range, exact over all 64 bits. FP32 and FP64
 * take any JSON number, rounded once to nearest even, and the bare tokens NaN, Infinity and
 * -Infinity; a finite number that would round to an infinity is rejected. BOOL takes true and false
 * (one byte, 1 or 0). FP16, BF16 and BYTES have no JSON form and are the caller's to reject.
 *
 * The number of elements must be exactly `count`; `out` is not written beyond. On success *end is
 * just after the ']'. On failure returns false; *problem (BAD_REQUEST) says which element (flat
 * position), what was there and what is allowed, or how many elements there are; *error_at is the
 * byte in `text`, for a wrong count that of the first element too many or of the last ']'. */
bool bag_numbers_parse(const char *text, size_t text_bytes, enum bag_dtype dtype, size_t count,
                       void *out, const char **end, const char **error_at,
                       struct bag_problem *problem);

/* The most bytes that one element of `dtype` takes as text, with a comma. 0 where the dtype has no
 * JSON form. */
size_t bag_numbers_max_text(enum bag_dtype dtype);

/* Writes `count` elements of `dtype` at `data` (any alignment) as a flat JSON array with brackets,
 * no spaces. Floats are the shortest decimal that reads back to the same value of that type
 * (1.5, 2.0, 1e-7, -0.0; always with a '.' or an exponent, so that readers see a float), the
 * nearest to it of these, without an exponent from 0.00001 to below 10^16; or NaN, Infinity,
 * -Infinity. `out` has room for count * bag_numbers_max_text(dtype) + 2 bytes. Returns
 * the end of what was written; no NUL is added. */
char *bag_numbers_print(const void *data, size_t count, enum bag_dtype dtype, char *out);

#endif
