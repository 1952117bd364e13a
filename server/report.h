/* What is told of the models: in the log when they serve, on standard output by `serve --check`. */
#ifndef BAG_SERVER_REPORT_H
#define BAG_SERVER_REPORT_H

#include "server/models/reconciler.h"

/* The log line "ready": how many models there are, their bytes, where they answer, and the names of
 * those that do. `reader` is of the calling thread. */
void bag_report_ready(const struct bag_reconciler *reconciler, struct bag_reader *reader,
                      const char *url);

/* A line for each model that was checked, with its shape and format, and one for all. */
void bag_report_checked(const struct bag_reconciler *reconciler);

#endif
