/* `bagserve inspect`: what is in a table's file, what serving it takes, and the configuration for
 * it.
 *
 * The headers say which tensors there are and which one is the table. The values say whether the
 * table is healthy: NaN and infinities, rows of zeros, equal rows, and norms that are far apart.
 * Larger tables are sampled in blocks that are spread over the file. With
 * --all, all rows are read. */
#include "kernels/rowformat.h"
#include "proto/formats.h"
#include "proto/json_writer.h"
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

/* A table's file or folder, and what was found in it. */
struct inspection {
    const struct bag_source *source;
    const char *path;             /* absolute, for the configuration */
    bool is_archive;              /* `arrays` lists its tensors */
    struct bag_file_names arrays; /* owned */
    bool has_table;               /* the members below are known */
    size_t rows;
    size_t sampled_rows;     /* rows whose values were read; */
    size_t nan, inf;         /* such elements in them; */
    size_t zero_rows;        /* rows of zeros; */
    size_t duplicate_rows;   /* rows that are equal to another one; */
    size_t implausible_rows; /* rows whose scale or bias is not finite or beyond 1e4 */
    size_t untold_row_bytes; /* row size of UINT8 rows without a known format; 0: not such rows */
    double *norms;           /* norms of the sampled rows; owned */
    uint64_t *hashes;        /* hashes of their bytes; owned */
};

/* ---- values ---------------------------------------------------------------------------------- */

/* Adds one row to the counts, and stores its norm and its hash. Values that are not finite do not
 * count in the norm. */
