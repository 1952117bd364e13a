/* A table, a front without it, its parts in the same process, and collections of several features
 * of it, made by seed; and random requests to them. */
#pragma once

#include "kernels/keys.h"
#include "kernels/random.h"
#include "kernels/rowformat.h"
#include "server/infer/infer.h"
#include "server/shards/remote.h"
#include "testing.h"

#include <stdarg.h>

enum { ROWS = 40, COLUMNS = 7, MAX_PARTS = 5, MAX_IDS = 60, HASH_ROWS = 3, FEATURES = 4 };

static uint64_t random_state;

static size_t below(size_t limit)
{
    return (size_t)(bag_random(&random_state) % limit);
}

static bool one_in(size_t n)
{
    return below(n) == 0;
}

/* ---- models ---------------------------------------------------------------------------------- */

struct served {
    struct bag_model model;
    struct bag_feature feature;
    struct bag_table_memory memory;
    struct bag_remote remote;
    unsigned char rows[(ROWS + 1) * COLUMNS * 8];
    _Alignas(64) struct bag_keys_line lines[32];
};

struct collection {
    struct bag_model model;
    struct bag_feature features[FEATURES];
    const struct bag_feature *sorted[FEATURES];
};

static struct {
    struct served whole, front, parts[MAX_PARTS];
    struct collection whole_features, front_features;
    size_t num_parts;
    enum bag_part_by by;
    struct bag_rules rules;
    enum bag_dtype dtype;
    struct bag_buffers buffers;
    struct bag_infer_limits limits;
} world;

static int64_t key_of(size_t row)
{
    return (int64_t)(row * UINT64_C(0x9e3779b97f4a7c15));
}

static void put_element(unsigned char *at, int value)
{
    float single = (float)value;
    double wide = value;
    int64_t whole = value;
    uint16_t half = bag_f16_from_f32(single);
    const void *from = world.dtype == BAG_F32   ? (const void *)&single
                       : world.dtype == BAG_F64 ? (const void *)&wide
                       : world.dtype == BAG_F16 ? (const void *)&half
                                                : (const void *)&whole;
    memcpy(at, from, bag_dtypes[world.dtype].bytes);
}

/* Serves rows[0 .. num_rows) of the memory; `own` are the part's own. */
static void serve(struct served *served, size_t num_rows, size_t own, size_t columns)
{
    struct bag_table_memory *memory = &served->memory;
    memory->table = (struct bag_table){.rows = served->rows,
                                       .dtype = world.dtype,
                                       .num_rows = (int64_t)num_rows,
                                       .row_elements = columns};
    memory->rank = 2;
    memory->shape[0] = (int64_t)own;
    memory->shape[1] = (int64_t)columns;
    memory->whole_rows = ROWS;
    memory->whole_elements = COLUMNS;
    served->feature = (struct bag_feature){
        .name = (char *)(uintptr_t)BAG_EMBEDDINGS, .rules = world.rules, .memory = memory};
    bag_feature_prepare(&served->feature, world.rules, &served->feature.plan);
    served->model = (struct bag_model){.name = (char *)(uintptr_t) "m",
                                       .version = (char *)(uintptr_t) "3",
                                       .memory = memory,
                                       .features = &served->feature,
                                       .num_features = 1,
                                       .resolves = true};
}

static void begin_index(struct served *served)
{
    memset(served->lines, 0, sizeof served->lines);
    served->memory.index.keys = bag_keys_for(ROWS + 1);
    assert_in_range(served->memory.index.keys.num_lines, 1, COUNT_OF(served->lines));
    served->memory.index.keys.lines = served->lines;
}

static void add_key(struct served *served, size_t row, size_t local)
{
    int64_t other;
    assert_int_equal(
        bag_keys_insert(&served->memory.index.keys, (uint64_t)key_of(row), (int64_t)local, &other),
        BAG_KEYS_ADDED);
}

static void copy_row(struct served *to, size_t local, size_t row, size_t first, size_t columns)
{
    size_t bytes = bag_dtypes[world.dtype].bytes;
    memcpy(to->rows + local * columns * bytes, world.whole.rows + (row * COLUMNS + first) * bytes,
           columns * bytes);
}

static size_t default_row(void)
{
    for (size_t row = 0; world.rules.keyed && row < ROWS; row++) {
        if (key_of(row) == world.rules.default_index)
            return row;
    }
    return (size_t)world.rules.default_index;
}

static void make_columns(struct served *part, size_t index, uint32_t of)
{
    size_t first = bag_part_begin(COLUMNS, (uint32_t)index, of);
    size_t columns = bag_part_begin(COLUMNS, (uint32_t)index + 1, of) - first;
    for (size_t row = 0; row < ROWS; row++)
        copy_row(part, row, row, first, columns);
    for (size_t row = 0; world.rules.keyed && row < ROWS; row++)
        add_key(part, row, row);
    serve(part, ROWS, ROWS, columns);
}

