/* Whether a page in a browser may see a reply (CORS). */
#ifndef BAG_HTTP_ORIGIN_H
#define BAG_HTTP_ORIGIN_H

#include "head.h"
#include "message.h"

/* Sets the reply's members for browsers. `origins` is the operator's list; NULL: CORS is off. The
 * reply may point into the head from then on. */
void bag_http_allow_origin(const char *origins, const struct bag_http_head *head,
                           struct bag_http_reply *reply);

#endif
