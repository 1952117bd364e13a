/* Reports about the models: in the log when they are served, and on standard output for `serve
 * --check`. */
#pragma once

#include "server/models/reconciler.h"

/* Logs "ready" with the number of models, their bytes and the server's address. */
void bag_report_ready(const struct bag_reconciler *reconciler, const char *url);

/* Prints a line for each checked model with its shape and format, or with what is wrong with it.
 * Prints a line about all of them if nothing is wrong. */
void bag_report_checked(const struct bag_reconciler *reconciler, const struct bag_check *check);
