/* Replies compared with the tables' files; see check.h. */
#include "check.h"

#include "files.h"
#include "kernels/keys.h"
#include "kernels/pool_encode.h"
#include "kernels/pool_entries.h"
#include "kernels/rowformat.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The maximum size of a reply that is compared. */
#define REPLY_BYTES ((size_t)1 << 30)

struct check {
    const struct bag_bench_query *query;
    struct bag_stored_table **tables; /* owned, with elements; of each table of the model */
    const struct bag_bench_tensors *tensors;
    const struct bag_bench_answer *answer;
};

/* The bags of one table in a reply, and pooled here. */
struct pooled {
    struct bag_pool_args args; /* the call, with rows in place of ids */
    enum bag_row_format
        row_format;          /* format of the rows below; PLAIN: elements of the call's type */
    size_t row_bytes;        /* bytes of a bag below */
    int64_t *offsets, *rows; /* owned */
    char *want;              /* owned */
    const char *got;         /* in the reply */
};

/* ---- comparing ------------------------------------------------------------------------------- */

/* A number of a result, for comparison and as text. */
struct number {
    double value;
    char text[40];
};

/* Returns the number at `at`, whose bytes need not be aligned. */
static struct number read_number(const char *at, enum bag_dtype dtype)
{
    const struct bag_table one = {.rows = at, .dtype = dtype, .num_rows = 1, .row_elements = 1};
    struct number number;
    float single;
    uint64_t bits = 0;
    if (dtype == BAG_F64) {
        number.value = bag_load_f64(at, 0);
    } else if (bag_dtypes[dtype].kind == BAG_KIND_FLOAT) {
        bag_row_decode(&one, 0, 0, 1, &single);
        number.value = (double)single;
    } else {
        /* Shift an integer of fewer bytes to the top and back, which extends its sign. */
        unsigned unused = 64 - 8 * (unsigned)bag_dtypes[dtype].bytes;
        bool has_sign = bag_dtypes[dtype].kind == BAG_KIND_SIGNED;
        memcpy(&bits, at, bag_dtypes[dtype].bytes);
        int64_t whole = (int64_t)(bits << unused) >> unused;
        snprintf(number.text, sizeof number.text, has_sign ? "%lld" : "%llu",
                 has_sign ? (long long)whole : (long long)bits);
        number.value = (double)whole;
        return number;
    }
    snprintf(number.text, sizeof number.text, "%.9g", number.value);
    return number;
}

/* Returns the most that rounding to this type changes a number of magnitude 1. */
static double rounding_of(enum bag_dtype dtype)
{
    return dtype == BAG_F16    ? 0x1p-11
           : dtype == BAG_BF16 ? 0x1p-8
           : dtype == BAG_F32  ? (double)FLT_EPSILON
                               : DBL_EPSILON;
}

/* Returns the magnitude of one element of a row. */
static double magnitude_of(const struct bag_table *table, int64_t row, size_t column)
{
    float value;
    if (table->dtype == BAG_F64)
        return fabs(
            bag_load_f64((const char *)table->rows + (size_t)row * bag_row_bytes(table), column));
    bag_row_decode(table, row, column, 1, &value);
    return fabs((double)value);
}

/* Returns the most that two orders of addition can differ in an element of a bag. A server over
 * shards adds the sums of parts. */
static double tolerance_of(const struct bag_pool_args *args, size_t bag, size_t column,
                           double value)
{
    const size_t first = bag_pool_first_entry(args, bag), end = bag_pool_first_entry(args, bag + 1);
    const double unit = args->output_dtype == BAG_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    double sum = 0, divisor = 1;
    size_t kept = 0;
    for (size_t entry = first; entry < end; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        if (!bag_keeps(args, entry, row))
            continue;
        double weight = args->weights ? fabs((double)bag_load_f32(args->weights, entry)) : 1;
        sum += weight * magnitude_of(&args->table, row, column);
        kept++;
    }
    if (args->divides && kept)
        divisor = fabs((double)bag_divisor_f32(args, first, end, kept));
    return ((double)kept + 2) * unit * sum / (divisor > 0 ? divisor : 1) +
           rounding_of(args->output_dtype) * fabs(value) +
           (args->output_dtype == BAG_F16 ? 0x1p-25 : 0); /* half of the least number */
}

