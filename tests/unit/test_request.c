/* Drives a request without a real connection. Tests the decisions at the head, at each piece of the
 * body and at its end, and the reply. */
#include "model_fixture.h"
#include "testing.h"

#include "server/http/authorize.h"
#include "server/http/message.h"
#include "server/http/request.h"
#include "server/http/routes.h"
#include "server/models/reconciler.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define INFER "/v2/models/m/infer"
#define BODY \
    "{\"inputs\":[{\"name\":\"indices\",\"shape\":[1,2],\"datatype\":\"INT64\",\"data\":[1,2]}]}"

static struct {
    uv_loop_t loop;
    struct bag_workers workers;
    struct bag_config config;
    struct bag_service service;
    struct bag_http_context context;
    struct bag_table_memory memory;
    struct bag_feature feature;
    struct bag_model model;
    struct bag_reader reader;
    bool connected;
    unsigned resumed;                 /* calls of the connection's resume */
    unsigned expected;                /* when the engine is stopped */
    struct bag_reconciler reconciler; /* used for its status only */
    struct bag_http_request *request;
} world;

static void on_resume(struct bag_http_connection *connection)
{
    assert_ptr_equal(connection, &world);
    world.resumed++;
}

static void on_iteration(void *context)
{
    (void)context;
    bag_engine_dispatch(&world.context.engine);
    if (world.resumed == world.expected)
        bag_engine_stop(&world.context.engine);
}

static bool is_connected(const struct bag_http_connection *connection)
{
    assert_ptr_equal(connection, &world);
    return world.connected;
}

static uint64_t quiet_ns(const struct bag_http_connection *connection)
{
    assert_ptr_equal(connection, &world);
    return 0;
}

static const struct bag_http_connection_calls calls = {on_resume, is_connected, quiet_ns};

static void on_publish(void *context)
{
    (void)context;
}

/* A snapshot of the one model, which is not freed with it. */
static void publish(void)
{
    struct bag_listed listed = {.model = &world.model};
    struct bag_problem problem;
    struct bag_snapshot *snapshot = bag_snapshot_make(&listed, 1, 1);
    assert_non_null(snapshot);
    assert_true(bag_registry_publish(&world.service.registry, snapshot, &problem));
}

static int set_up(void **state)
{
    static float rows[4] = {1, 2, 4, 8};
    struct bag_problem problem;
    struct bag_engine_limits limits = {.max_queue_size = 10, .max_queue_work_ns = UINT64_MAX};
    (void)state;
    memset(&world, 0, sizeof world);
    world.connected = true;
    world.expected = 1;
    world.config.options.max_body_bytes = 100000;
    world.service.config = &world.config;
    world.service.state = BAG_SERVICE_READY;
    set_up_model(&world.model, &world.feature, &world.memory, rows, 4, 1);
    world.model.state = BAG_MODEL_READY;
    world.model.reason = (char *)(uintptr_t) "";
    world.model.holders = 1;
    world.model.slot = SIZE_MAX;
    struct bag_http_context *context = &world.context;
    context->service = &world.service;
    world.service.reconciler = &world.reconciler;
    assert_int_equal(pthread_mutex_init(&world.reconciler.models.status.lock, NULL), 0);
    assert_true(bag_registry_init(&world.service.registry, 1));
    context->infers = true;
    context->inline_cost_ns = UINT64_MAX;
    context->infer_limits =
        (struct bag_infer_limits){.max_body_bytes = 100000, .max_reply_bytes = 100000};
    assert_int_equal(uv_loop_init(&world.loop), 0);
    assert_true(bag_workers_start(&world.workers, 1, 0, &problem));
    assert_true(bag_engine_init(&context->engine, &world.loop, &world.workers, NULL, &limits));
    context->engine.on_iteration = on_iteration;
    assert_true(bag_buffers_init(&context->buffers, false, NULL));
    publish();
    assert_true(bag_reader_open(&world.reader, &world.service.registry, on_publish, NULL));
    context->targets.reader = &world.reader;
    context->targets.routes = bag_http_routes;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (!world.resumed)
        bag_engine_stop(&world.context.engine);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    bag_workers_stop(&world.workers);
    bag_reader_close(&world.reader);
    bag_registry_free(&world.service.registry);
    pthread_mutex_destroy(&world.reconciler.models.status.lock);
    bag_http_requests_free(&world.context);
    bag_engine_free(&world.context.engine);
    bag_header_cache_free(&world.context.header_cache);
    bag_buffers_free(&world.context.buffers);
    assert_int_equal(uv_loop_close(&world.loop), 0);
    return 0;
}

