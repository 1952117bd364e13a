/* Codes whose scales and biases are in arrays of their own: TorchRec's `weight`, `weight_qscale`
 * and `weight_qbias`, and symmetric `weight` and `scale`. They are opened and described here, and
 * put together by `bagserve convert`; see source.h. */
#include "kernels/rowformat.h"
#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

#define WEIGHT "weight"
#define QSCALE "_qscale"
#define QBIAS  "_qbias"

/* The name of the array that holds the scales of the codes `values`; NULL: there is none, and they
 * are no codes. Codes without a sign have TorchRec's names alone; signed ones are symmetric, under
 * any. */
static const char *find_scale(const struct bag_file_names *names, const char *values,
                              enum bag_dtype dtype)
{
    size_t bytes = strlen(values), tail = sizeof WEIGHT - 1;
    const char *found = NULL;
    if (dtype == BAG_U8 || dtype == BAG_I8)
        found = bag_file_names_find(names, values, bytes, QSCALE);
    if (!found && dtype == BAG_I8)
        found = bag_file_names_find(names, values, bytes, "_scale");
    if (!found && dtype == BAG_I8 && bytes >= tail && strcmp(values + bytes - tail, WEIGHT) == 0)
        found = bag_file_names_find(names, values, bytes - tail, "scale");
    return found;
}

/* Whether a name ends with the suffix, and with another one in its place is that of an array whose
 * scales or biases it would hold. */
static bool is_beside(const struct bag_file_names *names, const char *name, const char *suffix,
                      const char *other)
{
    size_t bytes = strlen(name), tail = strlen(suffix);
    if (bytes < tail || strcmp(name + bytes - tail, suffix) != 0)
        return false;
    const char *values = bag_file_names_find(names, name, bytes - tail, other);
    return values && (strcmp(suffix, QBIAS) == 0 || find_scale(names, values, BAG_I8) == name);
}

bool bag_split_is_scale(const struct bag_file_names *names, const char *name)
{
    return is_beside(names, name, QSCALE, "") || is_beside(names, name, QBIAS, "") ||
           is_beside(names, name, "_scale", "") || is_beside(names, name, "scale", WEIGHT);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool reject_unread(const struct bag_source *source, const char *values, const char *scale,
                          struct bag_problem *problem)
{
    const char *path = source->model->path;
    bool is_signed = source->files[0].npy.dtype == BAG_I8;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: '%s' has codes whose scales are in '%s'; join them with 'bagserve "
                           "convert %s#%s%s OUT.safetensors'",
                           path, values, scale, path, values, is_signed ? "" : ",row_elements=N");
}

/* Which types and shapes scales may have; `what` is the array. */
static bool check_shape(const struct bag_source *source, const struct bag_table_file *file,
                        const char *what, const char *values, struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    int64_t rows = source->files[0].npy.shape[0];
    bool is_signed = source->files[0].npy.dtype == BAG_I8;
    bool is_float = npy->dtype == BAG_F32 || npy->dtype == BAG_F16;
    bool for_rows =
        (npy->rank == 1 || (npy->rank == 2 && npy->shape[1] == 1)) && npy->shape[0] == rows;
    bool for_table = is_signed && npy->count == 1 && npy->rank <= 2;
    char shape[128] = "";
    size_t used = 0;
    if (is_float && (for_rows || for_table))
        return true;
    for (uint32_t axis = 0; axis < npy->rank && used < sizeof shape; axis++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", axis ? ", " : "",
                                 (long long)npy->shape[axis]);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: '%s' is %s of shape [%s]; it must be FP32 or FP16 of shape [%lld] "
                           "or [%lld, 1], one for each row of '%s'%s",
                           source->model->path, what, bag_dtypes[npy->dtype].name, shape,
                           (long long)rows, (long long)rows, values,
                           is_signed ? ", or one number for all" : "");
}

static bool open_one(struct bag_source *source, const struct bag_archive *archive, const char *name,
                     const char *values, struct bag_problem *problem)
{
    struct bag_table_file *file = &source->scales[source->num_scales];
    if (!bag_archive_array(archive, name, BAG_DTYPE_COUNT, file, problem) ||
        !check_shape(source, file, name, values, problem))
        return false;
    source->num_scales++;
    return true;
}

