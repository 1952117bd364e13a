/* A plain reply -> libmicrohttpd's response; see answer.h. */
#include "answer.h"

#include "head.h"
#include "proto/text.h"
#include "server/metrics/expose.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define JSON_TYPE "application/json"

static const char *type_of(const struct bag_http_reply *reply)
{
    if (reply->header_bytes)
        return "application/octet-stream";
    return reply->prometheus ? BAG_PROMETHEUS_TYPE : JSON_TYPE;
}

#define TENSORS_HEADER "Inference-Header-Content-Length"

/* How long a browser may remember what a path allows. */
#define PREFLIGHT_MAX_AGE_S 600

static void add_number(struct MHD_Response *response, const char *name, size_t value)
{
    char text[BAG_DIGITS_BYTES + 1];
    *bag_digits_put(text, value) = 0;
    MHD_add_response_header(response, name, text);
}

/* What a browser asks about before it shows a page the reply, or sends what a page asks for. */
static void add_cors(const struct bag_http_reply *reply, struct MHD_Response *response)
{
    if (reply->varies_by_origin)
        MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, "Origin");
    if (!reply->allow_origin)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", reply->allow_origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers",
                            TENSORS_HEADER ", " MHD_HTTP_HEADER_RETRY_AFTER);
    if (!reply->preflight || !reply->allow)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Methods", reply->allow);
    MHD_add_response_header(response, "Access-Control-Allow-Headers",
                            MHD_HTTP_HEADER_CONTENT_TYPE ", " MHD_HTTP_HEADER_CONTENT_ENCODING
                                                         ", " TENSORS_HEADER);
    add_number(response, "Access-Control-Max-Age", PREFLIGHT_MAX_AGE_S);
}

static void add_headers(const struct bag_http_reply *reply, bool close,
                        struct MHD_Response *response)
{
    if (reply->body_bytes)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type_of(reply));
    if (reply->header_bytes)
        add_number(response, TENSORS_HEADER, reply->header_bytes);
    if (reply->coding)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_ENCODING, reply->coding);
    if (reply->varies_by_coding)
        MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ACCEPT_ENCODING);
    add_cors(reply, response);
    if (reply->request_id)
        MHD_add_response_header(response, BAG_HEADER_REQUEST_ID, reply->request_id);
    if (reply->traceparent)
        MHD_add_response_header(response, BAG_HEADER_TRACEPARENT, reply->traceparent);
    if (reply->allow)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, reply->allow);
    if (reply->retry_after_s)
        add_number(response, MHD_HTTP_HEADER_RETRY_AFTER, reply->retry_after_s);
    if (close)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
}

enum MHD_Result bag_http_answer(struct MHD_Connection *connection, struct bag_http_reply *reply,
                                bool close)
{
    if (!reply->body)
        return MHD_NO;
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(
        reply->body_bytes, reply->body, reply->free_body);
    if (!response)
        return MHD_NO;
    reply->body = NULL;
    add_headers(reply, close, response);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    return result;
}

bool bag_http_answer_raw(int socket_fd, const struct bag_http_reply *reply)
{
    char text[1024];
    if (!reply->body)
        return false;
    int bytes = snprintf(text, sizeof text,
                         "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: " JSON_TYPE
                         "\r\nContent-Length: %zu\r\n\r\n%s",
                         reply->status, MHD_get_reason_phrase_for((unsigned)reply->status),
                         reply->body_bytes, reply->body);
    return (size_t)bytes < sizeof text &&
           send(socket_fd, text, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == bytes;
}
