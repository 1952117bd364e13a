/* Errors over HTTP: the one table from the kind of an error to the status that a client sees and
 * to the reason that metrics count. */
#ifndef BAG_HTTP_ERRORS_H
#define BAG_HTTP_ERRORS_H

#include "proto/problem.h"
#include "server/metrics/metrics.h"

int bag_http_error_status(enum bag_error kind);

enum bag_rejection bag_http_error_reason(enum bag_error kind);

#endif
