/* What tools write: the header of a converted table, and reports on errors; see formats.h. */
#include "formats.h"

#include "v2_documents.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

static double error_of(float want, float got)
{
    if (want == got || (isnan(want) && isnan(got)))
        return 0;
    return fabs((double)want - (double)got);
}

/* What is not a number is the largest error of all, and of equal ones the first one counts. */
static void raise_max(struct bag_error_sum *sum, double error, size_t row)
{
    if (error <= sum->max || isnan(sum->max))
        return;
    sum->max = error;
    sum->max_row = row;
}

void bag_error_add_row(struct bag_error_sum *sum, size_t row, const float *want, const float *got,
                       size_t elements)
{
    double squared = 0, dot = 0, wants = 0, gots = 0;
    for (size_t i = 0; i < elements; i++) {
        double error = error_of(want[i], got[i]);
        squared += error * error;
        raise_max(sum, error, row);
        dot += (double)want[i] * (double)got[i];
        wants += (double)want[i] * (double)want[i];
        gots += (double)got[i] * (double)got[i];
    }
    sum->rows++;
    sum->elements += elements;
    sum->squared += squared;
    sum->cosines += wants == 0 && gots == 0   ? 1
                    : wants == 0 || gots == 0 ? 0
                                              : dot / sqrt(wants * gots);
}

void bag_error_add(struct bag_error_sum *sum, const struct bag_error_sum *part)
{
    sum->rows += part->rows;
    sum->elements += part->elements;
    sum->squared += part->squared;
    raise_max(sum, part->max, part->max_row);
    sum->cosines += part->cosines;
}

static bool is_worse(const struct bag_worst_row *one, const struct bag_worst_row *other)
{
    if (one->mean_squared_error != other->mean_squared_error)
        return one->mean_squared_error > other->mean_squared_error;
    return one->row < other->row;
}

void bag_worst_rows_add(struct bag_worst_rows *worst, const struct bag_worst_row *row)
{
    size_t at = worst->count;
    while (at > 0 && is_worse(row, &worst->rows[at - 1]))
        at--;
    if (at == BAG_WORST_ROWS)
        return;
    worst->count += worst->count < BAG_WORST_ROWS;
    memmove(&worst->rows[at + 1], &worst->rows[at],
            (worst->count - at - 1) * sizeof worst->rows[0]);
    worst->rows[at] = *row;
}

/* ---- documents ------------------------------------------------------------------------------- */

static double mean_of(double sum, size_t count)
{
    return count ? sum / (double)count : 0;
}

/* cJSON says null for what is not a finite number. */
static bool add_errors(cJSON *object, const struct bag_error_sum *sum)
{
    double cosine = sum->rows ? mean_of(sum->cosines, sum->rows) : 1;
    return cJSON_AddNumberToObject(object, "mean_squared_error",
                                   mean_of(sum->squared, sum->elements)) &&
           cJSON_AddNumberToObject(object, "max_error", sum->max) &&
           cJSON_AddNumberToObject(object, "mean_cosine", cosine);
}

static bool add_key(cJSON *object, uint64_t key, enum bag_dtype dtype)
{
    if (dtype == BAG_DTYPE_COUNT)
        return cJSON_AddNullToObject(object, "key");
    return dtype == BAG_U64 ? bag_v2_add_integer(object, "key", key)
                            : bag_v2_add_signed(object, "key", (int64_t)key);
}

/* Prints for people, and frees the tree; NULL where `ok` is false, or without memory. */
static char *print_tree(cJSON *tree, bool ok)
{
    char *text = ok ? cJSON_Print(tree) : NULL;
    cJSON_Delete(tree);
    return text;
}

static bool add_worst_row(cJSON *list, const struct bag_worst_row *row, enum bag_dtype keys_dtype)
{
    cJSON *item = bag_v2_add_item(list);
    return item && bag_v2_add_integer(item, "row", row->row) &&
           add_key(item, row->key, keys_dtype) &&
           cJSON_AddNumberToObject(item, "mean_squared_error", row->mean_squared_error) &&
           cJSON_AddNumberToObject(item, "max_error", row->max_error);
}

static bool add_bags(cJSON *tree, const struct bag_convert_report *report)
{
    cJSON *bags = cJSON_AddObjectToObject(tree, "bags");
    return bags && bag_v2_add_integer(bags, "bags", report->bags.rows) &&
           bag_v2_add_integer(bags, "ids_per_bag", report->ids_per_bag) &&
           cJSON_AddStringToObject(bags, "reduction", report->reduction) &&
           add_errors(bags, &report->bags);
}

