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

#include "isa.h"
#include "table.h"

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
    /* With BAG_NONE an entry that does not count gets zeros, whatever default_index is. */
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
 * from the inputs present: offsets, segment_ids, or 2-D indices alone. With BAG_NONE it is packed,
 * with bags of one index, whatever the shape of the indices; offsets are only checked. A result of
 * more than `max_result_bytes` is rejected; the computation of its size does not overflow. On a
 * fault the status is returned, `*fault` says where, `*args` is unspecified. Fails on the first bad
 * position of the tensor at fault. Where the rules say that the table is keyed, the indices and
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

#endif
