/* Pooling: bags of rows of one table, gathered and reduced.
 *
 * The three forms are OpenVINO's EmbeddingBagOffsets-15 (and OffsetsSum-3), EmbeddingBagPacked-15
 * (and PackedSum-3) and EmbeddingSegmentsSum-3, widened to the reductions and options of PyTorch's
 * EmbeddingBag and TensorFlow's sparse lookups. Of a table and its rules bag_pool_prepare makes a
 * plan, once. A call has two halves:
 *
 *   bag_pool_check   checks everything a client sent, once, and either names the first fault or
 *                    fills a struct bag_pool_args;
 *   bag_pool_run     pools what was checked. It cannot fail, allocates nothing, and writes its
 *                    range of the output and nothing else.
 *
 * Numbers. Rows are added in index order, column by column: f16, bf16 and f32 in f32, f64 in f64,
 * integers modulo 2^width. Weights go in by one fused multiply-add. A mean is one true division by
 * the count; f16 and bf16 are rounded once, to nearest even, at the very end. An integer mean is
 * the exact sum divided by the count, rounded toward zero. Therefore the bits depend neither on
 * the instruction set nor on how the result is split into ranges. (The payload of a NaN is not
 * specified.)
 *
 * Every pointer is borrowed for the call. All functions are reentrant and may run on any thread. */
#ifndef BAG_POOL_H
#define BAG_POOL_H

#include "bag.h"

/* How a row is stored. Quantised rows stand for f32 rows: their table's dtype is BAG_F32, and they
 * are pooled as the f32 rows they stand for. X(ID, name in a configuration, kind of rowformat.h
 * that its codes are of, type of the parameters, how many: scale, or scale and bias, whether they
 * precede the codes) */
#define BAG_ROW_FORMATS(X)                                      \
    X(PLAIN, "plain", BY_DTYPE, F32, 0, false)                  \
    X(INT8, "int8", OF_INT8, F32, 2, false)                     \
    X(INT4, "int4", OF_INT4, F16, 2, false)                     \
    X(F8_E4M3, "f8_e4m3", OF_E4M3, F32, 0, false)               \
    X(F8_E5M2, "f8_e5m2", OF_E5M2, F32, 0, false)               \
    X(INT8_F16_FRONT, "int8_f16_front", OF_INT8, F16, 2, true)  \
    X(INT4_F16_FRONT, "int4_f16_front", OF_INT4, F16, 2, true)  \
    X(F8_E4M3_SCALED, "f8_e4m3_scaled", OF_E4M3, F32, 1, false) \
    X(F8_E5M2_SCALED, "f8_e5m2_scaled", OF_E5M2, F32, 1, false)

/* PLAIN    elements of the dtype, one after the other
 * INT8     a byte q per element: it is fma(q, scale, bias)
 * INT4     four bits q per element, the low ones first: likewise. Of an odd number of elements the
 *          last four bits are padding
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

/* The most elements that a quantised row of exactly that many bytes holds; 0 where it is too short.
 * Of INT4 rows it may be one less: the bytes do not say whether the last four bits are padding. */
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

/* What is done with the rows of a bag. GENERAL also tests which entries stay, and does max. */
enum bag_mode { BAG_MODE_PLAIN, BAG_MODE_WEIGHTED, BAG_MODE_GENERAL, BAG_MODE_COUNT };

struct bag_block; /* pool_block.h */

typedef void bag_block_fn(const struct bag_block *block);
typedef bool bag_singles_fn(const struct bag_block *block);
typedef size_t bag_near_fn(const struct bag_block *block);

/* The kernels for some columns of a table, of the instruction set in use when they are chosen. */
struct bag_kernel_choice {
    bag_block_fn *pool[BAG_MODE_COUNT];
    bag_singles_fn *singles[BAG_MODE_COUNT]; /* for bags of one entry; NULL: there is none */
    bag_near_fn *near[BAG_MODE_COUNT];       /* where nothing is prefetched; NULL: there is none */
};

/* How the kernels walk through a table's rows. */
struct bag_row_walk {
    size_t row_bytes, codes_at, params_at; /* of a row, and in it */
    size_t ahead; /* so many rows are prefetched before they are summed; SIZE_MAX: none are */
    struct bag_kernel_choice whole; /* for all columns */
    uint8_t kind;                   /* enum bag_row_kind */
    bool is_far;                    /* beyond the caches that need no prefetching; */
    bool is_near;                   /* and not beyond the near ones */
    bool to_first;                  /* rows are prefetched into the first cache, not the second */
    bool straddles;                 /* a row may lie in one more line than its bytes fill */
    bool has_params;                /* there are scale and bias */
    bool half_params;               /* they are f16 */
};

