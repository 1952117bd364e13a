/* `bagserve inspect`: what is in a table's file, what serving it takes, and the configuration for
 * it.
 *
 * The headers say which tensors there are and which one is the table. The values say whether the
 * table is healthy: NaN and infinities, rows of zeros, equal rows, and norms that are far apart.
 * Larger tables are sampled in blocks that are spread over the file. With
 * --all, all rows are read. */
#include "kernels/rowformat.h"
#include "proto/formats.h"
#include "server/commands.h"
#include "server/memory/memory.h"
#include "server/tables/archive.h"
#include "server/tables/row_formats.h"
#include "tools.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The number of bytes that are sampled of a larger table, in blocks that are spread evenly. */
#define SAMPLE_BYTES ((size_t)256 << 20)
#define BLOCK_BYTES  ((size_t)4 << 20)

/* The size of the plot of norms: its bins, and the width of its longest bar. */
#define PLOT_LINES 10
#define PLOT_CELLS 40

enum { BAG_INSPECT_FLAGS(BAG_TOOL_ID) FLAG_COUNT };
static const struct bag_tool_flag flags[] = {BAG_INSPECT_FLAGS(BAG_TOOL_FLAG)};

static const struct bag_tool tool = {
    "bagserve inspect [flags] FILE|DIR|CONFIG.json",
    "Describes a table's file or folder: tensors, keys, values that are not numbers, the rows' "
    "norms, the memory that serving takes, and a configuration. 'bagserve convert --help' says "
    "what may stand for FILE. Of a configuration it lists the tables and the memory that each "
    "takes, from the heads of their files. Exit code 2: it cannot be read.",
    flags,
    FLAG_COUNT,
    1,
    1};

struct inspection {
    struct bag_inspect_report report;
    double *norms;    /* norms of the sampled rows; owned */
    uint64_t *hashes; /* hashes of their bytes; owned */
};

/* ---- values ---------------------------------------------------------------------------------- */