static void make_rows(struct served *part, size_t index, uint32_t of)
{
    size_t first = bag_part_begin(ROWS, (uint32_t)index, of);
    size_t own = bag_part_begin(ROWS, (uint32_t)index + 1, of) - first;
    int64_t kept = world.rules.default_index;
    part->memory.first_row = first;
    part->memory.keeps_default = kept >= 0 && ((size_t)kept < first || (size_t)kept >= first + own);
    part->memory.kept_default = kept;
    for (size_t row = 0; row < own; row++)
        copy_row(part, row, first + row, 0, COLUMNS);
    if (part->memory.keeps_default)
        copy_row(part, own, (size_t)kept, 0, COLUMNS);
    serve(part, own + part->memory.keeps_default, own, COLUMNS);
}

static void make_keys(struct served *part, size_t index, uint32_t of)
{
    size_t local = 0;
    for (size_t row = 0; row < ROWS; row++) {
        bool is_own = bag_part_of_key((uint64_t)key_of(row), of) == index;
        bool is_default = world.rules.has_default_index && row == default_row();
        if (is_own || is_default)
            add_key(part, row, local);
        if (is_own || is_default || row < HASH_ROWS)
            copy_row(part, local++, row, 0, COLUMNS);
    }
    serve(part, local, local, COLUMNS);
}

static void make_parts(void)
{
    static void (*const make[])(struct served *, size_t, uint32_t) = {make_columns, make_rows,
                                                                      make_keys};
    for (size_t i = 0; i < world.num_parts; i++) {
        struct served *part = &world.parts[i];
        memset(&part->memory, 0, sizeof part->memory);
        part->memory.part = (struct bag_part){world.by, (uint32_t)i, (uint32_t)world.num_parts};
        begin_index(part);
        make[world.by](part, i, (uint32_t)world.num_parts);
    }
    struct bag_remote *remote = &world.front.remote;
    *remote = (struct bag_remote){.part = {world.by, 0, (uint32_t)world.num_parts},
                                  .num_shards = world.num_parts,
                                  .is_keyed = world.rules.keyed,
                                  .model = (char *)(uintptr_t) "m",
                                  .version = (char *)(uintptr_t) "3"};
    memset(&world.front.memory, 0, sizeof world.front.memory);
    world.front.memory.remote = remote;
    serve(&world.front, ROWS, ROWS, COLUMNS);
    world.front.memory.table.rows = NULL;
    world.front.model.is_remote = true;
    bag_feature_prepare(&world.front.feature, world.rules, &world.front.feature.plan);
}

/* The rules of a feature. Shards use the rules of the model for parameters that are absent from a
 * subrequest. */
static struct bag_rules feature_rules(void)
{
    struct bag_rules rules = world.rules;
    bool is_float = bag_dtypes[world.dtype].kind == BAG_KIND_FLOAT;
    if (one_in(2))
        rules.reduction = (enum bag_reduction)below(is_float ? BAG_REDUCTION_COUNT : BAG_SQRTN);
    rules.has_padding_idx = one_in(3);
    rules.padding_idx = rules.keyed ? key_of(below(ROWS)) : (int64_t)below(ROWS);
    if (rules.keyed && one_in(4))
        rules.missing = BAG_MISSING_ERROR;
    if (world.dtype == BAG_F16 && one_in(3))
        rules.output_dtype = BAG_F32;
    if (rules.keyed || one_in(2))
        return rules;
    rules.prune_invalid |= one_in(2);
    rules.missing = (enum bag_missing)below(2);
    rules.default_index = (int64_t)below(ROWS + 1) - 1;
    rules.has_default_index = rules.default_index >= 0;
    return rules;
}

static void make_feature(struct collection *collection, size_t i, const struct bag_rules *rules,
                         struct bag_table_memory *memory)
{
    static const char *const names[FEATURES] = {"a", "b", "c", "d"};
    struct bag_feature *feature = &collection->features[i];
    *feature = (struct bag_feature){
        .name = (char *)(uintptr_t)names[i], .rules = *rules, .memory = memory};
    bag_feature_prepare(feature, *rules, &feature->plan);
    collection->sorted[i] = feature;
    collection->model = (struct bag_model){.name = (char *)(uintptr_t) "all",
                                           .version = (char *)(uintptr_t) "5",
                                           .features = collection->features,
                                           .num_features = FEATURES,
                                           .sorted = collection->sorted,
                                           .resolves = true};
}

/* The last feature's table is the front's own now and then. */
static void make_collections(void)
{
    bool is_mixed = one_in(3);
    for (size_t i = 0; i < FEATURES; i++) {
        struct bag_rules rules = feature_rules();
        bool is_local = is_mixed && i == FEATURES - 1;
        make_feature(&world.whole_features, i, &rules, &world.whole.memory);
        make_feature(&world.front_features, i, &rules,
                     is_local ? &world.whole.memory : &world.front.memory);
    }
    world.front_features.model.is_remote = true;
}