bool bag_split_open(struct bag_source *source, const struct bag_archive *archive,
                    const struct bag_file_names *names, const char *values,
                    struct bag_problem *problem)
{
    const struct bag_npy *npy = &source->files[0].npy;
    const char *scale = find_scale(names, values, npy->dtype);
    const char *bias = bag_file_names_find(names, values, strlen(values), QBIAS);
    bool is_signed = npy->dtype == BAG_I8;
    if (!scale)
        return true;
    if (!source->imports)
        return reject_unread(source, values, scale, problem);
    if (npy->rank != 2)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: '%s' has %u dimensions; codes must have 2, rows and columns",
                               source->model->path, values, (unsigned)npy->rank);
    if (is_signed == (bias != NULL))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               is_signed
                                   ? "%s: '%s' is INT8 with biases ('%s%s'); codes with biases "
                                     "must be UINT8"
                                   : "%s: '%s' is UINT8 and there is no '%s%s'; codes without a "
                                     "sign have biases, symmetric ones are INT8",
                               source->model->path, values, values, QBIAS);
    source->scales = calloc(2, sizeof *source->scales);
    if (!source->scales)
        return bag_problem_no_memory(problem);
    return open_one(source, archive, scale, values, problem) &&
           (!bias || open_one(source, archive, bias, values, problem));
}

bool bag_split_check_parts(const struct bag_source *source, const char *index,
                           const struct bag_file_names *names, const char *values,
                           struct bag_problem *problem)
{
    const char *scale = find_scale(names, values, source->files[0].npy.dtype);
    return !scale ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: '%s' has codes whose scales are in '%s'; put these tensors, and "
                           "their biases, into one file for 'bagserve convert'",
                           index, values, scale);
}

/* ---- what they become ------------------------------------------------------------------------ */

/* Sets the elements of a row by the width and what is configured. A byte may hold one code or two:
 * that is not guessed. */
static bool choose_kind(const struct bag_source *source, size_t width, size_t *elements,
                        bool *pairs, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    bool is_signed = source->files[0].npy.dtype == BAG_I8;
    bool says = model->row_format != BAG_ROWS_PLAIN;
    *elements = (size_t)model->row_elements;
    *pairs = says ? bag_row_layouts[model->row_format].kind == BAG_KIND_OF_INT4
                  : !is_signed && *elements > width;
    if (*elements == 0 && (says || is_signed))
        *elements = *pairs ? 2 * width : width;
    if (*elements == 0)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "rows of %zu bytes of codes need row_elements: %zu where a byte is "
                               "a code (int8), %zu where it is two (int4)",
                               width, width, 2 * width);
    if (is_signed && *pairs)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "codes of INT8 are one a byte; row_format is %s",
                               bag_row_format_names[model->row_format]);
    if ((*pairs ? *elements / 2 + *elements % 2 : *elements) == width)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "row_elements is %zu; rows of %zu bytes of codes hold %zu elements as "
                           "int8, or %zu as int4",
                           *elements, width, width, 2 * width);
}

/* The format with room for scales of their type: f16 only where all are. */
static bool choose_format(const struct bag_source *source, bool pairs, enum bag_row_format *format,
                          struct bag_problem *problem)
{
    bool is_signed = source->files[0].npy.dtype == BAG_I8, halves = true;
    enum bag_row_format said = source->model->row_format;
    for (size_t i = 0; i < source->num_scales; i++)
        halves &= source->scales[i].npy.dtype == BAG_F16;
    *format = said ? said : pairs ? BAG_ROWS_INT4 : BAG_ROWS_INT8;
    if (!said && !pairs && halves && !is_signed)
        *format = BAG_ROWS_INT8_F16_FRONT;
    bool needs_halves = pairs || *format == BAG_ROWS_INT8_F16_FRONT;
    if (*format != BAG_ROWS_INT8 && *format != BAG_ROWS_INT8_F16_FRONT && !pairs)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s has no integer codes; these are",
                               bag_row_format_names[*format]);
    if (!needs_halves || halves)
        return true;
    if (said)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s has FP16 scales; these are FP32: leave row_format "
                               "out%s",
                               bag_row_format_names[said], pairs ? "" : ", or say int8");
    *format = BAG_ROWS_PLAIN; /* their values as FP32 */
    return true;
}

bool bag_split_describe(struct bag_source *source, struct bag_problem *problem)
{
    struct bag_table *table = &source->table;
    enum bag_row_format format;
    size_t elements;
    bool pairs;
    if (!choose_kind(source, table->row_elements, &elements, &pairs, problem) ||
        !choose_format(source, pairs, &format, problem))
        return false;
    table->dtype = BAG_F32;
    table->row_elements = elements;
    table->row_format = format;
    source->shape[1] = (int64_t)elements;
    return true;
}
