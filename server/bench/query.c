/* The requests that are sent; see query.h. */
#include "query.h"

#include "files.h"
#include "proto/numbers.h"
#include "proto/v2_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of all requests together, unless --bodies gives their number. MAX_IDS limits one request.
 */
#define REQUESTS_BYTES ((size_t)64 << 20)
#define MAX_REQUESTS   16384
#define MIN_REQUESTS   16
#define MAX_IDS        ((size_t)1 << 27)

#define JSON_BYTES \
    (BAG_V2_WRITER_HEADER_BYTES + 3 * BAG_V2_WRITER_INPUT_BYTES + 2 * BAG_V2_WRITER_PARAMETER_BYTES)

/* ---- the ids of each table ------------------------------------------------------------- */

/* A file belongs to a table if its name is that of the feature, of its model, or of the model of a
 * single table. A file without a name fits every table. */
const char *bag_bench_find_file(const struct bag_bench_files *files,
                                const struct bag_client_model *model,
                                const struct bag_client_table *table)
{
    const char *path = NULL;
    for (size_t i = 0; i < files->count; i++) {
        const struct bag_text name = files->files[i].name;
        if (!name.data || bag_text_is(name, table->name) ||
            (table->model && bag_text_is(name, table->model)) ||
            (!model->is_collection && bag_text_is(name, model->name)))
            path = files->files[i].path;
    }
    return path;
}

/* Keeps the keys of a part, and of these there must be one. */
static bool select_keys(struct bag_table_memory *keys, const struct bag_part *part,
                        struct bag_problem *problem)
{
    /* The keys that remain move to the front of the mapping. */
    uint64_t *all = keys->mapping;
    size_t count = 0;
    for (int64_t i = 0; i < keys->table.num_rows; i++) {
        if (bag_part_of_key(all[i], part->of) == part->index)
            all[count++] = all[i];
    }
    keys->table.num_rows = (int64_t)count;
    return count || bag_problem_set(problem, BAG_ERROR_USAGE,
                                    "none of the keys is of part %u of %u, which is asked",
                                    part->index, part->of);
}

/* Reads the keys of a keyed table from --keys, or else from the files of --table. Returns false and
 * sets *problem if none are given or they cannot be read. */
static bool read_keys(const struct bag_bench_options *options, const struct bag_client_model *model,
                      const struct bag_client_table *table, struct bag_bench_source *source,
                      struct bag_problem *problem)
{
    const char *path = bag_bench_find_file(&options->keys, model, table);
    if (!table->keyed)
        return true;
    if (!path)
        path = bag_bench_find_file(&options->tables, model, table);
    if (!path)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "the rows of '%s' have keys: --keys FILE names them, or the "
                               "table's folder",
                               model->is_collection ? table->name : model->name);
    if (bag_bench_integers_load(path, true, &source->keys, problem))
        return !table->part.of || table->part.by != BAG_PART_KEYS ||
               select_keys(&source->keys, &table->part, problem);
    return !bag_bench_find_file(&options->keys, model, table) &&
           bag_problem_prefix(problem, "the keys, unless --keys FILE names them");
}

/* Sets the rows from which ids are drawn. A number of --rows is for a feature or, for a single
 * table, for one range after the other. */
static bool make_ranges(const struct bag_bench_options *options,
                        const struct bag_client_model *model, size_t place,
                        struct bag_bench_source *source, struct bag_problem *problem)
{
    const struct bag_client_table *table = &model->tables[place];
    /* Several numbers for a single table divide it: each bag has rows of its own. */
    bool splits = !model->is_collection && options->num_rows > 1;
    int64_t held = source->keys.table.rows ? source->keys.table.num_rows : table->rows, first = 0;
    source->num_ranges = splits ? options->num_rows : 1;
    if (!(source->ranges = calloc(source->num_ranges, sizeof *source->ranges)))
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < source->num_ranges; i++) {
        int64_t rows = held;
        if (options->num_rows)
            rows = options->rows[(splits ? i : place) % options->num_rows];
        if (rows < 1)
            return bag_problem_set(problem, BAG_ERROR_USAGE,
                                   rows ? "'%s' does not say how many rows it has: --rows N does"
                                        : "'%s' has no rows",
                                   table->name);
        if (held >= 0 && rows > held - first)
            return bag_problem_set(problem, BAG_ERROR_USAGE,
                                   "--rows: '%s' has %lld rows, fewer than are to be asked",
                                   table->name, (long long)held);
        source->ranges[i] = (struct bag_bench_range){
            (uint64_t)(first + table->first_row), bag_bench_ids_of((uint64_t)rows, options->zipf)};
        first += splits ? rows : 0;
    }
    return true;
}

