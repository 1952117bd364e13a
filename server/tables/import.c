/* Quantised rows as other programs write them; see import.h. */
#include "import.h"

#include "kernels/rowformat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

#define WEIGHT "weight"
#define QSCALE "_qscale"
#define QBIAS  "_qbias"

/* The kinds of arrays whose numbers are codes if scales stand beside them. */
enum codes {
    NO_CODES,
    UNSIGNED, /* UINT8: a scale and a bias for each row */
    SYMMETRIC /* INT8 or FP8: a scale for each row, or one for all */
};

/* Returns whether the numbers are FP8, whose bytes have the type UINT8. */
static bool is_f8(const struct bag_table_file *file)
{
    return file->row_format == BAG_ROWS_F8_E4M3 || file->row_format == BAG_ROWS_F8_E5M2;
}

static enum codes codes_of(const struct bag_table_file *file)
{
    if (is_f8(file) || file->npy.dtype == BAG_I8)
        return SYMMETRIC;
    return file->npy.dtype == BAG_U8 ? UNSIGNED : NO_CODES;
}

/* Returns the number of bytes before the end of a name, or SIZE_MAX if it has another end. */
static size_t stem_bytes(const char *name, const char *end)
{
    const size_t bytes = strlen(name), tail = strlen(end);
    return bytes >= tail && strcmp(name + bytes - tail, end) == 0 ? bytes - tail : SIZE_MAX;
}

/* Returns the array that is named as `name` with `mate` in place of `end`. Returns NULL if there is
 * none, or if the name has another end. */
static const char *find_mate(const struct bag_file_names *names, const char *name, const char *end,
                             const char *mate)
{
    const size_t stem = stem_bytes(name, end);
    return stem == SIZE_MAX ? NULL : bag_file_names_find(names, name, stem, mate);
}

/* The names of scales that codes are multiplied by: the end of the codes' name, and what takes its
 * place. Unsigned codes have the first only. */
static const char *const scale_names[][2] = {
    {"", QSCALE}, {"", "_scale"}, {"", "_scale_inv"}, {WEIGHT, "scale"}, {WEIGHT, "scale_weight"}};

/* Returns the name of the array that holds the scales of the array `values`, or NULL if there is
 * none. */
static const char *find_scale(const struct bag_file_names *names, const char *values,
                              enum codes codes)
{
    const size_t known[] = {0, 1, sizeof scale_names / sizeof *scale_names};
    const char *found = NULL;
    for (size_t i = 0; !found && i < known[codes]; i++)
        found = find_mate(names, values, scale_names[i][0], scale_names[i][1]);
    return found;
}

bool bag_import_is_scale(const struct bag_file_names *names, const char *name)
{
    for (size_t i = 0; i < sizeof scale_names / sizeof *scale_names; i++) {
        const char *values = find_mate(names, name, scale_names[i][1], scale_names[i][0]);
        if (values && find_scale(names, values, SYMMETRIC) == name)
            return true;
    }
    return find_mate(names, name, QBIAS, "") != NULL;
}

/* ---- arrays that are not the table ----------------------------------------------------------- */

#define DEQUANTISE \
    "dequantise it with the program that wrote it, and save the values as FP32 or FP16"
#define UNDO                                                                                   \
    "remove the parametrization (torch.nn.utils.prune.remove, remove_weight_norm, "            \
    "parametrize.remove_parametrizations) and save the state_dict, or export the module with " \
    "bagserve_torch"
#define MERGE "merge the adapter (merge_and_unload) and save the model"

/* Arrays that say that the one beside them is not the table: codes with scales, in the names of the
 * common tools, and weights that a module computes from several. `mate` takes the place of `end` in
 * the array's name. */
