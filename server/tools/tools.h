/* What the commands that work on files share: their arguments, rows read block by block, and tables
 * converted to a safetensors file in bounded memory. */
#ifndef BAG_TOOLS_H
#define BAG_TOOLS_H

#include "proto/formats.h"
#include "server/system/arguments.h"
#include "server/tables/progress.h"
#include "server/tables/rows_reader.h"

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

/* Checks that no two keys of the table are the same. Tables without keys pass. */
bool bag_tool_check_keys(const struct bag_source *source, unsigned threads,
                         struct bag_problem *problem);

/* ---- models of a configuration (inspect_models.c) --------------------------------------------
 */

/* Returns whether `in` names a configuration file and not a table. */
bool bag_inspects_models(const char *in);

/* Prints what each table of a configuration takes when it is served, as text or JSON. Opens the
 * files and reads their heads, and no row. */
bool bag_inspect_models(const char *path, bool as_json, struct bag_problem *problem);

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
    struct bag_progress *progress;   /* in bytes of the source; started once `out` can be written */
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