bool bag_bench_query_init(struct bag_bench_query *query, const struct bag_bench_options *options,
                          const struct bag_bench_target *target, struct bag_problem *problem)
{
    const struct bag_client_model *model = &target->model;
    *query = (struct bag_bench_query){.options = options, .target = target};
    if (options->get_path)
        return true;
    if (options->mlperf && model->num_tables != options->lengths.count)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "model '%s' has %zu features; the preset's has %zu, as 'bagserve "
                               "serve --synthetic %s' serves it",
                               model->name, model->num_tables, options->lengths.count,
                               options->mlperf);
    if (options->weights && !model->takes_weights)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "model '%s' takes no weights",
                               model->name);
    /* Pooling needs every id as often as it occurs. */
    bool is_pooled = options->reduction ? strcmp(options->reduction, "none") != 0 : model->pools;
    if (options->unique && is_pooled)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--unique is for rows that are not pooled, and model '%s' pools",
                               model->name);
    if (!(query->sources = calloc(model->num_tables, sizeof *query->sources)))
        return bag_problem_no_memory(problem);
    query->num_sources = model->num_tables;
    for (size_t i = 0; i < query->num_sources; i++) {
        const struct bag_client_table *table = &model->tables[i];
        struct bag_bench_source *source = &query->sources[i];
        /* If the metadata does not have the bytes of a row, its elements are taken as FP32. */
        source->row_bytes = table->bytes && table->rows > 0
                                ? (double)table->bytes / (double)table->rows
                                : (double)(table->output_elements * sizeof(float));
        if (!read_keys(options, model, table, source, problem) ||
            !make_ranges(options, model, i, source, problem))
            return false;
    }
    return true;
}

void bag_bench_query_free(struct bag_bench_query *query)
{
    for (size_t i = 0; i < query->num_sources; i++) {
        bag_table_unload(&query->sources[i].keys);
        free(query->sources[i].ranges);
    }
    free(query->sources);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Draws a row and returns its number, or its key. */
static uint64_t draw_id(const struct bag_bench_source *source, size_t bag, uint64_t *state)
{
    const struct bag_bench_range *range = &source->ranges[bag % source->num_ranges];
    uint64_t key, row = range->first_row + bag_bench_id(&range->ids, state);
    if (!source->keys.table.rows)
        return row;
    memcpy(&key, (const char *)source->keys.table.rows + row * sizeof key, sizeof key);
    return key;
}

/* Draws the lengths of all bags, and sums them up. Returns false and sets *problem if the request
 * would be too large. */
static bool draw_lengths(const struct bag_bench_query *query, uint64_t *state,
                         struct bag_bench_tensors *tensors, struct bag_problem *problem)
{
    const struct bag_bench_lengths *lengths = &query->options->lengths;
    size_t bags = query->options->bags, place = 0;
    size_t shared = bag_bench_shared_length(lengths, state);
    for (size_t table = 0; table < query->num_sources; table++) {
        for (size_t bag = 0; bag < bags; bag++, place++) {
            size_t length =
                bag_bench_length(lengths, query->num_sources > 1 ? table : bag, shared, state);
            tensors->lengths[place] = length;
            tensors->num_ids += length;
            if (tensors->num_ids > MAX_IDS)
                return bag_problem_set(problem, BAG_ERROR_USAGE,
                                       "a request would have more than %zu ids", MAX_IDS);
        }
    }
    return true;
}

/* Orders ids for qsort. */
static int compare_ids(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Sorts ids and keeps each once. Returns the number of ids that remain. */
static size_t keep_unique(uint64_t *ids, size_t count)
{
    size_t kept = 0;
    qsort(ids, count, sizeof *ids, compare_ids);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || ids[i] != ids[kept - 1])
            ids[kept++] = ids[i];
    }
    return kept;
}

