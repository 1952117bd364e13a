/* Lines of the access log, and of slow requests; see access.h. */
#include "access.h"

#include "server/log.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

void bag_http_access_begin(struct bag_http_access *access, const struct bag_option_values *options,
                           const struct bag_first_line *line, const struct bag_http_head *head)
{
    bool logged = options->access_log == BAG_SWITCH_ON || options->slow_request_ms > 0;
    access->method = line->method;
    access->target = line->target;
    access->client = line->client;
    access->head = head;
    access->received_bytes = 0;
    access->id[0] = 0;
    access->begun_ns = logged ? uv_hrtime() : 0;
}

void bag_http_access_keep_id(struct bag_http_access *access, const struct bag_infer *infer)
{
    if (access->begun_ns && infer->id.bytes > 2) /* as it stands there, in quotes */
        snprintf(access->id, sizeof access->id, "%.*s", (int)infer->id.bytes - 2,
                 infer->id.data + 1);
}

/* "127.0.0.1:5000", "[::1]:5000", or "unix". */
static void print_client(int fd, char *text, size_t room)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    char host[INET6_ADDRSTRLEN];
    const struct sockaddr_in *four = (const struct sockaddr_in *)&address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&address;
    snprintf(text, room, "unix");
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0)
        return;
    if (address.ss_family == AF_INET && inet_ntop(AF_INET, &four->sin_addr, host, sizeof host))
        snprintf(text, room, "%s:%u", host, ntohs(four->sin_port));
    if (address.ss_family == AF_INET6 && inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host))
        snprintf(text, room, "[%s]:%u", host, ntohs(six->sin6_port));
}

static const char *text_of(const char *text)
{
    return text ? text : "";
}

static void log_request(const struct bag_http_access *access, const struct bag_job *job,
                        const struct bag_http_reply *reply, uint64_t took_us, bool slow)
{
    const struct bag_model *model = job->infer.model;
    bool pooled = model && reply->status == 200;
    char client[INET6_ADDRSTRLEN + 16];
    print_client(access->client->fd, client, sizeof client);
    bag_log(
        slow ? BAG_LOG_LEVEL_WARNING : BAG_LOG_LEVEL_INFO, slow ? "slow request" : "request",
        BAG_LOG_TEXT("client", client), BAG_LOG_TEXT("method", access->method),
        BAG_LOG_TEXT("path", access->target), BAG_LOG_NUMBER("status", reply->status),
        BAG_LOG_NUMBER("bytes_in", access->received_bytes),
        BAG_LOG_NUMBER("bytes_out", reply->body_bytes), BAG_LOG_NUMBER("duration_us", took_us),
        BAG_LOG_TEXT("model", model ? model->name : ""),
        BAG_LOG_NUMBER("bags", pooled ? job->infer.plan.work.bags : 0),
        BAG_LOG_NUMBER("ids", pooled ? job->infer.plan.work.rows : 0),
        BAG_LOG_TEXT("request_id", access->id[0] ? access->id : text_of(access->head->request_id)),
        BAG_LOG_TEXT("traceparent", text_of(access->head->traceparent)));
}

void bag_http_access_end(const struct bag_http_access *access,
                         const struct bag_option_values *options, const struct bag_job *job,
                         struct bag_http_reply *reply)
{
    reply->request_id = access->head->request_id;
    reply->traceparent = access->head->traceparent;
    if (!access->begun_ns)
        return;
    uint64_t took_us = (uv_hrtime() - access->begun_ns) / 1000;
    bool slow =
        options->slow_request_ms > 0 && took_us >= (uint64_t)options->slow_request_ms * 1000;
    if (slow || options->access_log == BAG_SWITCH_ON)
        log_request(access, job, reply, took_us, slow);
}
