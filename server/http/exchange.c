/* One request and its reply; see exchange.h.
 *
 *   HEAD ------> BODY ------> WORKING ------> READY -> answered
 *    |            `------------------------>  ^
 *    `-> DROPPING (the head was refused) -----'
 *
 * What is wrong with the head is known before the body: the body is then dropped, or not read at
 * all where it is long. A small body that is here in one piece and looks cheap is used where
 * libmicrohttpd holds it; all others are copied once. Cheap requests are answered on the loop's
 * thread, dear ones go to the engine while their connection is suspended. */
#include "exchange.h"

#include "answer.h"
#include "body.h"
#include "head.h"
#include "origin.h"
#include "record.h"

#include <stdlib.h>
#include <string.h>

/* A body whose length lets expect this many times the work that is done at once goes to the engine,
 * whatever it holds: where the queue is full it need not come. */
#define SURELY_DEAR 4

/* A compressed body up to this, that is no larger decompressed, takes about as long. */
#define INLINE_UNPACK_BYTES 8192

/* The longest body of a request that is not an inference. */
#define SMALL_BODY_BYTES ((size_t)64 << 10)

enum stage { BODY, DROPPING, WORKING, READY };

struct bag_exchange {
    struct bag_exchange *next_spare;
    struct bag_http_server *server;
    struct MHD_Connection *connection;
    struct bag_client *client;
    const struct bag_http_route *route; /* NULL: the head was refused */
    struct bag_http_target target;
    struct bag_http_head head;
    enum bag_coding coding; /* of the body */
    enum stage stage;
    bool refused;     /* for its form, or for too many connections: the connection ends with it */
    bool body_unread; /* the reply left before the body came */
    bool late;        /* it came while the server drains */
    struct bag_body body;
    struct bag_http_access access;
    uint64_t expected_ns; /* work that the announced body lets expect; 0: not known */
    struct bag_job job;
    struct bag_http_reply reply;
};

static const struct bag_option_values *options_of(const struct bag_exchange *exchange)
{
    return &exchange->server->service->config->options;
}