char *bag_convert_report_print(const struct bag_convert_report *report)
{
    cJSON *tree = cJSON_CreateObject();
    bool ok = bag_v2_add_integer(tree, "rows", report->rows.rows) &&
              bag_v2_add_integer(tree, "row_elements", report->row_elements) &&
              add_errors(tree, &report->rows);
    cJSON *worst = ok ? cJSON_AddArrayToObject(tree, "worst_rows") : NULL;
    ok = worst != NULL;
    for (size_t i = 0; ok && i < report->worst.count; i++)
        ok = add_worst_row(worst, &report->worst.rows[i], report->keys_dtype);
    return print_tree(tree, ok && add_bags(tree, report));
}

static bool add_tensors(cJSON *tree, const struct bag_inspect_report *report)
{
    cJSON *list = cJSON_AddArrayToObject(tree, "tensors");
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < report->num_tensors; i++) {
        const struct bag_inspected_tensor *tensor = &report->tensors[i];
        cJSON *item = bag_v2_add_item(list);
        ok = item && cJSON_AddStringToObject(item, "name", tensor->name) &&
             cJSON_AddStringToObject(item, "datatype", tensor->datatype) &&
             bag_v2_add_numbers(item, "shape", tensor->shape, tensor->rank) &&
             bag_v2_add_integer(item, "bytes", tensor->bytes);
    }
    return ok;
}

/* The model of the configuration that serves the table. */
static bool add_models(cJSON *configuration, const struct bag_inspect_report *report)
{
    cJSON *model = bag_v2_add_item(cJSON_AddArrayToObject(configuration, "models"));
    bool is_plain = strcmp(report->row_format, "plain") == 0;
    return model && cJSON_AddStringToObject(model, "name", "table") &&
           cJSON_AddStringToObject(model, "path", report->path) &&
           (!report->tensor || cJSON_AddStringToObject(model, "tensor", report->tensor)) &&
           (!report->keys_tensor ||
            cJSON_AddStringToObject(model, "keys_tensor", report->keys_tensor)) &&
           (is_plain || (cJSON_AddStringToObject(model, "row_format", report->row_format) &&
                         bag_v2_add_integer(model, "row_elements", report->row_elements)));
}

char *bag_inspect_configuration_print(const struct bag_inspect_report *report)
{
    cJSON *tree = cJSON_CreateObject();
    return print_tree(tree, add_models(tree, report));
}

/* Adds the formats that rows of this width may have, with the elements of such a row. */
static bool add_possible_formats(cJSON *tree, size_t row_bytes)
{
    cJSON *list = cJSON_AddArrayToObject(tree, "possible_row_formats");
    bool ok = list != NULL;
    for (int i = BAG_ROWS_PLAIN + 1; ok && i < BAG_ROW_FORMAT_COUNT; i++) {
        size_t elements = bag_row_elements((enum bag_row_format)i, row_bytes);
        cJSON *item = elements ? bag_v2_add_item(list) : NULL;
        ok = !elements ||
             (item && cJSON_AddStringToObject(item, "row_format", bag_row_format_names[i]) &&
              bag_v2_add_integer(item, "row_elements", elements));
    }
    return ok;
}

static bool add_table(cJSON *tree, const struct bag_inspect_report *report)
{
    bool ok = cJSON_AddBoolToObject(tree, "keyed", report->keyed) &&
              bag_v2_add_integer(tree, "rows", report->rows) &&
              bag_v2_add_integer(tree, "row_elements", report->row_elements) &&
              cJSON_AddStringToObject(tree, "datatype", report->datatype) &&
              cJSON_AddStringToObject(tree, "row_format", report->row_format) &&
              bag_v2_add_integer(tree, "sampled_rows", report->sampled_rows) &&
              bag_v2_add_integer(tree, "nan", report->nan) &&
              bag_v2_add_integer(tree, "inf", report->inf) &&
              bag_v2_add_integer(tree, "zero_rows", report->zero_rows) &&
              bag_v2_add_integer(tree, "duplicate_rows", report->duplicate_rows) &&
              bag_v2_add_integer(tree, "implausible_rows", report->implausible_rows) &&
              (!report->untold_row_bytes || add_possible_formats(tree, report->untold_row_bytes)) &&
              bag_v2_add_integer(tree, "serving_bytes", report->serving_bytes);
    cJSON *configuration = ok ? cJSON_AddObjectToObject(tree, "configuration") : NULL;
    return configuration && add_models(configuration, report);
}

