/* Pooling: gathers and reduces bags of rows of one table.
 *
 * The three forms of bags are OpenVINO's EmbeddingBagOffsets-15 (and OffsetsSum-3),
 * EmbeddingBagPacked-15 (and PackedSum-3) and EmbeddingSegmentsSum-3, extended by the reductions
 * and options of PyTorch's EmbeddingBag and TensorFlow's sparse lookups. bag_pool_prepare makes a
 * plan from a table and its rules, once. A call then has two steps:
 *
 *   bag_pool_check   checks everything that a client sent, once. It either reports the first fault
 *                    or fills a struct bag_pool_args
 *   bag_pool_run     pools a checked call. It cannot fail, allocates nothing, and writes only its
 *                    range of the output
 *
 * Numbers. Rows are added in index order, column by column: f16, bf16 and f32 in f32, f64 in f64,
 * integers modulo 2^width. A weight is applied by one fused multiply-add. A mean is one true
 * division by the count. f16 and bf16 are rounded once, to nearest even, at the very end. An
 * integer mean is the exact sum divided by the count, rounded toward zero. Therefore the bits
 * depend neither on the instruction set nor on how the result is split into ranges. (The payload of
 * a NaN is not specified.)
 *
 * Every pointer is borrowed for the call. All functions are reentrant and may run on any thread. */
#pragma once

#include "isa.h"
#include "table.h"

/* The work on the rows of a bag. GENERAL also tests which entries stay, and computes max. */
enum bag_mode { BAG_MODE_PLAIN, BAG_MODE_WEIGHTED, BAG_MODE_GENERAL, BAG_MODE_COUNT };

struct bag_pool_args;
struct bag_tiles;

/* Pools some columns of the bags [first_bag, end_bag), which offsets describe. `out` is their part
 * of the result of the first one. */
typedef void bag_loop_fn(const struct bag_pool_args *args, const struct bag_tiles *tiles,
                         size_t first_bag, size_t end_bag, char *out);

/* Columns of a table, as one tile or as several of the same width, with the loop of the instruction
 * set that was selected when they were chosen. The sums of a tile stay in registers over a bag. */
struct bag_tiles {
    bag_loop_fn *pool; /* pools these columns */
    bag_loop_fn *loop; /* the same, or what `pool` calls */
    const char *rows;  /* these columns of the table's first row */
    size_t row_bytes;  /* from one row to the next */
    size_t first_column, end_column;
    size_t further;     /* number of columns after the first tile; the last tile may overlap the one
                           before it */
    size_t last_vector; /* column of a tile at which its last vector starts */
    ptrdiff_t
        params_at;    /* position of scale and bias, relative to the first tile's part of a row */
    size_t last_byte; /* last byte of a tile that is prefetched, likewise */
    size_t bytes_before;   /* number of bytes before the first tile that are prefetched, too */
    size_t fetched_beyond; /* number of bytes after a tile that are prefetched with it, if the row
                              has so many */
    bool fetches_params;   /* scale and bias are far from the first tile, which prefetches them */
};

/* Where the rows that will be summed soon are prefetched to. The rows of tables in memory go to L2,
 * too, and further ahead. */
enum bag_fetch { BAG_FETCH_NONE, BAG_FETCH_FIRST, BAG_FETCH_SECOND, BAG_FETCH_FAR };

/* How the kernels walk over a table's rows. */
struct bag_row_walk {
    size_t row_bytes, codes_at, params_at; /* size of a row; positions in it */
    size_t ahead; /* number of rows by which prefetching is ahead of summing; SIZE_MAX: no
                     prefetching */
    size_t early; /* maximum number of indices of a call whose rows bag_pool_prefetch prefetches */
    struct bag_tiles whole[BAG_MODE_COUNT]; /* all columns */
    uint8_t kind;                           /* enum bag_row_kind */
    uint8_t fetch;                          /* enum bag_fetch */
    bool shortens;    /* prefetching is less far ahead in short calls: see bag_set_ahead */
    bool straddles;   /* a row may touch one more cache line than its size needs */
    bool has_params;  /* rows have a scale, or scale and bias */
    bool half_params; /* scale and bias are f16 */
};

