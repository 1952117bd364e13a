/* A request's head; see head.h. */
#include "head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A rejected request's body is read to its end up to this. */
#define DROP_BYTES (1 << 20)

/* A longer one is not passed through. */
#define MOST_TRACE_BYTES 256

struct pass {
    struct bag_http_head *head;
    struct bag_problem *problem;
    bool rejectd;
};

static bool is(const char *name, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && strncasecmp(name, wanted, bytes) == 0;
}

static void take(struct bag_http_head *head, const char *name, size_t name_bytes, const char *value)
{
    if (is(name, name_bytes, MHD_HTTP_HEADER_HOST)) {
        head->guard.hosts++;
        head->guard.host = value;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        head->guard.lengths++;
        head->has_length = true;
        head->length = strtoull(value, NULL, 10);
    } else if (is(name, name_bytes, "Inference-Header-Content-Length")) {
        head->tensors = value;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_CONTENT_ENCODING)) {
        head->encoding = head->encoding ? "several headers" : value;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_ACCEPT_ENCODING)) {
        head->accept = value;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        head->guard.codings++;
        head->guard.coding = value;
        head->chunked = true;
    } else if (is(name, name_bytes, MHD_HTTP_HEADER_EXPECT)) {
        head->expects_continue = true;
    } else if (is(name, name_bytes, "Origin")) {
        head->origin = value;
    } else if (is(name, name_bytes, "Access-Control-Request-Method")) {
        head->preflight = true;
    } else if (is(name, name_bytes, BAG_HEADER_REQUEST_ID)) {
        head->request_id = strlen(value) <= MOST_TRACE_BYTES ? value : NULL;
    } else if (is(name, name_bytes, BAG_HEADER_TRACEPARENT)) {
        head->traceparent = strlen(value) <= MOST_TRACE_BYTES ? value : NULL;
    }
}

static enum MHD_Result on_header(void *context, enum MHD_ValueKind kind, const char *name,
                                 size_t name_bytes, const char *value, size_t value_bytes)
{
    struct pass *pass = context;
    (void)kind;
    pass->rejectd =
        !bag_guard_line(&pass->head->guard, name, name_bytes, value, value_bytes, pass->problem);
    if (pass->rejectd)
        return MHD_NO;
    take(pass->head, name, name_bytes, value);
    return MHD_YES;
}

static bool read_lines(struct MHD_Connection *connection, const char *head_begin,
                       struct bag_http_head *head, struct bag_problem *problem)
{
    struct pass pass = {.head = head, .problem = problem};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, on_header, &pass);
    if (pass.rejectd)
        return false;
    size_t bytes =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size;
    return bag_guard_end(&head->guard, head_begin + bytes, problem);
}

bool bag_http_head_read(struct MHD_Connection *connection, const struct bag_first_line *line,
                        struct bag_http_head *head, struct bag_problem *problem)
{
    const struct bag_client *client = line->client;
    *head = (struct bag_http_head){0};
    if (!bag_guard_first_line(&head->guard, line->method, line->target, client->target_end,
                              line->version, problem) ||
        !read_lines(connection, line->method, head, problem))
        return false;
    if (client->target_fault)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", client->target_fault);
    if (client->surplus)
        return bag_problem_set(problem, BAG_ERROR_TOO_MANY_CONNECTIONS,
                               "too many connections (max_connections)");
    return true;
}

bool bag_http_head_may_drop(const struct bag_http_head *head)
{
    return !head->chunked && head->length <= DROP_BYTES && !head->expects_continue;
}
