/* Where the configuration comes from: files, environment, flags, a directory of models. */
#ifndef BAG_CONFIGURE_H
#define BAG_CONFIGURE_H

#include "config/config.h"

/* Fills the configuration from the file that the arguments or the environment name, from the
 * environment, and from the arguments. False with *problem; in any case bag_config_free is due. */
bool bag_configure(struct bag_config *config, int argc, char *argv[], struct bag_problem *problem);

/* Whether one of the arguments is `flag`. */
bool bag_arguments_have(int argc, char *argv[], const char *flag);

/* Adds the models of a directory to the configuration; false with *problem naming the path.
 *
 *   DIR/NAME.npy                    model NAME, version 1
 *   DIR/NAME/VERSION/TABLE.npy      one table file for each version, with
 *   DIR/NAME/VERSION/config.json    optionally, the model's keys; or alone, with a collection's
 *                                   features
 *
 * Names with a leading dot are skipped (mounted volumes hold some); other files are ignored. */
bool bag_configure_models_dir(struct bag_config *config, const char *directory,
                              struct bag_problem *problem);

/* Adds the tables and the collection of `--demo`. */
bool bag_configure_demo(struct bag_config *config, struct bag_problem *problem);

#endif
