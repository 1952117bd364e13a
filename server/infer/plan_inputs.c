/* Matches the tensors of a request to the features of a model; see plan.h. The inputs of a table
 * are called by their names, those of a collection by feature and name, or they are in
 * KeyedJaggedTensor's layout. */
#include "plan.h"
#include "proto/text.h"

#include <string.h>

/* Returns the input with this name, or BAG_INPUT_COUNT if there is none. */
static enum bag_input find_input(struct bag_text name)
{
    enum bag_input input = 0;
    while (input < BAG_INPUT_COUNT && !bag_text_is(name, bag_input_names[input]))
        input++;
    return input;
}

/* ---- a table --------------------------------------------------------------------------------- */

/* Reads the inputs of a request for the model of a table. */
static bool match_table(struct bag_planner *planner)
{
    const struct bag_v2_request *request = planner->request;
    for (size_t i = 0; i < request->num_inputs; i++) {
        const struct bag_v2_input *announced = &request->inputs[i];
        enum bag_input input = find_input(announced->name);
        if (input == BAG_INPUT_COUNT)
            return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                                   "input '%s' is unknown; this model takes indices, offsets, "
                                   "segment_ids, num_segments, default_index and "
                                   "per_sample_weights",
                                   bag_quote(announced->name.data, announced->name.bytes).text);
        if (!bag_v2_input_read(announced, planner->arena, &planner->plan->tensors[input],
                               planner->problem))
            return false;
        planner->inputs[0].tensor[input] = &planner->plan->tensors[input];
    }
    return true;
}

/* ---- a collection: names --------------------------------------------------------------------- */

/* Splits "history.indices" into the names of the feature and of the input, at the last dot. */
static bool split_name(struct bag_text name, struct bag_text *feature, struct bag_text *input)
{
    size_t dot = name.bytes;
    while (dot > 0 && name.data[dot - 1] != '.')
        dot--;
    if (dot == 0)
        return false;
    *feature = (struct bag_text){name.data, dot - 1};
    *input = (struct bag_text){name.data + dot, name.bytes - dot};
    return true;
}

/* Returns the input of KeyedJaggedTensor's layout with this name, or BAG_KJT_INPUT_COUNT. */
static enum bag_kjt_input find_kjt_input(struct bag_text name)
{
    enum bag_kjt_input input = 0;
    while (input < BAG_KJT_INPUT_COUNT && !bag_text_is(name, bag_kjt_input_names[input]))
        input++;
    return input;
}

/* Sets the problem of an input that is in neither layout. Returns false. */
static bool reject_form(const struct bag_planner *planner, struct bag_text name)
{
    return bag_problem_set(
        planner->problem, BAG_ERROR_BAD_REQUEST,
        "input '%s' is unknown; this model takes 'values' with 'lengths' or "
        "'offsets', 'weights' and 'stride_per_key', or inputs of its features, as '%s.indices' "
        "and '%s.offsets'",
        bag_quote(name.data, name.bytes).text, planner->model->features[0].name,
        planner->model->features[0].name);
}

static bool reject_feature(const struct bag_planner *planner, struct bag_text name,
                           struct bag_text feature)
{
    struct bag_quoted quoted = bag_quote(feature.data, feature.bytes);
    struct bag_suggestion suggestion = {.written = quoted.text};
    for (size_t i = 0; i < planner->model->num_features; i++)
        bag_suggest_offer(&suggestion, planner->model->features[i].name);
    return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "input '%s' is unknown: this model has no feature '%s'%s",
                           bag_quote(name.data, name.bytes).text, quoted.text,
                           bag_suggestion_question(&suggestion, "'").text);
}

static bool reject_input(const struct bag_planner *planner, struct bag_text name)
{
    return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "input '%s' is unknown; a feature takes indices, offsets, segment_ids, "
                           "num_segments, default_index and per_sample_weights",
                           bag_quote(name.data, name.bytes).text);
}

/* ---- a collection: tensors ------------------------------------------------------------------- */

