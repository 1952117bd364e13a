/* The rules by which a feature pools its table, checked against the table. */
#pragma once

#include "source.h"

/* Completes configured rules for the feature's table. `what` begins messages. Returns false and
 * sets *problem (BAG_ERROR_CONFIGURATION) if they do not fit the table. */
bool bag_source_complete_rules(struct bag_feature_source *feature,
                               const struct bag_feature_config *pooling, const char *what,
                               struct bag_problem *problem);

/* Checks what the rules need of the keys once they are loaded: a configured default_index must be
 * one of them. `what` begins messages. Returns false and sets *problem (BAG_ERROR_CONFIGURATION) if
 * it is missing. Takes the lock of a live table. */
bool bag_source_check_keys(const struct bag_rules *rules, const struct bag_table_memory *memory,
                           const char *what, struct bag_problem *problem);