static void make_world(void)
{
    static const enum bag_dtype dtypes[] = {BAG_F32, BAG_F32, BAG_F16, BAG_F64, BAG_I8, BAG_I64};
    bool keyed = one_in(2);
    world.dtype = dtypes[below(COUNT_OF(dtypes))];
    world.num_parts = 1 + below(MAX_PARTS);
    world.by = one_in(3) ? BAG_PART_COLUMNS : keyed ? BAG_PART_KEYS : BAG_PART_ROWS;
    bool has_default = one_in(2);
    enum bag_missing missing = (enum bag_missing)below(keyed ? 4 : 3);
    if (missing == BAG_MISSING_DEFAULT)
        has_default = true;
    size_t row = below(ROWS);
    world.rules = (struct bag_rules){.reduction = BAG_SUM,
                                     .output_dtype = world.dtype,
                                     .default_index = !has_default ? -1
                                                      : keyed      ? key_of(row)
                                                                   : (int64_t)row,
                                     .has_default_index = has_default,
                                     .weighted_mean = one_in(2),
                                     .prune_invalid = one_in(3),
                                     .missing = missing,
                                     .hash_rows = HASH_ROWS,
                                     .keyed = keyed,
                                     .unsorted_segments = one_in(2)};
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        put_element(world.whole.rows + i * bag_dtypes[world.dtype].bytes, (int)below(17) - 8);
    memset(&world.whole.memory, 0, sizeof world.whole.memory);
    begin_index(&world.whole);
    for (size_t i = 0; keyed && i < ROWS; i++)
        add_key(&world.whole, i, i);
    serve(&world.whole, ROWS, ROWS, COLUMNS);
    make_parts();
    make_collections();
}

/* ---- requests -------------------------------------------------------------------------------- */

struct text {
    char bytes[65536];
    size_t used;
};

static __attribute__((format(printf, 2, 3))) void put(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    text->used += (size_t)vsnprintf(text->bytes + text->used, sizeof text->bytes - text->used,
                                    format, arguments);
    va_end(arguments);
    assert_true(text->used < sizeof text->bytes);
}

/* One in `strange` of them is no row, or key, of the table. */
static int64_t random_id(size_t strange)
{
    size_t row = below(ROWS);
    if (one_in(strange))
        return one_in(2) ? -1 - (int64_t)below(3) : (int64_t)(ROWS + below(9));
    return world.rules.keyed ? key_of(row) : (int64_t)row;
}

/* An input, behind others, of a feature; "": of a table. */
static void put_numbers(struct text *text, const char *feature, const char *name, const char *type,
                        const char *shape, const int64_t *numbers, size_t count)
{
    put(text, "%s{\"name\":\"%s%s\",\"datatype\":\"%s\",\"shape\":[%s],\"data\":[",
        text->used && text->bytes[text->used - 1] == '}' ? "," : "", feature, name, type, shape);
    for (size_t i = 0; i < count; i++)
        put(text, "%s%lld", i ? "," : "", (long long)numbers[i]);
    put(text, "]}");
}

/* As requests may bring them: the parts add them in the table's type. */
static const char *weights_type(void)
{
    bool is_float = bag_dtypes[world.dtype].kind == BAG_KIND_FLOAT;
    return is_float && world.dtype != BAG_F64 ? "FP32" : bag_dtypes[world.dtype].name;
}

static int compare(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Which ids are a bag, by any form that the reduction takes; at least the shape of `ids` in *shape.
 */
static void put_groups(struct text *text, const char *feature, enum bag_reduction reduction,
                       size_t count, char shape[64])
{
    int64_t groups[MAX_IDS];
    char size[32];
    size_t form = below(reduction == BAG_NONE ? 2 : 3), bags = 1 + below(12);
    snprintf(shape, 64, "%zu", count);
    if (form == 0) { /* packed */
        size_t length = count ? 1 + below(count) : 3;
        snprintf(shape, 64, "%zu,%zu", count / length, length);
        return;
    }
    size_t num = form == 1 ? bags : count;
    for (size_t i = 0; i < num; i++)
        groups[i] = (int64_t)below(form == 1 ? count + 1 : bags);
    if (form == 1 || !world.rules.unsorted_segments)
        qsort(groups, num, sizeof *groups, compare);
    /* Keys in front of the first bag are in no bag, and no shard is asked for them. */
    if (form == 1 && world.rules.keyed)
        groups[0] = 0;
    snprintf(size, sizeof size, "%zu", num);
    put_numbers(text, feature, form == 1 ? "offsets" : "segment_ids", "INT64", size, groups, num);
    int64_t total = (int64_t)(bags + below(3));
    if (form == 2)
        put_numbers(text, feature, "num_segments", "INT64", "1", &total, 1);
}

/* Ids, and weights of them. */
static void make_ids(int64_t *ids, int64_t *weights, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ids[i] = random_id(world.rules.missing == BAG_MISSING_ERROR ? 200 : 12);
        weights[i] = (int64_t)below(6) - 1;
    }
}

