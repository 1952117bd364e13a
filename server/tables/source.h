/* Tables: from configured files to memory that the kernels read.
 *
 * This room knows every format of a table, checks what is configured against the files, and reads
 * or maps them. It decides neither which models are served nor when they are loaded: server/models
 * does, on its own thread.
 *
 * Types, in the order in which a table passes through them:
 *
 *   struct bag_table_file (file.h)       one array in a file: path, state, type, shape, order
 *   struct bag_archive (archive.h)       a file of several named arrays
 *   struct bag_source (below)            a version of a model: its files and rules, checked
 *   struct bag_table_memory (memory.h)   rows, index of keys, mapped file
 *   struct bag_stored_table (memory.h)   such memory with a fingerprint and a reference count
 *   struct bag_live_rows (live_rows.h)   the lock and the free rows of a table that gets updates
 *
 * Life of a table:
 *
 *   1. bag_source_make takes over a model's configuration.
 *   2. bag_source_open_table finds the files (locate.c), opens them, applies the row format, and
 *      completes the rules (rules.c). It describes the memory of the table in source->own: all of
 *      the table or a part of it (part.h). It reads headers only, so that a wrong
 *      configuration is reported at once and the memory needed is known: bag_source_bytes.
 *   3. bag_source_load (load.c) allocates that memory and reads the elements by several threads
 *      (read.h), or maps the file (map.h), and builds the index of keys (keys_index.h). It checks
 *      that the files are still those of step 2. The result is a stored table.
 *   4. Models hold references to the stored table. Models of the same files share one (the files
 *      have the same table_fingerprint). Row updates are applied in place, under the table's lock
 * (live_rows.h).
 *   5. When the last model is freed, bag_stored_table_drop unmaps and frees everything. The source
 *      lives as long as the model that was made of it.
 *
 * Calls go from this file and load.c down to the others, never upwards or in a circle;
 * tests/includes checks the includes. Commands that work on files open a source as the server does,
 * and read its rows block by block (rows_reader.h) instead of loading it.
 *
 * Threads. Sources, stored tables and their files are made, loaded and freed by one thread, which
 * changes the tables; in commands that is the main thread. It starts threads to read and to build
 * an index, and joins them before it continues. A table in memory is read by any number of threads;
 * functions that they call say so.
 *
 * Reasons. Files are opened before anything is read because a server that fails after minutes of
 * reading is worse than one that fails at once, and because changes are planned by their memory.
 * Rows are copied unless mapping is configured because a copy is in huge pages and cannot change. A
 * table and its rules are separate because rules change more often and several models share a
 * table. */
#pragma once

#include "config/config.h"
#include "made.h"
#include "memory.h"
#include "server/shards/remote.h"

/* The name of the output of a table's model, and of the output that holds all features of a
 * collection side by side. */
#define BAG_EMBEDDINGS "embeddings"

/* A matrix [row elements, out] of FP32, and a bias [out] if there is one. */
struct bag_projection_source {
    struct bag_table_file matrix, bias;
    bool has_bias;
};

/* How one table is pooled: for the one output of a table's model, or for a feature of a collection.
 */
struct bag_feature_source {
    const char *name;                         /* name of the output */
    const struct bag_source *table;           /* borrowed while it is opened and loaded */
    struct bag_rules rules;                   /* complete: output_dtype is set */
    enum bag_row_format output_row_format;    /* format of the results; PLAIN: none */
    struct bag_projection_source *projection; /* owned; NULL: none */
};

/* A version of a model. Lives from the moment the version is found until the model made of it is
 * freed. */
struct bag_source {
    struct bag_model_config *model; /* owned */
    bool is_named;   /* named by a flag or a configuration file, not found in a folder of models */
    bool is_open;    /* the members below are set */
    bool is_alone;   /* the table is not shared, because its rows are updated by the model's name */
    bool is_unnamed; /* the user gave no name: problems show the path only */
    bool imports;    /* rows that only 'bagserve convert' reads are accepted, too (import.h) */
    uint64_t fingerprint; /* fingerprint of the table, the projections and the configuration */
    uint64_t
        table_fingerprint; /* fingerprint of the table in memory, from the files that are read */