AROUND_EACH(set_up, tear_down)

/* ---- what a connection does ------------------------------------------------------------------ */

static struct bag_http_request *begin(const char *method, const char *target)
{
    static struct bag_http_peer peer = {.known = false};
    struct bag_http_first_line line = {
        .method = method, .target = target, .version = "HTTP/1.1", .peer = &peer};
    world.request = bag_http_request_begin(&world.context, &calls, (void *)&world, &line);
    assert_non_null(world.request);
    world.request->head = (struct bag_http_head){.has_length = false};
    return world.request;
}

/* One with a body of a known length, up to its head. */
static enum bag_http_next begin_post(const char *target, size_t length)
{
    struct bag_http_request *request = begin("POST", target);
    request->head.has_length = true;
    request->head.length = length;
    return bag_http_request_on_head(request, NULL);
}

static enum bag_http_next send_body(const char *body, size_t step)
{
    size_t bytes = strlen(body);
    enum bag_http_next next = BAG_HTTP_READ;
    for (size_t at = 0; at < bytes && next == BAG_HTTP_READ; at += step) {
        size_t piece = step < bytes - at ? step : bytes - at;
        char *copy = exact_copy(body + at, piece); /* pieces are valid for the call alone */
        next = bag_http_request_on_body(world.request, copy, piece);
        free(copy);
    }
    return next;
}

static void end_body(struct bag_http_request *request)
{
    bag_http_request_on_end(request);
}

/* The body is complete, the request is late, and its work begins. */
static void begin_to_wait(void)
{
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_WAITING);
    bag_http_request_begin_work(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_WAITING);
}

static void check_reply(int status, const char *words, bool closes)
{
    const struct bag_http_reply *reply = &world.request->reply;
    bag_http_request_finish(world.request);
    assert_int_equal(reply->status, status);
    if (!strstr(reply->body, words))
        fail_msg("'%s' does not say '%s'", reply->body, words);
    assert_int_equal(reply->close, closes);
}

static void end(void)
{
    bag_http_request_end(world.request, true);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(test_get)
{
    assert_int_equal(bag_http_request_on_head(begin("GET", "/v2/health/live"), NULL),
                     BAG_HTTP_READ);
    assert_int_equal(world.request->reply.status, 0);
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_READY);
    check_reply(200, "{\"live\":true}", false);
    end();
}

/* The body of a GET is counted and dropped. */
TEST(test_get_with_a_body)
{
    struct bag_http_request *request = begin("GET", "/v2/health/live");
    request->head.has_length = true;
    request->head.length = 5;
    assert_int_equal(bag_http_request_on_head(request, NULL), BAG_HTTP_READ);
    assert_int_equal(send_body("hello", 2), BAG_HTTP_READ);
    assert_null(request->body);
    assert_int_equal(request->access.received_bytes, 5);
    end_body(request);
    assert_int_equal(request->stage, BAG_HTTP_READY);
    check_reply(200, "live", false);
    end();
}

TEST(test_rejected_form)
{
    struct bag_problem fault;
    bag_problem_set(&fault, BAG_ERROR_BAD_REQUEST, "two hosts");
    assert_int_equal(bag_http_request_on_head(begin("GET", "/"), &fault), BAG_HTTP_SEND);
    check_reply(400, "two hosts", true);
    assert_true(world.request->body_unread);
    end();
}

/* A rejected request with a short body keeps its connection, one with a long or unknown body is
 * answered at once. */
TEST(test_rejected_body)
{
    static const struct {
        size_t length;
        bool chunked, expects;
        enum bag_http_next next;
    } cases[] = {{0, false, false, BAG_HTTP_READ},
                 {64 << 10, false, false, BAG_HTTP_READ},
                 {(64 << 10) + 1, false, false, BAG_HTTP_SEND},
                 {0, true, false, BAG_HTTP_SEND},
                 {10, false, true, BAG_HTTP_SEND}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_http_request *request = begin("POST", "/v3");
        request->head.has_length = !cases[i].chunked;
        request->head.length = cases[i].length;
        request->head.chunked = cases[i].chunked;
        request->head.expects_continue = cases[i].expects;
        assert_int_equal(bag_http_request_on_head(request, NULL), cases[i].next);
        assert_int_equal(request->body_unread, cases[i].next == BAG_HTTP_SEND);
        if (cases[i].next == BAG_HTTP_READ)
            end_body(request);
        assert_int_equal(request->stage, BAG_HTTP_READY);
        check_reply(404, "unknown path", cases[i].chunked);
        end();
    }
}