static const struct {
    const char *end, *mate;
    bool of_codes;  /* holds for arrays of integers and FP8 only */
    bool is_prefix; /* names that continue after `mate` count, too */
    const char *remedy;
} mates[] = {
    {"", QSCALE, false, false, DEQUANTISE}, /* TorchRec */
    {"", QBIAS, false, false, DEQUANTISE},
    {"", "_scale", true, false, DEQUANTISE}, /* compressed-tensors, ModelOpt */
    {"", "_zero_point", true, false, DEQUANTISE},
    {"", "_global_scale", true, false, DEQUANTISE},
    {"", "_scale_2", true, false, DEQUANTISE},
    {"_packed", "_scale", true, false, DEQUANTISE},
    {"", "_scale_inv", true, false, DEQUANTISE},       /* DeepSeek */
    {WEIGHT, "scale_weight", true, false, DEQUANTISE}, /* ComfyUI */
    {WEIGHT, "scale", true, false, DEQUANTISE},
    {WEIGHT, "zero_point", true, false, DEQUANTISE},
    {WEIGHT, "SCB", true, false, DEQUANTISE}, /* bitsandbytes */
    {"", ".absmax", true, false, DEQUANTISE},
    {"", "_scales", true, false, DEQUANTISE},        /* EETQ */
    {"_blocks", "_scales", true, false, DEQUANTISE}, /* MXFP4 */
    {WEIGHT, "scales", true, false, DEQUANTISE},     /* MLX */
    {"qweight", "scales", true, false, DEQUANTISE},  /* GPTQ, AWQ */
    {"W_q", "scale", true, false, DEQUANTISE},       /* HQQ */
    {"_data", "_scale", true, false, DEQUANTISE},    /* quanto */
    {"qdata", "scale", true, false, DEQUANTISE},     /* torchao */
    {"codes", "codebooks", true, false, DEQUANTISE}, /* AQLM */
    {"", ".quant_state", true, true, DEQUANTISE},
    {WEIGHT, "weight_orig", false, false, UNDO},
    {WEIGHT, "weight_g", false, false, UNDO},
    {WEIGHT, "parametrizations.weight.", false, true, UNDO},
    {"_orig", "_mask", false, false, UNDO},          /* prune */
    {"weight_orig", "weight_u", false, false, UNDO}, /* spectral_norm */
    {"weight_v", "weight_g", false, false, UNDO},    /* weight_norm */
    {"weight_g", "weight_v", false, false, UNDO},
    {WEIGHT, "lora_", false, true, MERGE}, /* LoRA */
    {"base_layer.weight", "lora_", false, true, MERGE},
    {"original_module.weight", "modules_to_save.", false, true, MERGE},
};

/* Finds an array as find_mate() does, whose name may continue after `mate`. */
static const char *find_prefixed(const struct bag_file_names *names, const char *name,
                                 const char *end, const char *mate)
{
    const size_t stem = stem_bytes(name, end);
    for (size_t i = 0; stem != SIZE_MAX && i < names->count; i++) {
        if (strncmp(names->names[i], name, stem) == 0 &&
            strncmp(names->names[i] + stem, mate, strlen(mate)) == 0)
            return names->names[i];
    }
    return NULL;
}

/* Checks that no array says that `values`, the source's first file, is not the table. `scale` holds
 * the scales with which it is joined (NULL: none). */
static bool check_mates(const struct bag_source *source, const struct bag_file_names *names,
                        const char *values, const char *scale, struct bag_problem *problem)
{
    const struct bag_table_file *file = &source->files[0];
    const bool is_described = file->row_format != BAG_ROWS_PLAIN && !is_f8(file);
    const bool may_be_codes = bag_dtypes[file->npy.dtype].kind != BAG_KIND_FLOAT && !is_described;
    const char *last = strrchr(values, '.');
    if (strstr(values, "parametrizations.") && strncmp(last, ".original", strlen(".original")) == 0)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: '%s' is not the table, which a parametrization computes from "
                               "it: " UNDO,
                               source->model->path, values);
    for (size_t i = 0; i < sizeof mates / sizeof *mates; i++) {
        const char *mate = NULL;
        if (!mates[i].of_codes || may_be_codes)
            mate = (mates[i].is_prefix ? find_prefixed : find_mate)(names, values, mates[i].end,
                                                                    mates[i].mate);
        if (!mate || mate == scale || (scale && strcmp(mates[i].mate, QBIAS) == 0))
            continue;
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: '%s' is not the table, which is computed from it and '%s': %s",
                               source->model->path, values, mate, mates[i].remedy);
    }
    return true;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool reject_unread(const struct bag_source *source, const char *values, const char *scale,
                          struct bag_problem *problem)
{
    const char *path = source->model->path;
    const bool is_symmetric = codes_of(&source->files[0]) == SYMMETRIC;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: '%s' has codes whose scales are in '%s'; join them with 'bagserve "
                           "convert %s#%s%s OUT.safetensors'",
                           path, values, scale, path, values,
                           is_symmetric ? "" : ",row_elements=N");
}

