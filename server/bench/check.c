/* Answers compared with pooling of its own; see check.h. */
#include "check.h"

#include "kernels/rowformat.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define REPLY_BYTES ((size_t)1 << 30)

/* ---- tables ---------------------------------------------------------------------------------- */

struct keyed_row {
    uint64_t key;
    size_t row;
};

/* A table as its file has it. */
struct table {
    struct bag_bench_array rows;
    struct keyed_row *keys; /* owned; by key; NULL: ids are rows */
};

static int compare_keys(const void *a, const void *b)
{
    const struct keyed_row *left = a, *right = b;
    return left->key < right->key ? -1 : left->key > right->key;
}

static bool sort_keys(const struct bag_bench_array *keys, struct table *table,
                      struct bag_problem *problem)
{
    if (!(table->keys = calloc(keys->npy.count, sizeof *table->keys)))
        return bag_problem_no_memory(problem);
    for (size_t row = 0; row < keys->npy.count; row++) {
        memcpy(&table->keys[row].key, keys->data + row * sizeof(uint64_t), sizeof(uint64_t));
        table->keys[row].row = row;
    }
    qsort(table->keys, keys->npy.count, sizeof *table->keys, compare_keys);
    return true;
}

static bool read_rows(const char *path, const struct bag_bench_array *keys, struct table *table,
                      struct bag_problem *problem)
{
    struct stat state;
    char *inside = NULL;
    if (stat(path, &state) == 0 && S_ISDIR(state.st_mode) &&
        asprintf(&inside, "%s/values.npy", path) < 0)
        return bag_problem_no_memory(problem);
    bool ok = bag_bench_array_read(inside ? inside : path, &table->rows, problem);
    free(inside);
    if (!ok)
        return false;
    const struct bag_npy *npy = &table->rows.npy;
    if (bag_dtypes[npy->dtype].kind != BAG_KIND_FLOAT || npy->rank < 2)
        return bag_problem_set(problem, BAG_ERROR_FILE, "%s: only rows of floats are compared",
                               path);
    if (!keys->data)
        return true;
    return ((size_t)npy->shape[0] == keys->npy.count && sort_keys(keys, table, problem)) ||
           bag_problem_set(problem, BAG_ERROR_FILE, "%s has %lld rows, and there are %zu keys",
                           path, (long long)npy->shape[0], keys->npy.count);
}

/* The row of an id; NULL where the file has none. */
static const unsigned char *find_row(const struct table *table, uint64_t id)
{
    const struct bag_npy *npy = &table->rows.npy;
    size_t row = id;
    if (table->keys) {
        const struct keyed_row wanted = {.key = id};
        const struct keyed_row *found =
            bsearch(&wanted, table->keys, (size_t)npy->shape[0], sizeof *table->keys, compare_keys);
        row = found ? found->row : SIZE_MAX;
    }
    return row < (size_t)npy->shape[0]
               ? table->rows.data + row * npy->row_elements * bag_dtypes[npy->dtype].bytes
               : NULL;
}