/* Returns a hash of the bytes of a row, by which duplicates are found. */
static uint64_t hash_row(const unsigned char *row, size_t bytes)
{
    uint64_t hash = bytes;
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, row + at, bytes - at < sizeof word ? bytes - at : sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Adds one row to the counts, and stores its norm and its hash. Values that are not finite do not
 * count in the norm. */
static void sample_row(struct inspection *inspection, const struct bag_table *table,
                       const unsigned char *row, size_t row_bytes, float *decoded)
{
    struct bag_inspect_report *report = &inspection->report;
    double squares = 0;
    bool zero = true;
    bag_row_to_floats(table, row, decoded);
    for (size_t i = 0; i < table->row_elements; i++) {
        double value = bag_row_value(table, row, decoded, i);
        report->nan += isnan(value) != 0;
        report->inf += isinf(value) != 0;
        zero &= value == 0;
        squares += isfinite(value) ? value * value : 0;
    }
    report->zero_rows += zero;
    struct bag_table one = *table;
    one.rows = row;
    one.num_rows = 1;
    report->implausible_rows += bag_row_formats_count_implausible(&one, 1);
    inspection->norms[report->sampled_rows] = sqrt(squares);
    inspection->hashes[report->sampled_rows++] = hash_row(row, row_bytes);
}

/* Orders hashes for qsort. */
static int compare_hashes(const void *one, const void *other)
{
    uint64_t a, b;
    memcpy(&a, one, sizeof a);
    memcpy(&b, other, sizeof b);
    return a < b ? -1 : a > b;
}

/* Counts the sampled rows that are equal to another one, by their sorted hashes. */
static void count_duplicates(struct inspection *inspection)
{
    struct bag_inspect_report *report = &inspection->report;
    qsort(inspection->hashes, report->sampled_rows, sizeof *inspection->hashes, compare_hashes);
    for (size_t i = 1; i < report->sampled_rows; i++)
        report->duplicate_rows += inspection->hashes[i] == inspection->hashes[i - 1];
}

/* Samples `count` rows from `first` on. */
static bool sample_block(struct inspection *inspection, const struct bag_rows_reader *reader,
                         size_t first, size_t count, unsigned char *rows, float *decoded,
                         struct bag_problem *problem)
{
    if (!bag_rows_read(reader, first, count, rows, problem))
        return false;
    for (size_t i = 0; i < count; i++)
        sample_row(inspection, &reader->source->table, rows + i * reader->row_bytes,
                   reader->row_bytes, decoded);
    return true;
}

/* Samples all blocks, or evenly spread ones. */
static bool sample_values(struct inspection *inspection, const struct bag_rows_reader *reader,
                          bool all, struct bag_problem *problem)
{
    size_t bytes = reader->row_bytes ? reader->row_bytes : 1;
    size_t block_rows = bytes < BLOCK_BYTES ? BLOCK_BYTES / bytes : 1;
    size_t num_blocks = (reader->num_rows + block_rows - 1) / block_rows;
    size_t max_blocks = SAMPLE_BYTES / (block_rows * bytes);
    size_t num_sampled = all || num_blocks <= max_blocks ? num_blocks : max_blocks;
    size_t sampled_rows = num_sampled * block_rows;
    unsigned char *rows = malloc(block_rows * bytes);
    float *decoded = malloc((reader->source->table.row_elements + 1) * sizeof *decoded);
    inspection->norms = malloc((sampled_rows + 1) * sizeof *inspection->norms);
    inspection->hashes = malloc((sampled_rows + 1) * sizeof *inspection->hashes);
    bool ok = (rows && decoded && inspection->norms && inspection->hashes) ||
              bag_problem_no_memory(problem);
    for (size_t i = 0; ok && i < num_sampled; i++) {
        /* The i-th of the sampled blocks; all are sampled if num_sampled is num_blocks. */
        size_t first = i * num_blocks / num_sampled * block_rows;
        size_t count =
            reader->num_rows - first < block_rows ? reader->num_rows - first : block_rows;
        ok = sample_block(inspection, reader, first, count, rows, decoded, problem);
    }
    if (ok)
        count_duplicates(inspection);
    free(rows);
    free(decoded);
    return ok;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Describes the table of an open source. Only values of floats are sampled. */
static bool inspect_table(struct inspection *inspection, const struct bag_source *source, bool all,
                          struct bag_problem *problem)
{
    struct bag_inspect_report *report = &inspection->report;
    struct bag_rows_reader reader;
    if (!bag_rows_reader_open(&reader, source, problem))
        return false;
    report->has_table = true;
    report->keyed = bag_source_is_keyed(source);
    report->rows = reader.num_rows;
    report->row_elements = source->table.row_elements;
    report->serving_bytes = bag_source_bytes(source);
    report->datatype = bag_dtypes[source->table.dtype].name;
    report->row_format = bag_row_format_names[source->table.row_format];
    /* Bytes of two dimensions may be quantised rows whose format the file does not name. */
    if (source->num_files && source->files[0].npy.dtype == BAG_U8 && source->rank == 2 &&
        source->files[0].row_format == BAG_ROWS_PLAIN)
        report->untold_row_bytes = bag_row_bytes(&source->table);
    bool ok = bag_dtypes[source->table.dtype].kind != BAG_KIND_FLOAT ||
              sample_values(inspection, &reader, all, problem);
    bag_rows_reader_close(&reader);
    return ok;
}

/* ---- the text -------------------------------------------------------------------------------- */

static void print_tensors(const struct bag_inspect_report *report)
{
    for (size_t i = 0; i < report->num_tensors; i++) {
        const struct bag_inspected_tensor *tensor = &report->tensors[i];
        printf("  %s  %s [", bag_quote(tensor->name, strlen(tensor->name)).text, tensor->datatype);
        for (uint32_t axis = 0; axis < tensor->rank; axis++)
            printf("%s%" PRId64, axis ? ", " : "", tensor->shape[axis]);
        printf("]  %s\n", bag_format_bytes(tensor->bytes).text);
    }
}

/* Plots how many rows have a norm in each of PLOT_LINES intervals. */
static void print_plot(const struct inspection *inspection)
{
    size_t counts[PLOT_LINES] = {0}, rows = inspection->report.sampled_rows, most = 1;
    double least = INFINITY, largest = 0;
    for (size_t i = 0; i < rows; i++) {
        least = fmin(least, inspection->norms[i]);
        largest = fmax(largest, inspection->norms[i]);
    }
    /* Count the rows in intervals of equal width. */
    double step = (largest - least) / PLOT_LINES;
    for (size_t i = 0; i < rows; i++) {
        size_t line = step > 0 ? (size_t)((inspection->norms[i] - least) / step) : 0;
        counts[line < PLOT_LINES ? line : PLOT_LINES - 1]++;
    }
    for (size_t i = 0; i < PLOT_LINES; i++)
        most = counts[i] > most ? counts[i] : most;
    printf("Norms of the rows:\n");
    for (size_t i = 0; i < (step > 0 ? PLOT_LINES : 1); i++) {
        printf("  %10.4g |", least + (double)i * step);
        for (size_t cell = 0; cell < counts[i] * PLOT_CELLS / most; cell++)
            putchar('#');
        printf(" %zu\n", counts[i]);
    }
    printf("  %10.4g\n", largest);
}

/* Prints which formats the rows may have, if the file does not tell. */
static void print_formats(const struct bag_inspect_report *report)
{
    const size_t length = strlen(report->row_format), bytes = report->untold_row_bytes;
    const enum bag_row_format format = bag_row_format_find(report->row_format, length);
    const size_t elements = format == BAG_ROWS_PLAIN ? 0 : report->row_elements;
    char formats[BAG_ROW_FORMATS_TEXT] = "";
    if (bytes)
        bag_row_formats_list(bytes, elements, format, formats);
    if (*formats && format == BAG_ROWS_PLAIN)
        printf("If its bytes stand for FP32 rows, a row has %s elements; the file does not tell "
               "which (row_format, row_elements)\n",
               formats);
    else if (*formats)
        printf("The file does not tell the format: rows of %zu elements take %zu bytes as %s, "
               "too\n",
               elements, bytes, formats);
    if (bag_row_format_is_implausible(report->implausible_rows, report->sampled_rows))
        printf("The scale or bias of %zu rows is not finite or beyond 1e4: probably the format is "
               "another one\n",
               report->implausible_rows);
}

/* Prints the report as text. `unclear` says why no table can be chosen, if the report has none. */
static void print_text(const struct inspection *inspection, const char *what, const char *unclear)
{
    const struct bag_inspect_report *report = &inspection->report;
    char *configuration;
    printf("%s\n", what);
    print_tensors(report);
    if (!report->has_table) {
        printf("No table can be chosen: %s\n", unclear);
        return;
    }
    printf("Table: %zu rows of %zu elements, %s", report->rows, report->row_elements,
           report->datatype);
    if (strcmp(report->row_format, "plain") != 0)
        printf(" as %s rows", report->row_format);
    printf(", %s; serving it takes %s\n", report->keyed ? "with keys" : "without keys",
           bag_format_bytes(report->serving_bytes).text);
    print_formats(report);
    if (report->sampled_rows) {
        printf("Values of %zu rows%s: %zu NaN, %zu infinite; %zu zero rows, %zu duplicate rows\n",
               report->sampled_rows, report->sampled_rows < report->rows ? " (a sample)" : "",
               report->nan, report->inf, report->zero_rows, report->duplicate_rows);
        print_plot(inspection);
    }
    configuration = bag_inspect_configuration_print(report);
    printf("Configuration:\n%s\n", configuration ? configuration : "(not enough memory)");
    free(configuration);
}

/* ---- tensors --------------------------------------------------------------------------------- */

struct tensors {
    struct bag_inspected_tensor *list; /* owned, and so are the names in it */
    size_t count;
};

/* Frees the list and the names in it. */
static void free_tensors(struct tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++)
        free(tensors->list[i].name);
    free(tensors->list);
}

/* Allocates the list. Returns false and sets *problem without memory. */
static bool make_room(struct tensors *tensors, size_t count, struct bag_problem *problem)
{
    tensors->list = calloc(count + 1, sizeof *tensors->list);
    return tensors->list || bag_problem_no_memory(problem);
}

/* Adds a tensor to the list. A tensor of an unsupported type has no shape. */
static bool add_tensor(struct tensors *tensors, const char *name, const struct bag_table_file *file,
                       struct bag_problem *problem)
{
    struct bag_inspected_tensor *tensor = &tensors->list[tensors->count];
    tensor->name = strdup(name);
    if (!tensor->name)
        return bag_problem_no_memory(problem);
    tensors->count++;
    tensor->datatype = "unsupported";
    if (file) {
        bool is_f8 = file->row_format == BAG_ROWS_F8_E4M3 || file->row_format == BAG_ROWS_F8_E5M2;
        tensor->datatype =
            is_f8 ? bag_row_format_names[file->row_format] : bag_dtypes[file->npy.dtype].name;
        tensor->rank = file->npy.rank;
        tensor->bytes = file->npy.data_bytes;
        memcpy(tensor->shape, file->npy.shape, sizeof tensor->shape);
    }
    return true;
}

/* Lists all tensors of a safetensors or .npz file. */
static bool list_archive(struct tensors *tensors, const char *path, struct bag_problem *problem)
{
    struct bag_archive archive;
    struct bag_file_names names = {.count = 0};
    if (!bag_archive_open(path, &archive, problem))
        return false;
    bool ok =
        bag_archive_list(&archive, &names, problem) && make_room(tensors, names.count, problem);
    for (size_t i = 0; ok && i < names.count; i++)
        ok = add_tensor(tensors, names.names[i], names.files[i].path ? &names.files[i] : NULL,
                        problem);
    bag_file_names_free(&names);
    bag_archive_close(&archive);
    return ok;
}

/* Lists the files of values and keys of an open source. */
static bool list_files(struct tensors *tensors, const struct bag_source *source,
                       struct bag_problem *problem)
{
    bool ok = make_room(tensors, source->num_files + source->num_key_files, problem);
    for (size_t i = 0; ok && i < source->num_files; i++)
        ok = add_tensor(tensors, "values", &source->files[i], problem);
    for (size_t i = 0; ok && i < source->num_key_files; i++)
        ok = add_tensor(tensors, "keys", &source->key_files[i], problem);
    return ok;
}

/* Lists the tensors. If the table could not be opened, only an archive has some. */
static bool list_tensors(struct tensors *tensors, const struct bag_source *source, bool opened,
                         struct bag_problem *problem)
{
    const char *path = source->model->path;
    if (bag_has_suffix(path, ".safetensors") || bag_has_suffix(path, ".npz"))
        return list_archive(tensors, path, problem);
    return !opened || list_files(tensors, source, problem);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Returns whether a text of a model's configuration is set. */
static bool is_said(const char *text)
{
    return text && *text;
}

/* Prints the report as text or JSON. Returns false and sets *problem without memory. */
static bool print(const struct inspection *inspection, const char *in, const char *unclear,
                  bool json, struct bag_problem *problem)
{
    if (!json) {
        print_text(inspection, in, unclear);
        return true;
    }
    char *text = bag_inspect_report_print(&inspection->report);
    bool ok = text && puts(text) >= 0;
    free(text);
    return ok || bag_problem_no_memory(problem);
}

/* Describes a file. If its tensors can be listed, it is described even if none of them is the
 * table. */
static bool inspect_file(struct bag_source *source, const char *in, const char *const *values,
                         struct bag_problem *problem)
{
    struct inspection inspection = {0};
    struct tensors tensors = {0};
    struct bag_problem unclear = {.text = ""};
    const struct bag_model_config *model = source->model;
    bool opened = bag_source_open_table(source, &unclear);
    bool ok = list_tensors(&tensors, source, opened, problem);
    char *path = realpath(model->path, NULL);
    /* The reason why no table can be chosen is the problem, unless there are tensors to show. */
    if (!opened && (!ok || tensors.count == 0)) {
        *problem = unclear;
        ok = false;
    }
    inspection.report = (struct bag_inspect_report){
        .tensors = tensors.list,
        .num_tensors = tensors.count,
        .path = path ? path : model->path,
        .tensor = is_said(model->tensor) ? model->tensor : NULL,
        .keys_tensor = is_said(model->keys_tensor) ? model->keys_tensor : NULL};
    ok = ok && (!opened || inspect_table(&inspection, source, values[FLAG_ALL] != NULL, problem)) &&
         print(&inspection, in, unclear.text, values[FLAG_JSON] != NULL, problem);
    free(inspection.norms);
    free(inspection.hashes);
    free(path);
    free_tensors(&tensors);
    return ok;
}

/* Describes a configuration file, or the table at a path. */
static bool inspect(const char *in, const char *const *values, struct bag_problem *problem)
{
    if (bag_inspects_models(in))
        return bag_inspect_models(in, values[FLAG_JSON] != NULL, problem);
    struct bag_source *source = bag_source_find(in, problem);
    bool ok = source && inspect_file(source, in, values, problem);
    bag_source_free(source);
    return ok;
}

int bag_cmd_inspect(int argc, char *argv[])
{
    const char *values[FLAG_COUNT];
    return bag_tool_run(&tool, argc, argv, values, inspect);
}
