/* What every layer shares: dtypes, reductions, tensor views, and what can be wrong. Nothing here
 * owns memory. */
#ifndef BAG_BAG_H
#define BAG_BAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows may have any rank; 32 is what NumPy allows. */
#define BAG_MAX_RANK 32

/* ---- element types ---------------------------------------------------------------------------
 * X(ID, name in the V2 protocol, bytes of one element or 0 where they vary, kind).
 * A dtype of kind OTHER can be in a request but not in a table. */
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
    const char *name; /* in the V2 protocol: "FP32" */
    size_t bytes;     /* of one element; 0 for BYTES */
    enum bag_kind kind;
};

/* Indexed by enum bag_dtype. */
extern const struct bag_dtype_info bag_dtypes[BAG_DTYPE_COUNT];

/* The dtype of that V2 name, or BAG_DTYPE_COUNT. `name` need not end with a NUL. */
enum bag_dtype bag_dtype_find(const char *name, size_t name_bytes);

/* ---- reductions ------------------------------------------------------------------------------ */
#define BAG_REDUCTIONS(X) \
    X(SUM, "sum")         \
    X(MEAN, "mean")       \
    X(MAX, "max")         \
    X(SQRTN, "sqrtn")

enum bag_reduction {
#define BAG_X(id, name) BAG_##id,
    BAG_REDUCTIONS(BAG_X)
#undef BAG_X
        BAG_REDUCTION_COUNT
};

extern const char *const bag_reduction_names[BAG_REDUCTION_COUNT];

/* The reduction of that name, or BAG_REDUCTION_COUNT. */
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
    int64_t shape[BAG_MAX_RANK]; /* the first `rank` are set, none negative */
    size_t count;                /* product of the shape; 1 for rank 0 */
    const void *data;
};

/* ---- what can be wrong -----------------------------------------------------------------------
 * X(ID, keyword of the conformance cases, text). In the text {input} is the tensor, {position} a
 * flat position in it, {value} the value there, {reduction} the one in force, {low} and {high} the
 * inclusive range that is allowed, {got} and {want} the dtypes. {value thing} is that many things,
 * in the plural unless it is 1; likewise with the other numbers. */