TEST(test_infers_at_once)
{
    for (size_t step = 1; step <= sizeof BODY; step += sizeof BODY - 1) {
        assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
        assert_int_equal(send_body(BODY, step), BAG_HTTP_READ);
        end_body(world.request);
        assert_int_equal(world.request->stage, BAG_HTTP_READY);
        check_reply(200, "\"data\":[6.0]", false);
        assert_null(world.request->job.infer.output.reply); /* the reply has one owner */
        end();
    }
    assert_int_equal(world.resumed, 0);
}

static void suspend(void)
{
    world.context.inline_cost_ns = 0;
    assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
    assert_int_equal(send_body(BODY, 7), BAG_HTTP_READ);
    begin_to_wait();
    assert_int_equal(world.request->reply.status, 0);
    bag_engine_dispatch(&world.context.engine);
    assert_int_equal(world.resumed, 0); /* not before the loop has had its turn */
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_int_equal(world.resumed, 1);
    assert_int_equal(world.request->stage, BAG_HTTP_READY);
}

TEST(test_infers_in_the_engine)
{
    suspend();
    check_reply(200, "\"data\":[6.0]", false);
    end();
}

/* A worker makes the metrics, which are long if there are many models. */
TEST(test_metrics_are_made_by_a_worker)
{
    world.service.metrics.on = true;
    world.config.options.metrics = BAG_METRICS_ON;
    assert_int_equal(bag_http_request_on_head(begin("GET", "/metrics"), NULL), BAG_HTTP_READ);
    begin_to_wait();
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_int_equal(world.resumed, 1);
    assert_int_equal(world.request->stage, BAG_HTTP_READY);
    check_reply(200, "bagserve_model_state{model=\"m\",version=\"1\",state=\"READY\"} 1\n", false);
    assert_string_equal(world.request->reply.type, BAG_PROMETHEUS_TYPE);
    end();
}

/* A client that has ended its side may wait for its answer; if many requests wait, it counts as
 * gone. */
TEST(test_client_that_leaves)
{
    struct bag_http_request *waiting[10];
    world.connected = false;
    world.expected = COUNT_OF(waiting);
    world.context.inline_cost_ns = 0;
    for (size_t i = 0; i < COUNT_OF(waiting); i++) {
        assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
        assert_int_equal(send_body(BODY, 7), BAG_HTTP_READ);
        begin_to_wait();
        waiting[i] = world.request;
    }
    bag_engine_dispatch(&world.context.engine);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_int_equal(world.resumed, COUNT_OF(waiting));
    unsigned cancelled = 0;
    for (size_t i = 0; i < COUNT_OF(waiting); i++) {
        world.request = waiting[i];
        assert_int_equal(world.request->stage, BAG_HTTP_READY);
        if (world.request->reply.status == 200) {
            check_reply(200, "\"data\":[6.0]", false);
        } else {
            check_reply(503, "closed the connection", false);
            assert_int_equal(bag_http_error_reason(world.request->reply.error),
                             BAG_REJECTION_CANCELLED);
            cancelled++;
        }
        end();
    }
    assert_in_range(cancelled, 1, COUNT_OF(waiting) - 4);
}

/* The tables change between a request's head and its end: whoever has not sent all of it holds
 * nothing, and gets the new ones. A request whose reply is complete holds no tables either. */
TEST(test_tables_that_change)
{
    struct bag_registry *registry = &world.service.registry;
    struct bag_problem problem;
    assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
    struct bag_http_request *early = world.request;
    struct bag_snapshot *empty = bag_snapshot_make(NULL, 0, 1);
    assert_true(bag_registry_publish(registry, empty, &problem));
    assert_int_equal(begin_post(INFER, 5), BAG_HTTP_READ);
    assert_int_equal(world.request->reply.status, 404);
    bag_http_request_end(world.request, false);
    assert_int_equal(bag_registry_collect(registry), 1);
    world.request = early;
    assert_int_equal(send_body(BODY, 7), BAG_HTTP_READ);
    end_body(early);
    assert_int_equal(early->stage, BAG_HTTP_READY);
    check_reply(404, "unknown model 'm'", false);
    end();
}

