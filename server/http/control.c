/* Handlers that change which models are served: they hand a change to the loader, and answer when
 * it is made, or at once where the client does not wait. Only the second listener has them. */
#include "request.h"

#include "server/table/loader.h"

#include <stdlib.h>
#include <string.h>

/* One request's change. Freed by whoever is done with it last: the loader, where nobody waits. */
struct control_change {
    struct bag_change change;
    struct bag_http_request *request; /* that waits; NULL: none does */
};

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
                      "models are loaded and unloaded on the second listener (admin_port, "
                      "admin_socket) only");
    if (service->state == BAG_SERVICE_LOADING)
        return reject(request, BAG_ERROR_NOT_READY, "the first tables are still being loaded");
    if (service->state == BAG_SERVICE_DRAINING)
        return reject(request, BAG_ERROR_DRAINING, "the server is stopping");
    return bag_http_accept_small(request);
}

/* ---- replies --------------------------------------------------------------------------------- */

static void reply_done(struct bag_http_request *request, const struct bag_change *change)
{
    if (change->failed)
        bag_http_reply_problem(&request->reply, &change->problem);
    else
        bag_http_reply_json(&request->reply, 200, bag_control_describe(&change->control, true));
    request->reply.no_store = true;
}

static void free_change(struct control_change *asked)
{
    bag_control_free(&asked->change.control);
    free(asked);
}

/* On the loader's thread. */
static void on_done(struct bag_change *change)
{
    struct control_change *asked = change->context;
    struct bag_http_request *request = asked->request;
    if (request)
        reply_done(request, change);
    free_change(asked);
    if (request)
        bag_http_request_made(request);
}

/* ---- requests -------------------------------------------------------------------------------- */

static enum bag_http_outcome submit(struct bag_http_request *request,
                                    const struct bag_control *control)
{
    struct bag_loader *loader = request->context->service->loader;
    struct control_change *asked = calloc(1, sizeof *asked);
    struct bag_control copy = *control;
    bool waits = control->wait;
    if (!asked) {
        bag_control_free(&copy);
        reject(request, BAG_ERROR_NO_MEMORY, "not enough memory");
        return BAG_HTTP_DONE;
    }
    asked->request = waits ? request : NULL;
    asked->change = (struct bag_change){
        .kind = BAG_CHANGE_MODELS, .control = copy, .on_done = on_done, .context = asked};
    bag_http_request_client(request, asked->change.who, sizeof asked->change.who);
    if (!waits)
        bag_http_reply_json(&request->reply, 202, bag_control_describe(control, false));
    /* What is unloaded could not leave while a request waits for it that reads the models. */
    if (waits)
        bag_http_request_leave_models(request);
    bag_loader_submit(loader, &asked->change);
    return waits ? BAG_HTTP_SUSPEND : BAG_HTTP_DONE;
}

static enum bag_http_outcome change_model(struct bag_http_request *request, bool unload)
{
    struct bag_control control;
    struct bag_problem problem;
    if (bag_control_read_model(request->body, request->body_bytes, request->target.model, unload,
                               &control, &problem))
        return submit(request, &control);
    bag_http_reply_problem(&request->reply, &problem);
    return BAG_HTTP_DONE;
}

enum bag_http_outcome bag_http_post_load(struct bag_http_request *request)
{
    return change_model(request, false);
}

enum bag_http_outcome bag_http_post_unload(struct bag_http_request *request)
{
    return change_model(request, true);
}

enum bag_http_outcome bag_http_post_load_group(struct bag_http_request *request)
{
    struct bag_control control;
    struct bag_problem problem;
    if (bag_control_read_group(request->body, request->body_bytes, &control, &problem))
        return submit(request, &control);
    bag_http_reply_problem(&request->reply, &problem);
    return BAG_HTTP_DONE;
}
