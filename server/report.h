/* What is told of the models: in the log when they serve, on standard output by `serve --check`. */
#ifndef BAG_SERVER_REPORT_H
#define BAG_SERVER_REPORT_H

#include "server/models/reconciler.h"

/* Logs "ready": the number of models, their bytes, and where they answer. */
void bag_report_ready(const struct bag_reconciler *reconciler, const char *url);

/* Prints a line for each model that was checked, with its shape and format or with what is wrong
 * with it, and one for all if nothing is wrong. */
void bag_report_checked(const struct bag_reconciler *reconciler, const struct bag_check *check);

#endif
