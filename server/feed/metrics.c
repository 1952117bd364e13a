/* Answers GET /metrics, on a thread of libmicrohttpd; see feed.h. */
#include "feed.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>

/* Queues a reply with a copy of the text. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              const char *text)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* Copies a label's value. A quote, a backslash or a control character, which no model's name has,
 * becomes "?". */
static void copy_label(const char *value, char *out, size_t capacity)
{
    size_t used = 0;
    for (; *value && used + 1 < capacity; value++)
        out[used++] = (unsigned char)*value < ' ' || *value == '"' || *value == '\\' ? '?' : *value;
    out[used] = 0;
}

/* Answers one request. Runs on libmicrohttpd's thread. */
static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_bytes, void **state)
{
    const struct bag_feed_metrics *metrics = context;
    char text[8192], model[160];
    size_t used = 0;
    (void)version, (void)body, (void)state;
    if (strcmp(url, "/metrics") != 0)
        return answer(connection, 404, "text/plain", "there is only /metrics\n");
    if (strcmp(method, "GET") != 0 || *body_bytes)
        return answer(connection, 405, "text/plain", "use GET\n");
    copy_label(metrics->model, model, sizeof model);
#define BAG_X(name, type, help)                                                                 \
    used +=                                                                                     \
        (size_t)snprintf(text + used, sizeof text - used,                                       \
                         "# HELP bagserve_feed_" #name " " help "\n# TYPE bagserve_feed_" #name \
                         " " type "\nbagserve_feed_" #name "{model=\"%s\"} %lld\n",             \
                         model, (long long)metrics->name);
    BAG_FEED_METRICS(BAG_X)
#undef BAG_X
    return answer(connection, 200, "text/plain; version=0.0.4", text);
}

/* Starts to listen on all addresses of a family. Returns NULL and sets errno on failure. */
static struct MHD_Daemon *start(const struct bag_feed_metrics *metrics, int port, unsigned family)
{
    return MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | family, (uint16_t)port,
                            NULL, NULL, on_request, (void *)(uintptr_t)metrics,
                            MHD_OPTION_CONNECTION_TIMEOUT, 10U, MHD_OPTION_CONNECTION_LIMIT, 16U,
                            MHD_OPTION_END);
}

bool bag_feed_metrics_serve(const struct bag_feed_metrics *metrics, int port,
                            struct bag_problem *problem)
{
    struct MHD_Daemon *daemon = start(metrics, port, MHD_USE_DUAL_STACK);
    if (!daemon && errno != EADDRINUSE) /* the system has only IPv4 */
        daemon = start(metrics, port, 0);
    return daemon ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "cannot listen on port %d (--metrics-port): %s", port, strerror(errno));
}
