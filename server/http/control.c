/* Handlers that change models and rows. Changes of models are submitted to the reconciler. The
 * reply is sent when a change is complete, or immediately if the client does not wait for a change
 * of models. */
#include "proto/v2_request.h"
#include "request.h"
#include "routes.h"
#include "server/models/reconciler.h"
#include "server/updates/updates.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- models ---------------------------------------------------------------------------------- */

/* The change of one request. on_done() frees it, or submit() if it cannot be submitted. */
struct control_change {
    struct bag_change change;
    struct bag_http_request *request; /* waiting request; NULL: none */
};

/* Fills the reply with an error and returns false. */
static bool reject(struct bag_http_request *request, enum bag_error error, const char *why)
{
    bag_http_reply_error(&request->reply, error, "%s", why);
    return false;
}

bool bag_http_accept_control(struct bag_http_request *request)
{
    const struct bag_http_context *context = request->context;
    const struct bag_service *service = context->service;
    if (service->config->options.model_control == BAG_MODEL_CONTROL_NONE)
        return reject(request, BAG_ERROR_NOT_FOUND,
                      "models do not change while the server runs; start it with --model-control "
                      "explicit or poll");
    if (context->infers)
        return reject(request, BAG_ERROR_WRONG_PORT,
                      "models are loaded and unloaded on the admin listener (admin_port, "
                      "admin_socket) only");
    if (service->state == BAG_SERVICE_LOADING)
        return reject(request, BAG_ERROR_NOT_READY, "the first tables are still being loaded");
    if (service->state == BAG_SERVICE_DRAINING)
        return reject(request, BAG_ERROR_DRAINING, "the server is stopping");
    return bag_http_accept_small(request);
}

/* ---- replies --------------------------------------------------------------------------------- */

static void free_change(struct control_change *asked)
{
    bag_control_free(&asked->change.control);
    free(asked);
}

/* Called on the reconciler's thread when the change is complete or has failed. The waiting request
 * is suspended, so its loop does not use it. */
