/* Random small calls: of few bags and ids, right ones and wrong ones, around the sizes at which
 * they are checked and pooled on short ways. The check's short way must find what its general one
 * finds, and the bits must be those of plain C, whose bounds are found here in another way. Every
 * array begins or ends at a page that nothing may read. */
#pragma once

#include "kernels/partial.h"
#include "random_call.h"

enum { SMALL_BAGS = 4, SMALL_ROWS = 8, SMALL_COLUMNS = 272 };

static struct fenced offset_memory;

struct small_call {
    struct bag_table table;
    struct bag_rules rules;
    struct bag_tensor indices, offsets, weights;
    bool is_weighted;
    int64_t readable_rows; /* the rows of the table that are in memory */
    size_t max_result_bytes;
    size_t gap;   /* bytes between the result's bags */
    size_t split; /* bags before this one are pooled first, then the others */
    bool streams, is_partial, is_widened;
};

static bool make_small_memory(void)
{
    return fence(&offset_memory, (SMALL_BAGS + 2) * 8);
}

/* Returns a place for `bytes` bytes at one end of the memory. */
static unsigned char *edge_of(const struct fenced *memory, size_t bytes)
{
    return memory->bytes + (one_in(2) ? memory->count - bytes : 0);
}

static void choose_small_table(struct small_call *call)
{
    static const enum bag_dtype dtypes[] = {BAG_F32,  BAG_F32, BAG_F16, BAG_F16,
                                            BAG_BF16, BAG_F64, BAG_I32, BAG_U64};
    static const int64_t claims[] = {30000, 2000000, 1000000000, INT64_C(1) << 33};
    struct bag_table *table = &call->table;
    bool special = one_in(4);
    table->row_format =
        one_in(2) ? BAG_ROWS_PLAIN : (enum bag_row_format)below(BAG_ROW_FORMAT_COUNT);
    table->dtype = table->row_format == BAG_ROWS_PLAIN ? dtypes[below(COUNT_OF(dtypes))] : BAG_F32;
    table->row_elements = one_in(2) ? 8 * below(SMALL_COLUMNS / 8) + below(3) : below(110);
    table->num_rows = one_in(20) ? 0 : 1 + (int64_t)below(SMALL_ROWS);
    fill_rows(table, edge_of(&row_memory, (size_t)table->num_rows * bag_row_bytes(table)), special);
    call->readable_rows = table->num_rows;
    if (table->num_rows > 0 && one_in(3))
        table->num_rows = claims[below(COUNT_OF(claims))];
}

static int64_t any_row(const struct small_call *call)
{
    return (int64_t)below((size_t)call->readable_rows);
}

static void choose_small_rules(struct small_call *call)
{
    static const enum bag_dtype outputs[] = {BAG_F16, BAG_BF16, BAG_F32};
    enum bag_dtype dtype = call->table.dtype;
    bool is_float = bag_dtypes[dtype].kind == BAG_KIND_FLOAT, has_rows = call->readable_rows > 0;
    call->rules = (struct bag_rules){
        .reduction = (enum bag_reduction)below(is_float ? 4 : 3),
        .output_dtype = converts(dtype) && one_in(2) ? outputs[below(COUNT_OF(outputs))] : dtype,
        .default_index = has_rows && one_in(2) ? any_row(call) : -1,
        .has_padding_idx = has_rows && one_in(5),
        .include_last_offset = one_in(2),
        .weighted_mean = !one_in(4),
        .prune_invalid = one_in(10),
        .missing = one_in(10) ? BAG_MISSING_SKIP : BAG_MISSING_ERROR,
        .require_zero_first_offset = one_in(10),
        .require_matching_index_types = one_in(10),
    };
    if (call->rules.has_padding_idx)
        call->rules.padding_idx = any_row(call) - (one_in(2) ? call->table.num_rows : 0);
}

static void put_id(unsigned char *ids, bool wide, size_t position, int64_t id)
{
    int32_t narrow = (int32_t)id;
    if (wide)
        memcpy(ids + position * sizeof id, &id, sizeof id);
    else
        memcpy(ids + position * sizeof narrow, &narrow, sizeof narrow);
}

/* An array of ids at an edge of the memory. */
static struct bag_tensor ids_at_edge(const struct fenced *memory, size_t count)
{
    bool wide = one_in(2);
    return (struct bag_tensor){.dtype = wide ? BAG_I64 : BAG_I32,
                               .rank = 1,
                               .shape = {(int64_t)count},
                               .count = count,
                               .data = edge_of(memory, count * (wide ? 8 : 4))};
}

