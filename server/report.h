/* The report of `serve --check` on standard output. */
#pragma once

#include "server/models/reconciler.h"

/* Prints a line for each checked model with its shape and format, or with what is wrong with it.
 * Prints a line about all of them if nothing is wrong. */
void bag_report_checked(const struct bag_reconciler *reconciler, const struct bag_check *check);
