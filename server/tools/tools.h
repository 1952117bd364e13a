/* What the commands that work on files share: their arguments, rows read block by block, and tables
 * converted to a safetensors file in bounded memory. */
#ifndef BAG_TOOLS_H
#define BAG_TOOLS_H

#include "proto/formats.h"
#include "server/system/arguments.h"
#include "server/tables/progress.h"
#include "server/tables/source.h"

#include <stdio.h>

/* ---- a whole command (run.c) ------------------------------------------------------------------
 */

/* Does what a command is for with its operand `in`. */
typedef bool bag_tool_run_fn(const char *in, const char *const *values,
                             struct bag_problem *problem);

/* Runs a command of one operand: prints its help, or parses its arguments and calls `run`. `values`
 * has room for all flags. Returns the exit code. Reports a failure on standard error. */
int bag_tool_run(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                 bag_tool_run_fn *run);

/* ---- models of a configuration (inspect_models.c) --------------------------------------------
 */

/* Returns whether `in` names a configuration file and not a table. */
bool bag_inspects_models(const char *in);

/* Prints what each table of a configuration takes when it is served, as text or JSON. Opens the
 * files and reads their heads, and no row. */
bool bag_inspect_models(const char *path, bool as_json, struct bag_problem *problem);

/* ---- rows of files (rows_reader.c) ----------------------------------------------------------- */

/* The rows and keys of a table, block by block, wherever they lie: for commands that read tables
 * larger than memory. One reader serves several threads. */

struct bag_rows_reader {
    const struct bag_source *source; /* borrowed; of a table that is read from files */
    size_t num_rows, row_bytes;      /* of the table, as the kernels would see it */
    int *files, *key_files, *scales; /* owned descriptors, as many as the source has files */
};

/* Opens the files again. False with the problem set; then nothing is due. */
bool bag_rows_reader_open(struct bag_rows_reader *reader, const struct bag_source *source,
                          struct bag_problem *problem);

void bag_rows_reader_close(struct bag_rows_reader *reader);

/* Whether all files are as they were when the source was opened, and have the CRC-32 that they say,
 * where they say one: those are read once more. */
bool bag_rows_reader_check(const struct bag_rows_reader *reader, struct bag_problem *problem);

/* Reads `count` rows from `first` on, in C order and the machine's byte order. `scratch` has as
 * many bytes as `rows`. */
bool bag_rows_read(const struct bag_rows_reader *reader, size_t first, size_t count, void *rows,
                   void *scratch, struct bag_problem *problem);

/* Reads the 64-bit keys of those rows, likewise. */
bool bag_rows_read_keys(const struct bag_rows_reader *reader, size_t first, size_t count,
                        uint64_t *keys, void *scratch, struct bag_problem *problem);

/* Whether no two keys of the table are the same. */
bool bag_rows_check_keys(const struct bag_source *source, unsigned threads,
                         struct bag_problem *problem);

/* The elements of a row of floats as FP32; those of FP64 are rounded. */
void bag_row_to_floats(const struct bag_table *table, const void *row, float *values);

/* One of them as it is, of FP64, too; `values` are those of the row. */
double bag_row_value(const struct bag_table *table, const void *row, const float *values,
                     size_t column);

/* ---- an order of rows (rows_order.c) ----------------------------------------------------------
 */

/* How many rows, from the first, an order leaves where they are: those that stand in for missing
 * keys, by what is configured of the source, which is open. */
size_t bag_rows_fixed(const struct bag_source *source);

/* The rows of a keyed table, but for the first that are fixed, from the one with the largest count
 * to that with the smallest, equal ones as they were: to be freed. The counts are in what `--table
 * NAME=PATH` takes, a number for each row of the table. NULL with the problem set. */
size_t *bag_rows_order(const struct bag_source *source, const char *path,
                       struct bag_problem *problem);

/* ---- a file that appears whole or not at all (out_file.c) ------------------------------------ */

/* Written under the name `path`.partial, which no other writer has meanwhile, and which is taken
 * over from a run that was killed. Several threads may write to it. */
struct bag_out_file {
    const char *path; /* borrowed */
    char *partial;    /* owned */
    int fd;
    bool replace; /* `path` where it exists */
};

/* Rejects a folder, and unless it may be replaced a file that is there. False with the problem set;
 * then nothing is due. */
bool bag_out_file_open(struct bag_out_file *file, const char *path, bool replace,
                       struct bag_problem *problem);

/* Empties the file and takes all of the disk that it will need, so that a full one is found out at
 * once. */
bool bag_out_file_reserve(const struct bag_out_file *file, uint64_t bytes,
                          struct bag_problem *problem);

bool bag_out_file_write(const struct bag_out_file *file, const void *data, size_t bytes,
                        uint64_t at, struct bag_problem *problem);

/* Brings the data to the disk and gives the file its name. */
bool bag_out_file_publish(const struct bag_out_file *file, struct bag_problem *problem);

/* Removes the partial file unless it was published. */
void bag_out_file_close(struct bag_out_file *file, bool published);

/* ---- converting (convert.c) ------------------------------------------------------------------ */

#define BAG_CONVERT_MAX_THREADS 16

struct bag_conversion {
    const struct bag_source *source; /* borrowed */
    const char *out;                 /* path; borrowed */
    struct bag_table to;             /* how rows are to be stored; `rows` is not used */
    bool replace;                    /* `out` where it exists */
    unsigned threads;                /* 1 to BAG_CONVERT_MAX_THREADS */
    const size_t *order;             /* bag_rows_order's: row i of the new table is that row of the
                                        source; NULL: all stay where they are */
    double max_error;                /* of an element; larger ones make it fail. INFINITY: any */
    int (*find_signal)(void);        /* not 0: end without a file; called on any thread */
    struct bag_progress *progress;   /* of bytes of the source */
};

/* What precedes the data, with what the source's file notes of itself: to be freed
 * (convert_header.c). NULL with the problem set. */
char *bag_convert_header(const struct bag_conversion *conversion, size_t *header_bytes,
                         struct bag_problem *problem);

/* Writes the file: first under the name `out`.partial, which is removed where this fails and taken
 * over from a run that was killed. It is renamed when its data is on the disk. *report is complete
 * where this succeeds, and where max_error is what made it fail (BAG_ERROR_CONFLICT). */
bool bag_convert(const struct bag_conversion *conversion, struct bag_convert_report *report,
                 struct bag_problem *problem);

#endif
