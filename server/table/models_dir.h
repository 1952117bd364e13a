/* A directory of models -> configured models.
 *
 *   DIR/NAME.npy                    model NAME, version 1
 *   DIR/NAME/VERSION/TABLE.npy      one table file for each version, with
 *   DIR/NAME/VERSION/config.json    optionally, the model's keys; or alone, with a collection's
 *                                   features
 *
 * Names with a leading dot are skipped (mounted volumes hold some); other files are ignored. */
#ifndef BAG_MODELS_DIR_H
#define BAG_MODELS_DIR_H

#include "config/config.h"

/* Adds what the directory holds to the configuration; false with *problem naming the path. */
bool bag_models_dir_scan(const char *directory, struct bag_config *config,
                         struct bag_problem *problem);

#endif