/* Returns an element of a bag's row in the reply or in the wanted rows. */
static struct number element_of(const struct pooled *pooled, const char *rows, size_t bag, size_t i)
{
    const char *row = rows + bag * pooled->row_bytes;
    float value;
    if (pooled->row_format == BAG_ROWS_PLAIN)
        return read_number(row + i * pooled->args.element_bytes, pooled->args.output_dtype);
    const struct bag_table one = {.rows = row,
                                  .dtype = BAG_F32,
                                  .num_rows = 1,
                                  .row_elements = pooled->args.table.row_elements,
                                  .row_format = pooled->row_format};
    bag_row_decode(&one, 0, i, 1, &value);
    return read_number((const char *)&value, BAG_F32);
}

/* Returns the most that two codes of an encoded bag may differ in value, because the sums before
 * them do: a step between neighbouring codes. */
static double step_of(const struct pooled *pooled, size_t bag, double value)
{
    if (pooled->row_format == BAG_ROWS_PLAIN)
        return 0;
    const struct bag_row_layout *layout = &bag_row_layouts[pooled->row_format];
    const struct bag_table row = {.dtype = BAG_F32,
                                  .row_elements = pooled->args.table.row_elements,
                                  .row_format = pooled->row_format};
    const char *params = pooled->want + bag * pooled->row_bytes + bag_row_places(&row).params_at;
    const double scale = layout->num_params ? fabs((double)bag_row_param(layout, params, 0)) : 1;
    if (layout->kind == BAG_KIND_OF_E4M3)
        return fmax(fabs(value) * 0x1p-3, scale * 0x1p-9);
    if (layout->kind == BAG_KIND_OF_E5M2)
        return fmax(fabs(value) * 0x1p-2, scale * 0x1p-16);
    return scale;
}

/* Compares the elements of a bag: bits first, and numbers if the bits differ. Returns false and
 * sets *problem to the first difference. */
