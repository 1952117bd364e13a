/* Makes the plan of a decoded request; see plan.h.
 *
 *   inputs      matches the request's tensors to features (plan_inputs.c)
 *   pools       combines each feature's rules with the request's parameters; the kernels check them
 *   outputs     adds the requested outputs and the ops that make them (plan_outputs.c) */
#include "plan.h"
#include "kernels/keys.h"
#include "kernels/pool_encode.h"
#include "kernels/pool_entries.h"
#include "kernels/rowformat.h"
#include "proto/text.h"

#include <inttypes.h>
#include <string.h>

/* The maximum number of bags in one request, over all features. The limits of reply bytes are
 * usually reached long before it. */
#define MAX_BAGS ((size_t)1 << 32)

/* The number of sampled ids that are counted at a time. */
#define SAMPLES 64

/* ---- rules ----------------------------------------------------------------------------------- */

/* Changes the rules for a partial reply, which a coordinator merges. Shards never divide sums, so
 * weights may be combined with every mean. The coordinator leaves out or replaces ids outside of a
 * dense table, so a shard rejects them. */
static void adapt_to_parts(struct bag_rules *rules)
{
    rules->weighted_mean = true;
    if (!rules->keyed)
        rules->missing = BAG_MISSING_ERROR;
}

/* Sets *rules to the feature's rules with the changes of the request's parameters. */
static bool find_rules(const struct bag_planner *planner, const struct bag_feature *feature,
                       struct bag_rules *rules, struct bag_fault *fault)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    *rules = feature->rules;
    if (overrides->has_reduction)
        rules->reduction = overrides->reduction;
    if (overrides->has_padding_idx) {
        rules->has_padding_idx = !overrides->padding_is_none;
        rules->padding_idx = overrides->padding_is_none ? 0 : overrides->padding_idx;
    }
    if (rules->keyed)
        rules->missing = overrides->has_missing ? overrides->missing : rules->missing;
    else
        rules->missing = overrides->has_out_of_range ? overrides->out_of_range : rules->missing;
    if (overrides->has_include_last_offset)
        rules->include_last_offset = overrides->include_last_offset;
    if (overrides->has_output_dtype)
        rules->output_dtype = overrides->output_dtype;
    if (overrides->partial)
        adapt_to_parts(rules);
    struct bag_table table = bag_table_by_ids(feature->memory);
    return bag_rules_check(&table, rules, fault) == BAG_STATUS_OK;
}

/* Returns whether a parameter of the request changes how features are pooled. */
static bool changes_rules(const struct bag_v2_overrides *overrides)
{
    return overrides->has_reduction || overrides->has_padding_idx || overrides->has_missing ||
           overrides->has_out_of_range || overrides->has_include_last_offset ||
           overrides->has_output_dtype || overrides->partial;
}

/* Returns the pool plan of a feature for this request: the feature's own, a copy of it in *plan, or
 * a new one in the request's arena. Returns NULL and sets *fault, or sets the planner's problem and
 * leaves *fault without a status. The feature's own plan is not used if live rows changed the
 * number of rows. */
static const struct bag_pool_plan *find_plan(const struct bag_planner *planner,
                                             const struct bag_feature *feature,
                                             struct bag_pool_plan *plan, struct bag_fault *fault)
{
    struct bag_rules rules;
    bool is_own = !changes_rules(&planner->request->overrides) &&
                  feature->plan.args.table.num_rows == bag_table_by_ids(feature->memory).num_rows;
    if (is_own && !planner->kjt)
        return &feature->plan;
    if (is_own)
        *plan = feature->plan;
    else if (!find_rules(planner, feature, &rules, fault))
        return NULL;
    else if ((plan = bag_arena_alloc(planner->arena, sizeof *plan)))
        bag_feature_prepare(feature, rules, plan);
    else {
        fault->status = BAG_STATUS_OK;
        bag_planner_no_memory(planner);
        return NULL;
    }
    if (planner->kjt) {
        /* KeyedJaggedTensor's offsets include the end. The types in which its values and offsets
         * were sent were checked before. */
        plan->rules.include_last_offset = true;
        plan->rules.require_matching_index_types = false;
    }
    return plan;
}

/* ---- pools ----------------------------------------------------------------------------------- */

