/* What the server keeps of a request's head; see head.h. */
#include "head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A rejected request's body is read to its end up to this. */
#define DROP_BYTES (1 << 20)

/* A longer one is not passed through. */
#define MAX_TRACE_BYTES 256

static bool is(const char *name, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && strncasecmp(name, wanted, bytes) == 0;
}

static const char *traceable(const char *value)
{
    return strlen(value) <= MAX_TRACE_BYTES ? value : NULL;
}

void bag_http_head_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                        const char *value)
{
    if (is(name, name_bytes, "Content-Length")) {
        head->has_length = true;
        head->length = strtoull(value, NULL, 10);
    } else if (is(name, name_bytes, BAG_HEADER_JSON_LENGTH)) {
        head->json_length = value;
    } else if (is(name, name_bytes, "Content-Encoding")) {
        head->encoding = head->encoding ? "several headers" : value;
    } else if (is(name, name_bytes, "Accept-Encoding")) {
        head->accept = value;
    } else if (is(name, name_bytes, "Transfer-Encoding")) {
        head->chunked = true;
    } else if (is(name, name_bytes, "Expect")) {
        head->expects_continue = true;
    } else if (is(name, name_bytes, "Authorization")) {
        head->authorization = head->authorization ? "" : value;
    } else if (is(name, name_bytes, "Origin")) {
        head->origin = value;
    } else if (is(name, name_bytes, "Access-Control-Request-Method")) {
        head->preflight = true;
    } else if (is(name, name_bytes, BAG_HEADER_REQUEST_ID)) {
        head->request_id = traceable(value);
    } else if (is(name, name_bytes, BAG_HEADER_TRACEPARENT)) {
        head->traceparent = traceable(value);
    }
}

bool bag_http_head_may_drop(const struct bag_http_head *head)
{
    return !head->chunked && head->length <= DROP_BYTES && !head->expects_continue;
}

const char *bag_http_head_path(const char *target)
{
    const char *authority = *target == '/' ? NULL : strstr(target, "://");
    if (!authority)
        return target;
    authority += 3;
    authority += strcspn(authority, "/");
    return *authority ? authority : "/";
}