static void on_done(struct bag_change *change)
{
    struct control_change *asked = change->context;
    struct bag_http_request *request = asked->request;
    if (request && change->failed)
        bag_http_reply_problem(&request->reply, &change->problem);
    else if (request)
        bag_http_reply_json(&request->reply, 200, bag_control_describe(&change->control, true));
    free_change(asked);
    if (!request)
        return;
    request->reply.no_store = true;
    bag_http_request_complete(request);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Submits a change, which then owns the content of *control. Answers at once unless the client
 * waits for the change. */
static void submit(struct bag_http_request *request, const struct bag_control *control)
{
    struct bag_reconciler *reconciler = request->context->service->reconciler;
    struct control_change *asked = calloc(1, sizeof *asked);
    struct bag_control copy = *control;
    struct bag_problem problem;
    const bool waits = control->wait;
    if (!asked) {
        bag_control_free(&copy);
        reject(request, BAG_ERROR_NO_MEMORY, "not enough memory");
        bag_http_request_complete(request);
        return;
    }
    asked->request = waits ? request : NULL;
    asked->change = (struct bag_change){
        .kind = BAG_CHANGE_MODELS, .control = copy, .on_done = on_done, .context = asked};
    snprintf(asked->change.who, sizeof asked->change.who, "%s",
             bag_http_peer_text(request->line.peer));
    char *accepted = waits ? NULL : bag_control_describe(control, false);
    if (waits) {
        /* A waiting request must not hold the models, because the unloaded ones could not be
         * freed. */
        bag_http_target_leave(&request->context->targets, &request->target);
        request->is_away = true;
    }
    if (bag_reconciler_submit(reconciler, &asked->change, &problem)) {
        if (waits)
            return;
        bag_http_reply_json(&request->reply, 202, accepted);
    } else {
        free(accepted);
        free_change(asked);
        request->is_away = false;
        bag_http_reply_problem(&request->reply, &problem);
    }
    bag_http_request_complete(request);
}

/* Reads the body and submits its change. `model` is NULL for a group. */
static void change(struct bag_http_request *request, const char *model, bool unload)
{
    struct bag_control control;
    struct bag_problem problem;
    if (bag_control_read(request->body, request->body_bytes, model, unload, &control, &problem)) {
        submit(request, &control);
        return;
    }
    bag_http_reply_problem(&request->reply, &problem);
    bag_http_request_complete(request);
}

static void load(struct bag_http_request *request)
{
    change(request, request->target.name, false);
}

static void unload(struct bag_http_request *request)
{
    change(request, request->target.name, true);
}

static void load_group(struct bag_http_request *request)
{
    change(request, NULL, false);
}

enum bag_http_outcome bag_http_post_load(struct bag_http_request *request)
{
    return bag_http_request_late(request, load);
}

enum bag_http_outcome bag_http_post_unload(struct bag_http_request *request)
{
    return bag_http_request_late(request, unload);
}

enum bag_http_outcome bag_http_post_load_group(struct bag_http_request *request)
{
    return bag_http_request_late(request, load_group);
}

/* ---- updates of rows ------------------------------------------------------------------------- */

/* A worker decodes a batch, and an update thread applies it. Accepting runs on the loop's thread.
 * Between the handler and its completion on the loop, the request belongs to the worker and then to
 * the update thread. */

/* Decoding allocates at most this multiple of the body: for an id its copy and two more for
 * sorting, or for rows their conversion. */
#define ARENA_FACTOR     12
#define ARENA_BASE_BYTES (4 << 20)

/* One request's batch. Lives in the request's arena. */
struct rows_request {
    struct bag_update update;
    struct bag_v2_rows rows;
    struct bag_http_request *request;
    const struct bag_model *model;
};

/* Returns the model, a table whose rows may change. Returns NULL and fills the reply if there is no
 * such model now, or if its rows cannot change. */
static const struct bag_model *find_table(struct bag_http_request *request)
{
    const struct bag_model *model = bag_http_target_look_up(&request->target, &request->reply);
    if (!model)
        return NULL;
    if (bag_model_is_collection(model))
        reject(request, BAG_ERROR_BAD_REQUEST,
               "the model is a collection and has no rows; change those of its tables' models");
    else if (model->memory->remote)
        reject(request, BAG_ERROR_CONFLICT,
               "the rows of this model are on its shards; send the update to each of them, which "
               "leaves out what is not its own");
    else if (!model->memory->live)
        reject(request, BAG_ERROR_CONFLICT,
               "the rows of this model cannot be changed: its table is mapped from a file");
    else
        return model;
    return NULL;
}

bool bag_http_accept_rows(struct bag_http_request *request)
{
    const struct bag_http_context *context = request->context;
    const struct bag_service *service = context->service;
    if (!service->updates)
        return reject(request, BAG_ERROR_FORBIDDEN,
                      "updates are switched off; start the server with --updates on");
    if (context->infers && service->has_admin)
        return reject(request, BAG_ERROR_WRONG_PORT,
                      "rows are changed on the admin listener (admin_port, admin_socket) only");
    if (!find_table(request))
        return false;
    if (service->state == BAG_SERVICE_DRAINING)
        return reject(request, BAG_ERROR_DRAINING, "the server is stopping");
    if (!bag_http_accept_coding(request))
        return false;
    if (request->coding != BAG_CODING_IDENTITY)
        return reject(request, BAG_ERROR_UNSUPPORTED_ENCODING,
                      "only bodies for infer may be compressed");
    return bag_http_accept_length(request, (size_t)service->config->options.max_body_bytes,
                                  " (max_body_bytes)");
}

/* Checks that the batch has keys if the table has keys, and otherwise indices. */
static bool check_ids(const struct rows_request *rows, struct bag_problem *problem)
{
    bool keyed = bag_table_is_keyed(rows->model->memory);
    return rows->rows.has_keys == keyed ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           keyed ? "the table has keys: send 'keys' in place of 'indices'"
                                 : "the table has no keys: send 'indices' in place of 'keys'");
}

