/* A request's head; see head.h. */
#include "head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is(const char *name, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && strncasecmp(name, wanted, bytes) == 0;
}

static enum MHD_Result on_header(void *context, enum MHD_ValueKind kind, const char *name,
                                 size_t name_bytes, const char *value, size_t value_bytes)
{
    struct bag_http_head *head = context;
    (void)kind, (void)value_bytes;
    if (is(name, name_bytes, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        head->has_length = true;
        head->length = strtoull(value, NULL, 10);
    } else if (is(name, name_bytes, "Inference-Header-Content-Length")) {
        head->tensors = value;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_CONTENT_ENCODING)) {
        head->encoding = head->encoding ? "several headers" : value;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_ACCEPT_ENCODING)) {
        head->accept = value;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        head->chunked = true;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_EXPECT)) {
        head->expects_continue = true;
    } else if (is(name, name_bytes, "Origin")) {
        head->origin = value;
    } else if (is(name, name_bytes, "Access-Control-Request-Method")) {
        head->preflight = true;
    }
    return MHD_YES;
}

void bag_http_head_read(struct MHD_Connection *connection, struct bag_http_head *head)
{
    *head = (struct bag_http_head){0};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, on_header, head);
}
