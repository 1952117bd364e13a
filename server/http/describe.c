/* Describes a model: its metadata, and its configuration, as JSON documents of the V2 protocol; see
 * metadata.h. */
#include "metadata.h"

#include "kernels/rowformat.h"
#include "server/tables/live_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the tensors of a model ------------------------------------------------------------------ */

/* An input or output of a model. -1 is a dimension of any size. */
struct tensor {
    const char *name;
    enum bag_dtype dtype;
    bool optional;
    int64_t first;       /* first dimension */
    const int64_t *rest; /* other dimensions; borrowed from the model */
    uint32_t rest_rank;
    int64_t columns; /* the other dimension if `rest` is NULL */
};

#define COUNT_OF(list) (sizeof(list) / sizeof(list)[0])

/* Returns whether a table takes weights by its own rules. A request may select another
 * reduction. */
static bool takes_weights(const struct bag_rules *rules)
{
    return rules->reduction != BAG_MAX && rules->reduction != BAG_NONE &&
           (rules->reduction != BAG_MEAN || rules->weighted_mean);
}

/* Returns the type of weights that metadata lists. Few clients can make 16-bit floats, and FP32 is
 * accepted, too. */
static enum bag_dtype shown_weights(enum bag_dtype dtype)
{
    return dtype == BAG_F16 || dtype == BAG_BF16 ? BAG_F32 : dtype;
}

/* Returns whether metadata lists an optional input. */
static bool shows(const struct bag_model *model, enum bag_input input)
{
    enum bag_v2_optional_inputs shown = model->shown.optional_inputs;
    if (input == BAG_PER_SAMPLE_WEIGHTS && !takes_weights(&model->features->rules))
        return false;
    return shown == BAG_V2_OPTIONAL_ALL ||
           (shown == BAG_V2_OPTIONAL_WEIGHTS && input == BAG_PER_SAMPLE_WEIGHTS);
}

#define EVERY_FORM ((1u << BAG_FORM_COUNT) - 1)

/* The inputs, with a bit for each form that has them. */
static const struct {
    enum bag_input input;
    unsigned forms;
    bool optional, scalar;
} table_inputs[] = {{BAG_INDICES, EVERY_FORM, false, false},
                    {BAG_OFFSETS, 1u << BAG_FORM_OFFSETS, false, false},
                    {BAG_SEGMENT_IDS, 1u << BAG_FORM_SEGMENTS, false, false},
                    {BAG_NUM_SEGMENTS, 1u << BAG_FORM_SEGMENTS, true, true},
                    {BAG_PER_SAMPLE_WEIGHTS, EVERY_FORM, true, false},
                    {BAG_DEFAULT_INDEX, EVERY_FORM, true, true}};

/* Returns the form whose inputs the model shows. Rows that are not pooled have only indices. */
static unsigned shown_forms(const struct bag_model *model)
{
    return model->features->rules.reduction == BAG_NONE ? 0 : 1u << model->shown.form;
}

/* Sets *tensor to the input at this position of the form that the model shows. Returns false if
 * there are fewer. */
static bool table_input(const struct bag_model *model, size_t position, struct tensor *tensor)
{
    static const int64_t any = -1;
    size_t i = 0;
    for (; i < COUNT_OF(table_inputs); i++) {
        bool shown = (table_inputs[i].forms == EVERY_FORM ||
                      (table_inputs[i].forms & shown_forms(model)) != 0) &&
                     (!table_inputs[i].optional || shows(model, table_inputs[i].input));
        if (shown && position-- == 0)
            break;
    }
    if (i == COUNT_OF(table_inputs))
        return false;
    bool is_weights = table_inputs[i].input == BAG_PER_SAMPLE_WEIGHTS;
    bool is_matrix = shown_forms(model) == 1u << BAG_FORM_PACKED && !table_inputs[i].scalar;
    *tensor = (struct tensor){
        .name = bag_input_names[table_inputs[i].input],
        .dtype = is_weights ? shown_weights(model->features->memory->table.dtype) : BAG_I64,
        .optional = table_inputs[i].optional,
        .first = table_inputs[i].scalar ? 1 : -1,
        .rest = &any,
        .rest_rank = is_matrix};
    return true;
}

/* Returns whether all features of the model are pooled. */
static bool pools_all(const struct bag_model *model)
{
    bool all = true;
    for (size_t i = 0; i < model->num_features; i++)
        all &= model->features[i].rules.reduction != BAG_NONE;
    return all;
}

