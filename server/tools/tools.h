/* The commands that work on files: convert, inspect and verify, and what they share.
 *
 * An operator prepares a table before a server loads it. `inspect` says what is in a file,
 * `convert` writes it in another format, and `verify` reads all of it and checks it. The commands
 * need no server and no configuration. Each opens a source in the same way as the server does
 * (server/tables/source.h), so that a file that they accept can also be served. They read the rows
 * block by block (rows_reader.h), so that a table may be larger than memory.
 *
 *   cmd_*.c           command lines, signals and what is printed
 *   run.c             runs a command
 *   convert.c         converts rows by several threads; convert_header.c: the new file's header
 *   rows_order.c      sorts rows by how often they are used
 *   out_file.c        the file that is written
 *   inspect_models.c  the tables of a configuration file
 *
 * Life of a conversion. The command opens the source, and chooses the format of the new rows.
 * It checks early what would otherwise fail at the end, such as the path of the report. The
 * function bag_convert() opens OUT.partial and locks it. Threads take one block of rows after the
 * other, decode and encode it, write it to its place, and sum up the errors of its elements. Keys
 * follow. Then a sample of bags is pooled from both files for the report. Last, the file is synced
 * and renamed to OUT. A reader of OUT therefore sees the old file or the new one. Writing OUT
 * itself would leave half a table there after a crash, and a server that polls its files could load
 * it.
 *
 * The result does not depend on the number of threads. Every block has a fixed place in the file,
 * and the sums of errors are added in the order of the blocks.
 *
 * Signals are blocked and polled between two blocks, so that no handler has to clean up. */
#pragma once

#include "proto/formats.h"
#include "server/system/arguments.h"
#include "server/tables/progress.h"
#include "server/tables/rows_reader.h"

#include <stdio.h>

/* ---- running a command (run.c) --------------------------------------------------------------- */

#define BAG_TOOL_MAX_OPERANDS 2

/* Does the work of a command on its operands. */
typedef bool bag_tool_run_fn(const char *const *operands, const char *const *values,
                             struct bag_problem *problem);

/* Runs a command: prints its help, or parses its arguments and calls `run`. `values` has room for
 * all flags, and `run` gets them in the order of the flags. Returns the exit code. Reports a
 * failure on standard error. */
int bag_tool_run(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                 bag_tool_run_fn *run);

/* Prints a JSON text and frees it. Returns false and sets *problem if it is NULL, as there was no
 * memory for it, or if it cannot be written. */
bool bag_tool_put(char *text, struct bag_problem *problem);

/* Checks that no two keys of the table are the same, by building the index of all keys in memory.
 * Tables without keys pass. Returns false and sets *problem if a key is duplicated or cannot be
 * read. */
bool bag_tool_check_keys(const struct bag_source *source, unsigned threads,
                         struct bag_problem *problem);

/* ---- models of a configuration (inspect_models.c) -------------------------------------------- */

/* Returns whether `in` names a configuration file and not a table. */
bool bag_inspects_models(const char *in);

/* Prints the memory that each table of a configuration takes when it is served, as text or JSON.
 * Opens the files and reads their headers, but no row. Returns false and sets *problem if the
 * configuration or a file cannot be read. */
bool bag_inspect_models(const char *path, bool as_json, struct bag_problem *problem);

/* ---- an order of rows (rows_order.c) --------------------------------------------------------- */

/* Returns how many rows from the first an order leaves in place: those that stand in for missing
 * keys, as the open source is configured. */
size_t bag_rows_fixed(const struct bag_source *source);

/* Returns the rows of a keyed table sorted by their counts, the largest first. Rows with equal
 * counts keep their order, and the first bag_rows_fixed rows stay in place. The counts are a table
 * at `path` (as in `--table NAME=PATH`) with one number for each row. The caller frees the array.
 * Returns NULL and sets *problem if the table has no keys, or the counts do not fit it
 * (BAG_ERROR_FILE). */
size_t *bag_rows_order(const struct bag_source *source, const char *path,
                       struct bag_problem *problem);

/* ---- a file that appears whole or not at all (out_file.c) ------------------------------------ */

/* A file that is written as `path`.partial and renamed when it is complete. The partial file is
 * locked against other writers, and taken over from a run that was killed. Several threads may
 * write. */
struct bag_out_file {
    const char *path; /* borrowed */
    char *partial;    /* owned */
    int fd;           /* descriptor of the partial file */
    bool replace;     /* an existing file may be replaced */
};

/* Opens the partial file. Returns false and sets *problem (BAG_ERROR_FILE) if `path` is a folder,
 * or if it exists and may not be replaced. The caller must not close the file then. */
bool bag_out_file_open(struct bag_out_file *file, const char *path, bool replace,
                       struct bag_problem *problem);

/* Empties the file and reserves `bytes` bytes on the disk. Returns false and sets *problem
 * (BAG_ERROR_STORAGE) if there is no room. */
bool bag_out_file_reserve(const struct bag_out_file *file, uint64_t bytes,
                          struct bag_problem *problem);

/* Writes bytes at a position of the file. May be called by several threads. Returns false and sets
 * *problem (BAG_ERROR_STORAGE) on failure. */
bool bag_out_file_write(const struct bag_out_file *file, const void *data, size_t bytes,
                        uint64_t at, struct bag_problem *problem);

/* Writes the data to the disk and renames the file. Returns false and sets *problem
 * (BAG_ERROR_STORAGE) on failure. If only the folder could not be synced, the file has its new name
 * nevertheless. */
bool bag_out_file_publish(const struct bag_out_file *file, struct bag_problem *problem);

/* Closes the file. Removes the partial file unless it was published. */
void bag_out_file_close(struct bag_out_file *file, bool published);

/* ---- converting (convert.c) ------------------------------------------------------------------ */

#define BAG_CONVERT_MAX_THREADS 16

struct bag_conversion {
    const struct bag_source *source; /* borrowed */
    const char *out;                 /* path; borrowed */
    struct bag_table to;             /* how rows are stored in `out`, without rows */
    bool replace;                    /* an existing `out` may be replaced */
    unsigned threads;                /* 1 to BAG_CONVERT_MAX_THREADS */
    const size_t *order;             /* from bag_rows_order: the source's row for each row of `out`;
                                        NULL: the same order */
    double max_error;                /* largest error of an element; a larger one is a failure */
    int (*find_signal)(void);      /* returns a signal that ends the conversion, or 0; any thread */
    struct bag_progress *progress; /* in bytes of the source; started once `out` can be written */
};

/* Returns the header of the new file: its tensors and metadata, including that of the source's file
 * (convert_header.c). The caller frees it. Returns NULL and sets *problem on failure. */
char *bag_convert_header(const struct bag_conversion *conversion, size_t *header_bytes,
                         struct bag_problem *problem);

/* Converts the table and writes the file. Returns false and sets *problem on failure. No file is
 * left then, unless only its name could not be synced (bag_out_file_publish). Sets *report on
 * success, and if max_error was exceeded (BAG_ERROR_CONFLICT). */
bool bag_convert(const struct bag_conversion *conversion, struct bag_convert_report *report,
                 struct bag_problem *problem);