/* Adds the feature's name to the problem if the model is a collection. Returns false. */
static bool name_feature(const struct bag_planner *planner, size_t feature)
{
    const char *name = planner->model->features[feature].name;
    if (!bag_model_is_collection(planner->model))
        return false;
    if (planner->kjt)
        return bag_problem_prefix(planner->problem, "feature '%s' ('values' from position %zu on)",
                                  name, planner->kjt->firsts[feature]);
    return bag_problem_prefix(planner->problem, "feature '%s'", name);
}

/* Sets the problem that the request's weights apply to a feature that takes none. Returns false. */
static bool reject_weights(const struct bag_planner *planner, const struct bag_feature *feature,
                           enum bag_reduction reduction)
{
    return bag_problem_set(
        planner->problem, BAG_ERROR_BAD_REQUEST,
        "'weights' cannot be combined with feature '%s', whose reduction is %s; leave "
        "the weights out, send those of other features as "
        "'<feature>.per_sample_weights', or configure weighted_mean for mean",
        feature->name, bag_reduction_names[reduction]);
}

/* Returns a feature's inputs in either layout. `part` is storage for the inputs of
 * KeyedJaggedTensor's layout. */
static struct bag_inputs inputs_of(const struct bag_planner *planner, size_t feature,
                                   struct bag_kjt_part *part)
{
    if (!planner->kjt)
        return planner->inputs[feature];
    bag_kjt_part(planner->kjt, feature, part);
    return (struct bag_inputs){{[BAG_INDICES] = &part->indices,
                                [BAG_OFFSETS] = &part->offsets,
                                [BAG_PER_SAMPLE_WEIGHTS] = planner->kjt->tensors[BAG_KJT_WEIGHTS]
                                                               ? &part->weights
                                                               : NULL}};
}

/* Describes to the kernels which ids of the whole table this part answers for. */
static struct bag_part_ids part_ids_of(const struct bag_table_memory *memory,
                                       const struct bag_v2_overrides *overrides)
{
    return (struct bag_part_ids){.part = memory->part,
                                 .is_partial = overrides->partial,
                                 .takes_kept = overrides->kept_default && memory->keeps_default,
                                 .first_row = (int64_t)memory->first_row,
                                 .own_rows = memory->shape[0],
                                 .local_rows = memory->table.num_rows,
                                 .kept_row = memory->keeps_default ? memory->kept_default : -1};
}

/* Replaces keys by rows. Returns false and sets the planner's problem, or sets *fault, which the
 * caller reports. */
static bool resolve_keys(struct bag_planner *planner, size_t i, const struct bag_rules *rules,
                         const struct bag_inputs *inputs, struct bag_fault *fault)
{
    const struct bag_table_memory *memory = planner->model->features[i].memory;
    struct bag_pool_args *args = &planner->args[i];
    size_t count = args->indices.count;
    bool explains = planner->request->overrides.explain;
    struct bag_part_ids part = part_ids_of(memory, &planner->request->overrides);
    struct bag_resolving resolving = {
        .keys = rules->keyed ? &memory->index.keys : NULL,
        .part = bag_table_divides_ids(memory) ? &part : NULL,
        .rules = rules,
        .inputs = inputs,
        .rows = bag_arena_array(planner->arena, count, sizeof *resolving.rows),
        .replaced = explains ? bag_arena_alloc(planner->arena, count) : NULL,
    };
    fault->status = BAG_STATUS_OK;
    if (!resolving.rows || (explains && !resolving.replaced))
        return bag_planner_no_memory(planner);
    if (bag_keys_resolve(&resolving, args, fault) != BAG_STATUS_OK)
        return false;
    if (rules->keyed)
        planner->plan->missing_keys += resolving.num_missing;
    planner->plan->other_ids += resolving.num_other;
    return true;
}

/* Keeps the keys of a remote op for the shards, which look them up. In a table divided by keys,
 * every shard has the model's default row, but only one shard has the row of another default
 * key. */