static double element(const unsigned char *row, enum bag_dtype dtype, size_t i)
{
    uint16_t half;
    float single;
    double value;
    row += i * bag_dtypes[dtype].bytes;
    if (dtype == BAG_F16) {
        memcpy(&half, row, sizeof half);
        return (double)bag_f32_from_f16(half);
    }
    if (dtype == BAG_F32) {
        memcpy(&single, row, sizeof single);
        return (double)single;
    }
    memcpy(&value, row, sizeof value);
    return value;
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* One bag: `value` has the sums, then what they become; `around` the sums of magnitudes, by which
 * what floats lose is judged. */
struct pooled {
    double *value, *around; /* owned */
    size_t elements, count;
    double weights, squares;
};

static void add_row(struct pooled *pooled, const struct table *table, const unsigned char *row,
                    double weight, bool is_max)
{
    for (size_t i = 0; i < pooled->elements; i++) {
        double value = weight * element(row, table->rows.npy.dtype, i);
        if (is_max)
            pooled->value[i] = pooled->count ? fmax(pooled->value[i], value) : value;
        else
            pooled->value[i] += value;
        pooled->around[i] += fabs(value);
    }
    pooled->count++;
    pooled->weights += weight;
    pooled->squares += weight * weight;
}

static double divisor_of(const struct pooled *pooled, enum bag_reduction reduction,
                         bool weighted_mean)
{
    if (reduction == BAG_MEAN)
        return weighted_mean ? pooled->weights : (double)pooled->count;
    return reduction == BAG_SQRTN ? sqrt(pooled->squares) : 1;
}

/* Pools the bag of `count` ids. */
static bool pool(const struct bag_client_table *facts, enum bag_reduction reduction,
                 const struct table *table, const uint64_t *ids, const float *weights, size_t count,
                 struct pooled *pooled, struct bag_problem *problem)
{
    memset(pooled->value, 0, pooled->elements * sizeof *pooled->value);
    memset(pooled->around, 0, pooled->elements * sizeof *pooled->around);
    pooled->count = 0;
    pooled->weights = pooled->squares = 0;
    for (size_t i = 0; i < count; i++) {
        if (facts->has_padding && ids[i] == (uint64_t)facts->padding)
            continue;
        const unsigned char *row = find_row(table, ids[i]);
        if (!row)
            return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                                   "the file of '%s' has no row for id %llu", facts->name,
                                   (unsigned long long)ids[i]);
        add_row(pooled, table, row, weights ? (double)weights[i] : 1, reduction == BAG_MAX);
    }
    double divisor = divisor_of(pooled, reduction, facts->weighted_mean && weights);
    for (size_t i = 0; i < pooled->elements && divisor != 0; i++) {
        pooled->value[i] /= divisor;
        pooled->around[i] /= fabs(divisor);
    }
    return true;
}

/* ---- comparing ------------------------------------------------------------------------------- */

struct check {
    const struct bag_bench_query *query;
    struct table *tables; /* owned; of each table of the model */
    const struct bag_bench_tensors *tensors;
    const struct bag_bench_answer *answer;
};

/* What rounding to that type may lose of a number. */
static double rounding_of(enum bag_dtype dtype)
{
    return dtype == BAG_F16    ? 0x1p-11
           : dtype == BAG_BF16 ? 0x1p-8
           : dtype == BAG_F32  ? (double)FLT_EPSILON
                               : DBL_EPSILON;
}

/* Each addition, and the division, loses at most the last place of what was added. */
static bool is_near(double got, double want, double around, size_t count, enum bag_dtype dtype)
{
    double adding = dtype == BAG_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    double allowed = ((double)count + 2) * adding * around + rounding_of(dtype) * fabs(want);
    if (dtype == BAG_F16)
        allowed += 0x1p-25; /* half of the least number */
    return fabs(got - want) <= allowed || got == want || (isnan(got) && isnan(want));
}

/* The bags of one table; `ids` and `weights` are its first. */
static bool compare_table(const struct check *check, size_t place, const uint64_t *ids,
                          const float *weights, const double *got, enum bag_dtype dtype,
                          struct pooled *pooled, struct bag_problem *problem)
{
    const struct bag_client_table *facts = &check->query->target->model.tables[place];
    const char *asked = check->query->options->reduction;
    enum bag_reduction reduction =
        asked ? bag_reduction_find(asked, strlen(asked)) : facts->reduction;
    size_t bags = check->query->options->bags;
    const size_t *lengths = check->tensors->lengths + place * bags;
    for (size_t bag = 0; bag < bags; bag++, got += pooled->elements) {
        if (!pool(facts, reduction, &check->tables[place], ids, weights, lengths[bag], pooled,
                  problem))
            return false;
        for (size_t i = 0; i < pooled->elements; i++) {
            if (!is_near(got[i], pooled->value[i], pooled->around[i], pooled->count, dtype))
                return bag_problem_set(
                    problem, BAG_ERROR_CONFLICT,
                    "--check: '%s', bag %zu, element %zu is %.9g; pooled from the file it is %.9g",
                    facts->name, bag, i, got[i], pooled->value[i]);
        }
        ids += lengths[bag];
        weights += weights ? lengths[bag] : 0;
    }
    return true;
}

static size_t count_ids(const struct check *check, size_t place)
{
    size_t bags = check->query->options->bags, count = 0;
    for (size_t bag = 0; bag < bags; bag++)
        count += check->tensors->lengths[place * bags + bag];
    return count;
}