/* Sets *tensor to the input at this position of KeyedJaggedTensor's layout. It includes weights
 * only if all features are pooled. Returns false if there are fewer. */
static bool collection_input(const struct bag_model *model, size_t position, struct tensor *tensor)
{
    static const enum bag_kjt_input inputs[] = {BAG_KJT_VALUES, BAG_KJT_LENGTHS, BAG_KJT_STRIDES,
                                                BAG_KJT_WEIGHTS};
    if (position >= COUNT_OF(inputs) || (inputs[position] == BAG_KJT_WEIGHTS && !pools_all(model)))
        return false;
    bool is_weights = inputs[position] == BAG_KJT_WEIGHTS;
    bool is_strides = inputs[position] == BAG_KJT_STRIDES;
    *tensor = (struct tensor){.name = bag_kjt_input_names[inputs[position]],
                              .dtype = is_weights ? BAG_F32 : BAG_I64,
                              .optional = is_weights || is_strides,
                              .first = is_strides ? (int64_t)model->num_features : -1};
    return true;
}

/* Sets *tensor to the model's input at this position. Returns false if there are fewer. */
static bool model_input(const struct bag_model *model, size_t position, struct tensor *tensor)
{
    if (bag_model_is_collection(model))
        return collection_input(model, position, tensor);
    if (!table_input(model, position, tensor))
        return false;
    bool is_key = strcmp(tensor->name, bag_input_names[BAG_INDICES]) == 0 ||
                  strcmp(tensor->name, bag_input_names[BAG_DEFAULT_INDEX]) == 0;
    if (is_key && model->features->rules.keyed)
        tensor->dtype = model->features->memory->keys_dtype;
    return true;
}

/* Sets the last dimension to the size of a row in a row format. */
static void encode_rows(enum bag_row_format format, size_t row_elements, struct tensor *tensor)
{
    if (format == BAG_ROWS_PLAIN)
        return;
    tensor->dtype = BAG_U8;
    tensor->rest = NULL;
    tensor->rest_rank = 1;
    tensor->columns = (int64_t)bag_encoded_row_bytes(format, row_elements);
}

/* Sets *tensor to the concatenation of all features. Returns false if a feature is not pooled or
 * the types differ. */
static bool concatenation(const struct bag_model *model, struct tensor *tensor)
{
    const struct bag_feature *first = &model->features[0];
    const enum bag_row_format format = first->output_row_format;
    size_t columns = 0;
    if (!pools_all(model))
        return false;
    for (size_t i = 0; i < model->num_features; i++) {
        const struct bag_feature *feature = &model->features[i];
        if (feature->output_row_format != format ||
            (format == BAG_ROWS_PLAIN && feature->rules.output_dtype != first->rules.output_dtype))
            return false;
        columns += bag_feature_columns(feature);
    }
    *tensor = (struct tensor){.name = "embeddings",
                              .dtype = first->rules.output_dtype,
                              .first = -1,
                              .rest_rank = 1,
                              .columns = (int64_t)columns};
    encode_rows(format, columns, tensor);
    return true;
}

/* Sets *tensor to the model's output at this position. Returns false if there are fewer. */
static bool model_output(const struct bag_model *model, size_t position, struct tensor *tensor)
{
    if (position == model->num_features && bag_model_is_collection(model))
        return concatenation(model, tensor);
    if (position >= model->num_features)
        return false;
    const struct bag_feature *feature = &model->features[position];
    const struct bag_table_memory *memory = bag_http_shape_of(feature);
    *tensor = (struct tensor){.name = feature->name,
                              .dtype = feature->rules.output_dtype,
                              .first = -1,
                              .rest = &memory->shape[1],
                              .rest_rank = memory->rank - 1};
    encode_rows(feature->output_row_format, bag_feature_columns(feature), tensor);
    return true;
}

/* ---- metadata -------------------------------------------------------------------------------- */

/* Writes a tensor: of metadata {"name", "datatype", "shape"}, of a configuration {"name",
 * "data_type", "dims"}, with "optional" if it is an input. */
static void write_tensor(struct bag_json_writer *json, const struct tensor *tensor, bool is_config,
                         bool is_input)
{
    char type[16];
    char *end = is_config ? bag_text_put(type, "TYPE_") : type;
    int64_t dimensions[BAG_MAX_RANK] = {tensor->first};
    *bag_text_put(end, bag_dtypes[tensor->dtype].name) = 0;
    memcpy(&dimensions[1], tensor->rest ? tensor->rest : &tensor->columns,
           tensor->rest_rank * sizeof *dimensions);
    bag_json_open(json, NULL, '{');
    BAG_JSON_WRITE(json, BAG_KEY("name", tensor->name),
                   BAG_KEY(is_config ? "data_type" : "datatype", (const char *)type));
    bag_json_integers(json, is_config ? "dims" : "shape", dimensions, 1 + tensor->rest_rank);
    BAG_JSON_WRITE(json, BAG_KEY_IF(is_config && is_input, "optional", tensor->optional));
    bag_json_close(json);
}

