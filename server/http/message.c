/* Replies as plain values; see message.h. */
#include "message.h"

#include "errors.h"
#include "proto/v2_documents.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Long enough not to hammer a server that is starting or stopping, short enough to find it back. */
#define RETRY_AFTER_S 1

void bag_http_reply_json(struct bag_http_reply *reply, int status, char *document)
{
    if (!document) {
        bag_http_reply_failure(reply, BAG_ERROR_NO_MEMORY,
                               strdup("{\"error\":\"not enough memory\"}"));
        return;
    }
    memset(reply, 0, sizeof *reply);
    reply->status = status;
    reply->body = document;
    reply->free_body = free;
    reply->body_bytes = strlen(document);
}

void bag_http_reply_failure(struct bag_http_reply *reply, enum bag_error error, char *document)
{
    memset(reply, 0, sizeof *reply);
    reply->status = bag_http_error_status(error);
    reply->error = error;
    reply->retry_after_s = reply->status == 503 ? RETRY_AFTER_S : 0;
    reply->body = document;
    reply->free_body = free;
    reply->body_bytes = document ? strlen(document) : 0;
}

/* libmicrohttpd wants a buffer, also an empty one. */
void bag_http_reply_empty(struct bag_http_reply *reply, int status)
{
    bag_http_reply_json(reply, status, strdup(""));
}

void bag_http_reply_problem(struct bag_http_reply *reply, const struct bag_problem *problem)
{
    bag_http_reply_failure(reply, problem->kind, bag_v2_describe_error(problem->text));
}

void bag_http_reply_error(struct bag_http_reply *reply, enum bag_error error, const char *format,
                          ...)
{
    char text[BAG_PROBLEM_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bag_http_reply_failure(reply, error, bag_v2_describe_error(text));
}
