/* A request's body, as its pieces come; see body.h. */
#include "body.h"

#include <string.h>

static bool reserve(struct bag_body *body, struct bag_buffers *buffers, size_t room)
{
    char *bytes = bag_buffers_get(buffers, room);
    if (!bytes)
        return false;
    if (body->count)
        memcpy(bytes, body->bytes, body->count);
    bag_buffers_put(body->bytes);
    body->bytes = bytes;
    body->room = room;
    return true;
}

bool bag_body_append(struct bag_body *body, struct bag_buffers *buffers, const char *data,
                     size_t bytes, size_t length, size_t limit)
{
    size_t needed = body->count + bytes;
    size_t room = length ? length : needed < limit / 2 ? 2 * needed : limit;
    if (needed > body->room && !reserve(body, buffers, room))
        return false;
    memcpy(body->bytes + body->count, data, bytes);
    body->count = needed;
    return true;
}

const char *bag_body_bytes(const struct bag_body *body)
{
    return body->bytes ? body->bytes : "";
}

void bag_body_drop(struct bag_body *body)
{
    bag_buffers_put(body->bytes);
    *body = (struct bag_body){0};
}