char *bag_inspect_report_print(const struct bag_inspect_report *report)
{
    cJSON *tree = cJSON_CreateObject();
    bool ok = add_tensors(tree, report) && (!report->has_table || add_table(tree, report));
    return print_tree(tree, ok);
}

static bool add_model(cJSON *list, const struct bag_inspected_model *model)
{
    cJSON *item = bag_v2_add_item(list);
    return item && cJSON_AddStringToObject(item, "name", model->name) &&
           cJSON_AddStringToObject(item, "version", model->version) &&
           cJSON_AddStringToObject(item, "datatype", model->datatype) &&
           cJSON_AddStringToObject(item, "row_format", model->row_format) &&
           bag_v2_add_numbers(item, "shape", model->shape, model->rank) &&
           bag_v2_add_integer(item, "row_bytes", model->row_bytes) &&
           cJSON_AddBoolToObject(item, "keyed", model->keyed) &&
           cJSON_AddStringToObject(item, "load", model->is_mapped ? "map" : "copy") &&
           cJSON_AddBoolToObject(item, "mlock", model->is_locked) &&
           bag_v2_add_integer(item, "serving_bytes", model->serving_bytes) &&
           bag_v2_add_integer(item, "mapped_bytes", model->mapped_bytes) &&
           bag_v2_add_signed(item, "hash_rows", model->hash_rows) &&
           bag_v2_add_signed(item, "default_index", model->default_index);
}

char *bag_inspected_models_print(const struct bag_inspected_model *models, size_t count)
{
    cJSON *tree = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(tree, "models");
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = add_model(list, &models[i]);
    return print_tree(tree, ok);
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool describe_entry(cJSON *tree, const struct bag_safetensors_entry *entry, uint64_t at)
{
    const int64_t offsets[] = {(int64_t)at, (int64_t)(at + entry->bytes)};
    cJSON *object = cJSON_AddObjectToObject(tree, entry->name);
    return object && cJSON_AddStringToObject(object, "dtype", entry->type) &&
           bag_v2_add_numbers(object, "shape", entry->shape, entry->rank) &&
           bag_v2_add_numbers(object, "data_offsets", offsets, 2);
}

/* NULL without memory. */
static cJSON *describe_entries(const struct bag_safetensors_entry *entries, size_t count,
                               const struct bag_safetensors_note *notes, size_t num_notes)
{
    cJSON *tree = cJSON_CreateObject(),
          *metadata = cJSON_AddObjectToObject(tree, BAG_SAFETENSORS_METADATA);
    bool ok = metadata != NULL;
    uint64_t at = 0;
    for (size_t i = 0; ok && i < num_notes; i++)
        ok = cJSON_AddStringToObject(metadata, notes[i].key, notes[i].value) != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        ok = describe_entry(tree, &entries[i], at);
        at += entries[i].bytes;
    }
    if (ok)
        return tree;
    cJSON_Delete(tree);
    return NULL;
}

char *bag_safetensors_print(const struct bag_safetensors_entry *entries, size_t count,
                            const struct bag_safetensors_note *notes, size_t num_notes,
                            size_t *header_bytes)
{
    cJSON *tree = describe_entries(entries, count, notes, num_notes);
    char *text = tree ? cJSON_PrintUnformatted(tree) : NULL, *made = NULL;
    cJSON_Delete(tree);
    if (text) {
        size_t used = BAG_SAFETENSORS_PREAMBLE_BYTES + strlen(text);
        *header_bytes = (used + BAG_SAFETENSORS_ALIGNMENT - 1) / BAG_SAFETENSORS_ALIGNMENT *
                        BAG_SAFETENSORS_ALIGNMENT;
        made = malloc(*header_bytes);
    }
    if (made) {
        uint64_t bytes = *header_bytes - BAG_SAFETENSORS_PREAMBLE_BYTES;
        for (int i = 0; i < BAG_SAFETENSORS_PREAMBLE_BYTES; i++)
            made[i] = (char)(bytes >> (8 * i));
        memset(made + BAG_SAFETENSORS_PREAMBLE_BYTES, ' ', bytes);
        memcpy(made + BAG_SAFETENSORS_PREAMBLE_BYTES, text, strlen(text));
    }
    cJSON_free(text);
    return made;
}
