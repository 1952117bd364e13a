/* Putting unsorted segments in order: a radix sort of (segment id, position), which is stable, so
 * entries of a segment keep their order.
 *
 * Must not know: heap; the caller gives the scratch. */
#include "pool_ids.h"

struct keyed {
    uint64_t id, position;
};

/* Two arrays to sort to and fro between; indices and ids later stand in the second. */
size_t bag_pool_scratch_bytes(const struct bag_pool_args *args)
{
    size_t weight_bytes = args->weights ? bag_dtypes[args->weights_dtype].bytes : 0;
    if (!args->unsorted)
        return 0;
    return args->groups.count * (2 * sizeof(struct keyed) + weight_bytes);
}

/* One pass: a stable sort by the byte of the id that `shift` selects. */
static void sort_by_byte(const struct keyed *from, size_t count, unsigned shift, struct keyed *to)
{
    size_t starts[256] = {0};
    for (size_t i = 0; i < count; i++)
        starts[from[i].id >> shift & 255]++;
    for (size_t byte = 0, sum = 0; byte < 256; byte++) {
        size_t here = starts[byte];
        starts[byte] = sum;
        sum += here;
    }
    for (size_t i = 0; i < count; i++)
        to[starts[from[i].id >> shift & 255]++] = from[i];
}

/* Writes the tensors in the order of `sorted` and lets the pool point at them. */
static void rearrange(struct bag_pool_args *args, const struct keyed *sorted, int64_t *indices,
                      int64_t *ids, char *weights)
{
    size_t count = args->groups.count;
    size_t weight_bytes = bag_dtypes[args->weights_dtype].bytes;
    for (size_t i = 0; i < count; i++) {
        indices[i] = bag_id_at(&args->indices, sorted[i].position);
        ids[i] = (int64_t)sorted[i].id;
        if (args->weights)
            memcpy(weights + i * weight_bytes,
                   (const char *)args->weights + sorted[i].position * weight_bytes, weight_bytes);
    }
    args->indices = (struct bag_ids){indices, count, true};
    args->groups = (struct bag_ids){ids, count, true};
    args->weights = args->weights ? weights : NULL;
    args->unsorted = false;
}

void bag_pool_sort(struct bag_pool_args *args, void *scratch)
{
    size_t count = args->groups.count;
    if (!args->unsorted)
        return;
    struct keyed *from = scratch;
    struct keyed *to = from + count;
    for (size_t i = 0; i < count; i++)
        from[i] = (struct keyed){(uint64_t)bag_id_at(&args->groups, i), i};
    for (unsigned shift = 0; shift < 64 && (args->num_bags - 1) >> shift; shift += 8) {
        sort_by_byte(from, count, shift, to);
        struct keyed *other = from;
        from = to;
        to = other;
    }
    char *weights = (char *)scratch + 2 * count * sizeof *from;
    rearrange(args, from, (int64_t *)(void *)to, (int64_t *)(void *)to + count, weights);
}
