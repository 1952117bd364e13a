/* What each configured model is made of, found and checked once, before any element is read: files
 * or makers of tables, row formats, rules, projections.
 *
 * Used by one thread at a time. */
#ifndef BAG_TABLES_SOURCE_H
#define BAG_TABLES_SOURCE_H

#include "config/config.h"
#include "load.h"
#include "remote.h"

/* ---- demo tables ----------------------------------------------------------------------------- */

/* The items table. Its value at (row, column) is
 *
 *     hash  = (row * 2654435769 + column * 2246822507) mod 2^32
 *     value = (floor(hash / 2^20) - 2048) / 2048
 *
 * a multiple of 1/2048 from -1 to 2047/2048: sums of up to 8,000 rows are exact in f32, and
 * ((row * 2654435769 + column * 2246822507) % 2**32 // 2**20 - 2048) / 2048 is the same in Python.
 */
#define BAG_DEMO_ITEMS_ROWS    100000
#define BAG_DEMO_ITEMS_COLUMNS 64

/* What the path of a table of `--demo` begins with. */
#define BAG_DEMO_PREFIX "demo:"

/* X(name of the model, its maker, rows, columns): FP32 tables.
 *
 *   example   the table of the specification's examples
 *   items     as said above
 *
 * Each maker fills a table's memory, in C order. */
#define BAG_DEMO_TABLES(X)               \
    X("example", bag_demo_example, 5, 2) \
    X("items", bag_demo_items, BAG_DEMO_ITEMS_ROWS, BAG_DEMO_ITEMS_COLUMNS)

/* A collection of them, under the name BAG_DEMO_COLLECTION: its config.json. */
#define BAG_DEMO_COLLECTION "ranker"
#define BAG_DEMO_FEATURES                                                                       \
    "{\"features\": [{\"name\": \"history\", \"model\": \"example\", \"reduction\": \"mean\"}," \
    " {\"name\": \"user\", \"model\": \"example\"}, {\"name\": \"ad\", \"model\": \"items\"}]}"

/* Fill so many columns of so many rows. */
typedef void bag_demo_maker(float *rows, size_t first_row, size_t num_rows, size_t first_column,
                            size_t num_columns);
bag_demo_maker bag_demo_example, bag_demo_items;

/* The name of a table model's output, and of the one that holds a collection's features side by
 * side. */
#define BAG_EMBEDDINGS "embeddings"

/* ---- sources --------------------------------------------------------------------------------- */

/* A matrix [row elements, out] of FP32, and a bias [out] where there is one. */
struct bag_projection_source {
    struct bag_table_file matrix, bias;
    bool has_bias;
};

/* The bags of one table: the one output of a table's model, or a feature of a collection. */
struct bag_feature_source {
    const char *name;               /* of the output */
    const struct bag_source *table; /* of its table; borrowed while it is opened and loaded */
    struct bag_rules rules;         /* complete: output_dtype is set */
    struct bag_projection_source *projection; /* owned; NULL: none */
};

/* Lives from the moment its version is found to the end of the model that is made of it. */
struct bag_source {
    struct bag_model_config *model; /* its name and version; owned */
    bool is_named;              /* by a flag or in a configuration file, not found in a folder */
    bool is_open;               /* what follows is set */
    uint64_t fingerprint;       /* differs where the files or what is configured differ, */
    uint64_t table_fingerprint; /* and where its table in memory would: of files that are read */
    bool is_alone;   /* its table is for no other model: rows change by the model's name */
    bool is_unnamed; /* nobody has named the model: problems tell the path alone */

    /* Of a model of a table; all 0 for a collection. */
    bag_demo_maker *make;             /* NULL: the table is read from `files` */
    struct bag_table_file *files;     /* owned; none where it is made */
    struct bag_table_file *key_files; /* owned; none: a dense table */
    size_t num_files, num_key_files;
    bool imports; /* rows as other programs write them are opened, too, which only `bagserve
                     convert` reads: with scales of their own (split.c), or padded */
    struct bag_table_file *scales; /* owned; of codes: their scales and, where there are 2, biases;
                                      none: rows have what belongs to them */
    size_t num_scales;
    char **paths; /* owned; some of those files' */
    size_t num_paths;
    const char *beside; /* one of these: another table in the folder of a keyed one, which is
                           not served; NULL: there is none */
    const char *deltas; /* one of these: the folder of delta folders of a version in a folder of
                           models, which need not be there; NULL: there is none */
    bool maps;          /* the table stays in its file */
    struct bag_remote *remote; /* owned; shards have the table; NULL: it is here */
    struct bag_table table;    /* as the kernels will see it; it has no rows yet */
    uint32_t rank;             /* of the table; the first dimension is its rows */
    int64_t shape[BAG_MAX_RANK];
    struct bag_table_memory own; /* what of it is loaded, without memory: all of it, or a part, by
                                    keys with the most rows that it may have, or if it is mapped
                                    with all that are in the file */
    size_t most_rows;            /* of a table with keys, expected in its index */
    struct bag_table_file default_file; /* the default row of a part by rows that keeps one */

    struct bag_feature_source *features; /* owned; a model of a table has one */
    size_t num_features;
};

/* A version of a model, not open yet. Takes over what `model` owns, and leaves it empty; NULL
 * without memory, with `model` as it was. */
struct bag_source *bag_source_make(struct bag_model_config *model, bool is_named);

/* Makes a source of the table that `--table NAME=IN` would serve, for a command of its own. Returns
 * NULL and sets *problem if `in` is wrong, or names a part of a table. */
