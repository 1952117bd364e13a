/* Pools a range of the result, in every form of bags: chooses the loop, and what is done around it.
 * The usual call does not come here, see bag_pool_run. */
#include "pool_loop.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE_BYTES 64

/* The size of the buffer in L1 in which results are pooled before they are streamed. */
#define STAGE_BYTES 16384

/* ---- results past the caches ----------------------------------------------------------------- */

/* Writes a cache line past the caches if the processor supports that. `to` is aligned to a line. */
static void stream_line(char *to, const char *from)
{
#if defined(__x86_64__)
    const __m128i *parts = (const __m128i *)(const void *)from;
    for (int i = 0; i < 4; i++)
        _mm_stream_si128((__m128i *)(void *)to + i, _mm_loadu_si128(parts + i));
#else
    memcpy(to, from, LINE_BYTES);
#endif
}

/* Orders the streamed bytes before later writes of the thread. */
static void end_streaming(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Writes `bytes` past the caches, except for partial lines at both ends. */
static void stream(char *to, const char *from, size_t bytes)
{
    size_t first = -(uintptr_t)to % LINE_BYTES;
    first = first < bytes ? first : bytes;
    memcpy(to, from, first);
    size_t end = first + (bytes - first) / LINE_BYTES * LINE_BYTES;
    for (size_t i = first; i < end; i += LINE_BYTES)
        stream_line(to + i, from + i);
    memcpy(to + end, from + end, bytes - end);
}

static bool has_all_columns(const struct bag_pool_args *args, const struct bag_range *range)
{
    return range->first_column == 0 && range->end_column == args->table.row_elements;
}

/* ---- bags with offsets ----------------------------------------------------------------------- */

static void pool_bags(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    const enum bag_mode mode = bag_mode_of(args);
    struct bag_tiles tiles =
        has_all_columns(args, range)
            ? args->walk->whole[mode]
            : bag_choose_tiles(args, mode, range->first_column, range->end_column);
    if (args->indices.count > UINT32_MAX)
        tiles.pool = bag_ref_loop;
    tiles.pool(args, &tiles, range->first_bag, range->end_bag,
               out + range->first_bag * args->bag_stride +
                   range->first_column * args->element_bytes);
}

/* ---- equal bags ------------------------------------------------------------------------------ */

/* Equal bags. A user's features are repeated for each candidate. A bag that equals the one before
 * it is not pooled again; the result is copied. This is tried for bags with at least
 * BAG_EQUAL_LEAST_ENTRIES entries, and this number of bytes if the rows are in the near caches, and
 * only if most of the first bags repeat. Otherwise copying takes as long as pooling. */
#define EQUAL_LEAST_BYTES  2048
#define EQUAL_FIRST_BAGS   8
#define EQUAL_FETCHED_ROWS 32

/* Returns whether a bag has the entries and weights of the one before it. */
static bool repeats(const struct bag_pool_args *args, size_t bag)
{
    const size_t before = bag_offset_at(args, bag - 1), first = bag_offset_at(args, bag);
    const size_t count = first - before;
    if (bag_offset_at(args, bag + 1) - first != count || count < BAG_EQUAL_LEAST_ENTRIES ||
        bag_id_at(&args->indices, first) != bag_id_at(&args->indices, before))
        return false;
    const size_t id_bytes = args->indices.wide ? sizeof(int64_t) : sizeof(int32_t);
    const size_t weight_bytes = bag_dtypes[args->weights_dtype].bytes;
    const char *ids = args->indices.data, *weights = args->weights;
    return memcmp(ids + first * id_bytes, ids + before * id_bytes, count * id_bytes) == 0 &&
           (!weights || memcmp(weights + first * weight_bytes, weights + before * weight_bytes,
                               count * weight_bytes) == 0);
}

static bool has_equal_bags(const struct bag_pool_args *args, const struct bag_range *range)
{
    const struct bag_row_walk *walk = args->walk;
    const size_t num_bags = range->end_bag - range->first_bag;
    const size_t last = num_bags <= EQUAL_FIRST_BAGS ? num_bags - 1 : EQUAL_FIRST_BAGS;
    const size_t entries =
        bag_offset_at(args, range->end_bag) - bag_offset_at(args, range->first_bag);
    size_t equal = 0;
    if (num_bags < 2 || entries < num_bags * BAG_EQUAL_LEAST_ENTRIES ||
        (walk->fetch == BAG_FETCH_NONE && entries * walk->row_bytes < num_bags * EQUAL_LEAST_BYTES))
        return false;
    for (size_t bag = 1; bag <= last; bag++)
        equal += repeats(args, range->first_bag + bag);
    return equal > last / 2;
}

/* Prefetches the first rows of a bag after repeated ones. The loop prefetched the rows of the
 * latter. */
static void fetch_bag(const struct bag_pool_args *args, size_t bag)
{
    const size_t first = bag_offset_at(args, bag), end = bag_offset_at(args, bag + 1);
    if (args->walk->fetch != BAG_FETCH_NONE)
        bag_fetch_rows(args, first,
                       end - first < EQUAL_FETCHED_ROWS ? end : first + EQUAL_FETCHED_ROWS);
}

/* Copies the result of the bag before `first` to the bags [first, end). */
static void copy_result(const struct bag_pool_args *args, const struct bag_range *range,
                        size_t first, size_t end, char *out)
{
    const size_t bytes = (range->end_column - range->first_column) * args->element_bytes;
    char *to = out + first * args->bag_stride + range->first_column * args->element_bytes;
    const char *from = to - args->bag_stride;
    for (size_t bag = first; bag < end; bag++, to += args->bag_stride)
        memcpy(to, from, bytes);
}

/* Pools runs of bags that differ from the one before them, and copies the results of the others. */
static void pool_differing(const struct bag_pool_args *args, const struct bag_range *range,
                           char *out)
{
    struct bag_range part = *range;
    for (size_t bag = range->first_bag; bag < range->end_bag;) {
        size_t end = bag + 1;
        while (end < range->end_bag && !repeats(args, end))
            end++;
        size_t next = end;
        while (next < range->end_bag && repeats(args, next))
            next++;
        part.first_bag = bag;
        part.end_bag = end;
        if (next > end && next < range->end_bag)
            fetch_bag(args, next);
        pool_bags(args, &part, out);
        copy_result(args, range, end, next, out);
        bag = next;
    }
}

/* ---- every form ------------------------------------------------------------------------------ */

static void pool_range(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    if (has_equal_bags(args, range))
        pool_differing(args, range, out);
    else
        pool_bags(args, range, out);
}

/* Returns whether the range is contiguous and its bags fit into the stage. */
static bool can_stream(const struct bag_pool_args *args, const struct bag_range *range)
{
    size_t bag_bytes = args->table.row_elements * args->element_bytes;
    return args->bag_stride == bag_bytes && bag_bytes > 0 && bag_bytes <= STAGE_BYTES &&
           has_all_columns(args, range);
}

/* Pools as many bags at a time as the stage holds, and streams their results from it. */
static __attribute__((noinline)) void stream_range(const struct bag_pool_args *args,
                                                   const struct bag_range *range, char *out)
{
    _Alignas(LINE_BYTES) char stage[STAGE_BYTES] BAG_UNSET;
    const size_t stride = args->bag_stride, most_bags = STAGE_BYTES / stride;
    struct bag_range part = *range;
    for (size_t bag = range->first_bag; bag < range->end_bag; bag = part.end_bag) {
        const size_t left = range->end_bag - bag;
        part.first_bag = bag;
        part.end_bag = bag + (left < most_bags ? left : most_bags);
        /* The loop counts from the first bag of the whole result. */
        pool_range(args, &part, (char *)((uintptr_t)stage - bag * stride));
        stream(out + bag * stride, stage, (part.end_bag - bag) * stride);
    }
    end_streaming();
}

static void run_offsets(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    if (args->streams && can_stream(args, range))
        stream_range(args, range, out);
    else
        pool_range(args, range, out);
}

/* Pools bags without offsets, for some of which at a time it writes the offsets. */
static __attribute__((noinline)) void run_without_offsets(const struct bag_pool_args *args,
                                                          const struct bag_range *range, char *out)
{
    size_t offsets[BAG_BOUNDS + 1] BAG_UNSET, hint = 0, count;
    struct bag_pool_args some = *args;
    some.form = BAG_FORM_OFFSETS;
    for (size_t bag = range->first_bag; bag < range->end_bag; bag += count) {
        count = range->end_bag - bag < BAG_BOUNDS ? range->end_bag - bag : BAG_BOUNDS;
        bag_pool_bounds(args, bag, bag + count, &hint, offsets);
        some.num_bags = count;
        some.groups = (struct bag_ids){offsets, count + 1, sizeof *offsets == sizeof(int64_t)};
        const struct bag_range part = {0, count, range->first_column, range->end_column};
        run_offsets(&some, &part, out + bag * args->bag_stride);
    }
}

static void run_range(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    if (range->first_bag >= range->end_bag || range->first_column >= range->end_column)
        return;
    if (args->form == BAG_FORM_OFFSETS)
        run_offsets(args, range, out);
    else
        run_without_offsets(args, range, out);
}

/* ---- rows that are not pooled ---------------------------------------------------------------- */

/* Returns whether the result has the elements of the table as they are stored. */
static bool copies_rows(const struct bag_pool_args *args)
{
    return args->table.row_format == BAG_ROWS_PLAIN && args->output_dtype == args->table.dtype;
}

/* Copies the row of every entry, and writes zeros for entries that do not count. */
static void copy_rows(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    const size_t bytes = (range->end_column - range->first_column) * args->element_bytes;
    const size_t at = range->first_column * args->element_bytes;
    const size_t ahead = args->ahead, row_bytes = args->walk->row_bytes;
    const bool streams = args->streams && can_stream(args, range);
    const bool keeps_all = bag_keeps_all(args);
    const char *rows = (const char *)args->table.rows + at;
    const size_t fetch_end = bag_fetch_end(args, range->end_bag);
    for (size_t entry = range->first_bag; entry < range->end_bag; entry++) {
        const int64_t row = bag_id_at(&args->indices, entry);
        char *to = out + entry * args->bag_stride + at;
        if (entry < fetch_end)
            bag_fetch_row(args, entry + ahead, rows, row_bytes, bytes);
        if (!keeps_all && !bag_keeps(args, entry, row))
            memset(to, 0, bytes);
        else if (streams)
            stream(to, rows + (size_t)row * row_bytes, bytes);
        else
            memcpy(to, rows + (size_t)row * row_bytes, bytes);
    }
    if (streams)
        end_streaming();
}

/* Decodes or rounds the row of every entry. It computes the maximum of one value, which is that
 * value with its sign. */
static void convert_rows(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    struct bag_pool_args largest = *args;
    largest.reduction = BAG_MAX;
    largest.is_general = true;
    run_range(&largest, range, out);
}

void bag_pool_range(const struct bag_pool_args *args, const struct bag_range *range, void *out)
{
    if (args->reduction == BAG_NONE)
        (copies_rows(args) ? copy_rows : convert_rows)(args, range, out);
    else
        run_range(args, range, out);
}