/* Writes the inputs and outputs that metadata or a configuration shows. */
static void write_tensors(struct bag_json_writer *json, const struct bag_model *model,
                          bool is_config)
{
    struct tensor tensor;
    bag_json_open(json, is_config ? "input" : "inputs", '[');
    for (size_t i = 0; model_input(model, i, &tensor); i++)
        write_tensor(json, &tensor, is_config, true);
    bag_json_close(json);
    bag_json_open(json, is_config ? "output" : "outputs", '[');
    for (size_t i = 0; model_output(model, i, &tensor); i++)
        write_tensor(json, &tensor, is_config, false);
    bag_json_close(json);
}

/* Returns the number of the last update that the rows of a table contain. */
static uint64_t updates_through(const struct bag_feature *feature)
{
    const struct bag_live_rows *live = feature->memory->live;
    const struct bag_source *source = feature->model->source;
    return live ? live->through : source ? bag_source_updates_through(source) : 0;
}

/* Sets the facts about the table of a feature. */
enum { TABLE_FACTS = 7 };
static void find_facts(const struct bag_feature *feature, struct bag_json_member facts[TABLE_FACTS])
{
    const struct bag_table_memory *memory = feature->memory;
    const size_t num_shards = memory->remote ? memory->remote->num_shards : 0;
    const struct bag_json_member found[TABLE_FACTS] = {
        BAG_KEY("rows", bag_table_rows_now(memory)),
        BAG_KEY("row_elements", memory->table.row_elements),
        BAG_KEY("datatype", bag_dtypes[memory->table.dtype].name),
        BAG_KEY("row_format", bag_row_format_names[memory->table.row_format]),
        BAG_KEY("bytes", bag_table_memory_bytes(memory)),
        BAG_KEY("keyed", feature->rules.keyed),
        BAG_KEY_IF(num_shards > 0, "shards", num_shards)};
    memcpy(facts, found, sizeof found);
}

/* Writes the facts about a feature's table, and its part if it is one. */
static void write_table(struct bag_json_writer *json, const struct bag_feature *feature)
{
    const struct bag_table_memory *memory = feature->memory;
    struct bag_json_member facts[TABLE_FACTS];
    char digest[BAG_DIGEST_BYTES];
    find_facts(feature, facts);
    bag_json_write(json, facts, TABLE_FACTS);
    if (bag_table_is_part(memory)) {
        bag_digest_put(digest, memory->digest);
        bag_json_open(json, "part", '{');
        BAG_JSON_WRITE(json, BAG_KEY("by", bag_part_way_names[memory->part.by]),
                       BAG_KEY("index", memory->part.index), BAG_KEY("of", memory->part.of),
                       BAG_KEY("rows", memory->whole_rows),
                       BAG_KEY("row_elements", memory->whole_elements),
                       BAG_KEY("digest", (const char *)digest));
        bag_json_close(json);
    }
    BAG_JSON_WRITE(json, BAG_KEY("updates_through", updates_through(feature)));
}

/* The layouts of a collection: those of KeyedJaggedTensor, and inputs by feature. */
static const char *const collection_forms[] = {"lengths", "offsets", "features"};