    /* The rest is zero for a collection, except for the features. */
    bag_maker *make;                  /* NULL: the table is read from `files` */
    struct bag_table_file *files;     /* owned; none if the table is computed or remote */
    struct bag_table_file *key_files; /* owned; none: a dense table */
    struct bag_table_file *scales;    /* owned; scales and, if there are 2, biases of codes in
                                         arrays of their own (import.h) */
    size_t num_files, num_key_files, num_scales;
    char **paths; /* owned; paths of files that are not in the configuration */
    size_t num_paths;
    const char *beside; /* one of `paths`: another table in the folder of a keyed one, which is not
                           served; NULL: there is none */
    const char *deltas; /* one of `paths`: the folder of deltas of a version, which may not exist;
                           NULL: the version is not in a folder of models */
    bool maps;          /* the table stays in its file */
    bool width_from_size;      /* nothing but the sizes of the files tells the width of a row */
    bool rows_from_size;       /* nothing but the size of the file tells the number of rows */
    struct bag_remote *remote; /* owned; shards have the table; NULL: it is here */
    struct bag_table table;    /* the whole table as the kernels see it, without rows */
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    struct bag_table_memory own; /* future contents of memory, not allocated: the table or a part. A
                                    part by keys has the most rows that are expected; if it is
                                    mapped, all rows of the file */
    size_t max_rows; /* maximum number of rows that a part by keys is expected to have; otherwise
                        the rows of the table */
    struct bag_table_file default_file; /* the default row of a part by rows that keeps one */

    struct bag_feature_source *features; /* owned; one for a model of a table */
    size_t num_features;
};

static inline bool bag_source_is_keyed(const struct bag_source *source)
{
    return source->remote ? source->remote->is_keyed : source->num_key_files > 0;
}

/* Returns whether the model pools tables of other models and has no files of its own. */
static inline bool bag_source_is_collection(const struct bag_source *source)
{
    return bag_model_path_kind(source->model) == BAG_PATH_NONE;
}

/* Makes a source of a version that is not open yet. Takes over what *model owns and leaves it
 * empty. Returns NULL without memory, with *model unchanged. */
struct bag_source *bag_source_make(struct bag_model_config *model, bool is_named);

/* Makes a source of the table that `--table NAME=IN` would serve, for a command that works on it.
 * Returns NULL and sets *problem if `in` is wrong, or names a part of a table (BAG_ERROR_USAGE), or
 * without memory (BAG_ERROR_NO_MEMORY). */
struct bag_source *bag_source_find(const char *in, struct bag_problem *problem);

/* Frees the source and all that it owns. NULL is ignored. */
void bag_source_free(struct bag_source *source);

/* Opens the files of a model of a table and checks its configuration against them. Returns false
 * and sets *problem if a file is missing or wrong (BAG_ERROR_FILE), if the configuration does not
 * fit it (BAG_ERROR_CONFIGURATION), or if the table is larger than any memory or there is none
 * (BAG_ERROR_NO_MEMORY). After a failure the source can only be freed. */
bool bag_source_open_table(struct bag_source *source, struct bag_problem *problem);

/* Opens a collection over open tables, one for each feature, in their order. Fails like
 * bag_source_open_table. */
bool bag_source_open_collection(struct bag_source *source, const struct bag_source *const *tables,
                                struct bag_problem *problem);

/* Checks whether a poll may publish an open source, whose files may still be copied. A header
 * states how large a file is. Without one the sizes of the files are all that tells the width or
 * the number of rows, so that half a copy is a valid table of another shape. Only `served`, the
 * source that is served now (NULL: none), can confirm it: by the same width, and no more rows than
 * the files have. Returns false and sets *problem (BAG_ERROR_FILE) if nothing does. */