#define BAG_STATUSES(X)                                                                            \
    X(OK, "ok", "ok")                                                                              \
    X(TABLE_RANK, "table_rank", "the table is a scalar; it must have at least one dimension")      \
    X(UNSUPPORTED_REDUCTION, "unsupported_reduction",                                              \
      "reduction sqrtn needs a floating-point table; this one is {got}: use sum, mean or max")     \
    X(OUTPUT_DTYPE, "output_dtype",                                                                \
      "output_datatype {got} cannot be made from a table of {want}: only FP16, BF16 and FP32 "     \
      "convert among each other")                                                                  \
    X(MISSING_INPUT, "missing_input", "input '{input}' is missing")                                \
    X(UNEXPECTED_INPUT, "unexpected_input",                                                        \
      "input '{input}' does not go with the other inputs: send 'offsets', or 'segment_ids' with "  \
      "an optional 'num_segments', or 2-D 'indices' alone")                                        \
    X(INDICES_DTYPE, "indices_dtype", "'indices' has datatype {got}; it must be INT32 or INT64")   \
    X(INDICES_RANK, "indices_rank",                                                                \
      "'indices' has {value dimension}; it must have {low}: 1 with 'offsets' or 'segment_ids', "   \
      "2 alone")                                                                                   \
    X(OFFSETS_DTYPE, "offsets_dtype", "'offsets' has datatype {got}; it must be INT32 or INT64")   \
    X(OFFSETS_RANK, "offsets_rank", "'offsets' has {value dimension}; it must have 1")             \
    X(SEGMENT_IDS_DTYPE, "segment_ids_dtype",                                                      \
      "'segment_ids' has datatype {got}; it must be INT32 or INT64")                               \
    X(SEGMENT_IDS_RANK, "segment_ids_rank", "'segment_ids' has {value dimension}; it must have 1") \
    X(SEGMENT_IDS_SHAPE_MISMATCH, "segment_ids_shape_mismatch",                                    \
      "'segment_ids' has {value element}; 'indices' has {low}, and both must have as many")        \
    X(NUM_SEGMENTS_DTYPE, "num_segments_dtype",                                                    \
      "'num_segments' has datatype {got}; it must be INT32 or INT64")                              \
    X(NUM_SEGMENTS_NOT_SCALAR, "num_segments_not_scalar",                                          \
      "'num_segments' has {value element} in {low dimension}; it must have shape [] or [1]")       \
    X(NUM_SEGMENTS_NEGATIVE, "num_segments_negative",                                              \
      "'num_segments' is {value}; it must be at least 0")                                          \
    X(DEFAULT_INDEX_DTYPE, "default_index_dtype",                                                  \
      "'default_index' has datatype {got}; it must be INT32 or INT64")                             \
    X(DEFAULT_INDEX_NOT_SCALAR, "default_index_not_scalar",                                        \
      "'default_index' has {value element} in {low dimension}; it must have shape [] or [1]")      \
    X(DEFAULT_INDEX_OUT_OF_RANGE, "default_index_out_of_range",                                    \
      "'default_index' is {value}; it must be -1 (zeros) or a row from {low} to {high}")           \
    X(INDEX_TYPE_MISMATCH, "index_type_mismatch",                                                  \
      "'{input}' has datatype {got} while 'indices' has {want}; this model requires one type for " \
      "all index tensors")                                                                         \
    X(WEIGHTS_NOT_SUPPORTED, "weights_not_supported",                                              \
      "'per_sample_weights' does not go with reduction {reduction}; use sum or sqrtn, leave the "  \
      "weights out, or configure weighted_mean for mean")                                          \
    X(WEIGHTS_DTYPE_MISMATCH, "weights_dtype_mismatch",                                            \
      "'per_sample_weights' has datatype {got}; it must be {want} for this table")                 \
    X(WEIGHTS_SHAPE_MISMATCH, "weights_shape_mismatch",                                            \
      "'per_sample_weights' has {value element} in {low dimension}; it must have the shape of "    \
      "'indices' ({high element})")                                                                \
    X(PADDING_IDX_OUT_OF_RANGE, "padding_idx_out_of_range",                                        \
      "padding_idx is {value}; it must be from {low} to {high}")                                   \
    X(OFFSETS_TOO_SHORT, "offsets_too_short",                                                      \
      "'offsets' is empty; with include_last_offset it must have at least 1 element")              \
    X(OFFSET_OUT_OF_RANGE, "offset_out_of_range",                                                  \
      "'offsets' at position {position} is {value}; it must be from {low} to {high}, the number "  \
      "of indices")                                                                                \
    X(OFFSETS_NOT_MONOTONIC, "offsets_not_monotonic",                                              \
      "'offsets' at position {position} is {value}, less than {low} before it; offsets must not "  \
      "decrease")                                                                                  \
    X(OFFSETS_NOT_STARTING_AT_ZERO, "offsets_not_starting_at_zero",                                \
      "'offsets' at position 0 is {value}; this model requires it to be 0")                        \
    X(INDEX_OUT_OF_RANGE, "index_out_of_range",                                                    \
      "'indices' at position {position} is {value}; it must be from {low} to {high}, the last "    \
      "row")                                                                                       \
    X(SEGMENT_ID_OUT_OF_RANGE, "segment_id_out_of_range",                                          \
      "'segment_ids' at position {position} is {value}; it must be from {low} to {high}")          \
    X(SEGMENT_IDS_NOT_SORTED, "segment_ids_not_sorted",                                            \
      "'segment_ids' at position {position} is {value}, less than {low} before it; segment ids "   \
      "must not decrease")                                                                         \
    X(RESULT_TOO_LARGE, "result_too_large",                                                        \
      "the result would have {value bag} of {low byte} each; the limit (max_reply_bytes) is "      \
      "{high byte}")

enum bag_status {
#define BAG_X(id, keyword, text) BAG_STATUS_##id,
    BAG_STATUSES(BAG_X)
#undef BAG_X
        BAG_STATUS_COUNT
};

struct bag_status_info {
    const char *keyword;
    const char *text; /* with the {fields} above */
};

/* Indexed by enum bag_status. */
extern const struct bag_status_info bag_statuses[BAG_STATUS_COUNT];

/* What is wrong and where, as numbers; an upper layer makes a sentence of it. Fields that the
 * status's text does not name are not set. */
struct bag_fault {
    enum bag_status status;
    enum bag_input input;
    int64_t position;
    int64_t value, low, high;
    enum bag_dtype got, want;
    enum bag_reduction reduction;
};

#endif