/* Decodes the body and makes the batch that the update thread applies. Returns false and sets
 * *problem if the body is wrong or does not fit the table. */
static bool decode(struct rows_request *rows, struct bag_problem *problem)
{
    static const uint64_t no_ids[1];
    struct bag_http_request *request = rows->request;
    struct bag_arena *arena = &request->job.infer.scratch.arena;
    struct bag_update *update = &rows->update;
    const char *body = request->body ? request->body : "";
    size_t header_bytes = request->body_bytes;
    if (request->head.json_length &&
        !bag_v2_header_length(request->head.json_length, header_bytes, &header_bytes, problem))
        return false;
    if (!bag_v2_rows_decode(body, request->body_bytes, header_bytes, &bag_json_default_limits,
                            arena, &rows->rows, problem))
        return false;
    update->live = rows->model->memory->live;
    update->sequence = rows->rows.sequence;
    update->first_sequence = rows->rows.first_sequence;
    update->batch = (struct bag_rows_batch){.ids = no_ids};
    return rows->rows.is_empty ||
           (check_ids(rows, problem) &&
            bag_rows_batch_make(rows->model->memory, &rows->rows.ids,
                                rows->rows.deletes ? NULL : &rows->rows.rows,
                                rows->rows.first_sequence > 0, arena, &update->batch, problem));
}

/* Called on the update thread when a batch was applied, had been applied before, or was rejected.
 * The scratch memory is freed before the request returns to its loop, because the batch is in it.
 */
static void on_applied(struct bag_update *update)
{
    struct rows_request *rows = (void *)((char *)update - offsetof(struct rows_request, update));
    struct bag_http_request *request = rows->request;
    struct bag_v2_rows_reply reply = {.model_name = rows->model->name,
                                      .model_version = rows->model->version,
                                      .id = rows->rows.id,
                                      .sequence = update->sequence,
                                      .applied = update->applied,
                                      .rows = update->applied ? update->batch.count : 0,
                                      .left_out = update->applied ? update->batch.left_out : 0};
    if (update->failed)
        bag_http_reply_problem(&request->reply, &update->problem);
    else
        bag_http_reply_json(&request->reply, 200, bag_v2_rows_reply(&reply));
    bag_infer_free_scratch(&request->job.infer);
    bag_http_request_complete(request);
}

/* Makes a batch that can be applied. Returns NULL and fills the reply if there is none. The model
 * that the head was accepted for may have become another since. */
static struct rows_request *make_batch(struct bag_http_request *request)
{
    struct bag_arena *arena = &request->job.infer.scratch.arena;
    struct bag_problem problem;
    arena->source = &request->context->engine.buffers.source;
    bag_arena_reset(arena, ARENA_BASE_BYTES + ARENA_FACTOR * request->body_bytes);
    struct rows_request *rows = bag_arena_alloc(arena, sizeof *rows);
    if (!rows) {
        reject(request, BAG_ERROR_NO_MEMORY, "not enough memory to decode the request");
        return NULL;
    }
    rows->request = request;
    rows->update.done = on_applied;
    rows->model = find_table(request);
    if (!rows->model)
        return NULL;
    if (decode(rows, &problem))
        return rows;
    bag_http_reply_problem(&request->reply, &problem);
    return NULL;
}

/* Makes a batch on a worker and passes it on, or answers the request if there is none. */
static void run(struct bag_work *work)
{
    struct bag_http_request *request = bag_http_request_of_work(work);
    struct rows_request *rows = make_batch(request);
    if (rows) {
        bag_updates_submit(&rows->update);
        return;
    }
    bag_infer_free_scratch(&request->job.infer);
    bag_http_request_complete(request);
}

static void begin_rows(struct bag_http_request *request)
{
    bag_http_request_push(request, run, BAG_WORK_URGENT);
}

enum bag_http_outcome bag_http_post_rows(struct bag_http_request *request)
{
    return bag_http_request_late(request, begin_rows);
}