/* Rejects scales or biases of a wrong type or shape; `what` is their name. */
static bool check_shape(const struct bag_source *source, const struct bag_table_file *file,
                        const char *what, const char *values, struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    int64_t rows = source->files[0].npy.shape[0];
    const bool is_symmetric = codes_of(&source->files[0]) == SYMMETRIC;
    bool is_float = npy->dtype == BAG_F32 || npy->dtype == BAG_F16 || npy->dtype == BAG_BF16;
    bool for_rows =
        (npy->rank == 1 || (npy->rank == 2 && npy->shape[1] == 1)) && npy->shape[0] == rows;
    bool for_table = is_symmetric && npy->count == 1 && npy->rank <= 2;
    char shape[128] = "";
    if (is_float && (for_rows || for_table))
        return true;
    for (uint32_t axis = 0; axis < npy->rank; axis++)
        bag_text_add(shape, sizeof shape, "%s%lld", axis ? ", " : "", (long long)npy->shape[axis]);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: '%s' is %s of shape [%s]; it must be FP32, FP16 or BF16 of shape "
                           "[%lld] or [%lld, 1], one for each row of '%s'%s",
                           source->model->path, what, bag_dtypes[npy->dtype].name, shape,
                           (long long)rows, (long long)rows, values,
                           is_symmetric ? ", or one number for all" : "");
}

/* Opens the scales or the biases of the array `values`. */
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

bool bag_import_open(struct bag_source *source, const struct bag_archive *archive,
                     const struct bag_file_names *names, const char *values,
                     struct bag_problem *problem)
{
    const struct bag_npy *npy = &source->files[0].npy;
    const enum codes codes = codes_of(&source->files[0]);
    const char *scale = find_scale(names, values, codes);
    const char *bias = bag_file_names_find(names, values, strlen(values), QBIAS);
    if (!check_mates(source, names, values, scale, problem))
        return false;
    if (!scale)
        return true;
    if (!source->imports)
        return reject_unread(source, values, scale, problem);
    if (npy->rank != 2)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: '%s' has %u dimension%s; codes must have 2, rows and columns",
                               source->model->path, values, (unsigned)npy->rank,
                               npy->rank == 1 ? "" : "s");
    if ((codes == SYMMETRIC) == (bias != NULL))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               codes == SYMMETRIC
                                   ? "%s: '%s' has a sign and biases ('%s%s'); codes with biases "
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

bool bag_import_check_parts(const struct bag_source *source, const char *index,
                            const struct bag_file_names *names, const char *values,
                            struct bag_problem *problem)
{
    const char *scale = find_scale(names, values, codes_of(&source->files[0]));
    if (!check_mates(source, names, values, scale, problem))
        return false;
    return !scale ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: '%s' has codes whose scales are in '%s'; put these tensors, and "
                           "their biases, into one file for 'bagserve convert'",
                           index, values, scale);
}

/* ---- describing the joined rows -------------------------------------------------------------- */

/* Sets the elements of a row, and how many codes a byte holds, from the row's width and the
 * configuration. The number of codes is not guessed. */
static bool choose_kind(const struct bag_source *source, size_t width, size_t *elements,
                        size_t *per_byte, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    const bool is_symmetric = codes_of(&source->files[0]) == SYMMETRIC;
    bool says = model->row_format != BAG_ROWS_PLAIN;
    *elements = (size_t)model->row_elements;
    *per_byte = 1;
    if (says)
        *per_byte = bag_codes_per_byte(bag_row_layouts[model->row_format].kind);
    else if (!is_symmetric && *elements > width)
        *per_byte = *elements > 2 * width ? 4 : 2;
    if (*elements == 0 && (says || is_symmetric))
        *elements = *per_byte * width;
    if (*elements == 0)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "rows of %zu bytes of codes need row_elements: %zu where a byte is "
                               "a code (int8), %zu where it is two (int4), %zu where it is four "
                               "(int2)",
                               width, width, 2 * width, 4 * width);
    if (is_symmetric && *per_byte > 1)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "codes of INT8 and FP8 are one a byte; row_format is %s",
                               bag_row_format_names[model->row_format]);
    if (*elements / *per_byte + (*elements % *per_byte != 0) == width)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "row_elements is %zu; rows of %zu bytes of codes hold %zu elements as "
                           "int8, %zu as int4, or %zu as int2",
                           *elements, width, width, 2 * width, 4 * width);
}

/* Returns the format that such codes have if the configuration says none. */
static enum bag_row_format usual_format(size_t per_byte, bool is_signed, bool halves)
{
    if (per_byte > 1)
        return per_byte == 2 ? BAG_ROWS_INT4 : BAG_ROWS_INT2;
    return halves && !is_signed ? BAG_ROWS_INT8_F16_FRONT : BAG_ROWS_INT8;
}