struct bag_source *bag_source_find(const char *in, struct bag_problem *problem);

/* NULL is ignored. */
void bag_source_free(struct bag_source *source);

/* Opens the files of a model of a table and checks its rules against them. After a failure it can
 * only be freed. */
bool bag_source_open_table(struct bag_source *source, struct bag_problem *problem);

/* The same of a collection over open tables, one for each feature, in their order. */
bool bag_source_open_collection(struct bag_source *source, const struct bag_source *const *tables,
                                struct bag_problem *problem);

/* Keeps why the source cannot be loaded. Without memory a shorter text is kept. */
void bag_source_reject(struct bag_source *source, const char *reason);

/* Whether a file in a folder has a table's name, by how it ends. */
bool bag_source_is_table(const char *name);

/* Finds and opens the files of a model of a table: source->files and key_files. */
bool bag_source_locate(struct bag_source *source, struct bag_problem *problem);

/* Describes the table of a source whose `remote` is set. */
bool bag_source_describe_remote(struct bag_source *source, struct bag_problem *problem);

/* ---- codes and scales in arrays of their own (split.c): private to server/tables ---------------
 */

/* Whether an array holds the scales or biases of another one, by their names. */
bool bag_split_is_scale(const struct bag_file_names *names, const char *name);

/* Opens the scales, and biases, of the array `values` of an archive, the source's first file, where
 * it has some: unless the source imports, this is an error that says how to convert them. */
bool bag_split_open(struct bag_source *source, const struct bag_archive *archive,
                    const struct bag_file_names *names, const char *values,
                    struct bag_problem *problem);

/* Rejects a tensor of a file in parts, the source's first file, that has scales in any part, whose
 * tensors are `names`: they are not put together. */
bool bag_split_check_parts(const struct bag_source *source, const char *index,
                           const struct bag_file_names *names, const char *values,
                           struct bag_problem *problem);

/* What rows of codes become once scale and bias are in them: sets the source's table and shape.
 */
bool bag_split_describe(struct bag_source *source, struct bag_problem *problem);

/* ---- what is made of a source ---------------------------------------------------------------- */

/* Bytes of files that loading its table reads: 0 where it is made, or mapped and not read before it
 * is used. */
size_t bag_source_read_bytes(const struct bag_source *source);

/* Reads a table; NULL with *problem. */
struct bag_stored_table *bag_source_load(const struct bag_source *source,
                                         const struct bag_load_options *options,
                                         struct bag_problem *problem);

/* Builds the index of its keys alone; memory->index is to be freed. */
bool bag_source_load_keys(const struct bag_source *source, unsigned threads,
                          struct bag_table_memory *memory, struct bag_problem *problem);

/* Whether a table's keys hold what the rules need of them, once they are loaded: a configured
 * default_index. `what` begins messages. */
bool bag_source_check_keys(const struct bag_rules *rules, const struct bag_table_memory *memory,
                           const char *what, struct bag_problem *problem);

/* The last update of rows that the files include, as configured or as they say. */
uint64_t bag_source_updates_through(const struct bag_source *source);

/* Bytes of memory that its table takes, unless the kernel may take them back, and its keys and
 * projections. */
size_t bag_source_bytes(const struct bag_source *source);

/* Returns how many of them its table takes, which models may share. */
size_t bag_source_table_bytes(const struct bag_source *source);

/* The same if a part by keys has so many rows. */
size_t bag_source_bytes_of_rows(const struct bag_source *source, size_t num_rows);

/* Which versions of its model are served, as it says: absent, the latest one of a folder's, and all
 * of those that are named. */
struct bag_version_policy bag_source_policy(const struct bag_source *source);

/* Whether some feature is projected. */
bool bag_source_projects(const struct bag_source *source);

static inline bool bag_source_is_keyed(const struct bag_source *source)
{
    return source->remote ? source->remote->is_keyed : source->num_key_files > 0;
}

static inline bool bag_source_is_collection(const struct bag_source *source)
{
    return !source->model->path;
}

/* ---- parts (part.c): private to server/tables --------------------------------------------------
 */

/* Sets what of the table is loaded, and of its files what is read, once the model's own rules are
 * complete. */
bool bag_source_describe_own(struct bag_source *source, struct bag_problem *problem);

/* Whether a part has the rows that a feature needs beside those that are asked for. */
bool bag_source_check_feature_part(const struct bag_feature_source *feature, const char *what,
                                   struct bag_problem *problem);

/* Sets *digest, never to 0: equal for parts of copies of the same files on any machine, and another
 * for another dump. Reads samples of the rows and keys. */
bool bag_source_digest(const struct bag_source *source, uint64_t *digest,
                       struct bag_problem *problem);

/* Reads the rows of a part; `kept` are those of a part by keys. */
bool bag_part_load(const struct bag_source *source, const struct bag_part_rows *kept,
                   const struct bag_load_options *options, struct bag_table_memory *memory,
                   struct bag_problem *problem);

/* ---- rules and projections (source_rules.c): private to server/tables ---------------------------
 */

/* Completes rules as configured, for the feature's table; `what` begins messages. */
bool bag_source_complete_rules(struct bag_feature_source *feature,
                               const struct bag_feature_config *pooling, const char *what,
                               struct bag_problem *problem);

/* Opens the feature's projection, where it has one; `feature` is NULL for the table's own model. */
bool bag_source_open_projection(struct bag_feature_source *source,
                                const struct bag_feature_config *feature,
                                struct bag_problem *problem);

#endif