/* Chooses bags of few ids each, sometimes as many as a vector has lanes, or of one id each. The
 * first and the last bag may be empty. Returns the number of ids. */
static size_t choose_small_offsets(struct small_call *call)
{
    static const size_t lengths[] = {0, 0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17};
    size_t bags = one_in(2) ? 1 : below(SMALL_BAGS + 1), at = one_in(8) ? below(3) : 0;
    size_t count = bags + call->rules.include_last_offset;
    call->offsets = ids_at_edge(&offset_memory, count);
    bool wide = call->offsets.dtype == BAG_I64, singles = one_in(3);
    for (size_t i = 0; i < count; i++) {
        size_t length = singles ? 1 : lengths[below(COUNT_OF(lengths))];
        put_id((unsigned char *)(uintptr_t)call->offsets.data, wide, i, (int64_t)at);
        at += i < bags && call->readable_rows > 0 ? length : 0;
    }
    call->split = below(bags + 1);
    return call->readable_rows > 0 ? at + one_in(8) : 0;
}

static void choose_small_ids(struct small_call *call, size_t count)
{
    call->indices = ids_at_edge(&index_memory, count);
    bool wide = call->indices.dtype == BAG_I64;
    for (size_t i = 0; i < count; i++)
        put_id((unsigned char *)(uintptr_t)call->indices.data, wide, i, any_row(call));
    enum bag_dtype dtype = call->table.dtype;
    call->weights = call->indices;
    call->weights.dtype = bag_dtypes[dtype].kind == BAG_KIND_FLOAT && !one_in(4) ? BAG_F32 : dtype;
    size_t bytes = bag_dtypes[call->weights.dtype].bytes;
    unsigned char *weights = edge_of(&weight_memory, count * bytes);
    for (size_t i = 0; i < count; i++)
        fill_element(weights + i * bytes, call->weights.dtype, one_in(40));
    call->weights.data = weights;
    call->is_weighted = one_in(3);
}

/* Puts a wrong id at some position if there are ids. */
static void spoil_ids(const struct bag_tensor *ids, int64_t limit)
{
    const int64_t wrong[] = {-1, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, limit, limit + 1};
    if (ids->count > 0)
        put_id((unsigned char *)(uintptr_t)ids->data, ids->dtype == BAG_I64, below(ids->count),
               wrong[below(COUNT_OF(wrong))]);
}

/* Another type of elements that are not larger. */
static void spoil_type(struct bag_tensor *tensor)
{
    enum bag_dtype dtype = (enum bag_dtype)below(BAG_BYTES);
    if (bag_dtypes[dtype].bytes <= bag_dtypes[tensor->dtype].bytes)
        tensor->dtype = dtype;
}

/* Makes a call wrong in one way, perhaps. */
static void spoil(struct small_call *call)
{
    struct bag_tensor *any[] = {&call->indices, &call->offsets, &call->weights};
    struct bag_tensor *tensor = any[below(COUNT_OF(any))];
    switch (below(6)) {
    case 0:
        spoil_ids(&call->indices, call->table.num_rows);
        break;
    case 1:
        spoil_ids(&call->offsets, (int64_t)call->indices.count);
        break;
    case 2:
        spoil_type(tensor);
        break;
    case 3:
        *tensor = (struct bag_tensor){.dtype = tensor->dtype,
                                      .rank = (uint32_t)below(3),
                                      .shape = {(int64_t)tensor->count, 1},
                                      .count = tensor->count,
                                      .data = tensor->data};
        break;
    case 4:
        if (tensor->count > 0)
            tensor->shape[0] = (int64_t)--tensor->count;
        break;
    default:
        call->max_result_bytes = below(4000);
    }
}

static void choose_small(uint64_t seed, struct small_call *call)
{
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15);
    *call = (struct small_call){.max_result_bytes = SIZE_MAX};
    choose_small_table(call);
    choose_small_rules(call);
    choose_small_ids(call, choose_small_offsets(call));
    call->gap = one_in(4) ? 1 + below(9) : 0;
    call->streams = one_in(8);
    call->is_partial = one_in(8);
    call->is_widened = one_in(4);
    if (one_in(6))
        spoil(call);
}