static bool takes_weights(enum bag_reduction reduction)
{
    return reduction != BAG_MAX && reduction != BAG_NONE &&
           (reduction != BAG_MEAN || world.rules.weighted_mean);
}

/* The inputs of a feature, or of a table. Returns one of the ids, or -1. */
static int64_t put_inputs(struct text *text, const char *feature, enum bag_reduction reduction)
{
    size_t count = below(MAX_IDS);
    int64_t ids[MAX_IDS], weights[MAX_IDS], instead = random_id(12);
    char shape[64];
    put_groups(text, feature, reduction, count, shape);
    unsigned first = 0, second = 1;
    sscanf(shape, "%u,%u", &first, &second);
    count = (size_t)first * second;
    make_ids(ids, weights, count);
    put_numbers(text, feature, "indices", "INT64", shape, ids, count);
    if (takes_weights(reduction) && one_in(2))
        put_numbers(text, feature, "per_sample_weights", weights_type(), shape, weights, count);
    if (one_in(4))
        put_numbers(text, feature, "default_index", "INT64", "1", &instead, 1);
    return count > 0 ? ids[0] : -1;
}

/* Appends the parameters of a request. If `reduction` is NULL, the features use their own
 * reductions. */
static void put_parameters(struct text *text, const char *reduction, int64_t padding)
{
    const char *quote = world.rules.keyed ? "\"" : "";
    put(text, "],\"parameters\":{\"binary_data_output\":%s", one_in(4) ? "true" : "false");
    if (reduction)
        put(text, ",\"reduction\":\"%s\"", reduction);
    if (padding != -1 && one_in(3))
        put(text, ",\"padding_idx\":%s%lld%s", quote, (long long)padding, quote);
    put(text, ",\"explain\":%s}", one_in(3) ? "true" : "false");
}

static enum bag_reduction random_reduction(void)
{
    bool is_float = bag_dtypes[world.dtype].kind == BAG_KIND_FLOAT;
    return (enum bag_reduction)below(is_float ? BAG_REDUCTION_COUNT : BAG_SQRTN);
}

static inline void make_request(struct text *text)
{
    enum bag_reduction reduction = random_reduction();
    text->used = 0;
    put(text, "{\"inputs\":[");
    int64_t padding = put_inputs(text, "", reduction);
    put_parameters(text, bag_reduction_names[reduction], padding);
    put(text, "}");
}

/* All features at once. */
static void put_kjt(struct text *text, size_t bags, bool is_weighted)
{
    int64_t lengths[FEATURES * 8], ids[FEATURES * 8 * 4], weights[FEATURES * 8 * 4];
    size_t count = 0;
    char shape[32];
    for (size_t i = 0; i < FEATURES * bags; i++)
        count += (size_t)(lengths[i] = (int64_t)below(5));
    make_ids(ids, weights, count);
    snprintf(shape, sizeof shape, "%zu", FEATURES * bags);
    put_numbers(text, "", "lengths", "INT64", shape, lengths, FEATURES * bags);
    snprintf(shape, sizeof shape, "%zu", count);
    put_numbers(text, "", "values", "INT64", shape, ids, count);
    if (is_weighted)
        put_numbers(text, "", "weights", weights_type(), shape, weights, count);
}

/* Makes a request for a collection, in both layouts, without some of its features. */
static inline void make_features_request(struct text *text)
{
    enum bag_reduction reduction = random_reduction();
    bool has_reduction = one_in(2), is_kjt = one_in(3);
    int64_t padding = -1;
    text->used = 0;
    put(text, "{\"inputs\":[");
    if (is_kjt)
        put_kjt(text, below(9), has_reduction && takes_weights(reduction) && one_in(2));
    for (size_t i = 0; !is_kjt && i < FEATURES; i++) {
        const struct bag_feature *feature = &world.whole_features.features[i];
        char prefix[8];
        snprintf(prefix, sizeof prefix, "%s.", feature->name);
        if (!one_in(5))
            padding =
                put_inputs(text, prefix, has_reduction ? reduction : feature->rules.reduction);
    }
    put_parameters(text, has_reduction ? bag_reduction_names[reduction] : NULL, padding);
    if (is_kjt && one_in(2))
        put(text, ",\"outputs\":[{\"name\":\"d\"},{\"name\":\"embeddings\"},{\"name\":\"a\"}]");
    put(text, "}");
}
