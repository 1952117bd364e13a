/* What the writers of V2 documents share. Private to proto/v2_*.c. */
#ifndef BAG_V2_DOCUMENT_H
#define BAG_V2_DOCUMENT_H

#include "v2_describe.h"

#include <cjson/cJSON.h>

/* Prints and frees the tree. A tree that is missing a part for want of memory prints without it,
 * which cJSON reports nowhere but in the part's NULL: `whole` carries that, and NULL is returned.
 */
char *bag_v2_print(cJSON *tree, bool whole);

/* Adds an array of strings; false without memory. */
bool bag_v2_add_strings(cJSON *tree, const char *key, const char *const *strings, size_t count);

/* Adds an empty object to an array; NULL without memory. */
cJSON *bag_v2_add_item(cJSON *list);

/* A tensor that a model takes or makes; -1 is a dimension of any size. */
struct bag_v2_tensor {
    const char *name;
    enum bag_dtype dtype;
    bool optional;
    int64_t first;       /* dimension */
    const int64_t *rest; /* dimensions; borrowed from the model */
    uint32_t rest_rank;
    int64_t columns; /* what `rest` points to where it is one number of our own */
};

/* A model's inputs and outputs one by one; false where there is no such one. */
bool bag_v2_model_input(const struct bag_v2_model *model, size_t position,
                        struct bag_v2_tensor *tensor);
bool bag_v2_model_output(const struct bag_v2_model *model, size_t position,
                         struct bag_v2_tensor *tensor);

/* Adds the dimensions as an array; false without memory. */
bool bag_v2_add_dimensions(cJSON *item, const char *key, const struct bag_v2_tensor *tensor);

#endif
