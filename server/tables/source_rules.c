/* What a feature does with the rows of its table: how it pools, and what it multiplies them with,
 * checked against the table; see source.h. */
#include "source.h"

#include "live_rows.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- projections ----------------------------------------------------------------------------- */

static bool takes_table(const struct bag_table *table, struct bag_problem *problem)
{
    if (table->dtype == BAG_F32 || table->dtype == BAG_F16 || table->dtype == BAG_BF16)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "a projection needs a table of FP32, FP16 or BF16; this one is %s",
                           bag_dtypes[table->dtype].name);
}

/* The multiplying library counts in int. */
static bool takes_matrix(const char *path, const struct bag_npy *npy, size_t row_elements,
                         struct bag_problem *problem)
{
    if (npy->dtype == BAG_F32 && npy->rank == 2 && (uint64_t)npy->shape[0] == row_elements &&
        npy->shape[1] > 0 && npy->shape[1] <= INT_MAX && row_elements <= INT_MAX)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: a projection must be FP32 of shape [%zu, out], as many rows as "
                           "the table's have elements; this one is %s in %u dimension%s, the "
                           "first of %lld",
                           path, row_elements, bag_dtypes[npy->dtype].name, (unsigned)npy->rank,
                           npy->rank == 1 ? "" : "s", (long long)npy->shape[0]);
}

static bool takes_bias(const char *path, const struct bag_npy *npy, int64_t columns,
                       struct bag_problem *problem)
{
    if (npy->dtype == BAG_F32 && npy->rank == 1 && npy->shape[0] == columns)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: a bias must be FP32 of shape [%lld], the columns of its "
                           "projection; this one is %s in %u dimension%s, the first of %lld",
                           path, (long long)columns, bag_dtypes[npy->dtype].name,
                           (unsigned)npy->rank, npy->rank == 1 ? "" : "s",
                           (long long)npy->shape[0]);
}

static bool open_files(const char *matrix, const char *bias, const struct bag_table *table,
                       struct bag_projection_source *files, struct bag_problem *problem)
{
    files->has_bias = bias != NULL;
    return takes_table(table, problem) &&
           bag_table_file_open(matrix, BAG_DTYPE_COUNT, &files->matrix, problem) &&
           takes_matrix(matrix, &files->matrix.npy, table->row_elements, problem) &&
           (!bias || (bag_table_file_open(bias, BAG_DTYPE_COUNT, &files->bias, problem) &&
                      takes_bias(bias, &files->bias.npy, files->matrix.npy.shape[1], problem)));
}

bool bag_source_open_projection(struct bag_feature_source *source,
                                const struct bag_feature_config *feature,
                                struct bag_problem *problem)
{
    const char *bias;
    const char *matrix = bag_config_projection(source->table->model, feature, &bias);
    if (!matrix)
        return true;
    if (source->table->model->part.of)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: a projection is of sums over all parts of a table, and model "
                               "'%s' has a part of one",
                               matrix, source->table->model->name);
    source->projection = calloc(1, sizeof *source->projection);
    if (!source->projection)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", matrix);
    return open_files(matrix, bias, &source->table->table, source->projection, problem);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static bool reject_rules(const char *what, const char *why, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "%s: %s", what, why);
}

/* What only keyed tables, or only dense ones, are told. */
static bool check_words(const struct bag_feature_config *pooling, const struct bag_source *source,
                        const char *what, struct bag_problem *problem)
{
    bool keyed = bag_source_is_keyed(source);
    if (keyed && pooling->out_of_range != BAG_MISSING_COUNT)
        return reject_rules(what,
                            "out_of_range is for tables without keys; this one has keys: "
                            "say missing",
                            problem);
    if (!keyed && pooling->missing != BAG_MISSING_COUNT)
        return reject_rules(what,
                            "missing is for tables with keys; this one has none: say "
                            "out_of_range",
                            problem);
    if (keyed && pooling->rules.prune_invalid)
        return reject_rules(
            what, "prune_invalid cannot be combined with keys, which may have any sign", problem);
    /* A feature that says another policy than its table's model has that one's hash_rows, too. */
    const struct bag_model_config *own = source->model;
    bool is_inherited =
        own->missing == BAG_MISSING_HASH && pooling->rules.hash_rows == own->rules.hash_rows;
    if (pooling->rules.hash_rows && pooling->missing != BAG_MISSING_HASH && !is_inherited)
        return reject_rules(what, "hash_rows needs missing to be hash", problem);
    return true;
}