bool bag_bench_tensors_draw(const struct bag_bench_query *query, uint64_t *state,
                            struct bag_bench_tensors *tensors, struct bag_problem *problem)
{
    bool weights = query->options->weights;
    *tensors = (struct bag_bench_tensors){.num_bags = query->num_sources * query->options->bags};
    tensors->lengths = calloc(tensors->num_bags + 1, sizeof *tensors->lengths);
    bool ok = tensors->lengths ? draw_lengths(query, state, tensors, problem)
                               : bag_problem_no_memory(problem);
    if (ok) {
        tensors->ids = calloc(tensors->num_ids + 1, sizeof *tensors->ids);
        tensors->weights = weights ? calloc(tensors->num_ids + 1, sizeof *tensors->weights) : NULL;
        ok = (tensors->ids && (!weights || tensors->weights)) || bag_problem_no_memory(problem);
    }
    if (ok) {
        /* Draw the ids of all bags, and weights from 0.5 to 1.5. With --unique, bags become
         * shorter. */
        size_t at = 0, place = 0;
        for (size_t table = 0; table < query->num_sources; table++) {
            for (size_t bag = 0; bag < query->options->bags; bag++, place++) {
                uint64_t *ids = tensors->ids + at;
                for (size_t i = 0; i < tensors->lengths[place]; i++)
                    ids[i] = draw_id(&query->sources[table], bag, state);
                if (query->options->unique)
                    tensors->lengths[place] = keep_unique(ids, tensors->lengths[place]);
                at += tensors->lengths[place];
            }
        }
        tensors->num_ids = at;
        for (size_t i = 0; tensors->weights && i < tensors->num_ids; i++)
            tensors->weights[i] = 0.5f + (float)bag_random_unit(state);
    } else {
        bag_bench_tensors_free(tensors);
    }
    return ok;
}

