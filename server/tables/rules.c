/* The rules by which a feature pools its table; see source.h. */
#include "source.h"

#include "kernels/pool_encode.h"

#include "live_rows.h"

#include <string.h>

static bool reject_rules(const char *what, const char *why, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "%s: %s", what, why);
}

/* Rejects keys of the configuration that only keyed tables, or only dense ones, have. */
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
    /* A feature with a policy of its own still inherits hash_rows from its table's model. */
    const struct bag_model_config *own = source->model;
    bool is_inherited =
        own->missing == BAG_MISSING_HASH && pooling->rules.hash_rows == own->rules.hash_rows;
    if (pooling->rules.hash_rows && pooling->missing != BAG_MISSING_HASH && !is_inherited)
        return reject_rules(what, "hash_rows needs missing to be hash", problem);
    return true;
}

/* Completes what happens to a missing key, or to an index outside the table. */
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
    if (num_rows == 0)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: missing hash needs a table with rows; this one has none", what);
    if (rules->hash_rows < 1 || rules->hash_rows > num_rows)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: missing hash needs hash_rows from 1 to %lld, the table's rows; "
                               "it is %lld",
                               what, (long long)num_rows, (long long)rules->hash_rows);
    /* Reject hash_rows if these rows were reordered: a row stands in for missing keys by its
     * number, so its number must be that of the trainer. */
    int64_t hash_rows = rules->hash_rows;
    const struct bag_source *source = feature->table;
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
    feature->output_row_format = pooling->output_row_format;
    if (feature->output_row_format != BAG_ROWS_PLAIN && !bag_table_can_be_encoded(table))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: output_row_format %s is for tables of FP16, BF16, FP32 and "
                               "quantised rows; this one has %s",
                               what, bag_row_format_names[feature->output_row_format],
                               bag_dtypes[table->dtype].name);
    if (bag_rules_check(table, &feature->rules, &fault) == BAG_STATUS_OK) {
        /* Reject rules that differ from those of the shards, where requests to shards cannot carry
         * them. */
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
        return !key || bag_problem_set(
                           problem, BAG_ERROR_CONFIGURATION,
                           "%s: %s must be what the shards of model '%s' have, which go by that%s",
                           what, key, feature->table->model->name,
                           strcmp(key, "missing") == 0 ? ", or error" : "");
    }
    bag_problem_from_fault(problem, &fault);
    return bag_problem_prefix(problem, "%s", what);
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
