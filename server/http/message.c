/* Replies as plain values; see message.h. */
#include "message.h"

#include "proto/v2_documents.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Long enough not to hammer a server that is starting or stopping, short enough to find it back. */
#define RETRY_AFTER_S 1

void bag_http_reply_json(struct bag_http_reply *reply, int status, char *document)
{
    memset(reply, 0, sizeof *reply);
    reply->status = status;
    reply->body = document;
    reply->free_body = free;
    if (status == 503)
        reply->retry_after_s = RETRY_AFTER_S;
    if (!document) {
        reply->status = 500;
        reply->body = strdup("{\"error\":\"not enough memory\"}");
    }
    reply->body_bytes = reply->body ? strlen(reply->body) : 0;
}

/* libmicrohttpd wants a buffer, also an empty one. */
void bag_http_reply_empty(struct bag_http_reply *reply, int status)
{
    bag_http_reply_json(reply, status, strdup(""));
}

void bag_http_reply_problem(struct bag_http_reply *reply, const struct bag_problem *problem)
{
    bag_http_reply_json(reply, problem->http_status, bag_v2_describe_error(problem->text));
}

void bag_http_reply_error(struct bag_http_reply *reply, int status, const char *format, ...)
{
    char text[BAG_PROBLEM_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bag_http_reply_json(reply, status, bag_v2_describe_error(text));
}
