/* A table: how its rows are stored, the rules by which a model pools them, and what a request
 * brings.
 *
 * Configuration, protocol and loaders need no more than these. What pools is in pool.h, so that a
 * change there compiles what pools alone. */
#ifndef BAG_TABLE_H
#define BAG_TABLE_H

#include "bag.h"

/* How a row is stored. Quantised rows stand for f32 rows: their table's dtype is BAG_F32, and they
 * are pooled as the f32 rows they stand for. X(ID, name in a configuration, kind of rowformat.h
 * that its codes are of, type of the parameters, how many: scale, or scale and bias, whether they
 * precede the codes) */
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

/* PLAIN    elements of the dtype, one after the other
 * INT8     a byte q per element: it is fma(q, scale, bias)
 * INT8_SYMMETRIC  a byte q per element with a sign: it is q * scale
 * INT4, INT2      four or two bits q per element, the lowest ones first: it is fma(q, scale, bias).
 *          What is left of the last byte is padding
 * F8_...   a byte q per element: sign, 4 or 5 bits of exponent, fraction (e4m3 has no infinity). It
 *          is q, or where there is a scale, below 2^120, q * scale */
enum bag_row_format {
#define BAG_X(id, ...) BAG_ROWS_##id,
    BAG_ROW_FORMATS(BAG_X)
#undef BAG_X
        BAG_ROW_FORMAT_COUNT
};

extern const char *const bag_row_format_names[BAG_ROW_FORMAT_COUNT];

/* The row format of that name, or BAG_ROW_FORMAT_COUNT. */
enum bag_row_format bag_row_format_find(const char *name, size_t name_bytes);

/* A table: `num_rows` rows of `row_elements` elements, contiguous, in the machine's byte order.
 * `rows` is aligned to 64 bytes where speed matters; any alignment is correct. */
struct bag_table {
    const void *rows;
    enum bag_dtype dtype; /* any but BOOL and BYTES; BAG_F32 for quantised rows */
    int64_t num_rows;     /* >= 0 */
    size_t row_elements;  /* product of the dimensions after the first; 1 where there is none */
    enum bag_row_format row_format;
};

/* Bytes from one row to the next. */
size_t bag_row_bytes(const struct bag_table *table);

/* Returns the most elements that a quantised row of exactly that many bytes holds, or 0 if it is
 * too short. INT4 rows may have one less, INT2 rows up to three: the bytes do not tell the padding.
 */
size_t bag_row_elements(enum bag_row_format format, size_t row_bytes);

/* What an index outside a dense table does, or a key that a keyed one does not have.
 * X(ID, name in a configuration). HASH is for keys alone. */
#define BAG_MISSINGS(X)   \
    X(ERROR, "error")     \
    X(SKIP, "skip")       \
    X(DEFAULT, "default") \
    X(HASH, "hash")

/* ERROR    rejects the request
 * SKIP     leaves the entry out of its bag
 * DEFAULT  pools the row of default_index in its place
 * HASH     pools a row that follows from the key, see keys.h */
enum bag_missing {
#define BAG_X(id, name) BAG_MISSING_##id,
    BAG_MISSINGS(BAG_X)
#undef BAG_X
        BAG_MISSING_COUNT
};

extern const char *const bag_missing_names[BAG_MISSING_COUNT];

/* How a model pools: fixed by its configuration, some of it changed by a request's parameters. Of a
 * keyed table default_index and padding_idx are keys, bit patterns of 64 bits. */
struct bag_rules {
    enum bag_reduction reduction;
    enum bag_dtype output_dtype; /* the table's, or FP16/BF16/FP32 among each other */
    int64_t default_index;       /* row of empty bags; -1: zeros, unless it is a key */
    bool has_default_index;      /* keyed tables: there is one */
    bool has_padding_idx;
    int64_t padding_idx;      /* [-num_rows, num_rows); its entries leave the bag */
    bool include_last_offset; /* offsets has B+1 elements, the last one ends the last bag */
    bool weighted_mean;       /* weights with mean: divide by the sum of the weights */
    bool prune_invalid;       /* entries with a negative index leave the bag; for mean and sqrtn
                                 also those whose weight is not above zero */
    enum bag_missing missing; /* indices outside the table, or keys that it does not have */
    int64_t hash_rows;        /* HASH: the first so many rows, from 1 */
    bool keyed;               /* indices are keys: see keys.h */
    bool unsorted_segments;   /* segment ids in any order */
    bool require_zero_first_offset;
    bool require_matching_index_types;
};

/* Checks a table and its rules before any request: reduction, output type,
 * default_index, padding_idx. */
enum bag_status bag_rules_check(const struct bag_table *table, const struct bag_rules *rules,
                                struct bag_fault *fault);

/* What a request brought, by enum bag_input; NULL where it brought nothing. */
struct bag_inputs {
    const struct bag_tensor *tensor[BAG_INPUT_COUNT];
};

/* How a request says which indices are a bag. X(ID, name) */
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

/* int32 or int64 elements at any alignment; keys may be uint64, too. */
struct bag_ids {
    const void *data;
    size_t count;
    bool wide; /* int64 */
};

#endif