/* A checked call. Filled by bag_pool_check; it borrows the table's rows and the tensors' data. */
struct bag_pool_args {
    /* As the plan has it, but for what is said of requests: */
    struct bag_table table;
    const struct bag_row_walk *walk; /* of the plan */
    enum bag_reduction reduction;
    enum bag_dtype output_dtype;
    size_t element_bytes; /* of the result */
    size_t bag_stride;    /* bytes from one bag of the result to the next: as the check leaves
                             it, those of a bag; the caller may make it larger */
    const void *weights;  /* one per index, any alignment; NULL: none */
    enum bag_dtype weights_dtype; /* the table's, or of requests BAG_F32 of any float table */
    bool divides;                 /* sums are divided: mean and sqrtn */
    bool is_general;              /* whatever the request, the general mode is needed */
    bool skip_outside;            /* entries with an index outside the table leave the bag */
    bool prunes;                  /* those with a negative one are said to be pruned */
    bool keyed;                   /* the indices were keys: those outside are missing ones */
    bool is_part;                 /* the indices were ids of a table of which this is a part */
    bool skip_unweighted;         /* entries whose weight is not above zero leave the bag */
    bool unsorted;                /* segments: bag_pool_sort must run before bag_pool_run */
    bool streams;                 /* the result is written past the caches, where its bags have no
                                     gaps and are not too long; for the caller to set */
    bool partial;                 /* the result is a part's, see partial.h; */
    uint8_t whole_reduction;      /* of the whole: enum bag_reduction */
    int64_t default_row;          /* -1: zeros */
    int64_t padding_row;          /* -1: none; BAG_ROW_PADDING once bag_keys_resolve has run */
    const uint8_t *replaced;      /* 1 for each entry that was outside or missing, and has another
                                     row now; NULL: not known. Only to explain a result */

    /* Of each request: */
    struct bag_ids indices;
    struct bag_ids groups; /* offsets or segment_ids; unset for packed */
    enum bag_form form;
    size_t num_bags;
    size_t result_bytes; /* num_bags * row_elements * bytes of output_dtype */
    size_t bag_length;   /* packed: indices per bag */
};

/* What a table and its rules settle of every call. It borrows the table's rows, and must live as
 * long as the calls that it checks. */
struct bag_pool_plan {
    struct bag_rules rules;
    struct bag_row_walk walk;
    struct bag_pool_args args; /* but for what a request brings */
    bool is_usual;             /* indices and offsets are checked on the shortest way, */
    bool takes_weights;        /* and FP32 weights with them */
    bool needs_rows; /* bag_keys_resolve must follow bag_pool_check: of keyed tables, and of
                        dense ones where a default row takes the place of what is outside;
                        of parts the caller sets it */
};

/* Makes the plan for a table and rules that bag_rules_check accepts, once for many calls. */
void bag_pool_prepare(const struct bag_table *table, const struct bag_rules *rules,
                      struct bag_pool_plan *plan);

/* Makes a plan for the rows of a part, which are `table`, one for ids of the whole table with that
 * many rows: bag_keys_resolve must follow. */
void bag_pool_prepare_part(struct bag_pool_plan *plan, int64_t whole_rows);

/* Checks `inputs` against the table and the rules of the plan and fills `args`. The form follows
 * from the inputs present: offsets, segment_ids, or 2-D indices alone. A result of more than
 * `max_result_bytes` is rejected; the computation of its size does not overflow. On a fault the
 * status is returned, `*fault` says where, `*args` is unspecified. Fails on the first bad position
 * of the tensor at fault. Where the rules say that the table is keyed, the indices and
 * default_index are not judged: `args` has the keys and no default row, and bag_keys_resolve
 * (keys.h) must follow. */
enum bag_status bag_pool_check(const struct bag_pool_plan *plan, const struct bag_inputs *inputs,
                               size_t max_result_bytes, struct bag_pool_args *args,
                               struct bag_fault *fault);

/* Makes a checked call, of whichever FP16 or BF16 is the result, write FP32. Whether so large a
 * result may be is the caller's to check. */
void bag_pool_widen(struct bag_pool_args *args);

/* Bytes of scratch that bag_pool_sort needs; 0 where it need not be called. */
size_t bag_pool_scratch_bytes(const struct bag_pool_args *args);

