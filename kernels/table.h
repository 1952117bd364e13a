/* A table: the format of its rows, the rules by which a model pools them, and the inputs of a
 * request.
 *
 * Configuration, protocol and loaders need only this header. pool.h has the pooling itself, so that
 * a change there recompiles only what pools. */
#pragma once

#include "bag.h"

/* The row formats. Quantised rows represent f32 rows: the dtype of their table is BAG_F32, and they
 * are pooled like the f32 rows. X(ID, name in a configuration, kind of the codes in rowformat.h,
 * type of the parameters, number of parameters: scale, or scale and bias; whether they precede the
 * codes) */
#define BAG_ROW_FORMATS(X)                                               \
    X(PLAIN, "plain", BY_DTYPE, F32, 0, false)                           \
    X(INT8, "int8", OF_INT8, F32, 2, false)                              \
    X(INT4, "int4", OF_INT4, F16, 2, false)                              \
    X(F8_E4M3, "f8_e4m3", OF_E4M3, F32, 0, false)                        \
    X(F8_E5M2, "f8_e5m2", OF_E5M2, F32, 0, false)                        \
    X(INT8_F16_FRONT, "int8_f16_front", OF_INT8, F16, 2, true)           \
    X(INT4_F16_FRONT, "int4_f16_front", OF_INT4, F16, 2, true)           \
    X(F8_E4M3_SCALED, "f8_e4m3_scaled", OF_E4M3, F32, 1, false)          \
    X(F8_E5M2_SCALED, "f8_e5m2_scaled", OF_E5M2, F32, 1, false)          \
    X(INT8_F16_BACK, "int8_f16_back", OF_INT8, F16, 2, false)            \
    X(INT8_SYMMETRIC, "int8_symmetric", OF_SINT8, F32, 1, false)         \
    X(INT8_SYMMETRIC_F16, "int8_symmetric_f16", OF_SINT8, F16, 1, false) \
    X(INT2, "int2", OF_INT2, F16, 2, false)                              \
    X(INT2_F16_FRONT, "int2_f16_front", OF_INT2, F16, 2, true)

/* The encodings of a row:
 *
 *   PLAIN           elements of the dtype, one after the other
 *   INT8            a byte q for each element: fma(q, scale, bias)
 *   INT8_SYMMETRIC  a signed byte q for each element: q * scale
 *   INT4, INT2      four or two bits q for each element, the lowest ones first: fma(q, scale,
 *                   bias). The rest of the last byte is padding
 *   F8_...          a byte q for each element: sign, 4 or 5 bits of exponent, fraction (e4m3 has no
 *                   infinity). The element is q, or q * scale if there is a scale, which is below
 *                   2^120 */
enum bag_row_format {
#define BAG_X(id, ...) BAG_ROWS_##id,
    BAG_ROW_FORMATS(BAG_X)
#undef BAG_X
        BAG_ROW_FORMAT_COUNT
};

extern const char *const bag_row_format_names[BAG_ROW_FORMAT_COUNT];

/* Returns the row format with this name, or BAG_ROW_FORMAT_COUNT if there is none. */
enum bag_row_format bag_row_format_find(const char *name, size_t name_bytes);

/* A table: `num_rows` contiguous rows of `row_elements` elements, in the machine's byte order.
 * `rows` should be aligned to 64 bytes for speed, but may have any alignment. */
struct bag_table {
    const void *rows;
    enum bag_dtype dtype; /* any except BOOL and BYTES; BAG_F32 for quantised rows */
    int64_t num_rows;     /* >= 0 */
    size_t row_elements;  /* product of the dimensions after the first; 1 if there are none */
    enum bag_row_format row_format;
};

/* Returns the distance from one row to the next, in bytes. */
size_t bag_row_bytes(const struct bag_table *table);

/* Returns the maximum number of elements in a quantised row of this size, or 0 if it is too short.
 * An INT4 row may have one element less and an INT2 row up to three less, because the size does not
 * tell how much of the last byte is padding. */
size_t bag_row_elements(enum bag_row_format format, size_t row_bytes);

/* Handling of an index outside a dense table, or a key that a keyed one does not have. X(ID, name
 * in a configuration). HASH is only for keys. */
#define BAG_MISSINGS(X)   \
    X(ERROR, "error")     \
    X(SKIP, "skip")       \
    X(DEFAULT, "default") \
    X(HASH, "hash")

/* The kinds of handling:
 *
 *   ERROR    rejects the request
 *   SKIP     leaves the entry out of its bag
 *   DEFAULT  pools the row of default_index instead
 *   HASH     pools a row that is computed from the key, see keys.h */
enum bag_missing {
#define BAG_X(id, name) BAG_MISSING_##id,
    BAG_MISSINGS(BAG_X)
#undef BAG_X
        BAG_MISSING_COUNT
};

extern const char *const bag_missing_names[BAG_MISSING_COUNT];

/* The rules by which a model pools. The configuration sets them, and parameters of a request may
 * change some. In a keyed table default_index and padding_idx are keys, bit patterns of 64 bits. */
struct bag_rules {
    enum bag_reduction reduction;
    enum bag_dtype
        output_dtype; /* the table's type, or FP16, BF16 or FP32 if the table's is one of them */
    int64_t default_index;  /* row of empty bags; -1: zeros, unless it is a key */
    bool has_default_index; /* for keyed tables: default_index is set */
    bool has_padding_idx;
    int64_t padding_idx; /* in [-num_rows, num_rows); its entries are left out */
    bool
        include_last_offset; /* offsets has B+1 elements; the last one is the end of the last bag */
    bool weighted_mean;      /* weights with mean: divide by the sum of the weights */
    bool prune_invalid; /* leave out entries with a negative index; for mean and sqrtn also those
                           whose weight is not above zero */
    enum bag_missing missing; /* handling of indices outside the table, or missing keys */
    int64_t hash_rows;        /* for HASH: number of rows, from the first, at least 1 */
    bool keyed;               /* indices are keys, see keys.h */
    bool unsorted_segments;   /* segment ids may be in any order */
    bool require_zero_first_offset;
    bool require_matching_index_types;
};

/* Checks a table and its rules before any request: reduction, output type, default_index,
 * padding_idx. Returns the status and sets *fault if something is wrong. */
enum bag_status bag_rules_check(const struct bag_table *table, const struct bag_rules *rules,
                                struct bag_fault *fault);

/* The inputs of a request, indexed by enum bag_input; NULL: not sent. */
struct bag_inputs {
    const struct bag_tensor *tensor[BAG_INPUT_COUNT];
};

/* How a request divides its indices into bags. X(ID, name) */
#define BAG_FORMS(X)      \
    X(OFFSETS, "offsets") \
    X(PACKED, "packed")   \
    X(SEGMENTS, "segments")

enum bag_form {
#define BAG_X(id, name) BAG_FORM_##id,
    BAG_FORMS(BAG_X)
#undef BAG_X
};
enum { BAG_FORM_COUNT = BAG_FORM_SEGMENTS + 1 };

extern const char *const bag_form_names[BAG_FORM_COUNT];

/* An array of int32 or int64 elements at any alignment. Keys may also be uint64. */
struct bag_ids {
    const void *data;
    size_t count;
    bool wide; /* int64 */
};