static bool compare_bag(const struct check *check, size_t place, size_t bag,
                        const struct pooled *pooled, struct bag_problem *problem)
{
    const struct bag_client_model *model = &check->query->target->model;
    const struct bag_pool_args *args = &pooled->args;
    const size_t at = bag * pooled->row_bytes;
    if (memcmp(pooled->got + at, pooled->want + at, pooled->row_bytes) == 0)
        return true;
    const size_t bytes = pooled->row_format == BAG_ROWS_PLAIN ? args->element_bytes : 0;
    for (size_t i = 0; i < args->table.row_elements; i++) {
        if (bytes &&
            memcmp(pooled->got + at + i * bytes, pooled->want + at + i * bytes, bytes) == 0)
            continue;
        const struct number got = element_of(pooled, pooled->got, bag, i);
        const struct number want = element_of(pooled, pooled->want, bag, i);
        /* Integers are exact. Floats may have been added in another order. */
        const bool is_float = bag_dtypes[args->output_dtype].kind == BAG_KIND_FLOAT;
        if (!is_float || !(got.value == want.value || (isnan(got.value) && isnan(want.value)) ||
                           fabs(got.value - want.value) <= tolerance_of(args, bag, i, want.value) +
                                                               step_of(pooled, bag, want.value)))
            return bag_problem_set(
                problem, BAG_ERROR_CONFLICT,
                "--check: model '%s', output '%s', bag %zu, element %zu is %s; pooled from the "
                "file it is %s",
                model->name, model->tables[place].name, bag, i, got.text, want.text);
    }
    return true;
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* Returns the rules of the server's model, for a reply of this type. */
static struct bag_rules rules_of(const struct check *check, size_t place, enum bag_dtype output)
{
    const struct bag_client_table *facts = &check->query->target->model.tables[place];
    const char *asked = check->query->options->reduction;
    return (struct bag_rules){.reduction = asked ? bag_reduction_find(asked, strlen(asked))
                                                 : facts->reduction,
                              .output_dtype = output,
                              .default_index = facts->has_default ? facts->default_id : -1,
                              .has_default_index = facts->has_default,
                              .has_padding_idx = facts->has_padding,
                              .padding_idx = facts->padding,
                              .weighted_mean = facts->weighted_mean,
                              .keyed = bag_table_is_keyed(&check->tables[place]->memory)};
}

/* Returns a tensor of one dimension over the data, which is borrowed. */
static struct bag_tensor tensor_of(enum bag_dtype dtype, const void *data, size_t count)
{
    return (struct bag_tensor){
        .dtype = dtype, .rank = 1, .shape = {(int64_t)count}, .count = count, .data = data};
}

/* Returns the offsets of a table's bags, which the caller frees; *count gets the number of ids. */
static int64_t *make_offsets(const struct check *check, size_t place, size_t *count)
{
    const size_t bags = check->query->options->bags;
    const size_t *lengths = check->tensors->lengths + place * bags;
    int64_t *offsets = malloc((bags + 1) * sizeof *offsets);
    *count = 0;
    for (size_t bag = 0; bag < bags; bag++) {
        if (offsets)
            offsets[bag] = (int64_t)*count;
        *count += lengths[bag];
    }
    return offsets;
}

/* Encodes the wanted rows, which are FP32, as a server does. Returns false if memory is exhausted.
 */
static bool encode(struct pooled *pooled, struct bag_problem *problem)
{
    const struct bag_pool_args *args = &pooled->args;
    const size_t row_elements = args->table.row_elements;
    pooled->row_bytes = bag_encoded_row_bytes(pooled->row_format, row_elements);
    char *encoded = malloc(args->num_bags * pooled->row_bytes + 1);
    if (!encoded)
        return bag_problem_no_memory(problem);
    bag_rows_encode((const float *)pooled->want, args->num_bags, row_elements, pooled->row_format,
                    encoded);
    free(pooled->want);
    pooled->want = encoded;
    return true;
}

/* Pools the ids as a server does, by the plain C kernels, which define every result. */
static bool pool(const struct bag_table_memory *memory, const struct bag_rules *rules,
                 const struct bag_inputs *inputs, struct pooled *pooled,
                 struct bag_problem *problem)
{
    /* A server takes these steps, too: check the rules, plan, check the inputs, find the rows of
     * keys, pool. */
    struct bag_pool_plan plan;
    struct bag_fault fault;
    const struct bag_tensor *indices = inputs->tensor[BAG_INDICES];
    if (bag_rules_check(&memory->table, rules, &fault) != BAG_STATUS_OK)
        return bag_problem_from_fault(problem, &fault);
    bag_pool_prepare(&memory->table, rules, &plan);
    pooled->rows = malloc((indices->count + 1) * sizeof *pooled->rows);
    struct bag_resolving resolving = {.keys = rules->keyed ? &memory->index.keys : NULL,
                                      .rules = rules,
                                      .inputs = inputs,
                                      .rows = pooled->rows};
    if (!pooled->rows)
        return bag_problem_no_memory(problem);
    if (bag_pool_check(&plan, inputs, REPLY_BYTES, &pooled->args, &fault) != BAG_STATUS_OK ||
        (plan.needs_rows && bag_keys_resolve(&resolving, &pooled->args, &fault) != BAG_STATUS_OK))
        return bag_problem_from_fault(problem, &fault);
    struct bag_pool_args args = pooled->args;
    const bool is_encoded = pooled->row_format != BAG_ROWS_PLAIN;
    const bool is_stored = is_encoded && bag_pool_gives_stored(&args, pooled->row_format);
    if (is_stored)
        bag_pool_copy_stored(&args);
    if (!(pooled->want = malloc(args.result_bytes + 1)))
        return bag_problem_no_memory(problem);
    bag_pool_run(&args, bag_range_all(&args), pooled->want);
    pooled->row_bytes = args.bag_stride;
    if (is_stored)
        bag_rows_clear_unused(pooled->row_format, memory->table.row_elements, args.num_bags,
                              pooled->want);
    if (is_encoded && !is_stored && !encode(pooled, problem))
        return false;
    if (!memory->map)
        return true;
    bag_map_refresh(memory->map, bag_map_has_read());
    return bag_map_is_whole(memory->map) ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "the file became shorter while it was read, or its disk failed");
}

