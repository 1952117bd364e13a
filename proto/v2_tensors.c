/* Which tensors a model takes and makes, for the documents that list them; see v2_document.h. */
#include "kjt.h"
#include "v2_document.h"

#define COUNT_OF(list) (sizeof(list) / sizeof(list)[0])

/* The offsets form's inputs, of which indices and offsets must be there. */
static bool table_input(const struct bag_v2_model *model, size_t position,
                        struct bag_v2_tensor *tensor)
{
    static const struct {
        enum bag_input input;
        int64_t first;
        bool optional;
    } inputs[] = {{BAG_INDICES, -1, false},
                  {BAG_OFFSETS, -1, false},
                  {BAG_PER_SAMPLE_WEIGHTS, -1, true},
                  {BAG_DEFAULT_INDEX, 1, true}};
    if (position >= COUNT_OF(inputs))
        return false;
    bool is_weights = inputs[position].input == BAG_PER_SAMPLE_WEIGHTS;
    *tensor = (struct bag_v2_tensor){.name = bag_input_names[inputs[position].input],
                                     .dtype = is_weights ? model->features->weights_dtype : BAG_I64,
                                     .optional = inputs[position].optional,
                                     .first = inputs[position].first};
    return true;
}

/* Those of KeyedJaggedTensor's layout. */
static bool collection_input(size_t position, struct bag_v2_tensor *tensor)
{
    static const enum bag_kjt_input inputs[] = {BAG_KJT_VALUES, BAG_KJT_LENGTHS, BAG_KJT_WEIGHTS};
    if (position >= COUNT_OF(inputs))
        return false;
    bool is_weights = inputs[position] == BAG_KJT_WEIGHTS;
    *tensor = (struct bag_v2_tensor){.name = bag_kjt_input_names[inputs[position]],
                                     .dtype = is_weights ? BAG_F32 : BAG_I64,
                                     .optional = is_weights,
                                     .first = -1};
    return true;
}

bool bag_v2_model_input(const struct bag_v2_model *model, size_t position,
                        struct bag_v2_tensor *tensor)
{
    return model->is_collection ? collection_input(position, tensor)
                                : table_input(model, position, tensor);
}

/* All features side by side, where they have one type. */
static bool concatenation(const struct bag_v2_model *model, struct bag_v2_tensor *tensor)
{
    int64_t columns = 0;
    for (size_t i = 0; i < model->num_features; i++) {
        if (model->features[i].output_dtype != model->features[0].output_dtype)
            return false;
        columns += (int64_t)model->features[i].row_elements;
    }
    *tensor = (struct bag_v2_tensor){.name = "embeddings",
                                     .dtype = model->features[0].output_dtype,
                                     .first = -1,
                                     .rest_rank = 1,
                                     .columns = columns};
    return true;
}

bool bag_v2_model_output(const struct bag_v2_model *model, size_t position,
                         struct bag_v2_tensor *tensor)
{
    if (position == model->num_features && model->is_collection)
        return concatenation(model, tensor);
    if (position >= model->num_features)
        return false;
    const struct bag_v2_feature *feature = &model->features[position];
    *tensor = (struct bag_v2_tensor){.name = feature->name,
                                     .dtype = feature->output_dtype,
                                     .first = -1,
                                     .rest = feature->row_shape,
                                     .rest_rank = feature->row_rank};
    return true;
}

bool bag_v2_add_dimensions(cJSON *item, const char *key, const struct bag_v2_tensor *tensor)
{
    const int64_t *rest = tensor->rest ? tensor->rest : &tensor->columns;
    cJSON *list = cJSON_AddArrayToObject(item, key);
    bool whole = list && cJSON_AddItemToArray(list, cJSON_CreateNumber((double)tensor->first));
    for (uint32_t i = 0; whole && i < tensor->rest_rank; i++)
        whole = cJSON_AddItemToArray(list, cJSON_CreateNumber((double)rest[i]));
    return whole;
}