/* A checked call. bag_pool_check fills it. It borrows the table's rows and the tensors' data. */
struct bag_pool_args {
    /* Copied from the plan, unless the comment mentions requests: */
    struct bag_table table;
    const struct bag_row_walk *walk; /* the plan's */
    /* With BAG_NONE, an entry that does not count gets zeros, whatever default_index is. */
    enum bag_reduction reduction;
    enum bag_dtype output_dtype;
    size_t ahead;         /* as in the walk, or smaller in a request with few indices */
    size_t element_bytes; /* size of an element of the result */
    size_t bag_stride;    /* distance of the bags in the result, in bytes; the check sets it to the
                             size of a bag, and the caller may make it larger */
    const void *weights;  /* one for each index, at any alignment; NULL: none */
    enum bag_dtype
        weights_dtype;    /* the table's type, or in a request BAG_F32 for any float table */
    bool divides;         /* sums are divided, for mean and sqrtn */
    bool is_general;      /* the general mode is needed for every request */
    bool skip_outside;    /* entries with an index outside the table are left out */
    bool prunes;          /* entries with a negative index are reported as pruned */
    bool keyed;           /* indices were keys; those outside the table are missing keys */
    bool is_part;         /* indices were ids of a table of which this is a part */
    bool skip_unweighted; /* entries whose weight is not above zero are left out */
    bool unsorted;        /* for segments: bag_pool_sort must run before bag_pool_run */
    bool streams; /* set by the caller: write the result past the caches if its bags have no gaps
                     and are not too long */
    bool partial; /* the result is partial, see partial.h */
    uint8_t whole_reduction; /* reduction of the whole: enum bag_reduction */
    int64_t default_row;     /* -1: zeros */
    int64_t padding_row;     /* -1: none; BAG_ROW_PADDING once bag_keys_resolve has run */
    const uint8_t *replaced; /* 1 for each entry that was outside or missing and has another row
                                now; NULL: unknown. Used only to explain a result */

    /* Set by each request: */
    const struct bag_tiles *tiles; /* all columns of the plan's table, for bag_pool_run; NULL:
                                      bag_pool_range finds out how to pool */
    struct bag_ids indices;
    struct bag_ids groups; /* offsets or segment_ids; unset for the packed form */
    enum bag_form form;
    size_t num_bags;
    size_t result_bytes; /* num_bags * row_elements * bytes of output_dtype */
    size_t bag_length;   /* indices of each bag in the packed form */
};

struct bag_pool_plan;

/* Checks a usual call by the shortest path: indices and offsets, perhaps with FP32 weights. Returns
 * false if it is another one or has a fault, and `*args` is unspecified then. */
typedef bool bag_check_fn(const struct bag_pool_plan *plan, const struct bag_inputs *inputs,
                          size_t max_result_bytes, struct bag_pool_args *args);

/* Everything about a call that a table and its rules determine. It borrows the table's rows, and
 * must live as long as the calls that were checked with it. */
struct bag_pool_plan {
    struct bag_rules rules;
    struct bag_row_walk walk;
    struct bag_pool_args args;        /* without the members that a request sets */
    const struct bag_tiles *tiles[2]; /* for usual calls without and with weights; NULL: see
                                         bag_pool_args */
    bag_check_fn *check;              /* the selected instruction set's; NULL: no call is usual */
    bool takes_weights;               /* usual calls may have FP32 weights */
    bool needs_rows; /* bag_keys_resolve must follow bag_pool_check: for keyed tables, and for dense
                        ones where a default row replaces indices outside; for parts the caller sets
                        it */
};

/* Makes the plan for a table and rules that bag_rules_check accepts. A plan serves many calls. */
void bag_pool_prepare(const struct bag_table *table, const struct bag_rules *rules,
                      struct bag_pool_plan *plan);

/* Changes a plan for the rows of a part, which are `table`, into one for ids of the whole table
 * with `whole_rows` rows. bag_keys_resolve must follow each check. */
void bag_pool_prepare_part(struct bag_pool_plan *plan, int64_t whole_rows);

/* Checks a call of any plan and inputs, with the arguments and results of bag_pool_check, which
 * calls it. */
