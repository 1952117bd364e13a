/* Entries of "models", and a model folder's config.json. Private to config. */
#ifndef BAG_MODEL_JSON_H
#define BAG_MODEL_JSON_H

#include "config.h"
#include "json.h"

/* Adds the models of the array that the key "models" must hold. */
bool bag_config_json_models(const struct bag_config_json *json, const cJSON *models,
                            struct bag_config *config);

#endif