/* Chooses the row format of FP8 numbers with scales. */
static bool choose_f8(const struct bag_source *source, enum bag_row_format *format,
                      struct bag_problem *problem)
{
    const enum bag_row_format said = source->model->row_format;
    *format = source->files[0].row_format == BAG_ROWS_F8_E4M3 ? BAG_ROWS_F8_E4M3_SCALED
                                                              : BAG_ROWS_F8_E5M2_SCALED;
    return !said || said == *format ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "row_format %s: these are FP8 numbers with scales: leave row_format "
                           "out, or say %s",
                           bag_row_format_names[said], bag_row_format_names[*format]);
}

/* Chooses a row format with room for the scales: one with f16 parameters only if all of them are
 * f16. */
static bool choose_format(const struct bag_source *source, size_t per_byte,
                          enum bag_row_format *format, struct bag_problem *problem)
{
    bool is_signed = source->files[0].npy.dtype == BAG_I8, halves = true;
    enum bag_row_format said = source->model->row_format;
    if (is_f8(&source->files[0]))
        return choose_f8(source, format, problem);
    for (size_t i = 0; i < source->num_scales; i++)
        halves &= source->scales[i].npy.dtype == BAG_F16;
    *format = said ? said : usual_format(per_byte, is_signed, halves);
    const struct bag_row_layout *layout = &bag_row_layouts[*format];
    if (layout->kind == BAG_KIND_OF_E4M3 || layout->kind == BAG_KIND_OF_E5M2)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s has no integer codes; these are",
                               bag_row_format_names[*format]);
    if (layout->kind == BAG_KIND_OF_SINT8 && !is_signed)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s has codes with a sign and no bias; these are UINT8 "
                               "with biases",
                               bag_row_format_names[*format]);
    if (layout->param_dtype != BAG_F16 || halves)
        return true;
    if (said)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s has FP16 scales; these are FP32: leave row_format "
                               "out%s",
                               bag_row_format_names[said],
                               per_byte > 1                       ? ""
                               : layout->kind == BAG_KIND_OF_INT8 ? ", or say int8"
                                                                  : ", or say int8_symmetric");
    *format = BAG_ROWS_PLAIN; /* values of the rows as FP32 */
    return true;
}

bool bag_import_describe(struct bag_source *source, struct bag_problem *problem)
{
    struct bag_table *table = &source->table;
    enum bag_row_format format;
    size_t elements, per_byte;
    if (!choose_kind(source, table->row_elements, &elements, &per_byte, problem) ||
        !choose_format(source, per_byte, &format, problem))
        return false;
    table->dtype = BAG_F32;
    table->row_elements = elements;
    table->row_format = format;
    source->shape[1] = (int64_t)elements;
    return true;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The code of 0 once signed codes have been made unsigned. */
#define SIGNED_ZERO 128

/* Returns whether signed codes are stored as unsigned ones with a bias. */
static bool makes_unsigned(const struct bag_source *source)
{
    return source->num_scales == 1 &&
           bag_row_layouts[source->table.row_format].kind == BAG_KIND_OF_INT8;
}

/* Returns the bytes of a row in the file. */
static size_t stored_bytes(const struct bag_source *source)
{
    const struct bag_npy *npy = &source->files[0].npy;
    return npy->row_elements * bag_dtypes[npy->dtype].bytes;
}

bool bag_import_is_needed(const struct bag_source *source)
{
    return source->num_scales > 0 ||
           (source->num_files > 0 && source->table.row_format != BAG_ROWS_PLAIN &&
            stored_bytes(source) != bag_row_bytes(&source->table));
}

/* The scales and biases of some rows. */
struct params {
    float *scales, *biases;
};

/* Reads the scales, or the biases, of these rows: from array number `index`, which has a number for
 * each row or one for all. `stored` has room for `count` numbers of any type. */
static bool read_numbers(const struct bag_open_files *scales, size_t index, size_t first,
                         size_t count, float *numbers, unsigned char *stored,
                         struct bag_problem *problem)
{
    const struct bag_open_files one = {&scales->files[index], &scales->fds[index], 1};
    const struct bag_table table = {
        .rows = stored, .dtype = one.files->npy.dtype, .num_rows = 1, .row_elements = 1};
    const bool for_all = one.files->npy.count == 1;
    if (!bag_open_files_read(&one, for_all ? 0 : first, for_all ? 1 : count, stored, problem))
        return false;
    for (size_t i = 0; i < count; i++)
        bag_row_decode(&table, for_all ? 0 : (int64_t)i, 0, 1, &numbers[i]);
    return true;
}

/* Reads the scales and biases of some rows. Symmetric codes have no biases in the file. */
static bool read_params(const struct bag_source *source, const struct bag_open_files *scales,
                        size_t first, size_t count, const struct params *params,
                        unsigned char *stored, struct bag_problem *problem)
{
    if (!read_numbers(scales, 0, first, count, params->scales, stored, problem))
        return false;
    if (scales->count > 1)
        return read_numbers(scales, 1, first, count, params->biases, stored, problem);
    for (size_t i = 0; i < count; i++)
        params->biases[i] = makes_unsigned(source) ? -SIGNED_ZERO * params->scales[i] : 0;
    return true;
}

/* FP8 numbers with a larger scale may exceed FP32. */
#define F8_SCALES_BELOW 0x1p120F

/* Checks that the row format can hold the scale and the bias of a row. */
static bool check_params(const struct bag_source *source, size_t row, float scale, float bias,
                         struct bag_problem *problem)
{
    const struct bag_row_layout *layout = &bag_row_layouts[source->table.row_format];
    float largest = layout->param_dtype == BAG_F16 ? 65504 : INFINITY;
    bool is_f8 = layout->kind == BAG_KIND_OF_E4M3 || layout->kind == BAG_KIND_OF_E5M2;
    if (isfinite(scale) && isfinite(bias) && fabsf(bias) <= largest &&
        (!is_f8 || fabsf(scale) < F8_SCALES_BELOW))
        return true;
    if (source->num_scales > 1 || !isfinite(scale))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: row %zu has the scale %g and the bias %g; both must be finite",
                               source->files[0].path, row, (double)scale, (double)bias);
    return bag_problem_set(
        problem, BAG_ERROR_FILE, "%s: row %zu has the scale %g, which is too large for %s rows",
        source->files[0].path, row, (double)scale, bag_row_format_names[source->table.row_format]);
}

