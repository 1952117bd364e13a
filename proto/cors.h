/* Cross-origin requests (CORS): the origins whose web pages may send requests from a browser. */
#pragma once

#include "problem.h"

/* The operator's list is "*" or origins separated by commas: "https://a.example,
 * http://localhost:3000". */

/* Checks a list when the server starts. Returns false and sets *problem if an element cannot be an
 * origin, for example because it ends with a slash. */
bool bag_cors_check(const char *origins, struct bag_problem *problem);

/* Returns whether the list is "*", which allows every origin. */
bool bag_cors_is_any(const char *origins);

/* Returns whether the list contains this origin. The list has been accepted by bag_cors_check. */
bool bag_cors_allows(const char *origins, const char *origin);
