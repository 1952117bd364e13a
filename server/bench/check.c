/* Answers compared with pooling of its own; see check.h. */
#include "check.h"

#include "pooling.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_BYTES ((size_t)1 << 30)

/* ---- comparing ------------------------------------------------------------------------------- */

struct check {
    const struct bag_bench_query *query;
    struct bag_bench_table *tables; /* owned; of each table of the model */
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

/* A number as text, by value; of integers it is what the type keeps of a sum. */
struct number_text {
    char text[40];
};

static struct number_text print_number(union bag_bench_number number, enum bag_dtype dtype)
{
    struct number_text out;
    if (bag_dtypes[dtype].kind == BAG_KIND_FLOAT)
        snprintf(out.text, sizeof out.text, "%.9g", number.real);
    else if (bag_dtypes[dtype].kind == BAG_KIND_SIGNED)
        snprintf(out.text, sizeof out.text, "%lld", (long long)number.whole);
    else
        snprintf(out.text, sizeof out.text, "%llu", (unsigned long long)number.whole);
    return out;
}

/* Whether one is what the other is, of floats but for what they lose; *want becomes what the type
 * keeps of it. */
static bool is_same(const union bag_bench_number *got, const struct bag_bench_pooled *pooled,
                    size_t i, enum bag_dtype dtype, union bag_bench_number *want)
{
    *want = pooled->values[i];
    if (bag_dtypes[dtype].kind == BAG_KIND_FLOAT)
        return is_near(got->real, want->real, pooled->around[i], pooled->count, dtype);
    want->whole = bag_bench_whole_keep(want->whole, dtype);
    return got->whole == want->whole;
}

static bool compare_bag(const struct check *check, size_t place, size_t bag,
                        const union bag_bench_number *got, enum bag_dtype dtype,
                        const struct bag_bench_pooled *pooled, struct bag_problem *problem)
{
    const struct bag_client_model *model = &check->query->target->model;
    union bag_bench_number want;
    for (size_t i = 0; i < pooled->elements; i++) {
        if (!is_same(&got[i], pooled, i, dtype, &want))
            return bag_problem_set(
                problem, BAG_ERROR_CONFLICT,
                "--check: model '%s', output '%s', bag %zu, element %zu is %s; pooled from the "
                "file it is %s",
                model->name, model->tables[place].name, bag, i, print_number(got[i], dtype).text,
                print_number(want, dtype).text);
    }
    return true;
}

/* The bags of one table; `ids` and `weights` are its first, `result` has a row for each bag. */
static bool compare_table(const struct check *check, size_t place, const uint64_t *ids,
                          const float *weights, const struct bag_table *result,
                          struct bag_bench_pooled *pooled, union bag_bench_number *got,
                          struct bag_problem *problem)
{
    const struct bag_client_table *facts = &check->query->target->model.tables[place];
    const char *asked = check->query->options->reduction;
    enum bag_reduction reduction =
        asked ? bag_reduction_find(asked, strlen(asked)) : facts->reduction;
    const size_t *lengths = check->tensors->lengths + place * check->query->options->bags;
    for (size_t bag = 0; bag < (size_t)result->num_rows; bag++) {
        bag_bench_row_read(result, bag, got);
        if (!bag_bench_pool(facts, reduction, &check->tables[place], ids, weights, lengths[bag],
                            pooled, problem) ||
            !compare_bag(check, place, bag, got, result->dtype, pooled, problem))
            return false;
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

/* Finds an output in the answer, of floats where the table is of floats. */
static bool find_output(const struct check *check, size_t place, struct bag_table *result,
                        struct bag_problem *problem)
{
    const struct bag_bench_answer *answer = check->answer;
    const struct bag_table *rows = &check->tables[place].rows;
    const char *name = check->query->target->model.tables[place].name;
    *result = (struct bag_table){.num_rows = (int64_t)check->query->options->bags,
                                 .row_elements = rows->row_elements};
    if (!bag_client_find_output(answer->body, answer->bytes, (size_t)answer->head.json_bytes, name,
                                rows->row_elements * (size_t)result->num_rows, &result->dtype,
                                &result->rows, problem))
        return false;
    bool floats = bag_dtypes[rows->dtype].kind == BAG_KIND_FLOAT;
    return (floats ? bag_dtypes[result->dtype].kind == BAG_KIND_FLOAT
                   : result->dtype == rows->dtype) ||
           bag_problem_set(problem, BAG_ERROR_CONFLICT,
                           "--check: the output '%s' is of %s, the rows of the file are of %s",
                           name, bag_dtypes[result->dtype].name, bag_dtypes[rows->dtype].name);
}

/* One output of the answer, in memory for it. */
static bool compare_output(const struct check *check, size_t place, size_t first_id,
                           struct bag_problem *problem)
{
    size_t elements = check->tables[place].rows.row_elements;
    const float *weights = check->tensors->weights;
    struct bag_table result;
    struct bag_bench_pooled pooled;
    union bag_bench_number *got = calloc(elements + 1, sizeof *got);
    bool ok = (bag_bench_pooled_make(elements, &pooled) && got) || bag_problem_no_memory(problem);
    ok = ok && find_output(check, place, &result, problem) &&
         compare_table(check, place, check->tensors->ids + first_id,
                       weights ? weights + first_id : NULL, &result, &pooled, got, problem);
    bag_bench_pooled_free(&pooled);
    free(got);
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
    const char *path = bag_bench_find_file(&query->options->tables, model, facts);
    if (facts->part.of)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--check compares with whole tables, and '%s' is a part of one: "
                               "ask a front of all parts, or a server of the whole table",
                               facts->model ? facts->model : model->name);
    if (!path)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "--check needs --table %s=PATH",
                               facts->model ? facts->model : model->name);
    if (bag_bench_table_open(path, facts, &query->sources[place].keys, &check->tables[place],
                             problem))
        return true;
    bag_problem_prefix(problem, "--check");
    return false;
}

static void free_tables(struct check *check)
{
    for (size_t i = 0; i < check->query->num_sources; i++)
        bag_bench_table_close(&check->tables[i]);
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