static bool is_infer(const struct bag_exchange *exchange)
{
    return exchange->route && !exchange->route->handler;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static enum MHD_Result answer(struct bag_exchange *exchange)
{
    bool draining = exchange->server->service->state == BAG_SERVICE_DRAINING;
    bag_http_record(exchange->server, &exchange->job, &exchange->access, &exchange->reply);
    bag_client_enter(&exchange->server->clients, exchange->client, BAG_CLIENT_READING);
    bag_http_allow_origin(options_of(exchange)->cors_origins, &exchange->head, &exchange->reply);
    return bag_http_answer(exchange->connection, &exchange->reply, exchange->refused || draining);
}

/* ---- inference ------------------------------------------------------------------------------- */

static bool packs_replies(const struct bag_exchange *exchange)
{
    return options_of(exchange)->reply_compression == BAG_SWITCH_ON;
}

static void take_reply(struct bag_exchange *exchange)
{
    struct bag_infer *infer = &exchange->job.infer;
    if (exchange->job.failed) {
        bag_http_reply_problem(&exchange->reply, &exchange->job.problem);
    } else {
        exchange->reply = (struct bag_http_reply){.status = 200,
                                                  .body = infer->reply,
                                                  .free_body = bag_buffers_put,
                                                  .body_bytes = infer->reply_bytes,
                                                  .coding = bag_infer_reply_coding(infer),
                                                  .varies_by_coding = packs_replies(exchange),
                                                  .header_bytes = infer->reply_header_bytes};
        infer->reply = NULL;
    }
    bag_http_access_keep_id(&exchange->access, infer);
    exchange->stage = READY;
}

/* Decompresses a small body that stays small, or finds the header of one that is not compressed. A
 * few bytes can become millions: what does not stay small is left to a worker. */
static bool open_body(struct bag_exchange *exchange)
{
    struct bag_infer *infer = &exchange->job.infer;
    struct bag_problem *problem = &exchange->job.problem;
    const char *tensors = exchange->head.tensors;
    if (infer->coding == BAG_CODING_IDENTITY)
        return !tensors ||
               bag_v2_header_length(tensors, infer->body_bytes, &infer->header_bytes, problem);
    if (infer->body_bytes > INLINE_UNPACK_BYTES ||
        infer->limits->max_body_bytes <= INLINE_UNPACK_BYTES)
        return true;
    return bag_infer_unpack(infer, &exchange->server->buffers, INLINE_UNPACK_BYTES, problem) ||
           problem->http_status == 413;
}

/* Sets the inference on a body; false with the reply made where its framing is wrong. */
static bool set_body(struct bag_exchange *exchange, const char *body, size_t bytes)
{
    struct bag_infer *infer = &exchange->job.infer;
    bag_infer_reset(infer);
    bag_stopwatch_start(&infer->watch, exchange->server->recorder != NULL);
    infer->body = body;
    infer->body_bytes = infer->header_bytes = bytes;
    infer->limits = &exchange->server->infer_limits;
    exchange->job.planned = false;
    infer->coding = exchange->coding;
    infer->header_length = exchange->head.tensors;
    infer->reply_coding = packs_replies(exchange) && exchange->head.accept
                              ? bag_coding_choose(exchange->head.accept)
                              : BAG_CODING_IDENTITY;
    exchange->job.failed = !open_body(exchange);
    if (exchange->job.failed)
        take_reply(exchange);
    return !exchange->job.failed;
}

/* Answers at once where that is cheap; false where the engine should: handing a request over and
 * back costs about inline_work_microseconds, and other clients would wait behind longer work. */
static bool infer_inline(struct bag_exchange *exchange)
{
    struct bag_http_server *server = exchange->server;
    struct bag_job *job = &exchange->job;
    if (job->infer.coding != BAG_CODING_IDENTITY ||
        bag_infer_plan_cost_ns(job->infer.body_bytes, job->infer.header_bytes) >
            server->inline_cost_ns)
        return false;
    job->failed = !bag_infer_plan(&job->infer, &server->envelopes, &job->problem);
    if (!job->failed && bag_infer_cost_ns(&job->infer) > server->inline_cost_ns) {
        job->planned = true;
        return false;
    }
    if (!job->failed)
        job->failed = !bag_infer_run(&job->infer, &server->buffers, &job->problem);
    bag_metrics_on_batch(server->recorder, job->infer.model, !job->failed);
    take_reply(exchange);
    return true;
}

/* The engine has finished: the connection goes on, and on_complete answers. */
static void on_job_done(struct bag_job *job)
{
    struct bag_exchange *exchange = (void *)((char *)job - offsetof(struct bag_exchange, job));
    take_reply(exchange);
    MHD_resume_connection(exchange->connection);
}

static bool is_client_there(struct bag_job *job)
{
    struct bag_exchange *exchange = (void *)((char *)job - offsetof(struct bag_exchange, job));
    return bag_client_is_there(exchange->client);
}

static void refuse_queue(struct bag_exchange *exchange)
{
    bag_engine_refuse(&exchange->server->engine, &exchange->job);
    bag_http_reply_problem(&exchange->reply, &exchange->job.problem);
}

static bool is_surely_dear(const struct bag_exchange *exchange)
{
    return exchange->expected_ns / SURELY_DEAR > exchange->server->inline_cost_ns;
}

static bool has_room(const struct bag_exchange *exchange)
{
    return bag_engine_has_room(&exchange->server->engine, exchange->body.count);
}

static enum MHD_Result hand_over(struct bag_exchange *exchange)
{
    if (!has_room(exchange)) {
        refuse_queue(exchange);
        return answer(exchange);
    }
    exchange->stage = WORKING;
    bag_client_enter(&exchange->server->clients, exchange->client, BAG_CLIENT_WAITING);
    exchange->job.done = on_job_done;
    exchange->job.is_wanted = is_client_there;
    MHD_suspend_connection(exchange->connection);
    bag_engine_submit(&exchange->server->engine, &exchange->job);
    return MHD_YES;
}

/* ---- the head -------------------------------------------------------------------------------- */

/* How much of a body is read: other bodies than inference's are a few words, and are read on the
 * loop's thread. */
static size_t body_limit(const struct bag_exchange *exchange)
{
    size_t limit = (size_t)options_of(exchange)->max_body_bytes;
    return is_infer(exchange) || limit < SMALL_BODY_BYTES ? limit : SMALL_BODY_BYTES;
}

static void refuse_body(struct bag_exchange *exchange)
{
    bag_http_reply_error(&exchange->reply, 413, "the body is larger than the limit%s of %zu bytes",
                         is_infer(exchange) ? " (max_body_bytes)" : "", body_limit(exchange));
}

/* The route of the path; of the one that was asked last without looking. */
static void find_route(struct bag_exchange *exchange, const char *url, const char *method)
{
    struct bag_http_memo *memo = &exchange->server->memo;
    if (bag_http_memo_is_of(memo, method, url)) {
        exchange->route = memo->route;
        exchange->job.infer.model = memo->model;
        return;
    }
    exchange->route =
        bag_http_route(method, url, exchange->server->infers, &exchange->target, &exchange->reply);
    if (!exchange->route || exchange->route->handler)
        return;
    exchange->job.infer.model =
        bag_http_find_model(exchange->server->service, &exchange->target, &exchange->reply);
    if (exchange->job.infer.model)
        bag_http_memo_keep(memo, url, exchange->route, exchange->job.infer.model);
}

static bool accept_coding(struct bag_exchange *exchange)
{
    exchange->coding = BAG_CODING_IDENTITY;
    if (!exchange->head.encoding)
        return true;
    if (!bag_coding_read(exchange->head.encoding, &exchange->coding, &exchange->job.problem)) {
        bag_http_reply_problem(&exchange->reply, &exchange->job.problem);
        return false;
    }
    if (exchange->coding == BAG_CODING_IDENTITY || is_infer(exchange))
        return true;
    bag_http_reply_error(&exchange->reply, 415,
                         "Content-Encoding is '%s'; only bodies for infer may be compressed",
                         bag_coding_names[exchange->coding]);
    return false;
}

static uint64_t expected_work_ns(struct bag_exchange *exchange)
{
    struct bag_infer *infer = &exchange->job.infer;
    infer->body_bytes = (size_t)exchange->head.length;
    infer->header_bytes = exchange->head.tensors ? 0 : infer->body_bytes;
    return exchange->head.has_length ? bag_infer_whole_cost_ns(infer) : 0;
}

/* All that can be refused before the body; makes the reply where it is. */
static bool accept_body(struct bag_exchange *exchange)
{
    bool infer = is_infer(exchange);
    if (infer && !exchange->job.infer.model)
        return false;
    if (infer && exchange->server->service->state == BAG_SERVICE_DRAINING) {
        bag_http_reply_error(&exchange->reply, 503, "the server is stopping");
        return false;
    }
    if (!accept_coding(exchange))
        return false;
    if (exchange->head.length > body_limit(exchange)) {
        refuse_body(exchange);
        return false;
    }
    exchange->expected_ns = infer ? expected_work_ns(exchange) : 0;
    if (is_surely_dear(exchange) &&
        !bag_engine_has_room(&exchange->server->engine, (size_t)exchange->head.length)) {
        refuse_queue(exchange);
        return false;
    }
    return true;
}

/* The first callback: the head is here, the body is not. */
static enum MHD_Result on_head(struct bag_exchange *exchange, const char *url, const char *method,
                               const char *version)
{
    struct bag_first_line line = {exchange->client, method, url, version};
    exchange->route = NULL;
    bag_http_access_begin(&exchange->access, options_of(exchange), &line, &exchange->head);
    exchange->refused = exchange->body_unread =
        !bag_http_head_read(exchange->connection, &line, &exchange->head, &exchange->job.problem);
    if (exchange->refused) {
        bag_http_reply_problem(&exchange->reply, &exchange->job.problem);
        return answer(exchange);
    }
    find_route(exchange, bag_guard_path(url), method);
    bool takes_body = exchange->route && exchange->route->takes_body;
    bool accepted = exchange->route && (!takes_body || accept_body(exchange));
    exchange->stage = accepted && takes_body ? BODY : DROPPING;
    if (accepted || bag_http_head_may_drop(&exchange->head))
        return MHD_YES;
    exchange->body_unread = true;
    return answer(exchange);
}

/* ---- the body -------------------------------------------------------------------------------- */

/* A chunked body has passed the limit in its midst, where libmicrohttpd takes no response. A client
 * that cannot be told is cut off all the same. */
static enum MHD_Result cut_off_body(struct bag_exchange *exchange)
{
    refuse_body(exchange);
    bag_http_record(exchange->server, &exchange->job, &exchange->access, &exchange->reply);
    exchange->body_unread = bag_http_answer_raw(exchange->client->fd, &exchange->reply);
    return MHD_NO;
}

/* Keeps a piece of a body; what follows one for which there is no memory is dropped. */
static void keep_body(struct bag_exchange *exchange, const char *data, size_t bytes, size_t limit)
{
    size_t length = exchange->head.has_length ? (size_t)exchange->head.length : 0;
    if (bag_body_append(&exchange->body, &exchange->server->buffers, data, bytes, length, limit))
        return;
    bag_http_reply_error(&exchange->reply, 503, "not enough memory for a body of %zu bytes",
                         length ? length : exchange->body.count + bytes);
    exchange->stage = DROPPING;
}

static enum MHD_Result on_body(struct bag_exchange *exchange, const char *data, size_t bytes)
{
    size_t limit = body_limit(exchange);
    exchange->access.received_bytes += bytes;
    if (exchange->stage != BODY)
        return MHD_YES;
    if (bytes > limit - exchange->body.count)
        return cut_off_body(exchange);
    if (is_infer(exchange) && exchange->head.has_length && bytes == exchange->head.length &&
        exchange->expected_ns <= exchange->server->inline_cost_ns &&
        (!set_body(exchange, data, bytes) || infer_inline(exchange)))
        return MHD_YES;
    keep_body(exchange, data, bytes, limit);
    return MHD_YES;
}

/* The body is complete, or the engine has finished with it. */
static enum MHD_Result on_complete(struct bag_exchange *exchange)
{
    if (exchange->stage == BODY && is_infer(exchange) &&
        set_body(exchange, bag_body_bytes(&exchange->body), exchange->body.count) &&
        ((is_surely_dear(exchange) && !has_room(exchange)) || !infer_inline(exchange)))
        return hand_over(exchange);
    exchange->target.body = exchange->body.bytes;
    exchange->target.body_bytes = exchange->body.count;
    if (!exchange->reply.status)
        exchange->route->handler(exchange->server->service, &exchange->target, &exchange->reply);
    return answer(exchange);
}

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------- */

static struct bag_exchange *get_exchange(struct bag_http_server *server)
{
    struct bag_exchange *exchange = server->spare;
    if (exchange)
        server->spare = exchange->next_spare;
    else
        exchange = calloc(1, sizeof *exchange);
    if (exchange) {
        exchange->server = server;
        exchange->reply.status = 0;
        exchange->body_unread = false;
        exchange->expected_ns = 0;
        exchange->job.refusal = BAG_REFUSAL_BY_STATUS;
        exchange->job.infer.model = NULL;
    }
    return exchange;
}

enum MHD_Result bag_exchange_on_request(void *context, struct MHD_Connection *connection,
                                        const char *url, const char *method, const char *version,
                                        const char *data, size_t *data_bytes, void **state)
{
    struct bag_client *client = *state;
    struct bag_exchange *exchange = client ? client->exchange : NULL;
    if (!client)
        return MHD_NO;
    if (!exchange) {
        exchange = get_exchange(context);
        if (!exchange)
            return MHD_NO;
        exchange->connection = connection;
        exchange->client = client;
        exchange->late = bag_drain_on_begin(exchange->server);
        client->exchange = exchange;
        return on_head(exchange, url, method, version);
    }
    if (*data_bytes) {
        size_t bytes = *data_bytes;
        *data_bytes = 0;
        return on_body(exchange, data, bytes);
    }
    return on_complete(exchange);
}

void bag_exchange_on_completed(void *context, struct MHD_Connection *connection, void **state,
                               enum MHD_RequestTerminationCode why)
{
    struct bag_http_server *server = context;
    struct bag_client *client = *state;
    struct bag_exchange *exchange = client ? client->exchange : NULL;
    (void)connection;
    if (client)
        bag_client_enter(&server->clients, client, BAG_CLIENT_IDLE);
    if (!exchange)
        return;
    client->exchange = NULL;
    bag_metrics_on_end(server->recorder, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (exchange->body_unread && why != MHD_REQUEST_TERMINATED_CLIENT_ABORT)
        bag_linger_add(&server->linger, client->fd);
    bag_infer_reset(&exchange->job.infer);
    bag_body_drop(&exchange->body);
    if (exchange->reply.body)
        exchange->reply.free_body(exchange->reply.body);
    exchange->reply.body = NULL;
    exchange->next_spare = server->spare;
    server->spare = exchange;
    bag_drain_on_end(server, exchange->late);
}

void bag_exchange_free_spares(struct bag_http_server *server)
{
    while (server->spare) {
        struct bag_exchange *next = server->spare->next_spare;
        bag_infer_free(&server->spare->job.infer);
        free(server->spare);
        server->spare = next;
    }
}
