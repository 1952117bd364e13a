/* The projections of a batch; see projection_batch.h. */
#include "projection_batch.h"

#include <string.h>

/* A feature's rows. The memory begins with one for each feature. */
struct region {
    const struct bag_projection *projection; /* NULL: nothing is projected */
    size_t count;                            /* rows, of all plans */
    float *pooled, *product;
};

typedef void visit_fn(struct bag_op *op, struct region *region);

/* Every op that is projected, in the same order every time. */
static void each(struct bag_plan *const *plans, size_t count, struct region *regions,
                 visit_fn *visit)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < plans[i]->num_ops; j++) {
            struct bag_op *op = &plans[i]->ops[j];
            if (op->projection)
                visit(op, &regions[op->feature]);
        }
    }
}

static void take_place(struct bag_op *op, struct region *region)
{
    op->result = (char *)(region->pooled + region->count * op->projection->rows);
    region->projection = op->projection;
    region->count += op->args.num_bags;
}

static void store(struct bag_op *op, struct region *region)
{
    const struct bag_projection *projection = region->projection;
    size_t first = (size_t)((float *)(void *)op->result - region->pooled) /
                   (projection->rows ? projection->rows : 1);
    bag_project_store(region->product + first * projection->columns, op->args.num_bags,
                      projection->columns, op->dtype, op->target, op->stride);
}

/* Numbers that the plans' ops of a projection have before and after it. Neither overflows:
 * both are bounded by max_reply_bytes for each plan. */
static size_t count_numbers(struct bag_plan *const *plans, size_t count)
{
    size_t numbers = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < plans[i]->num_ops; j++) {
            const struct bag_op *op = &plans[i]->ops[j];
            if (op->projection)
                numbers += op->args.num_bags * (op->projection->rows + op->projection->columns);
        }
    }
    return numbers;
}

static void count_rows(struct bag_op *op, struct region *region)
{
    region->projection = op->projection;
    region->count += op->args.num_bags;
}

void *bag_projection_batch_begin(struct bag_plan *const *plans, size_t count,
                                 const struct bag_model *model, struct bag_buffers *buffers)
{
    size_t head_bytes = model->num_features * sizeof(struct region);
    struct region *regions =
        bag_buffers_get(buffers, head_bytes + count_numbers(plans, count) * sizeof(float));
    if (!regions)
        return NULL;
    memset(regions, 0, head_bytes);
    each(plans, count, regions, count_rows);
    float *at = (float *)(void *)(regions + model->num_features);
    for (size_t i = 0; i < model->num_features; i++) {
        struct region *region = &regions[i];
        if (!region->projection)
            continue;
        region->pooled = at;
        region->product = at + region->count * region->projection->rows;
        at = region->product + region->count * region->projection->columns;
        region->count = 0; /* and counted again as they are placed */
    }
    each(plans, count, regions, take_place);
    return regions;
}

void bag_projection_batch_end(struct bag_plan *const *plans, size_t count,
                              const struct bag_model *model, void *memory)
{
    struct region *regions = memory;
    for (size_t i = 0; i < model->num_features; i++) {
        if (regions[i].projection)
            bag_project(regions[i].projection, regions[i].pooled, regions[i].count,
                        regions[i].product);
    }
    each(plans, count, regions, store);
    bag_buffers_put(memory);
}