static bool leave_keys(struct bag_planner *planner, size_t i, const struct bag_rules *rules,
                       const struct bag_inputs *inputs, struct bag_fault *fault)
{
    const struct bag_tensor *tensor = inputs->tensor[BAG_DEFAULT_INDEX];
    struct bag_pool_args *args = &planner->args[i];
    fault->status = BAG_STATUS_OK;
    if (!planner->keys)
        planner->keys =
            bag_arena_array(planner->arena, planner->model->num_features, sizeof *planner->keys);
    if (!planner->keys)
        return bag_planner_no_memory(planner);
    struct bag_op_keys *keys = &planner->keys[i];
    *keys = (struct bag_op_keys){.has_padding = rules->has_padding_idx,
                                 .has_default = tensor || rules->has_default_index,
                                 .padding = rules->padding_idx,
                                 .default_key = rules->default_index,
                                 .default_is_asked = tensor != NULL,
                                 .missing = rules->missing,
                                 .sent = args->indices,
                                 .sent_dtype = inputs->tensor[BAG_INDICES]->dtype,
                                 .default_dtype = tensor ? tensor->dtype : BAG_I64,
                                 .first_value = planner->kjt ? planner->kjt->firsts[i] : 0,
                                 .from_values = planner->kjt != NULL};
    if (tensor) {
        struct bag_ids ids = {tensor->data, 1, bag_dtypes[tensor->dtype].bytes == 8};
        keys->default_key = bag_id_at(&ids, 0);
    }
    if (keys->has_default && rules->reduction != BAG_NONE)
        args->default_row = 0; /* a default row exists */
    if (!tensor || rules->missing != BAG_MISSING_DEFAULT ||
        (rules->has_default_index && keys->default_key == rules->default_index) ||
        planner->model->features[i].memory->remote->part.by == BAG_PART_COLUMNS)
        return true;
    return bag_problem_set(
        planner->problem, BAG_ERROR_BAD_REQUEST,
        "'default_index' cannot be another key than the model's, whose row every "
        "server with a part has in the place of missing keys");
}

/* Returns whether the table has the key of an entry, or shards may have it. The key is no padding,
 * and no other row replaces it. */
static bool looks_up(const struct bag_table_memory *memory, const struct bag_rules *rules,
                     int64_t key)
{
    if (rules->has_padding_idx && key == rules->padding_idx)
        return false;
    bool may_be_replaced =
        rules->missing == BAG_MISSING_DEFAULT || rules->missing == BAG_MISSING_HASH;
    return !may_be_replaced || bag_op_kind_of(memory) == BAG_OP_REMOTE ||
           bag_keys_find_one(&memory->index.keys, (uint64_t)key) >= 0;
}

/* Counts the sampled ids of a feature, as the client sent them. Ids that look up no row of the
 * table are left out. */
static __attribute__((noinline)) void sample_ids(const struct bag_planner *planner, size_t i,
                                                 const struct bag_rules *rules,
                                                 const struct bag_ids *ids)
{
    const struct bag_feature *feature = &planner->model->features[i];
    const struct bag_pool_args *args = &planner->args[i];
    const uint64_t num_rows = (uint64_t)bag_table_by_ids(feature->memory).num_rows;
    uint64_t sampled[SAMPLES] BAG_UNSET;
    size_t count = 0, entry = bag_hot_sampling.next;
    for (; entry < ids->count; entry += bag_hot_distance()) {
        const int64_t id = bag_id_at(ids, entry);
        if (!bag_keeps(args, entry, bag_id_at(&args->indices, entry)) ||
            !(rules->keyed ? looks_up(feature->memory, rules, id) : (uint64_t)id < num_rows))
            continue;
        sampled[count++] = (uint64_t)id;
        if (count == SAMPLES) {
            bag_hot_rows_add(feature->hot, sampled, count);
            count = 0;
        }
    }
    bag_hot_sampling.next = entry - ids->count;
    bag_hot_rows_add(feature->hot, sampled, count);
}

/* Counts the missing keys of a feature whose inputs are checked, and some of its ids. Most requests
 * have no sampled id. */
static void count_ids(const struct bag_planner *planner, size_t i, const struct bag_rules *rules,
                      const struct bag_tensor *indices, size_t missing_keys)
{
    const struct bag_ids ids = {indices->data, indices->count, indices->dtype != BAG_I32};
    if (!planner->limits->samples || planner->plan->sampled)
        return;
    if (missing_keys)
        atomic_fetch_add_explicit(&planner->model->features[i].hot->missing, missing_keys,
                                  memory_order_relaxed);
    if (bag_hot_sampling.next < ids.count)
        sample_ids(planner, i, rules, &ids);
    else
        bag_hot_sampling.next -= ids.count;
}

/* Warns of a feature's indices before the first bag and behind the last one, which are pooled
 * nowhere. One warning is enough for a request. Returns false and sets the planner's problem if
 * memory is exhausted. */