/* Finds where a tensor is stored: in a feature's inputs, or in KeyedJaggedTensor's layout. */
static bool find_place(struct bag_planner *planner, struct bag_text name,
                       const struct bag_tensor ***place)
{
    struct bag_text feature_name, input_name;
    enum bag_kjt_input kjt_input = find_kjt_input(name);
    if (kjt_input != BAG_KJT_INPUT_COUNT) {
        *place = &planner->kjt->tensors[kjt_input];
        return true;
    }
    if (!split_name(name, &feature_name, &input_name))
        return reject_form(planner, name);
    const struct bag_feature *feature =
        bag_model_feature(planner->model, feature_name.data, feature_name.bytes);
    if (!feature)
        return reject_feature(planner, name, feature_name);
    enum bag_input input = find_input(input_name);
    if (input == BAG_INPUT_COUNT)
        return reject_input(planner, name);
    *place = &planner->inputs[feature - planner->model->features].tensor[input];
    return true;
}

/* Reads all tensors of the request and stores them by feature, or in the layout of all features. */
static bool read_tensors(struct bag_planner *planner)
{
    const struct bag_v2_request *request = planner->request;
    struct bag_tensor *tensors =
        bag_arena_array(planner->arena, request->num_inputs, sizeof *tensors);
    if (!tensors)
        return bag_planner_no_memory(planner);
    for (size_t i = 0; i < request->num_inputs; i++) {
        const struct bag_tensor **place = NULL;
        if (!find_place(planner, request->inputs[i].name, &place) ||
            !bag_v2_input_read(&request->inputs[i], planner->arena, &tensors[i], planner->problem))
            return false;
        *place = &tensors[i];
    }
    return true;
}

/* ---- a collection: layouts ------------------------------------------------------------------- */

/* Returns the name of a feature, for the problems of bag_kjt_read(). */
static const char *name_of(const void *context, size_t feature)
{
    const struct bag_model *model = context;
    return model->features[feature].name;
}

/* Checks the features that require one type for all index tensors. bag_kjt_part converts the
 * offsets, so this must be checked before. */
static bool check_types(const struct bag_planner *planner)
{
    const struct bag_kjt *kjt = planner->kjt;
    enum bag_kjt_input which = kjt->tensors[BAG_KJT_LENGTHS] ? BAG_KJT_LENGTHS : BAG_KJT_OFFSETS;
    enum bag_dtype values = kjt->tensors[BAG_KJT_VALUES]->dtype, other = kjt->tensors[which]->dtype;
    for (size_t i = 0; values != other && i < planner->model->num_features; i++) {
        if (planner->model->features[i].rules.require_matching_index_types)
            return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                                   "'%s' has datatype %s while 'values' has %s; feature '%s' "
                                   "requires one type for all index tensors",
                                   bag_kjt_input_names[which], bag_dtypes[other].name,
                                   bag_dtypes[values].name, planner->model->features[i].name);
    }
    return true;
}

/* Reads the inputs of all features from KeyedJaggedTensor's layout. Both layouts cannot be
 * combined. */
static bool read_kjt(struct bag_planner *planner)
{
    struct bag_kjt_features features = {planner->model->num_features, name_of, planner->model};
    const struct bag_v2_input *named = planner->request->inputs;
    const struct bag_v2_input *end = named + planner->request->num_inputs;
    while (named < end && find_kjt_input(named->name) != BAG_KJT_INPUT_COUNT)
        named++;
    enum bag_kjt_input of_all =
        planner->kjt->tensors[BAG_KJT_STRIDES] ? BAG_KJT_STRIDES : BAG_KJT_VALUES;
    if (named < end) /* an input of a single feature */
        return bag_problem_set(
            planner->problem, BAG_ERROR_BAD_REQUEST,
            "input '%s' cannot be combined with '%s': send the inputs of each feature, "
            "or 'values' for all",
            bag_quote(named->name.data, named->name.bytes).text, bag_kjt_input_names[of_all]);
    return bag_kjt_read(planner->kjt, &features, planner->arena, planner->problem) &&
           check_types(planner);
}

/* Reads the inputs of a request for a collection. */
static bool match_collection(struct bag_planner *planner)
{
    bool layout = false;
    planner->kjt = bag_arena_alloc(planner->arena, sizeof *planner->kjt);
    if (!planner->kjt)
        return bag_planner_no_memory(planner);
    memset(planner->kjt, 0, sizeof *planner->kjt);
    if (!read_tensors(planner))
        return false;
    for (int i = 0; i < BAG_KJT_INPUT_COUNT; i++)
        layout |= planner->kjt->tensors[i] != NULL;
    if (layout)
        return read_kjt(planner);
    planner->kjt = NULL;
    return true;
}

bool bag_planner_match(struct bag_planner *planner)
{
    return bag_model_is_collection(planner->model) ? match_collection(planner)
                                                   : match_table(planner);
}