char *bag_http_describe_model(const struct bag_model *model,
                              const struct bag_http_versions *versions)
{
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("name", model->name));
    bag_json_texts(&json, "versions", versions->ready, versions->num_ready);
    BAG_JSON_WRITE(&json, BAG_KEY("platform", "bagserve"));
    write_tensors(&json, model, false);
    bag_json_open(&json, "parameters", '{');
    if (bag_model_is_collection(model)) {
        /* Write the features of a collection in their order, which is the order of
         * KeyedJaggedTensor's bags. Write "<feature>.keyed" and the type of the keys for each keyed
         * table, because the input `values` has only one type. */
        bag_json_open(&json, "features", '[');
        for (size_t i = 0; i < model->num_features; i++) {
            const struct bag_feature *feature = &model->features[i];
            bag_json_open(&json, NULL, '{');
            BAG_JSON_WRITE(&json, BAG_KEY("name", feature->name),
                           BAG_KEY("model", feature->model->name),
                           BAG_KEY("version", feature->model->version),
                           BAG_KEY_IF(feature->is_pinned, "pinned", feature->is_pinned));
            write_table(&json, feature);
            bag_json_close(&json);
        }
        bag_json_close(&json);
        for (size_t i = 0; i < model->num_features; i++) {
            const struct bag_feature *feature = &model->features[i];
            const bool is_keyed = feature->rules.keyed;
            char keyed[192], datatype[192];
            snprintf(keyed, sizeof keyed, "%s.keyed", feature->name);
            snprintf(datatype, sizeof datatype, "%s.keys_datatype", feature->name);
            BAG_JSON_WRITE(
                &json, BAG_KEY_IF(is_keyed, keyed, is_keyed),
                BAG_KEY_IF(is_keyed, datatype, bag_dtypes[feature->memory->keys_dtype].name));
        }
        bag_json_texts(&json, "forms", collection_forms, COUNT_OF(collection_forms));
    } else {
        write_table(&json, model->features);
        bag_json_texts(&json, "forms", bag_form_names, BAG_FORM_COUNT);
    }
    return bag_json_end(&json);
}

/* ---- configuration ---------------------------------------------------------------------------
 *
 * perf_analyzer needs `max_batch_size`, `input` with `optional`, and `output`. The other keys are
 * those of ModelConfig that apply to bagserve's models. `max_batch_size` is 0, because the first
 * dimensions of indices and offsets differ and cannot be left out of the shapes as a common batch
 * dimension. */

/* Writes a fact as ModelConfig has parameters: an object with a string. That of a collection's
 * feature has its name before it; NULL: it is the model's own. */
static void write_parameter(struct bag_json_writer *json, const char *feature,
                            const struct bag_json_member *fact)
{
    /* ModelConfig knows only texts, so numbers and flags are printed. A name has at most 128 bytes.
     * A collection of 1,000 features has 20,000 facts, for which printf takes too long. */
    char key[192], number[24];
    char *end = feature ? bag_text_put(bag_text_put(key, feature), ".") : key;
    const char *text = fact->value.text;
    if (fact->kind == BAG_JSON_FLAG)
        text = fact->value.flag ? "true" : "false";
    else if (fact->kind != BAG_JSON_TEXT) {
        *(fact->kind == BAG_JSON_COUNT ? bag_digits_put(number, fact->value.count)
                                       : bag_integer_put(number, fact->value.integer)) = 0;
        text = number;
    }
    *bag_text_put(end, fact->key) = 0;
    bag_json_open(json, key, '{');
    BAG_JSON_WRITE(json, BAG_KEY("string_value", text));
    bag_json_close(json);
}

/* Writes the facts that have a key. */
static void write_parameters(struct bag_json_writer *json, const char *feature,
                             const struct bag_json_member *facts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (facts[i].key)
            write_parameter(json, feature, &facts[i]);
    }
}

/* Returns a row or a key, if the feature has it. The upper half of UINT64 keys has no sign. */
static struct bag_json_member index_of(bool has, const char *key, const struct bag_feature *feature,
                                       int64_t index)
{
    const bool is_signed = !feature->rules.keyed || feature->memory->keys_dtype != BAG_U64;
    return is_signed ? BAG_KEY_IF(has, key, index) : BAG_KEY_IF(has, key, (uint64_t)index);
}

/* Writes the facts about a feature's table and its pooling rules under the keys of the
 * configuration. A keyed table has a default key or none; a dense table has a default row or -1. */