enum bag_status bag_pool_check_all(const struct bag_pool_plan *plan,
                                   const struct bag_inputs *inputs, size_t max_result_bytes,
                                   struct bag_pool_args *args, struct bag_fault *fault);

/* Checks `inputs` against the table and the rules of the plan, and fills `args`. The inputs
 * determine the form: offsets, segment_ids, or 2-D indices alone. With BAG_NONE the form is packed,
 * with bags of one index, whatever the shape of the indices; offsets are only checked. A result of
 * more than `max_result_bytes` is rejected. The computation of its size cannot overflow.
 *
 * Returns the status. If it is a fault, `*fault` describes the first wrong position of the tensor,
 * and `*args` is unspecified. If the table is keyed, the indices and default_index are not checked:
 * `args` has the keys and no default row, and bag_keys_resolve (keys.h) must follow. */
static inline enum bag_status bag_pool_check(const struct bag_pool_plan *plan,
                                             const struct bag_inputs *inputs,
                                             size_t max_result_bytes, struct bag_pool_args *args,
                                             struct bag_fault *fault)
{
    if (plan->check && plan->check(plan, inputs, max_result_bytes, args))
        return BAG_STATUS_OK;
    return bag_pool_check_all(plan, inputs, max_result_bytes, args, fault);
}

/* Makes a checked call with a result of FP16 or BF16 write FP32. The caller checks whether the
 * larger result is allowed. */
void bag_pool_widen(struct bag_pool_args *args);

/* Returns the size of the scratch memory for bag_pool_sort, or 0 if it need not be called. */
size_t bag_pool_scratch_bytes(const struct bag_pool_args *args);

/* Sorts unsorted segments stably, so that rows are still added in index order within a segment.
 * `scratch` is aligned to 8 bytes and has bag_pool_scratch_bytes. It must live as long as `args` is
 * used, because `args` points into it afterwards. */
void bag_pool_sort(struct bag_pool_args *args, void *scratch);

/* A part of the output: bags [first_bag, end_bag), columns [first_column, end_column). */
struct bag_range {
    size_t first_bag, end_bag;
    size_t first_column, end_column;
};

/* Returns the range of the whole output of `args`. */
static inline struct bag_range bag_range_all(const struct bag_pool_args *args)
{
    return (struct bag_range){0, args->num_bags, 0, args->table.row_elements};
}

/* Prefetches the rows of all indices of a checked call. */
void bag_pool_prefetch_rows(const struct bag_pool_args *args);

/* Prefetches the rows of a checked call with few indices, so that they arrive at the same time, and
 * while other calls are checked. Does nothing if that gains nothing. Called soon before
 * bag_pool_run, on the same processor. It does not change the result. */
static inline void bag_pool_prefetch(const struct bag_pool_args *args)
{
    if (args->indices.count <= args->walk->early)
        bag_pool_prefetch_rows(args);
}

/* Pools a range. `out` is the start of the whole result, [num_bags, row_elements] of output_dtype
 * with a bag every bag_stride bytes, at any alignment. The gaps between bags are not written.
 * Disjoint ranges may run at the same time. */
void bag_pool_range(const struct bag_pool_args *args, const struct bag_range *range, void *out);

/* Pools a range that is passed by value. It is inline, because a struct that is passed by value is
 * copied in other units than it was written, which takes as long as pooling a few rows. */
static inline void bag_pool_run(const struct bag_pool_args *args, struct bag_range range, void *out)
{
    const struct bag_tiles *tiles = args->tiles;
    if (tiles && !args->streams && range.first_column == 0 &&
        range.end_column == tiles->end_column && range.first_bag < range.end_bag) {
        tiles->pool(args, tiles, range.first_bag, range.end_bag,
                    (char *)out + range.first_bag * args->bag_stride);
    } else {
        /* The address is that of a copy, so that `range` itself stays in registers. */
        const struct bag_range copy = range;
        bag_pool_range(args, &copy, out);
    }
}

/* Returns the number of indices in bags [0, bag) of the result, for splitting work evenly; 0 <= bag
 * <= num_bags. Indices that belong to no bag are not counted. */
size_t bag_pool_entries_before(const struct bag_pool_args *args, size_t bag);
