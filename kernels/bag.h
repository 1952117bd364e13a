/* Definitions that all layers share: dtypes, reductions, tensor views, and faults. Nothing here
 * owns memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Marks a variable that is written before it is read. The hardened build clears variables first,
 * which would take measurable time. */
#define BAG_UNSET __attribute__((uninitialized))

/* The maximum rank of a tensor, which is NumPy's. */
#define BAG_MAX_RANK 32

/* Expand a list of X(id, name, ...) to its ids, to its names, or to their number. */
#define BAG_ID(id, ...)         id,
#define BAG_NAME(id, name, ...) name,
#define BAG_ONE(...)            +1

/* ---- element types ---------------------------------------------------------------------------
 * X(ID, name in the V2 protocol, bytes of one element or 0 if they vary, kind). A dtype of kind
 * OTHER may occur in a request, but not in a table. */
#define BAG_DTYPES(X)             \
    X(BOOL, "BOOL", 1, OTHER)     \
    X(U8, "UINT8", 1, UNSIGNED)   \
    X(U16, "UINT16", 2, UNSIGNED) \
    X(U32, "UINT32", 4, UNSIGNED) \
    X(U64, "UINT64", 8, UNSIGNED) \
    X(I8, "INT8", 1, SIGNED)      \
    X(I16, "INT16", 2, SIGNED)    \
    X(I32, "INT32", 4, SIGNED)    \
    X(I64, "INT64", 8, SIGNED)    \
    X(F16, "FP16", 2, FLOAT)      \
    X(BF16, "BF16", 2, FLOAT)     \
    X(F32, "FP32", 4, FLOAT)      \
    X(F64, "FP64", 8, FLOAT)      \
    X(BYTES, "BYTES", 0, OTHER)

enum bag_dtype {
#define BAG_X(id, name, bytes, kind) BAG_##id,
    BAG_DTYPES(BAG_X)
#undef BAG_X
        BAG_DTYPE_COUNT
};

enum bag_kind { BAG_KIND_SIGNED, BAG_KIND_UNSIGNED, BAG_KIND_FLOAT, BAG_KIND_OTHER };

struct bag_dtype_info {
    const char *name; /* name in the V2 protocol, such as "FP32" */
    size_t bytes;     /* size of one element; 0 for BYTES */
    enum bag_kind kind;
};

/* Indexed by enum bag_dtype. */
extern const struct bag_dtype_info bag_dtypes[BAG_DTYPE_COUNT];

/* Returns the dtype with this V2 name, or BAG_DTYPE_COUNT if there is none. `name` need not end
 * with a NUL. */
enum bag_dtype bag_dtype_find(const char *name, size_t name_bytes);

/* ---- reductions ------------------------------------------------------------------------------ */
#define BAG_REDUCTIONS(X) \
    X(SUM, "sum")         \
    X(MEAN, "mean")       \
    X(MAX, "max")         \
    X(SQRTN, "sqrtn")     \
    X(NONE, "none") /* every index is a bag of its own, whose result is its row */

enum bag_reduction {
#define BAG_X(id, name) BAG_##id,
    BAG_REDUCTIONS(BAG_X)
#undef BAG_X
        BAG_REDUCTION_COUNT
};

extern const char *const bag_reduction_names[BAG_REDUCTION_COUNT];

/* Returns the reduction with this name, or BAG_REDUCTION_COUNT if there is none. */
enum bag_reduction bag_reduction_find(const char *name, size_t name_bytes);

/* ---- the tensors of a request ---------------------------------------------------------------- */
#define BAG_INPUTS(X)                 \
    X(INDICES, "indices")             \
    X(OFFSETS, "offsets")             \
    X(SEGMENT_IDS, "segment_ids")     \
    X(NUM_SEGMENTS, "num_segments")   \
    X(DEFAULT_INDEX, "default_index") \
    X(PER_SAMPLE_WEIGHTS, "per_sample_weights")

enum bag_input {
#define BAG_X(id, name) BAG_##id,
    BAG_INPUTS(BAG_X)
#undef BAG_X
        BAG_INPUT_COUNT
};

extern const char *const bag_input_names[BAG_INPUT_COUNT];