static void write_feature(struct bag_json_writer *json, const struct bag_model *model,
                          const struct bag_feature *feature)
{
    const struct bag_rules *rules = &feature->rules;
    const struct bag_table_memory *memory = feature->memory;
    const struct bag_part *part = &memory->part;
    const bool is_collection = bag_model_is_collection(model), is_part = bag_table_is_part(memory);
    const bool is_projected = feature->projection != NULL;
    const bool hashes = rules->keyed && rules->missing == BAG_MISSING_HASH;
    const char *prefix = is_collection ? feature->name : NULL;
    struct bag_json_member table[TABLE_FACTS];
    char part_text[64] = "";
    if (is_part)
        snprintf(part_text, sizeof part_text, "%s %" PRIu32 " of %" PRIu32,
                 bag_part_way_names[part->by], part->index, part->of);
    const struct bag_json_member owner[] = {
        BAG_KEY_IF(is_collection, "model", feature->model->name),
        BAG_KEY_IF(is_collection, "version", feature->model->version),
        BAG_KEY_IF(feature->is_pinned, "pinned", feature->is_pinned)};
    const struct bag_json_member facts[] = {
        BAG_KEY_IF(is_part, "part", part_text),
        BAG_KEY_IF(is_part, "part.rows", memory->whole_rows),
        BAG_KEY_IF(is_part, "part.row_elements", memory->whole_elements),
        BAG_KEY_IF(is_collection && rules->keyed, "keys_datatype",
                   bag_dtypes[memory->keys_dtype].name),
        BAG_KEY("reduction", bag_reduction_names[rules->reduction]),
        index_of(!rules->keyed || rules->has_default_index, "default_index", feature,
                 rules->default_index),
        index_of(rules->has_padding_idx, "padding_idx", feature, rules->padding_idx),
        BAG_KEY("include_last_offset", rules->include_last_offset),
        BAG_KEY("weighted_mean", rules->weighted_mean),
        BAG_KEY_IF(is_projected, "projected", is_projected),
        BAG_KEY_IF(feature->output_row_format != BAG_ROWS_PLAIN, "output_row_format",
                   bag_row_format_names[feature->output_row_format]),
        BAG_KEY("prune_invalid", rules->prune_invalid),
        BAG_KEY("unsorted_segments", rules->unsorted_segments),
        BAG_KEY("require_zero_first_offset", rules->require_zero_first_offset),
        BAG_KEY("require_matching_index_types", rules->require_matching_index_types),
        BAG_KEY(rules->keyed ? "missing" : "out_of_range", bag_missing_names[rules->missing]),
        BAG_KEY_IF(hashes, "hash_rows", rules->hash_rows)};
    find_facts(feature, table);
    write_parameters(json, prefix, owner, COUNT_OF(owner));
    write_parameters(json, prefix, table, TABLE_FACTS);
    write_parameters(json, prefix, facts, COUNT_OF(facts));
}

char *bag_http_describe_config(const struct bag_model *model,
                               const struct bag_http_versions *versions)
{
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("name", model->name), BAG_KEY("platform", "bagserve"),
                   BAG_KEY("backend", "bagserve"));
    /* {"latest": {"num_versions": 1}}, {"specific": {"versions": [1, 3]}} or {"all": {}} */
    const struct bag_version_policy *policy = &versions->policy;
    static const char *const kinds[] = {[BAG_VERSIONS_LATEST] = "latest",
                                        [BAG_VERSIONS_ALL] = "all",
                                        [BAG_VERSIONS_SPECIFIC] = "specific"};
    bag_json_open(&json, "version_policy", '{');
    bag_json_open(&json, kinds[policy->kind], '{');
    BAG_JSON_WRITE(
        &json, BAG_KEY_IF(policy->kind == BAG_VERSIONS_LATEST, "num_versions", policy->numbers[0]));
    if (policy->kind == BAG_VERSIONS_SPECIFIC)
        bag_json_integers(&json, "versions", policy->numbers, policy->count);
    bag_json_close(&json);
    bag_json_close(&json);
    bag_json_open(&json, "model_transaction_policy", '{');
    BAG_JSON_WRITE(&json, BAG_KEY("decoupled", (bool)false));
    bag_json_close(&json);
    BAG_JSON_WRITE(&json, BAG_KEY("max_batch_size", INT64_C(0)));
    write_tensors(&json, model, true);
    bag_json_open(&json, "parameters", '{');
    /* Write the forms as one text with spaces between them, and the order of the features. */
    const bool is_collection = bag_model_is_collection(model);
    const char *const *names = is_collection ? collection_forms : bag_form_names;
    const size_t count = is_collection ? COUNT_OF(collection_forms) : BAG_FORM_COUNT;
    char text[64] = "";
    for (size_t i = 0; i < count; i++)
        bag_text_add(text, sizeof text, "%s%s", i ? " " : "", names[i]);
    const struct bag_json_member forms[] = {
        BAG_KEY("forms", text),
        BAG_KEY_IF(!is_collection, "form", bag_form_names[model->shown.form])};
    write_parameters(&json, NULL, forms, COUNT_OF(forms));
    for (size_t i = 0; is_collection && i < model->num_features; i++) {
        char key[32];
        snprintf(key, sizeof key, "features[%zu]", i);
        const struct bag_json_member name = BAG_KEY(key, model->features[i].name);
        write_parameters(&json, NULL, &name, 1);
    }
    for (size_t i = 0; i < model->num_features; i++)
        write_feature(&json, model, &model->features[i]);
    return bag_json_end(&json);
}
