/* A request's body, as its pieces come.
 *
 * Must not know: HTTP, limits' names. Runs on the loop's thread. */
#ifndef BAG_HTTP_BODY_H
#define BAG_HTTP_BODY_H

#include "server/memory/buffers.h"

/* All zero: nothing has come. */
struct bag_body {
    char *bytes; /* owned, from the buffers that it was appended with; NULL: none */
    size_t count;
    size_t room;
};

/* Appends a piece; count + bytes is at most `limit`. Takes memory for all of a body whose length is
 * known to be `length`, and doubles that of one whose length is not (0), up to `limit`. False, and
 * unchanged, without memory. */
bool bag_body_append(struct bag_body *body, struct bag_buffers *buffers, const char *data,
                     size_t bytes, size_t length, size_t limit);

/* What has come, never NULL. */
const char *bag_body_bytes(const struct bag_body *body);

/* Gives the memory back; the body is empty again. */
void bag_body_drop(struct bag_body *body);

#endif
