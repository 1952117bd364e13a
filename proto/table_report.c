/* What tools write: the header of a converted table, and reports on errors; see formats.h. */
#include "formats.h"

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

void bag_error_add_row(struct bag_error_sum *sum, const float *want, const float *got,
                       size_t elements)
{
    double squared = 0, dot = 0, wants = 0, gots = 0;
    for (size_t i = 0; i < elements; i++) {
        double error = error_of(want[i], got[i]);
        squared += error * error;
        /* Not below: what is not a number is the largest error of all. */
        sum->max = error <= sum->max ? sum->max : error;
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
    sum->max = part->max <= sum->max ? sum->max : part->max;
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
static void add_errors(cJSON *object, const struct bag_error_sum *sum)
{
    cJSON_AddNumberToObject(object, "mean_squared_error", mean_of(sum->squared, sum->elements));
    cJSON_AddNumberToObject(object, "max_error", sum->max);
    cJSON_AddNumberToObject(object, "mean_cosine",
                            sum->rows ? mean_of(sum->cosines, sum->rows) : 1);
}

/* A whole number that a double may not hold. */
static void add_key(cJSON *object, uint64_t key, enum bag_dtype dtype)
{
    char text[24];
    if (dtype == BAG_DTYPE_COUNT) {
        cJSON_AddNullToObject(object, "key");
        return;
    }
    if (dtype == BAG_U64)
        snprintf(text, sizeof text, "%" PRIu64, key);
    else
        snprintf(text, sizeof text, "%" PRId64, (int64_t)key);
    cJSON_AddRawToObject(object, "key", text);
}

/* Frees the tree. */
static char *print_tree(cJSON *tree)
{
    char *text = cJSON_Print(tree);
    cJSON_Delete(tree);
    return text;
}

char *bag_convert_report_print(const struct bag_convert_report *report)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddNumberToObject(tree, "rows", (double)report->rows.rows);
    cJSON_AddNumberToObject(tree, "row_elements", (double)report->row_elements);
    add_errors(tree, &report->rows);
    cJSON *worst = cJSON_AddArrayToObject(tree, "worst_rows");
    for (size_t i = 0; i < report->worst.count; i++) {
        const struct bag_worst_row *row = &report->worst.rows[i];
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddNumberToObject(entry, "row", (double)row->row);
        add_key(entry, row->key, report->keys_dtype);
        cJSON_AddNumberToObject(entry, "mean_squared_error", row->mean_squared_error);
        cJSON_AddNumberToObject(entry, "max_error", row->max_error);
        cJSON_AddItemToArray(worst, entry);
    }
    cJSON *bags = cJSON_AddObjectToObject(tree, "bags");
    cJSON_AddNumberToObject(bags, "bags", (double)report->bags.rows);
    cJSON_AddNumberToObject(bags, "ids_per_bag", (double)report->ids_per_bag);
    cJSON_AddStringToObject(bags, "reduction", report->reduction);
    add_errors(bags, &report->bags);
    return print_tree(tree);
}

static cJSON *tensors_of(const struct bag_inspect_report *report)
{
    cJSON *tensors = cJSON_CreateArray();
    for (size_t i = 0; i < report->num_tensors; i++) {
        const struct bag_inspected_tensor *tensor = &report->tensors[i];
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "name", tensor->name);
        cJSON_AddStringToObject(entry, "datatype", tensor->datatype);
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
        for (uint32_t axis = 0; axis < tensor->rank; axis++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[axis]));
        cJSON_AddNumberToObject(entry, "bytes", (double)tensor->bytes);
        cJSON_AddItemToArray(tensors, entry);
    }
    return tensors;
}

static cJSON *configuration_of(const struct bag_inspect_report *report)
{
    cJSON *tree = cJSON_CreateObject(), *models = cJSON_AddArrayToObject(tree, "models");
    cJSON *model = cJSON_CreateObject();
    cJSON_AddItemToArray(models, model);
    cJSON_AddStringToObject(model, "name", "table");
    cJSON_AddStringToObject(model, "path", report->path);
    if (report->tensor)
        cJSON_AddStringToObject(model, "tensor", report->tensor);
    if (report->keys_tensor)
        cJSON_AddStringToObject(model, "keys_tensor", report->keys_tensor);
    if (strcmp(report->row_format, "plain") != 0) {
        cJSON_AddStringToObject(model, "row_format", report->row_format);
        cJSON_AddNumberToObject(model, "row_elements", (double)report->row_elements);
    }
    return tree;
}

char *bag_inspect_configuration_print(const struct bag_inspect_report *report)
{
    return print_tree(configuration_of(report));
}

char *bag_inspect_report_print(const struct bag_inspect_report *report)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddItemToObject(tree, "tensors", tensors_of(report));
    if (report->has_table) {
        cJSON_AddBoolToObject(tree, "keyed", report->keyed);
        cJSON_AddNumberToObject(tree, "rows", (double)report->rows);
        cJSON_AddNumberToObject(tree, "row_elements", (double)report->row_elements);
        cJSON_AddStringToObject(tree, "datatype", report->datatype);
        cJSON_AddStringToObject(tree, "row_format", report->row_format);
        cJSON_AddNumberToObject(tree, "sampled_rows", (double)report->sampled_rows);
        cJSON_AddNumberToObject(tree, "nan", (double)report->nan);
        cJSON_AddNumberToObject(tree, "inf", (double)report->inf);
        cJSON_AddNumberToObject(tree, "zero_rows", (double)report->zero_rows);
        cJSON_AddNumberToObject(tree, "duplicate_rows", (double)report->duplicate_rows);
        cJSON_AddNumberToObject(tree, "serving_bytes", (double)report->serving_bytes);
        cJSON_AddItemToObject(tree, "configuration", configuration_of(report));
    }
    return print_tree(tree);
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool add_number(cJSON *array, uint64_t number)
{
    cJSON *item = array ? cJSON_CreateNumber((double)number) : NULL;
    return item && cJSON_AddItemToArray(array, item);
}

static bool describe_entry(cJSON *tree, const struct bag_safetensors_entry *entry, uint64_t at)
{
    cJSON *object = cJSON_AddObjectToObject(tree, entry->name);
    bool ok = cJSON_AddStringToObject(object, "dtype", entry->type) != NULL;
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    for (uint32_t axis = 0; axis < entry->rank; axis++)
        ok &= add_number(shape, (uint64_t)entry->shape[axis]);
    cJSON *offsets = cJSON_AddArrayToObject(object, "data_offsets");
    return ok && shape && add_number(offsets, at) && add_number(offsets, at + entry->bytes);
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