/* A view of row-major, little-endian elements. `data` has any alignment and is borrowed. */
struct bag_tensor {
    enum bag_dtype dtype;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK]; /* the first `rank` are set; none is negative */
    size_t count;                /* product of the shape; 1 for rank 0 */
    const void *data;
};

/* ---- faults ----------------------------------------------------------------------------------
 * X(ID, keyword of the conformance cases). The sentences are in proto/problem.c. */
#define BAG_STATUSES(X)                                             \
    X(OK, "ok")                                                     \
    X(TABLE_RANK, "table_rank")                                     \
    X(UNSUPPORTED_REDUCTION, "unsupported_reduction")               \
    X(OUTPUT_DTYPE, "output_dtype")                                 \
    X(MISSING_INPUT, "missing_input")                               \
    X(UNEXPECTED_INPUT, "unexpected_input")                         \
    X(INDICES_DTYPE, "indices_dtype")                               \
    X(INDICES_RANK, "indices_rank")                                 \
    X(OFFSETS_DTYPE, "offsets_dtype")                               \
    X(OFFSETS_RANK, "offsets_rank")                                 \
    X(SEGMENT_IDS_DTYPE, "segment_ids_dtype")                       \
    X(SEGMENT_IDS_RANK, "segment_ids_rank")                         \
    X(SEGMENT_IDS_SHAPE_MISMATCH, "segment_ids_shape_mismatch")     \
    X(SEGMENTS_NOT_SUPPORTED, "segments_not_supported")             \
    X(NUM_SEGMENTS_DTYPE, "num_segments_dtype")                     \
    X(NUM_SEGMENTS_NOT_SCALAR, "num_segments_not_scalar")           \
    X(NUM_SEGMENTS_NEGATIVE, "num_segments_negative")               \
    X(DEFAULT_INDEX_DTYPE, "default_index_dtype")                   \
    X(DEFAULT_INDEX_NOT_SCALAR, "default_index_not_scalar")         \
    X(DEFAULT_INDEX_OUT_OF_RANGE, "default_index_out_of_range")     \
    X(INDEX_TYPE_MISMATCH, "index_type_mismatch")                   \
    X(WEIGHTS_NOT_SUPPORTED, "weights_not_supported")               \
    X(WEIGHTS_DTYPE_MISMATCH, "weights_dtype_mismatch")             \
    X(WEIGHTS_SHAPE_MISMATCH, "weights_shape_mismatch")             \
    X(PADDING_IDX_OUT_OF_RANGE, "padding_idx_out_of_range")         \
    X(OFFSETS_TOO_SHORT, "offsets_too_short")                       \
    X(OFFSET_OUT_OF_RANGE, "offset_out_of_range")                   \
    X(OFFSETS_NOT_MONOTONIC, "offsets_not_monotonic")               \
    X(OFFSETS_NOT_STARTING_AT_ZERO, "offsets_not_starting_at_zero") \
    X(KEYS_DTYPE, "keys_dtype")                                     \
    X(KEY_MISSING, "key_missing")                                   \
    X(DEFAULT_KEY_MISSING, "default_key_missing")                   \
    X(DEFAULT_ROW_NEEDED, "default_row_needed")                     \
    X(INDEX_OUT_OF_RANGE, "index_out_of_range")                     \
    X(ROW_OF_OTHER_PART, "row_of_other_part")                       \
    X(KEY_OF_OTHER_PART, "key_of_other_part")                       \
    X(DEFAULT_OF_OTHER_PART, "default_of_other_part")               \
    X(SEGMENT_ID_OUT_OF_RANGE, "segment_id_out_of_range")           \
    X(SEGMENT_IDS_NOT_SORTED, "segment_ids_not_sorted")             \
    X(RESULT_TOO_LARGE, "result_too_large")

enum bag_status {
#define BAG_X(id, keyword) BAG_STATUS_##id,
    BAG_STATUSES(BAG_X)
#undef BAG_X
        BAG_STATUS_COUNT
};

/* Keywords, indexed by enum bag_status. */
extern const char *const bag_status_keywords[BAG_STATUS_COUNT];

/* A fault and its position, as numbers. Members that the sentence of the status does not name are
 * not set. */
struct bag_fault {
    enum bag_status status;
    enum bag_input input;
    int64_t position;
    int64_t value, low, high;
    enum bag_dtype got, want;
    enum bag_reduction reduction;
};