void bag_bench_tensors_free(struct bag_bench_tensors *tensors)
{
    free(tensors->ids);
    free(tensors->weights);
    free(tensors->lengths);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* One input of a body: 64-bit integers, or weights. */
struct input {
    const char *name;
    enum bag_dtype dtype;
    const void *data;
    size_t count;
};

/* Returns the bytes of an input in binary, or the maximum in JSON. */
static size_t input_bytes(const struct input *input, bool json)
{
    return input->count *
           (json ? bag_numbers_max_text(input->dtype) : bag_dtypes[input->dtype].bytes);
}

/* Writes a body. Returns its end, and sets *json_bytes to the bytes of its JSON. */
static char *write_body(char *text, const struct bag_bench_query *query, const struct input *inputs,
                        size_t num_inputs, size_t *json_bytes)
{
    const bool json = query->options->json;
    struct bag_v2_writer writer;
    bag_v2_writer_begin(&writer, text);
    for (size_t i = 0; i < num_inputs; i++) {
        const struct input *input = &inputs[i];
        const int64_t count = (int64_t)input->count;
        if (json)
            bag_v2_write_json_input(&writer, input->name, input->dtype, input->count, input->data);
        else
            bag_v2_write_input(&writer, input->name, input->dtype, 1, &count);
    }
    if (query->options->reduction)
        bag_v2_write_text(&writer, "reduction", query->options->reduction);
    if (!json || query->binary_replies)
        bag_v2_write_true(&writer, "binary_data_output");
    *json_bytes = bag_v2_writer_end(&writer);
    char *out = text + *json_bytes;
    for (size_t i = 0; !json && i < num_inputs; i++)
        out = mempcpy(out, inputs[i].data, input_bytes(&inputs[i], false));
    return out;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Puts the head before the body. */
static bool join(const struct bag_bench_query *query, const char *body, size_t body_bytes,
                 size_t json_bytes, struct bag_bench_request *request)
{
    char *path = bag_bench_model_path(query->target->model.name, "/infer");
    char *head = path ? bag_bench_head(query->target, "POST", path) : NULL, *lines = NULL;
    char length[64] = "";
    if (!query->options->json)
        snprintf(length, sizeof length, "Inference-Header-Content-Length: %zu\r\n", json_bytes);
    int bytes =
        head ? asprintf(&lines, "%sContent-Length: %zu\r\n%s\r\n", head, body_bytes, length) : -1;
    request->bytes = bytes < 0 ? NULL : malloc((size_t)bytes + body_bytes);
    if (request->bytes) {
        memcpy(request->bytes, lines, (size_t)bytes);
        memcpy(request->bytes + bytes, body, body_bytes);
        request->count = (size_t)bytes + body_bytes;
    }
    if (bytes >= 0)
        free(lines);
    free(head);
    free(path);
    return request->bytes != NULL;
}

bool bag_bench_request_make(const struct bag_bench_query *query,
                            const struct bag_bench_tensors *tensors,
                            struct bag_bench_request *request, struct bag_problem *problem)
{
    bool is_collection = query->target->model.is_collection;
    /* Name the tensors as the model's form wants them. */
    int64_t *bags = malloc((tensors->num_bags + 1) * sizeof *bags), begin = 0;
    for (size_t i = 0; bags && i < tensors->num_bags; i++) {
        bags[i] = query->target->model.is_collection ? (int64_t)tensors->lengths[i] : begin;
        begin += (int64_t)tensors->lengths[i];
    }
    const struct input inputs[] = {
        {is_collection ? "values" : "indices", query->target->model.ids_dtype, tensors->ids,
         tensors->num_ids},
        {is_collection ? "lengths" : "offsets", BAG_I64, bags, tensors->num_bags},
        {is_collection ? "weights" : "per_sample_weights", BAG_F32, tensors->weights,
         tensors->num_ids}};
    const size_t num_inputs = tensors->weights ? 3 : 2;
    /* The maximum size of the body. Each tensor of JSON has two bytes of brackets more. */
    size_t bytes = JSON_BYTES, json_bytes;
    for (size_t i = 0; i < num_inputs; i++)
        bytes += input_bytes(&inputs[i], query->options->json) + 2;
    char *body = malloc(bytes);
    bool ok = false;
    if (body && bags) {
        const char *end = write_body(body, query, inputs, num_inputs, &json_bytes);
        ok = join(query, body, (size_t)(end - body), json_bytes, request);
        /* The work that the request asks for, from which the report has its rates. */
        request->bags = tensors->num_bags;
        request->rows = tensors->num_ids;
        request->gathered_bytes = 0;
        for (size_t i = 0; i < tensors->num_bags; i++)
            request->gathered_bytes +=
                (double)tensors->lengths[i] * query->sources[i / query->options->bags].row_bytes;
    }
    free(body);
    free(bags);
    return ok || bag_problem_no_memory(problem);
}

/* Draws the tensors of a request and makes the request. */
static bool draw_request(const struct bag_bench_query *query, uint64_t *state,
                         struct bag_bench_request *request, struct bag_problem *problem)
{
    struct bag_bench_tensors tensors;
    if (!bag_bench_tensors_draw(query, state, &tensors, problem))
        return false;
    bool ok = bag_bench_request_make(query, &tensors, request, problem);
    bag_bench_tensors_free(&tensors);
    return ok;
}

/* Makes the request of --get, which has no body. */
static bool make_get(const struct bag_bench_query *query, struct bag_bench_request *request,
                     struct bag_problem *problem)
{
    char *head = bag_bench_head(query->target, "GET", query->options->get_path);
    int bytes = head ? asprintf(&request->bytes, "%s\r\n", head) : -1;
    request->count = bytes < 0 ? 0 : (size_t)bytes;
    free(head);
    return bytes >= 0 || bag_problem_no_memory(problem);
}

/* Returns the number of different requests: that of --bodies, or as many as fit into REQUESTS_BYTES
 * if all are as large as the first one. */
static size_t choose_count(const struct bag_bench_query *query, size_t first_bytes)
{
    size_t fitting = REQUESTS_BYTES / first_bytes;
    if (query->options->get_path)
        return 1;
    if (query->options->bodies)
        return query->options->bodies;
    return fitting < MIN_REQUESTS ? MIN_REQUESTS : fitting > MAX_REQUESTS ? MAX_REQUESTS : fitting;
}

struct bag_bench_request *bag_bench_requests_make(const struct bag_bench_query *query,
                                                  size_t *count, struct bag_problem *problem)
{
    /* The number of requests depends on the size of the first one. */
    uint64_t state = query->options->seed;
    struct bag_bench_request first = {0}, *requests;
    *count = 0;
    if (!(query->options->get_path ? make_get(query, &first, problem)
                                   : draw_request(query, &state, &first, problem)))
        return NULL;
    size_t wanted = choose_count(query, first.count);
    if (!(requests = calloc(wanted, sizeof *requests))) {
        free(first.bytes);
        bag_problem_no_memory(problem);
        return NULL;
    }
    requests[(*count)++] = first;
    while (*count < wanted && draw_request(query, &state, &requests[*count], problem))
        ++*count;
    if (*count == wanted)
        return requests;
    bag_bench_requests_free(requests, *count);
    return NULL;
}

void bag_bench_requests_free(struct bag_bench_request *requests, size_t count)
{
    for (size_t i = 0; requests && i < count; i++)
        free(requests[i].bytes);
    free(requests);
}
