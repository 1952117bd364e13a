/* Writes the header and the report of a converted table; see formats.h. */
#include "formats.h"

#include "json_writer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

/* Returns the magnitude of an error. It is 0 for a NaN in place of a NaN and for equal infinities.
 */
static double error_of(float want, float got)
{
    if (want == got || (isnan(want) && isnan(got)))
        return 0;
    return fabs((double)want - (double)got);
}

/* Raises the maximum error. NaN counts as the largest error. If several errors are equal, the first
 * one counts. */
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

/* Returns whether the first row precedes the other one in the list: it has the larger error, or the
 * same error and a smaller number. */
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

/* Returns the mean, or 0 if nothing was counted. */
static double mean_of(double sum, size_t count)
{
    return count ? sum / (double)count : 0;
}

/* Writes the means of an error sum. Without rows the mean cosine is 1, as for rows without an
 * error. */
static void write_errors(struct bag_json_writer *json, const struct bag_error_sum *sum)
{
    BAG_JSON_WRITE(json, BAG_KEY("mean_squared_error", mean_of(sum->squared, sum->elements)),
                   BAG_KEY("max_error", sum->max),
                   BAG_KEY("mean_cosine", sum->rows ? mean_of(sum->cosines, sum->rows) : 1.0));
}

char *bag_convert_report_print(const struct bag_convert_report *report)
{
    struct bag_json_writer json = {.is_pretty = true};
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("rows", report->rows.rows),
                   BAG_KEY("row_elements", report->row_elements));
    write_errors(&json, &report->rows);
    /* Write the rows with the largest errors. `key` is a signed or an unsigned number by the type
     * of the keys, and null for a table without keys. */
    const enum bag_dtype dtype = report->keys_dtype;
    bag_json_open(&json, "worst_rows", '[');
    for (size_t i = 0; i < report->worst.count; i++) {
        const struct bag_worst_row *row = &report->worst.rows[i];
        bag_json_open(&json, NULL, '{');
        BAG_JSON_WRITE(&json, BAG_KEY("row", row->row),
                       BAG_KEY_IF(dtype == BAG_U64, "key", row->key),
                       BAG_KEY_IF(dtype == BAG_I64, "key", (int64_t)row->key));
        if (dtype == BAG_DTYPE_COUNT)
            bag_json_raw(&json, "key", "null");
        BAG_JSON_WRITE(&json, BAG_KEY("mean_squared_error", row->mean_squared_error),
                       BAG_KEY("max_error", row->max_error));
        bag_json_close(&json);
    }
    bag_json_close(&json);
    bag_json_open(&json, "bags", '{');
    BAG_JSON_WRITE(&json, BAG_KEY("bags", report->bags.rows),
                   BAG_KEY("ids_per_bag", report->ids_per_bag),
                   BAG_KEY("reduction", report->reduction));
    write_errors(&json, &report->bags);
    return bag_json_end(&json);
}

/* ---- the header of a safetensors file -------------------------------------------------------- */

char *bag_safetensors_print(const struct bag_safetensors_entry *entries, size_t count,
                            const struct bag_safetensors_note *notes, size_t num_notes,
                            size_t *header_bytes)
{
    struct bag_json_writer json = {.is_pretty = false};
    uint64_t at = 0;
    bag_json_open(&json, NULL, '{');
    bag_json_open(&json, BAG_SAFETENSORS_METADATA, '{');
    for (size_t i = 0; i < num_notes; i++)
        BAG_JSON_WRITE(&json, BAG_KEY(notes[i].key, notes[i].value));
    bag_json_close(&json);
    for (const struct bag_safetensors_entry *entry = entries; entry < entries + count; entry++) {
        const int64_t offsets[] = {(int64_t)at, (int64_t)(at + entry->bytes)};
        bag_json_open(&json, entry->name, '{');
        BAG_JSON_WRITE(&json, BAG_KEY("dtype", entry->type));
        bag_json_integers(&json, "shape", entry->shape, entry->rank);
        bag_json_integers(&json, "data_offsets", offsets, 2);
        bag_json_close(&json);
        at += entry->bytes;
    }
    char *text = bag_json_end(&json), *made = NULL;
    if (text) {
        /* Pad the header with spaces, so that the data begins at a multiple of the alignment. */
        size_t used = BAG_SAFETENSORS_PREAMBLE_BYTES + strlen(text);
        *header_bytes = (used + BAG_SAFETENSORS_ALIGNMENT - 1) / BAG_SAFETENSORS_ALIGNMENT *
                        BAG_SAFETENSORS_ALIGNMENT;
        made = malloc(*header_bytes);
    }
    if (made) {
        uint64_t bytes = *header_bytes - BAG_SAFETENSORS_PREAMBLE_BYTES;
        bag_write_little(made, bytes, BAG_SAFETENSORS_PREAMBLE_BYTES);
        memset(made + BAG_SAFETENSORS_PREAMBLE_BYTES, ' ', bytes);
        memcpy(made + BAG_SAFETENSORS_PREAMBLE_BYTES, text, strlen(text));
    }
    free(text);
    return made;
}