/* Puts unsorted segments in order, stably, so that rows are still added in index order within a
 * segment. `scratch` is aligned to 8 bytes, holds bag_pool_scratch_bytes, and must live as long
 * as `args` is used: afterwards `args` points into it. */
void bag_pool_sort(struct bag_pool_args *args, void *scratch);

/* A part of the output: bags [first_bag, end_bag), columns [first_column, end_column). */
struct bag_range {
    size_t first_bag, end_bag;
    size_t first_column, end_column;
};

/* The whole output of `args`. */
static inline struct bag_range bag_range_all(const struct bag_pool_args *args)
{
    return (struct bag_range){0, args->num_bags, 0, args->table.row_elements};
}

/* Prefetches the rows of a checked call of few indices, and nothing where that gains nothing: they
 * are on their way while other calls are checked. `alone`: there are no others. To be called soon
 * before bag_pool_run, on the same processor; it changes no result. */
void bag_pool_prefetch_far(const struct bag_pool_args *args, bool alone);

static inline void bag_pool_prefetch(const struct bag_pool_args *args, bool alone)
{
    if (args->walk->is_far)
        bag_pool_prefetch_far(args, alone);
}

/* Pools a range. `out` is the start of the whole result, [num_bags, row_elements] of output_dtype
 * with a bag every bag_stride bytes, at any alignment; the gaps between bags are not written,
 * and disjoint ranges may run at the same time. */
void bag_pool_range(const struct bag_pool_args *args, const struct bag_range *range, void *out);

/* In line: a structure that is handed over by value is copied in other units than it was written
 * in, which takes as long as pooling a few rows. */
static inline void bag_pool_run(const struct bag_pool_args *args, struct bag_range range, void *out)
{
    bag_pool_range(args, &range, out);
}

/* Number of indices in bags [0, bag) of the result, for splitting work evenly; 0 <= bag <=
 * num_bags. Indices that belong to no bag are not counted. */
size_t bag_pool_entries_before(const struct bag_pool_args *args, size_t bag);

/* ---- projection: pooled rows times a matrix, and a bias ----------------------------------------
 * Summing commutes with it, so that a table of low rank can be kept as its narrow factor, and
 * tables of several widths can be brought to one. The product's bits may depend on how many rows
 * are multiplied at once; those of the pooled rows do not. */

/* Adds a [m, k] times b [k, n] to c [m, n]; all row by row, without gaps. */
typedef void bag_gemm_fn(size_t m, size_t n, size_t k, const float *a, const float *b, float *c);

struct bag_projection {
    const float *matrix; /* [rows, columns] */
    const float *bias;   /* [columns]; NULL: none */
    size_t rows, columns;
    bag_gemm_fn *gemm;
};

/* Projects `count` rows: `pooled` is [count, rows], `product` [count, columns]. */
void bag_project(const struct bag_projection *projection, const float *pooled, size_t count,
                 float *product);

/* Writes `count` rows of a product as elements of `dtype` (BAG_F16, BAG_BF16 or BAG_F32), one every
 * `stride` bytes from `out` on, at any alignment. */
void bag_project_store(const float *product, size_t count, size_t columns, enum bag_dtype dtype,
                       char *out, size_t stride);

/* ---- instruction sets ------------------------------------------------------------------------ */

/* Which ones there are, which this machine can run, and which one pools. The results have the same
 * bits on all of them.
 *
 * X(ID, name), from the slowest to the fastest. */
#define BAG_ISAS(X)       \
    X(GENERIC, "generic") \
    X(NEON, "neon")       \
    X(AVX2, "avx2")       \
    X(AVX512, "avx512")

enum bag_isa {
#define BAG_X(id, name) BAG_ISA_##id,
    BAG_ISAS(BAG_X)
#undef BAG_X
        BAG_ISA_COUNT
};

extern const char *const bag_isa_names[BAG_ISA_COUNT];

/* The instruction set of that name, or BAG_ISA_COUNT. */
enum bag_isa bag_isa_find(const char *name, size_t name_bytes);

/* Whether this build has kernels for it, the processor can run them, and the operating system saves
 * the registers they use. GENERIC always is. */
bool bag_isa_usable(enum bag_isa isa);

/* The fastest usable one. */
enum bag_isa bag_isa_best(void);

/* Makes `isa`, which must be usable, the one that pools from now on. Must not run while any thread
 * pools; until the first call it is GENERIC. */
void bag_isa_use(enum bag_isa isa);

/* The one that pools. */
enum bag_isa bag_isa_used(void);

#endif