static void sample_row(struct inspection *inspection, const struct bag_table *table,
                       const unsigned char *row, size_t row_bytes, float *decoded)
{
    double squares = 0;
    bool zero = true;
    bag_row_to_floats(table, row, decoded);
    for (size_t i = 0; i < table->row_elements; i++) {
        double value = bag_row_value(table, row, decoded, i);
        inspection->nan += isnan(value) != 0;
        inspection->inf += isinf(value) != 0;
        zero &= value == 0;
        squares += isfinite(value) ? value * value : 0;
    }
    inspection->zero_rows += zero;
    struct bag_table one = *table;
    one.rows = row;
    one.num_rows = 1;
    inspection->implausible_rows += bag_row_formats_count_implausible(&one, 1);
    inspection->norms[inspection->sampled_rows] = sqrt(squares);
    uint64_t hash = row_bytes;
    for (size_t at = 0; at < row_bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, row + at, row_bytes - at < sizeof word ? row_bytes - at : sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    inspection->hashes[inspection->sampled_rows++] = hash;
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
    qsort(inspection->hashes, inspection->sampled_rows, sizeof *inspection->hashes, compare_hashes);
    for (size_t i = 1; i < inspection->sampled_rows; i++)
        inspection->duplicate_rows += inspection->hashes[i] == inspection->hashes[i - 1];
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
        ok = bag_rows_read(reader, first, count, rows, problem);
        for (size_t row = 0; ok && row < count; row++)
            sample_row(inspection, &reader->source->table, rows + row * reader->row_bytes,
                       reader->row_bytes, decoded);
    }
    if (ok)
        count_duplicates(inspection);
    free(rows);
    free(decoded);
    return ok;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Describes the table of an open source. Only values of floats are sampled. */
static bool inspect_table(struct inspection *inspection, bool all, struct bag_problem *problem)
{
    const struct bag_source *source = inspection->source;
    struct bag_rows_reader reader;
    if (!bag_rows_reader_open(&reader, source, problem))
        return false;
    inspection->rows = reader.num_rows;
    /* Bytes of two dimensions may be quantised rows whose format the file does not name. */
    if (source->num_files && source->files[0].npy.dtype == BAG_U8 && source->rank == 2 &&
        source->files[0].row_format == BAG_ROWS_PLAIN)
        inspection->untold_row_bytes = bag_row_bytes(&source->table);
    bool ok = bag_dtypes[source->table.dtype].kind != BAG_KIND_FLOAT ||
              sample_values(inspection, &reader, all, problem);
    bag_rows_reader_close(&reader);
    return ok;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Returns a tensor and sets *name: an array of the archive, or a file of the table. Returns NULL
 * after the last one. If the table could not be opened, only an archive has some. */
static const struct bag_table_file *tensor_at(const struct inspection *inspection, size_t i,
                                              const char **name)
{
    const struct bag_source *source = inspection->source;
    const struct bag_file_names *arrays = &inspection->arrays;
    if (inspection->is_archive) {
        *name = i < arrays->count ? arrays->names[i] : NULL;
        return *name ? &arrays->files[i] : NULL;
    }
    bool is_key = i >= source->num_files;
    *name = is_key ? "keys" : "values";
    if (!inspection->has_table || i >= source->num_files + source->num_key_files)
        return NULL;
    return is_key ? &source->key_files[i - source->num_files] : &source->files[i];
}

/* Returns the name of a tensor's type. A tensor of an unsupported type has no path and no shape. */
static const char *type_of(const struct bag_table_file *file)
{
    bool is_f8 = file->row_format == BAG_ROWS_F8_E4M3 || file->row_format == BAG_ROWS_F8_E5M2;
    return !file->path ? "unsupported"
           : is_f8     ? bag_row_format_names[file->row_format]
                       : bag_dtypes[file->npy.dtype].name;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Writes the models of a configuration that serves only this table. */
static void write_models(struct bag_json_writer *json, const struct inspection *inspection)
{
    const struct bag_table *table = &inspection->source->table;
    const struct bag_model_config *model = inspection->source->model;
    const bool is_plain = table->row_format == BAG_ROWS_PLAIN;
    bag_json_open(json, "models", '[');
    bag_json_open(json, NULL, '{');
    BAG_JSON_WRITE(
        json, BAG_KEY("name", "table"), BAG_KEY("path", inspection->path),
        BAG_KEY_IF(model->tensor && *model->tensor, "tensor", model->tensor),
        BAG_KEY_IF(model->keys_tensor && *model->keys_tensor, "keys_tensor", model->keys_tensor),
        BAG_KEY_IF(!is_plain, "row_format", bag_row_format_names[table->row_format]),
        BAG_KEY_IF(!is_plain, "row_elements", table->row_elements));
    bag_json_close(json);
    bag_json_close(json);
}

/* Returns the whole description. The caller frees it; NULL without memory. */
static char *make_json(const struct inspection *inspection)
{
    const struct bag_table *table = &inspection->source->table;
    const struct bag_table_file *file;
    const char *name;
    struct bag_json_writer json = {.is_pretty = true};
    bag_json_open(&json, NULL, '{');
    bag_json_open(&json, "tensors", '[');
    for (size_t i = 0; (file = tensor_at(inspection, i, &name)); i++) {
        bag_json_open(&json, NULL, '{');
        BAG_JSON_WRITE(&json, BAG_KEY("name", name), BAG_KEY("datatype", type_of(file)));
        bag_json_integers(&json, "shape", file->npy.shape, file->npy.rank);
        BAG_JSON_WRITE(&json, BAG_KEY("bytes", file->npy.data_bytes));
        bag_json_close(&json);
    }
    bag_json_close(&json);
    if (!inspection->has_table)
        return bag_json_end(&json);
    BAG_JSON_WRITE(&json, BAG_KEY("keyed", bag_source_is_keyed(inspection->source)),
                   BAG_KEY("rows", inspection->rows), BAG_KEY("row_elements", table->row_elements),
                   BAG_KEY("datatype", bag_dtypes[table->dtype].name),
                   BAG_KEY("row_format", bag_row_format_names[table->row_format]),
                   BAG_KEY("sampled_rows", inspection->sampled_rows),
                   BAG_KEY("nan", inspection->nan), BAG_KEY("inf", inspection->inf),
                   BAG_KEY("zero_rows", inspection->zero_rows),
                   BAG_KEY("duplicate_rows", inspection->duplicate_rows),
                   BAG_KEY("implausible_rows", inspection->implausible_rows));
    if (inspection->untold_row_bytes) {
        /* The formats that rows of this width may have, with the elements of such a row. */
        bag_json_open(&json, "possible_row_formats", '[');
        for (int i = BAG_ROWS_PLAIN + 1; i < BAG_ROW_FORMAT_COUNT; i++) {
            const size_t elements =
                bag_row_elements((enum bag_row_format)i, inspection->untold_row_bytes);
            if (!elements)
                continue;
            bag_json_open(&json, NULL, '{');
            BAG_JSON_WRITE(&json, BAG_KEY("row_format", bag_row_format_names[i]),
                           BAG_KEY("row_elements", elements));
            bag_json_close(&json);
        }
        bag_json_close(&json);
    }
    BAG_JSON_WRITE(&json, BAG_KEY("serving_bytes", bag_source_bytes(inspection->source)));
    bag_json_open(&json, "configuration", '{');
    write_models(&json, inspection);
    return bag_json_end(&json);
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Plots how many rows have a norm in each of PLOT_LINES intervals. */
static void print_plot(const struct inspection *inspection)
{
    size_t counts[PLOT_LINES] = {0}, rows = inspection->sampled_rows, most = 1;
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

/* Prints the description as text. `unclear` says why no table can be chosen, if there is none. */
static void print_text(const struct inspection *inspection, const char *what, const char *unclear)
{
    const struct bag_source *source = inspection->source;
    const struct bag_table *table = &source->table;
    struct bag_json_writer json = {.is_pretty = true};
    printf("%s\n", what);
    const struct bag_table_file *file;
    const char *name;
    for (size_t i = 0; (file = tensor_at(inspection, i, &name)); i++) {
        printf("  %s  %s [", bag_quote(name, strlen(name)).text, type_of(file));
        for (uint32_t axis = 0; axis < file->npy.rank; axis++)
            printf("%s%" PRId64, axis ? ", " : "", file->npy.shape[axis]);
        printf("]  %s\n", bag_format_bytes(file->npy.data_bytes).text);
    }
    if (!inspection->has_table) {
        printf("No table can be chosen: %s\n", unclear);
        return;
    }
    printf("Table: %zu rows of %zu elements, %s", inspection->rows, table->row_elements,
           bag_dtypes[table->dtype].name);
    if (table->row_format != BAG_ROWS_PLAIN)
        printf(" as %s rows", bag_row_format_names[table->row_format]);
    printf(", %s; serving it takes %s\n",
           bag_source_is_keyed(source) ? "with keys" : "without keys",
           bag_format_bytes(bag_source_bytes(source)).text);
    /* Print which formats the rows may have, if the file does not tell. */
    const enum bag_row_format format = inspection->source->table.row_format;
    const size_t bytes = inspection->untold_row_bytes;
    const size_t elements = format == BAG_ROWS_PLAIN ? 0 : inspection->source->table.row_elements;
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
    if (bag_row_format_is_implausible(inspection->implausible_rows, inspection->sampled_rows))
        printf("The scale or bias of %zu rows is not finite or beyond 1e4: probably the format is "
               "another one\n",
               inspection->implausible_rows);
    if (inspection->sampled_rows) {
        printf("Values of %zu rows%s: %zu NaN, %zu infinite; %zu zero rows, %zu duplicate rows\n",
               inspection->sampled_rows,
               inspection->sampled_rows < inspection->rows ? " (a sample)" : "", inspection->nan,
               inspection->inf, inspection->zero_rows, inspection->duplicate_rows);
        print_plot(inspection);
    }
    bag_json_open(&json, NULL, '{');
    write_models(&json, inspection);
    char *configuration = bag_json_end(&json);
    printf("Configuration:\n%s\n", configuration ? configuration : "(not enough memory)");
    free(configuration);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Lists all arrays of a safetensors or .npz file. */
static bool list_arrays(const char *path, struct bag_file_names *arrays,
                        struct bag_problem *problem)
{
    struct bag_archive archive;
    if (!bag_archive_open(path, &archive, problem))
        return false;
    bool ok = bag_archive_list(&archive, arrays, problem);
    bag_archive_close(&archive);
    return ok;
}

/* Describes a file. If its tensors can be listed, it is described even if none of them is the
 * table. */
static bool inspect_file(struct bag_source *source, const char *in, const char *const *values,
                         struct bag_problem *problem)
{
    const char *given = source->model->path, *name;
    struct bag_problem unclear = {.text = ""};
    struct inspection inspection = {.source = source,
                                    .is_archive = bag_has_suffix(given, ".safetensors") ||
                                                  bag_has_suffix(given, ".npz"),
                                    .has_table = bag_source_open_table(source, &unclear)};
    char *path = realpath(given, NULL);
    bool ok = !inspection.is_archive || list_arrays(given, &inspection.arrays, problem);
    inspection.path = path ? path : given;
    /* The reason why no table can be chosen is the problem, unless there are tensors to show. */
    if (!inspection.has_table && (!ok || !tensor_at(&inspection, 0, &name))) {
        *problem = unclear;
        ok = false;
    }
    ok = ok &&
         (!inspection.has_table || inspect_table(&inspection, values[FLAG_ALL] != NULL, problem));
    if (ok && values[FLAG_JSON])
        ok = bag_tool_put(make_json(&inspection), problem);
    else if (ok)
        print_text(&inspection, in, unclear.text);
    free(inspection.norms);
    free(inspection.hashes);
    free(path);
    bag_file_names_free(&inspection.arrays);
    return ok;
}

/* Describes a configuration file, or the table at a path. */
static bool inspect(const char *const *operands, const char *const *values,
                    struct bag_problem *problem)
{
    const char *in = operands[0];
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
