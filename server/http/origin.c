/* Whether a page in a browser may see a reply; see origin.h. */
#include "origin.h"

#include "proto/cors.h"

void bag_http_allow_origin(const char *origins, const struct bag_http_head *head,
                           struct bag_http_reply *reply)
{
    if (!origins)
        return;
    reply->varies_by_origin = !bag_cors_is_any(origins);
    reply->preflight = head->preflight;
    if (head->origin && bag_cors_allows(origins, head->origin))
        reply->allow_origin = reply->varies_by_origin ? head->origin : "*";
}