/* Rows stand in for missing keys by their number: they must be those that the trainer had there. */
static bool check_hash_rows(int64_t hash_rows, const struct bag_source *source, const char *what,
                            struct bag_problem *problem)
{
    const struct bag_table_file *file = source->num_files ? &source->files[0] : NULL;
    if (!file || !file->is_ordered || (uint64_t)hash_rows <= file->fixed_rows)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: hash_rows is %lld, but %s has only the first %llu rows where they "
                           "were: the others were put in order by 'bagserve convert --order-by', "
                           "which keeps those of IN,missing=hash,hash_rows=%lld",
                           what, (long long)hash_rows, file->path,
                           (unsigned long long)file->fixed_rows, (long long)hash_rows);
}

/* What a missing key, or an index outside the table, does. */
static bool complete_missing(struct bag_feature_source *feature,
                             const struct bag_feature_config *pooling, const char *what,
                             struct bag_problem *problem)
{
    struct bag_rules *rules = &feature->rules;
    int64_t num_rows = feature->table->table.num_rows;
    rules->keyed = bag_source_is_keyed(feature->table);
    rules->missing = rules->keyed ? pooling->missing : pooling->out_of_range;
    if (rules->missing == BAG_MISSING_COUNT)
        rules->missing = BAG_MISSING_ERROR;
    bool has_default = rules->keyed ? rules->has_default_index : rules->default_index >= 0;
    if (rules->missing == BAG_MISSING_DEFAULT && !has_default)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: %s default needs a default_index, whose row is pooled", what,
                               rules->keyed ? "missing" : "out_of_range");
    if (rules->missing != BAG_MISSING_HASH) {
        rules->hash_rows = 0;
        return true;
    }
    if (rules->hash_rows < 1 || rules->hash_rows > num_rows)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: missing hash needs hash_rows from 1 to %lld, the table's rows; "
                               "it is %lld",
                               what, (long long)num_rows, (long long)rules->hash_rows);
    return check_hash_rows(rules->hash_rows, feature->table, what, problem);
}

/* Requests do not tell shards all rules. */
static bool check_shards(const struct bag_feature_source *feature, const char *what,
                         struct bag_problem *problem)
{
    const struct bag_remote *remote = feature->table->remote;
    const struct bag_rules *mine = &feature->rules;
    const char *key = NULL;
    if (!remote)
        return true;
    const struct bag_shard_rules *theirs = &remote->table.rules;
    const bool by_columns = remote->part.by == BAG_PART_COLUMNS;
    if (mine->keyed && mine->missing != BAG_MISSING_ERROR && mine->missing != theirs->missing)
        key = "missing";
    else if (mine->missing == BAG_MISSING_HASH && mine->hash_rows != theirs->hash_rows)
        key = "hash_rows";
    else if (mine->keyed && mine->missing == BAG_MISSING_DEFAULT && !by_columns &&
             mine->default_index != theirs->default_index)
        key = "default_index";
    else if (theirs->prune_invalid && !mine->prune_invalid)
        key = "prune_invalid";
    else if (by_columns && mine->weighted_mean && !theirs->weighted_mean)
        key = "weighted_mean";
    return !key ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: %s must be what the shards of model '%s' have, which go by that%s",
                           what, key, feature->table->model->name,
                           strcmp(key, "missing") == 0 ? ", or error" : "");
}

bool bag_source_complete_rules(struct bag_feature_source *feature,
                               const struct bag_feature_config *pooling, const char *what,
                               struct bag_problem *problem)
{
    const struct bag_table *table = &feature->table->table;
    enum bag_dtype output_datatype = pooling->output_datatype;
    struct bag_fault fault;
    feature->rules = pooling->rules;
    if (!check_words(pooling, feature->table, what, problem) ||
        !complete_missing(feature, pooling, what, problem))
        return false;
    feature->rules.output_dtype =
        output_datatype == BAG_DTYPE_COUNT ? table->dtype : output_datatype;
    if (bag_rules_check(table, &feature->rules, &fault) == BAG_STATUS_OK)
        return check_shards(feature, what, problem);
    bag_problem_from_fault(problem, &fault);
    bag_problem_prefix(problem, "%s", what);
    return false;
}

bool bag_source_check_keys(const struct bag_rules *rules, const struct bag_table_memory *memory,
                           const char *what, struct bag_problem *problem)
{
    uint64_t key = (uint64_t)rules->default_index;
    struct bag_live_rows *live = memory->live;
    if (!rules->keyed || !rules->has_default_index || memory->remote)
        return true;
    if (live)
        bag_live_rows_read(&live, 1);
    bool found = bag_keys_find_one(&memory->index.keys, key) >= 0;
    if (live)
        bag_live_rows_read_end(&live, 1);
    return found || bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                    "%s: default_index is %lld, a key that the table does not have",
                                    what, (long long)key);
}
