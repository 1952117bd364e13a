/* Which web pages may ask the server from inside a browser (CORS). */
#ifndef BAG_CORS_H
#define BAG_CORS_H

#include "problem.h"

/* The operator's list is "*" or origins with commas between them: "https://a.example,
 * http://localhost:3000". */

/* Rejects a list with anything in it that cannot be an origin, so that a slash at an origin's end
 * is found when the server starts and not by a browser. */
bool bag_cors_check(const char *origins, struct bag_problem *problem);

/* Whether the list is "*", which is every origin. */
bool bag_cors_is_any(const char *origins);

/* Whether the list, which bag_cors_check accepts, has this origin. */
bool bag_cors_allows(const char *origins, const char *origin);

#endif