/* A chunked body is rejected at the piece that exceeds the limit. */
TEST(test_limit_of_a_body)
{
    char piece[100];
    memset(piece, ' ', sizeof piece);
    world.config.options.max_body_bytes = 250;
    struct bag_http_request *request = begin("POST", INFER);
    request->head.chunked = true;
    assert_int_equal(bag_http_request_on_head(request, NULL), BAG_HTTP_READ);
    assert_int_equal(bag_http_request_on_body(request, piece, 100), BAG_HTTP_READ);
    assert_int_equal(bag_http_request_on_body(request, piece, 100), BAG_HTTP_READ);
    assert_int_equal(bag_http_request_on_body(request, piece, 50), BAG_HTTP_READ);
    assert_int_equal(bag_http_request_on_body(request, piece, 1), BAG_HTTP_CUT_OFF);
    check_reply(413, "(max_body_bytes) of 250 bytes", true);
    end();
    assert_int_equal(begin_post(INFER, 250), BAG_HTTP_READ);
    bag_http_request_end(world.request, false);
    assert_int_equal(begin_post(INFER, 251), BAG_HTTP_READ);
    assert_int_equal(world.request->reply.status, 413);
    bag_http_request_end(world.request, false);
}

/* A port for admin answers all but inference. */
TEST(test_admin)
{
    world.context.infers = false;
    assert_int_equal(begin_post(INFER, 5), BAG_HTTP_READ);
    assert_int_equal(send_body("hello", 5), BAG_HTTP_READ);
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_READY);
    check_reply(403, "admin_port", false);
    end();
    assert_int_equal(begin_post("/v2/repository/index", 2), BAG_HTTP_READ);
    assert_int_equal(send_body("{}", 2), BAG_HTTP_READ);
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_READY);
    check_reply(200, "[{\"name\":\"m\"", false);
    end();
}

/* While the server drains, inferences are rejected and every reply ends its connection. */
TEST(test_draining)
{
    world.service.state = BAG_SERVICE_DRAINING;
    assert_int_equal(begin_post(INFER, 0), BAG_HTTP_READ);
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_READY);
    check_reply(503, "stopping", true);
    end();
}

/* Only inference takes compressed bodies, and only codings that are known. */
TEST(test_codings)
{
    static const struct {
        const char *path, *coding;
        int status;
    } cases[] = {{INFER, "gzip", 0},
                 {INFER, "br", 415},
                 {"/v2/repository/index", "gzip", 415},
                 {"/v2/repository/index", "identity", 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_http_request *request = begin("POST", cases[i].path);
        request->head.encoding = cases[i].coding;
        assert_int_equal(bag_http_request_on_head(request, NULL), BAG_HTTP_READ);
        assert_int_equal(request->reply.status, cases[i].status);
        bag_http_request_end(request, false);
    }
}

/* Returns whether a call on the request ends the process. */
static bool is_refused(void (*call)(struct bag_http_request *))
{
    int code = 0;
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        call(world.request);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    return WIFSIGNALED(code) && WTERMSIG(code) == SIGABRT;
}

static void more_body(struct bag_http_request *request)
{
    bag_http_request_on_body(request, " ", 1);
}

static void end_request(struct bag_http_request *request)
{
    bag_http_request_end(request, false);
}

static void begin_work(struct bag_http_request *request)
{
    bag_http_request_begin_work(request);
}

/* Each step of a request is one that may follow the step before. */
TEST(test_steps_have_an_order)
{
    begin("POST", INFER);
    assert_true(is_refused(more_body) && is_refused(end_body) && is_refused(begin_work) &&
                is_refused(bag_http_request_complete) && is_refused(bag_http_request_finish));
    end();
    world.context.inline_cost_ns = 0;
    assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
    assert_int_equal(send_body(BODY, 7), BAG_HTTP_READ);
    assert_true(is_refused(bag_http_request_complete) && is_refused(begin_work));
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_WAITING);
    assert_true(is_refused(more_body) && is_refused(end_body) &&
                is_refused(bag_http_request_complete));
    bag_http_request_begin_work(world.request);
    assert_true(is_refused(more_body) && is_refused(end_body) && is_refused(begin_work) &&
                is_refused(end_request));
    bag_engine_dispatch(&world.context.engine);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_int_equal(world.request->stage, BAG_HTTP_READY);
    assert_true(is_refused(more_body) && is_refused(end_body) && is_refused(begin_work) &&
                is_refused(bag_http_request_complete));
    check_reply(200, "\"data\":[6.0]", false);
    assert_true(is_refused(bag_http_request_finish) && is_refused(end_body));
    end();
}