/* Finds the output in the reply, and pools the bags of the table. */
static bool pool_table(const struct check *check, size_t place, size_t first_id, size_t count,
                       struct pooled *pooled, struct bag_problem *problem)
{
    const struct bag_bench_answer *answer = check->answer;
    const struct bag_bench_tensors *tensors = check->tensors;
    const struct bag_client_table *facts = &check->query->target->model.tables[place];
    const struct bag_table_memory *memory = &check->tables[place]->memory;
    const size_t bags = check->query->options->bags;
    const bool pools = rules_of(check, place, memory->table.dtype).reduction != BAG_NONE;
    /* Find the output in the reply, and check its type. */
    struct bag_client_output found;
    if (!bag_client_find_output(answer->body, answer->bytes, (size_t)answer->head.json_bytes,
                                facts->name, pools ? bags : count, memory->table.row_elements,
                                &found, problem))
        return false;
    const bool is_float = bag_dtypes[memory->table.dtype].kind == BAG_KIND_FLOAT;
    const bool is_encoded = is_float && found.row_format != BAG_ROWS_PLAIN;
    const enum bag_dtype output = is_encoded ? BAG_F32 : found.dtype;
    if (is_float ? bag_dtypes[output].kind != BAG_KIND_FLOAT : output != memory->table.dtype)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "--check: the output '%s' is of %s, the rows of the file are of %s",
                               facts->name, bag_dtypes[output].name,
                               bag_dtypes[memory->table.dtype].name);
    /* Pool the same ids as the server. */
    const struct bag_tensor ids = tensor_of(BAG_I64, tensors->ids + first_id, count);
    const struct bag_tensor offsets = tensor_of(BAG_I64, pooled->offsets, bags);
    const struct bag_tensor weights =
        tensor_of(BAG_F32, tensors->weights ? tensors->weights + first_id : NULL, count);
    const struct bag_inputs inputs = {
        {[BAG_INDICES] = &ids,
         [BAG_OFFSETS] = &offsets,
         [BAG_PER_SAMPLE_WEIGHTS] = tensors->weights ? &weights : NULL}};
    const struct bag_rules rules = rules_of(check, place, output);
    pooled->got = found.data;
    pooled->row_format = is_encoded ? found.row_format : BAG_ROWS_PLAIN;
    return pool(memory, &rules, &inputs, pooled, problem) ||
           bag_problem_prefix(problem, "--check: output '%s'", facts->name);
}

/* Compares the bags of one table. *first_id becomes the first id of the next table. */
static bool compare_table(const struct check *check, size_t place, size_t *first_id,
                          struct bag_problem *problem)
{
    size_t count;
    struct pooled pooled = {.offsets = make_offsets(check, place, &count)};
    bool ok = (pooled.offsets || bag_problem_no_memory(problem)) &&
              pool_table(check, place, *first_id, count, &pooled, problem);
    for (size_t bag = 0; ok && bag < pooled.args.num_bags; bag++)
        ok = compare_bag(check, place, bag, &pooled, problem);
    *first_id += count;
    free(pooled.offsets);
    free(pooled.rows);
    free(pooled.want);
    return ok;
}