bool bag_source_check_copied(const struct bag_source *source, const struct bag_source *served,
                             struct bag_problem *problem);

/* Keeps the reason why the source cannot be loaded. Keeps a shorter text without memory. */
void bag_source_reject(struct bag_source *source, const char *reason);

/* ---- finding files (locate.c) ---------------------------------------------------------------- */

/* Returns whether a file in a folder is a table, by the end of its name. */
bool bag_source_is_table(const char *name);

/* Finds and opens the files of a model of a table: sets files, key_files, scales, beside and
 * deltas. Returns false and sets *problem if they are missing or wrong (BAG_ERROR_FILE) or the
 * configuration does not name one table (BAG_ERROR_CONFIGURATION). */
bool bag_source_locate(struct bag_source *source, struct bag_problem *problem);

/* ---- rules of features (rules.c) ------------------------------------------------------------- */

/* Completes configured rules for the feature's table. `what` begins messages. Returns false and
 * sets *problem (BAG_ERROR_CONFIGURATION) if they do not fit the table. */
bool bag_source_complete_rules(struct bag_feature_source *feature,
                               const struct bag_feature_config *pooling, const char *what,
                               struct bag_problem *problem);

/* Checks what the rules need of the keys once they are loaded: a configured default_index must be
 * one of them. `what` begins messages. Returns false and sets *problem (BAG_ERROR_CONFIGURATION) if
 * it is missing. Takes the lock of a live table. */
bool bag_source_check_keys(const struct bag_rules *rules, const struct bag_table_memory *memory,
                           const char *what, struct bag_problem *problem);

/* ---- what an open source says ---------------------------------------------------------------- */

/* Returns the last row update that the files include, as configured or by their metadata. */
uint64_t bag_source_updates_through(const struct bag_source *source);

/* Returns the bytes of memory that loading takes: rows, unless the kernel can take them back, index
 * of keys, and projections. */
size_t bag_source_bytes(const struct bag_source *source);

/* Returns the bytes of the table alone, which models may share. */
size_t bag_source_table_bytes(const struct bag_source *source);

/* Returns the same for a part by keys that has this many rows. */
size_t bag_source_bytes_of_rows(const struct bag_source *source, size_t num_rows);

/* Returns which versions of its model are served. By default that is the latest one in a folder of
 * models, and every version that is named. */
struct bag_version_policy bag_source_policy(const struct bag_source *source);

/* Returns a hash that differs if the fingerprint of an open source does, or if a file has changed
 * in any way or got another link. */
uint64_t bag_source_state(const struct bag_source *source);

/* Returns whether a file of two sources with equal fingerprints was written over in between. */
bool bag_source_was_written_over(const struct bag_source *before, const struct bag_source *now);

/* Takes over when the files of a source with an equal fingerprint got their last link, so that
 * later ones are not mistaken for writes. */
void bag_source_update_links(struct bag_source *source, const struct bag_source *now);

/* Returns whether a feature is projected. */
bool bag_source_projects(const struct bag_source *source);

/* ---- loading an open source (load.c) --------------------------------------------------------- */

/* Returns the bytes of files that loading reads: 0 for a table that is computed, and of a mapped
 * one only the keys unless it is read before it is served. */
size_t bag_source_read_bytes(const struct bag_source *source);

/* Loads the table; the caller gets the first reference. Returns NULL and sets *problem if files
 * changed or cannot be read or mapped (BAG_ERROR_FILE, BAG_ERROR_SYSTEM), if keys are wrong
 * (BAG_ERROR_FILE), if loading was cancelled (BAG_ERROR_DRAINING), or without memory
 * (BAG_ERROR_NO_MEMORY). */
struct bag_stored_table *bag_source_load(const struct bag_source *source,
                                         const struct bag_load_options *options,
                                         struct bag_problem *problem);

/* Builds the index of the keys alone. The caller frees *index. Fails like bag_source_load. */
bool bag_source_load_keys(const struct bag_source *source, unsigned threads,
                          struct bag_keys_index *index, struct bag_problem *problem);