/* One output of the answer, in memory for it. */
static bool compare_output(const struct check *check, size_t place, size_t first_id,
                           struct bag_problem *problem)
{
    const struct bag_client_table *facts = &check->query->target->model.tables[place];
    size_t elements = check->tables[place].rows.npy.row_elements;
    size_t count = elements * check->query->options->bags;
    const float *weights = check->tensors->weights;
    enum bag_dtype dtype;
    struct pooled pooled = {.value = calloc(elements + 1, sizeof *pooled.value),
                            .around = calloc(elements + 1, sizeof *pooled.around),
                            .elements = elements};
    double *got = calloc(count + 1, sizeof *got);
    bool ok = (got && pooled.value && pooled.around) || bag_problem_no_memory(problem);
    ok = ok &&
         bag_client_read_output(check->answer->body, check->answer->bytes,
                                (size_t)check->answer->head.json_bytes, facts->name, count, &dtype,
                                got, problem) &&
         compare_table(check, place, check->tensors->ids + first_id,
                       weights ? weights + first_id : NULL, got, dtype, &pooled, problem);
    free(got);
    free(pooled.value);
    free(pooled.around);
    return ok;
}

static bool compare_answer(const struct check *check, struct bag_problem *problem)
{
    const struct bag_bench_answer *answer = check->answer;
    size_t first_id = 0;
    if (answer->head.status != 200) {
        char sentence[300];
        bag_client_read_error(answer->body, answer->bytes, sentence, sizeof sentence);
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "--check: %d %s", answer->head.status,
                               sentence);
    }
    for (size_t place = 0; place < check->query->num_sources; place++) {
        if (!compare_output(check, place, first_id, problem))
            return false;
        first_id += count_ids(check, place);
    }
    return true;
}

/* Draws a request, asks it and compares its answer. */
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

/* ---- the tables' files, and how they are pooled ---------------------------------------------- */

static bool read_rules(const struct bag_bench_query *query, struct bag_client_model *model,
                       struct bag_problem *problem)
{
    struct bag_bench_answer answer;
    char *path = bag_bench_model_path(model->name, "/config"), *request = NULL;
    char *head = path ? bag_bench_head(query->target, "GET", path) : NULL;
    int bytes = head ? asprintf(&request, "%s\r\n", head) : -1;
    bool ok = bytes >= 0 ? bag_bench_ask(query->target, request, (size_t)bytes, REPLY_BYTES,
                                         &answer, problem)
                         : bag_problem_no_memory(problem);
    if (ok) {
        ok = answer.head.status == 200
                 ? bag_client_read_rules(answer.body, answer.bytes, model, problem)
                 : bag_problem_set(problem, BAG_ERROR_SYSTEM, "the status is %d",
                                   answer.head.status);
        free(answer.body);
    }
    if (!ok)
        bag_problem_prefix(problem, "--check: how '%s' pools cannot be read", model->name);
    if (bytes >= 0)
        free(request);
    free(head);
    free(path);
    return ok;
}

static bool read_table(struct check *check, size_t place, struct bag_problem *problem)
{
    const struct bag_bench_query *query = check->query;
    const struct bag_client_model *model = &query->target->model;
    const struct bag_client_table *facts = &model->tables[place];
    struct table *table = &check->tables[place];
    const char *path = bag_bench_find_file(&query->options->tables, model, facts);
    if (!path)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "--check needs --table %s=PATH",
                               facts->model ? facts->model : model->name);
    if (!read_rows(path, &query->sources[place].keys, table, problem))
        return false;
    return facts->output_elements == table->rows.npy.row_elements ||
           bag_problem_set(problem, BAG_ERROR_CONFLICT,
                           "--check: rows of '%s' have %zu elements in the answer and %zu in %s",
                           facts->name, facts->output_elements, table->rows.npy.row_elements, path);
}

static void free_tables(struct check *check)
{
    for (size_t i = 0; i < check->query->num_sources; i++) {
        bag_bench_array_free(&check->tables[i].rows);
        free(check->tables[i].keys);
    }
    free(check->tables);
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
        ok = read_table(&check, i, problem);
    query->binary_replies = true;
    for (size_t i = 0; ok && i < query->options->checks; i++)
        ok = check_one(&check, &state, problem);
    query->binary_replies = false;
    if (ok)
        fprintf(stderr, "%zu answers are what the files give\n", query->options->checks);
    free_tables(&check);
    return ok;
}
