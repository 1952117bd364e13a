/* The features of collections, once all models are known. Private to config. */
#ifndef BAG_CONFIG_FEATURES_H
#define BAG_CONFIG_FEATURES_H

#include "config.h"

/* Whether every feature names a model of a table. */
bool bag_config_check_features(const struct bag_config *config, struct bag_problem *problem);

#endif
