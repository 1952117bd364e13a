/* The "features" of a model. Private to config. */
#ifndef BAG_FEATURES_JSON_H
#define BAG_FEATURES_JSON_H

#include "config.h"
#include "json.h"

/* Gives the model the features of the array that the key "features" must hold. */
bool bag_config_json_features(const struct bag_config_json *json, const cJSON *features,
                              struct bag_model_config *model);

#endif