/* A client may leave before the work of its request begins. It never begins then, and nothing is
 * left. */
TEST(test_client_that_leaves_before_the_work)
{
    world.service.metrics.on = true;
    world.config.options.metrics = BAG_METRICS_ON;
    world.context.inline_cost_ns = 0;
    assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
    assert_int_equal(send_body(BODY, 7), BAG_HTTP_READ);
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_WAITING);
    bag_http_request_end(world.request, false);
    assert_int_equal(bag_http_request_on_head(begin("GET", "/metrics"), NULL), BAG_HTTP_READ);
    end_body(world.request);
    assert_int_equal(world.request->stage, BAG_HTTP_WAITING);
    bag_http_request_end(world.request, false);
    assert_int_equal(world.context.engine.queue.load.present, 0);
    assert_int_equal(atomic_load(&world.workers.busy), 0);
    assert_int_equal(world.resumed, 0);
}

/* Requests that were in progress at once are kept, and freed when so many were not needed between
 * two trims. */
TEST(test_requests_that_are_not_needed_are_freed)
{
    enum { COUNT = 5, NEEDED = 2 };
    struct bag_http_request *requests[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
        requests[i] = world.request;
    }
    for (size_t i = 0; i < COUNT; i++)
        bag_http_request_end(requests[i], false);
    bag_http_requests_trim(&world.context); /* all were needed before it */
    assert_int_equal(world.context.num_spare, COUNT);
    for (size_t i = 0; i < NEEDED; i++) {
        assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
        requests[i] = world.request;
    }
    for (size_t i = 0; i < NEEDED; i++)
        bag_http_request_end(requests[i], false);
    bag_http_requests_trim(&world.context);
    assert_int_equal(world.context.num_spare, NEEDED);
    bag_http_requests_trim(&world.context);
    assert_int_equal(world.context.num_spare, 0);
    assert_true(SLIST_EMPTY(&world.context.spare));
}

/* Work that is complete as it begins needs no further iteration of the loop. */
TEST(test_late_work_that_is_complete_at_once)
{
    struct bag_http_request *requests[2];
    world.context.inline_cost_ns = 0;
    world.context.engine.limits.max_queue_size = 1;
    for (size_t i = 0; i < COUNT_OF(requests); i++) {
        assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
        assert_int_equal(send_body(BODY, 7), BAG_HTTP_READ);
        end_body(world.request);
        requests[i] = world.request;
    }
    bag_http_request_begin_work(requests[0]);
    assert_int_equal(requests[0]->stage, BAG_HTTP_WAITING);
    bag_http_request_begin_work(requests[1]);
    assert_int_equal(requests[1]->stage, BAG_HTTP_READY);
    assert_int_equal(world.resumed, 0);
    check_reply(503, "the queue is full", false);
    end();
    bag_engine_dispatch(&world.context.engine);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    world.request = requests[0];
    check_reply(200, "\"data\":[6.0]", false);
    end();
}

/* The target of the last path is remembered with its names. A request that may not use the path
 * counts for no model. */
TEST(test_a_target_is_remembered_whole)
{
    struct bag_http_tokens tokens;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
        assert_string_equal(world.request->target.name, "m");
        assert_string_equal(world.request->target.version, "");
        assert_ptr_equal(world.request->target.model, &world.model);
        assert_null(world.request->target.snapshot);
        end();
    }
    assert_ptr_equal(world.context.targets.last.model, &world.model);
    assert_true(bag_http_tokens_init(&tokens));
    world.service.tokens = &tokens;
    assert_int_equal(begin_post(INFER, sizeof BODY - 1), BAG_HTTP_READ);
    assert_int_equal(world.request->reply.status, 401);
    assert_string_equal(world.request->target.name, "m");
    assert_null(world.request->target.model);
    end();
    bag_http_tokens_free(&tokens);
}