static __attribute__((noinline)) bool warn_of_unused(struct bag_planner *planner, size_t i,
                                                     int64_t begin, int64_t end)
{
    const struct bag_model *model = planner->model;
    const size_t count = planner->args[i].indices.count;
    struct bag_problem text;
    if (planner->warned || planner->request->overrides.has_part)
        return true;
    bag_problem_set(&text, BAG_ERROR_BAD_REQUEST,
                    "%zu of %zu indices are in no bag: by 'offsets', the bags begin at index %lld "
                    "and end before index %lld",
                    count - (size_t)(end - begin), count, (long long)begin, (long long)end);
    if (bag_model_is_collection(model))
        bag_problem_prefix(&text, "feature '%s'", model->features[i].name);
    planner->warned = true;
    return bag_v2_add_warning(&planner->plan->warnings, text.text, planner->arena) ||
           bag_planner_no_memory(planner);
}

/* Warns if bags of offsets, which are checked, do not have all indices. */
static inline bool warn_of_offsets(struct bag_planner *planner, size_t i, bool includes_last)
{
    const struct bag_pool_args *args = &planner->args[i];
    const struct bag_ids *offsets = &args->groups;
    const int64_t count = (int64_t)args->indices.count;
    int64_t begin = 0, end = 0;
    if (args->form != BAG_FORM_OFFSETS)
        return true;
    if (offsets->count) {
        begin = bag_id_at(offsets, 0);
        end = includes_last ? bag_id_at(offsets, offsets->count - 1) : count;
    }
    return end - begin == count || warn_of_unused(planner, i, begin, end);
}

/* Checks the inputs of a feature and turns them into arguments of the kernels. Keys, and ids of a
 * part, are replaced by rows, unless shards do that. Sets the planner's problem if the inputs are
 * wrong. */
static bool check_pool(struct bag_planner *planner, size_t i)
{
    const struct bag_feature *feature = &planner->model->features[i];
    struct bag_kjt_part part BAG_UNSET;
    struct bag_pool_plan own BAG_UNSET;
    struct bag_fault fault BAG_UNSET;
    const struct bag_pool_plan *plan = find_plan(planner, feature, &own, &fault);
    const enum bag_op_kind kind = bag_op_kind_of(feature->memory);
    const size_t missing_before = planner->plan->missing_keys;
    bool ok = plan != NULL;
    if (ok) {
        struct bag_inputs inputs = inputs_of(planner, i, &part);
        /* Encoded rows are smaller; the plan's outputs are bounded later. */
        size_t max_bytes = bag_planner_row_format(planner, i) == BAG_ROWS_PLAIN
                               ? planner->limits->max_reply_bytes
                               : SIZE_MAX;
        ok = bag_pool_check(plan, &inputs, max_bytes, &planner->args[i], &fault) == BAG_STATUS_OK;
        if (ok && plan->needs_rows)
            ok = (plan->rules.keyed && kind == BAG_OP_REMOTE ? leave_keys : resolve_keys)(
                planner, i, &plan->rules, &inputs, &fault);
        else if (ok && kind != BAG_OP_REMOTE)
            bag_pool_prefetch(&planner->args[i]);
        if (ok)
            count_ids(planner, i, &plan->rules, inputs.tensor[BAG_INDICES],
                      planner->plan->missing_keys - missing_before);
    }
    if (ok)
        return warn_of_offsets(planner, i, plan->rules.include_last_offset);
    if (fault.status == BAG_STATUS_OK)
        return false;
    if (planner->kjt && fault.status == BAG_STATUS_WEIGHTS_NOT_SUPPORTED)
        return reject_weights(planner, feature, plan->rules.reduction);
    bag_problem_from_fault(planner->problem, &fault);
    return name_feature(planner, i);
}

/* Checks that the request is for the part of the table that this server has. A server that was
 * restarted with another part must not answer for the previous one. */
static bool check_part(const struct bag_planner *planner, const struct bag_feature *feature)
{
    const struct bag_part *want = &planner->request->overrides.part;
    const struct bag_part *has = &feature->memory->part;
    const uint64_t digest = planner->request->overrides.part_digest;
    bool is_whole = has->of <= 1 && want->of == 1;
    bool is_same = has->by == want->by && has->index == want->index && has->of == want->of;
    if (is_same && digest && digest != feature->memory->digest)
        return bag_problem_set(planner->problem, BAG_ERROR_CONFLICT,
                               "the part was cut from files of the digest " BAG_DIGEST_PRINT
                               ", and one of " BAG_DIGEST_PRINT " was asked for",
                               feature->memory->digest, digest);
    if (is_whole || is_same)
        return true;
    if (has->of == 0)
        return bag_problem_set(planner->problem, BAG_ERROR_CONFLICT,
                               "the table is no part, and part %u of %u by %s was asked for",
                               want->index, want->of, bag_part_way_names[want->by]);
    return bag_problem_set(
        planner->problem, BAG_ERROR_CONFLICT,
        "the table is part %u of %u by %s, and part %u of %u by %s was asked for", has->index,
        has->of, bag_part_way_names[has->by], want->index, want->of, bag_part_way_names[want->by]);
}