/* Writes one row as the table stores it: codes and parameters, or values. */
static void write_row(const struct bag_source *source, const unsigned char *codes, float scale,
                      float bias, unsigned char *row)
{
    const struct bag_table *table = &source->table;
    const float params[] = {scale, bias};
    unsigned char *to = row + bag_row_places(table).codes_at;
    size_t bytes = stored_bytes(source);
    if (table->row_format == BAG_ROWS_PLAIN) {
        /* Write the values of codes of two or four bits with f32 parameters, for which there is no
         * row format. */
        size_t per_byte = (table->row_elements + bytes - 1) / bytes;
        const size_t bits = 8 / per_byte;
        for (size_t i = 0; i < table->row_elements; i++) {
            unsigned code = codes[i / per_byte] >> i % per_byte * bits & ((1u << bits) - 1);
            float value = __builtin_fmaf((float)code, scale, bias);
            memcpy(row + i * sizeof value, &value, sizeof value);
        }
        return;
    }
    memcpy(to, codes, bytes);
    for (size_t i = 0; makes_unsigned(source) && i < bytes; i++)
        to[i] ^= SIGNED_ZERO;
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    bag_elements_encode(params, layout->num_params, layout->param_dtype,
                        row + bag_row_places(table).params_at);
}

/* Writes rows of codes and their parameters as the table stores them. */
static bool join(const struct bag_source *source, const struct bag_open_files *scales, size_t first,
                 size_t count, const unsigned char *codes, unsigned char *rows,
                 struct bag_problem *problem)
{
    const size_t code_bytes = stored_bytes(source), row_bytes = bag_row_bytes(&source->table);
    float *numbers = malloc(3 * count * sizeof *numbers + 1);
    bool ok = numbers || bag_problem_no_memory(problem);
    const struct params params = {numbers, ok ? numbers + count : NULL};
    ok = ok && read_params(source, scales, first, count, &params,
                           (unsigned char *)(numbers + 2 * count), problem);
    for (size_t i = 0; ok && i < count; i++) {
        ok = check_params(source, first + i, params.scales[i], params.biases[i], problem);
        if (ok)
            write_row(source, codes + i * code_bytes, params.scales[i], params.biases[i],
                      rows + i * row_bytes);
    }
    free(numbers);
    return ok;
}

bool bag_import_read(const struct bag_source *source, const struct bag_open_files *codes,
                     const struct bag_open_files *scales, size_t first, size_t count,
                     unsigned char *rows, struct bag_problem *problem)
{
    const size_t bytes = stored_bytes(source), row_bytes = bag_row_bytes(&source->table);
    unsigned char *stored = malloc(count * bytes + 1);
    bool ok = (stored || bag_problem_no_memory(problem)) &&
              bag_open_files_read(codes, first, count, stored, problem);
    if (ok && source->num_scales > 0)
        ok = join(source, scales, first, count, stored, rows, problem);
    for (size_t i = 0; ok && source->num_scales == 0 && i < count; i++)
        memcpy(rows + i * row_bytes, stored + i * bytes, row_bytes);
    free(stored);
    return ok;
}