/* Compares all outputs of a reply, table by table. */
static bool compare_answer(const struct check *check, struct bag_problem *problem)
{
    const struct bag_bench_answer *answer = check->answer;
    size_t first_id = 0; /* index of the first id of the current table */
    bool ok = true;
    if (answer->head.status != 200) {
        char sentence[300];
        bag_client_read_error(answer->body, answer->bytes, sentence, sizeof sentence);
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "--check: %d %s", answer->head.status,
                               sentence);
    }
    for (size_t place = 0; ok && place < check->query->num_sources; place++)
        ok = compare_table(check, place, &first_id, problem);
    return ok;
}

/* Draws a request, sends it, and compares its reply. */
static bool check_one(struct check *check, uint64_t *state, struct bag_problem *problem)
{
    struct bag_bench_tensors tensors;
    struct bag_bench_request request;
    struct bag_bench_answer answer;
    if (!bag_bench_tensors_draw(check->query, state, &tensors, problem))
        return false;
    check->tensors = &tensors;
    bool ok = bag_bench_request_make(check->query, &tensors, &request, problem);
    if (ok) {
        ok = bag_bench_ask(check->query->target, request.bytes, request.count, REPLY_BYTES, &answer,
                           problem);
        free(request.bytes);
    }
    if (ok) {
        check->answer = &answer;
        ok = compare_answer(check, problem);
        free(answer.body);
    }
    bag_bench_tensors_free(&tensors);
    return ok;
}

/* ---- the model's rules and files ------------------------------------------------------------- */

/* Reads the pooling rules of the model from the server. */
static bool read_rules(const struct bag_bench_query *query, struct bag_client_model *model,
                       struct bag_problem *problem)
{
    char *text = bag_bench_get_model(query->target, model->name, "/config", problem);
    bool ok = text && bag_client_read_rules(text, strlen(text), model, problem);
    free(text);
    return ok || bag_problem_prefix(problem, "--check: how '%s' pools cannot be read", model->name);
}

/* Loads the files of one table of the model. Parts of tables cannot be compared. */
static bool load_table(struct check *check, size_t place, struct bag_problem *problem)
{
    const struct bag_bench_query *query = check->query;
    const struct bag_client_model *model = &query->target->model;
    const struct bag_client_table *facts = &model->tables[place];
    const char *path = bag_bench_find_file(&query->options->tables, model, facts);
    if (facts->part.of)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--check compares with whole tables, and '%s' is a part of one: "
                               "ask a coordinator of all parts, or a server of the whole table",
                               facts->model ? facts->model : model->name);
    if (!path)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "--check needs --table %s=PATH",
                               facts->model ? facts->model : model->name);
    check->tables[place] = bag_bench_table_load(path, facts, &query->sources[place].keys, problem);
    return check->tables[place] || bag_problem_prefix(problem, "--check");
}

bool bag_bench_check(struct bag_bench_query *query, struct bag_client_model *model,
                     struct bag_problem *problem)
{
    struct check check = {.query = query,
                          .tables = calloc(query->num_sources + 1, sizeof *check.tables)};
    uint64_t state = ~query->options->seed; /* other requests than those that are measured */
    if (!check.tables)
        return bag_problem_no_memory(problem);
    bool ok = read_rules(query, model, problem);
    for (size_t i = 0; ok && i < query->num_sources; i++)
        ok = load_table(&check, i, problem);
    /* Numbers are compared by their bits, which replies in binary have. */
    query->binary_replies = true;
    for (size_t i = 0; ok && i < query->options->checks; i++)
        ok = check_one(&check, &state, problem);
    query->binary_replies = false;
    if (ok)
        fprintf(stderr, "%zu replies are what the files give\n", query->options->checks);
    for (size_t i = 0; i < query->num_sources; i++)
        bag_stored_table_drop(check.tables[i]);
    free(check.tables);
    return ok;
}