/* Checks whether a feature can be answered with partial sums. */
static bool check_partial(const struct bag_planner *planner, const struct bag_feature *feature)
{
    if (feature->projection)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "parameter partial is for tables without a projection: who adds up "
                               "the parts' sums projects them");
    if (planner->request->overrides.has_output_dtype)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "parameter output_datatype cannot be combined with partial: sums "
                               "are sent in the type that they are added in");
    return true;
}

/* Checks the parameters with which a coordinator asks for a part, for all features. */
static bool check_parts(const struct bag_planner *planner)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    for (size_t i = 0; i < planner->model->num_features; i++) {
        const struct bag_feature *feature = &planner->model->features[i];
        if (bag_op_kind_of(feature->memory) == BAG_OP_REMOTE)
            return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                                   "parameters part and partial are for servers that have tables; "
                                   "other servers have this one");
        if ((overrides->has_part && !check_part(planner, feature)) ||
            (overrides->partial && !check_partial(planner, feature)))
            return name_feature(planner, i);
    }
    return true;
}

/* Checks that the request only changes the handling of missing keys to an error. Other changes are
 * not allowed. */
static bool check_missing(const struct bag_planner *planner, const char *parameter,
                          enum bag_missing wanted, bool keyed)
{
    const struct bag_model *model = planner->model;
    bool any = false;
    for (size_t i = 0; i < model->num_features; i++) {
        const struct bag_rules *rules = &model->features[i].rules;
        any |= rules->keyed == keyed;
        if (rules->keyed == keyed && wanted != BAG_MISSING_ERROR && wanted != rules->missing)
            return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                                   "parameter %s is \"%s\"; a request may set it to \"error\" "
                                   "only, and the model says \"%s\"",
                                   parameter, bag_missing_names[wanted],
                                   bag_missing_names[rules->missing]);
    }
    return any ||
           bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "parameter %s is for tables %s keys; say %s to this model", parameter,
                           keyed ? "with" : "without", keyed ? "out_of_range" : "missing");
}

/* Returns whether a partial reply about a feature has rows as the request asks for them: not
 * pooled, and stored in that format. */
static bool gives_stored_rows(const struct bag_planner *planner, size_t i)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    const struct bag_feature *feature = &planner->model->features[i];
    return feature->memory->table.row_format == overrides->row_format &&
           (overrides->has_reduction ? overrides->reduction : feature->rules.reduction) == BAG_NONE;
}

/* Checks that results can be encoded as the request asks. */
static bool check_row_format(const struct bag_planner *planner)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    const char *format = bag_row_format_names[overrides->row_format];
    if (overrides->has_output_dtype && overrides->output_dtype != BAG_F32)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "parameter output_row_format is \"%s\", which encodes FP32; "
                               "output_datatype %s cannot be combined with it",
                               format, bag_dtypes[overrides->output_dtype].name);
    for (size_t i = 0; i < planner->model->num_features; i++) {
        const struct bag_table *table = &planner->model->features[i].memory->table;
        if (overrides->partial && !gives_stored_rows(planner, i)) {
            bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                            "parameter output_row_format cannot be combined with partial: sums "
                            "are sent in the type that they are added in, and only rows that are "
                            "not pooled as they are stored, which is \"%s\"",
                            bag_row_format_names[table->row_format]);
            return name_feature(planner, i);
        }
        if (bag_table_can_be_encoded(table))
            continue;
        bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                        "parameter output_row_format is for tables of FP16, BF16, FP32 and "
                        "quantised rows; this one has %s",
                        bag_dtypes[table->dtype].name);
        return name_feature(planner, i);
    }
    return true;
}

/* Checks the request's parameters about keys and parts. */
static bool check_overrides(const struct bag_planner *planner)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    if ((overrides->has_part || overrides->partial) && !check_parts(planner))
        return false;
    if (overrides->has_row_format && overrides->row_format != BAG_ROWS_PLAIN &&
        !check_row_format(planner))
        return false;
    if (overrides->has_missing && !check_missing(planner, "missing", overrides->missing, true))
        return false;
    if (overrides->has_out_of_range &&
        !check_missing(planner, "out_of_range", overrides->out_of_range, false))
        return false;
    for (size_t i = 0; overrides->padding_is_text && i < planner->model->num_features; i++) {
        if (!planner->model->features[i].rules.keyed)
            return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                                   "parameter padding_idx must be an integer; a text of digits is "
                                   "for tables with keys");
    }
    return true;
}

/* Checks all features that have inputs, and the number of bags. */
static bool check_pools(struct bag_planner *planner)
{
    const struct bag_model *model = planner->model;
    size_t bags = 0;
    planner->plan->missing_keys = planner->plan->other_ids = 0;
    if (!check_overrides(planner))
        return false;
    for (size_t i = 0; i < model->num_features; i++) {
        if (bag_model_is_collection(model) && !bag_planner_has(planner, i))
            continue;
        if (!check_pool(planner, i))
            return false;
        if (__builtin_add_overflow(bags, planner->args[i].num_bags, &bags))
            bags = SIZE_MAX;
    }
    if (bags <= MAX_BAGS)
        return true;
    return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "the request has %zu bags; it may have %zu", bags, MAX_BAGS);
}

/* ---- explaining ------------------------------------------------------------------------------ */

/* Allocates the report of a remote op's entries. The shards' replies fill it. */
static bool take_fates(const struct bag_planner *planner, struct bag_op *op)
{
    op->rows = bag_arena_array(planner->arena, op->args.indices.count, sizeof *op->rows);
    op->replaced = bag_arena_alloc(planner->arena, op->args.indices.count);
    return op->rows && op->replaced;
}

/* Checks that the request may be explained. Unsorted segments cannot be, because sorting discards
 * the positions of their entries. */
static bool check_explaining(const struct bag_planner *planner)
{
    struct bag_plan *plan = planner->plan;
    plan->explains = planner->request->overrides.explain;
    if (plan->explains && !planner->limits->explains)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "parameter explain: explanations are switched off (explain)");
    for (size_t i = 0; plan->explains && i < plan->num_ops; i++) {
        struct bag_op *op = &plan->ops[i];
        if (op->kind == BAG_OP_REMOTE && !take_fates(planner, op))
            return bag_planner_no_memory(planner);
        if (op->args.unsorted)
            return bag_problem_set(
                planner->problem, BAG_ERROR_BAD_REQUEST,
                "parameter explain cannot be combined with unsorted segments; sort "
                "'segment_ids'");
    }
    return true;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Allocates the arrays by feature. The model of a table has its own and needs none. */
static bool take_memory(struct bag_planner *planner)
{
    size_t count = planner->model->num_features;
    if (bag_model_is_collection(planner->model)) {
        planner->inputs = bag_arena_array(planner->arena, count, sizeof *planner->inputs);
        planner->args = bag_arena_array(planner->arena, count, sizeof *planner->args);
    }
    if (!planner->inputs || !planner->args)
        return bag_planner_no_memory(planner);
    memset(planner->inputs, 0, count * sizeof *planner->inputs);
    return true;
}

bool bag_plan_make(struct bag_plan *plan, const struct bag_model *model,
                   const struct bag_v2_request *request, const struct bag_infer_limits *limits,
                   struct bag_arena *arena, struct bag_problem *problem)
{
    struct bag_inputs one BAG_UNSET;
    struct bag_planner planner = {.plan = plan,
                                  .model = model,
                                  .request = request,
                                  .limits = limits,
                                  .arena = arena,
                                  .problem = problem,
                                  .inputs = &one,
                                  .args = &plan->one_op.args};
    plan->id = request->id;
    plan->warnings = request->warnings;
    plan->table_versions = (struct bag_text){0};
    plan->shows_versions = request->overrides.table_versions;
    plan->partial = request->overrides.partial;
    plan->timeout_us = request->overrides.timeout_us ? request->overrides.timeout_us : UINT64_MAX;
    if (!take_memory(&planner) || !bag_planner_match(&planner) || !check_pools(&planner))
        return false;
    plan->sampled = true;
    if (!bag_planner_make_outputs(&planner) || !check_explaining(&planner))
        return false;
    plan->work = bag_ops_count_work(plan->ops, plan->num_ops);
    return true;
}
