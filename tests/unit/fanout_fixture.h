/* A front's requests, answered by the parts of a world of shards_fixture.h in the same process. The
 * numbers are small integers, so that sums are exact in any order. BAG_SEED=N begins with another
 * seed. */
#pragma once

#include "server/coordinator/fanout.h"
#include "shards_fixture.h"

enum { REQUESTS = 4000 };

/* How many ops of those that were asked were joined to another one; and how many were not. */
static size_t num_joined, num_apart;

static void count_joined(const struct bag_plan *plan)
{
    size_t remote = 0, joined = 0;
    for (size_t i = 0; i < plan->num_ops; i++) {
        remote += plan->ops[i].kind == BAG_OP_REMOTE;
        joined += plan->ops[i].kind == BAG_OP_REMOTE && plan->ops[i].is_joined;
    }
    num_joined += joined;
    num_apart += remote ? remote - joined - 1 : 0;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void begin(struct bag_infer *infer, const struct bag_model *model, const char *body,
                  size_t bytes, size_t header_bytes)
{
    memset(infer, 0, sizeof *infer);
    bag_infer_reset(infer);
    infer->input = (struct bag_infer_input){.model = model,
                                            .limits = &world.limits,
                                            .body = body,
                                            .body_bytes = bytes,
                                            .header_bytes = header_bytes};
}

/* Plans and runs; what the reply holds, or the problem's text, is the caller's to free. */
static char *answer(const struct bag_model *model, const char *body, size_t bytes,
                    size_t header_bytes, size_t *reply_bytes, size_t *reply_header_bytes)
{
    struct bag_infer infer;
    struct bag_problem problem;
    begin(&infer, model, body, bytes, header_bytes);
    bool ok =
        bag_infer_plan(&infer, NULL, &problem) && bag_infer_run(&infer, &world.buffers, &problem);
    *reply_bytes = ok ? infer.output.bytes : strlen(problem.text);
    *reply_header_bytes = ok ? infer.output.header_bytes : SIZE_MAX;
    char *reply = bag_buffers_get(&world.buffers, *reply_bytes + 1);
    assert_non_null(reply);
    memcpy(reply, ok ? infer.output.reply : problem.text, *reply_bytes);
    reply[*reply_bytes] = 0;
    bag_infer_free(&infer);
    return reply;
}

/* Answers a call. Returns false and sets *problem if the answer shows a fault of the client. */
static bool ask_shard(struct bag_fanout *fanout, size_t i, struct bag_problem *problem)
{
    struct bag_fanout_call *call = &fanout->calls[i];
    call->reply = answer(&world.parts[call->shard].model, call->body, call->body_bytes,
                         call->header_bytes, &call->reply_bytes, &call->reply_header_bytes);
    if (call->reply_header_bytes == SIZE_MAX) {
        char *error = BAG_JSON_DOCUMENT(BAG_KEY("error", (const char *)call->reply));
        bag_buffers_put(call->reply);
        call->reply_bytes = strlen(error);
        call->reply = bag_buffers_get(&world.buffers, call->reply_bytes);
        memcpy(call->reply, error, call->reply_bytes);
        if (!bag_fanout_find_client_error(fanout, i, problem))
            fail_msg("shard %zu rejects: %s", call->shard, error);
        free(error);
        return false;
    }
    assert_in_range(call->reply_bytes, 1, call->max_reply_bytes);
    if (!bag_fanout_check(fanout, i, problem))
        fail_msg("shard %zu: %s", call->shard, problem->text);
    return true;
}

static bool ask_shards(struct bag_fanout *fanout, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < fanout->count; i++)
        ok = ask_shard(fanout, i, problem);
    return ok;
}

static char *ask_front(const struct bag_model *model, const char *body, size_t bytes,
                       size_t *reply_bytes)
{
    struct bag_infer infer;
    struct bag_fanout fanout;
    struct bag_problem problem;
    begin(&infer, model, body, bytes, bytes);
    bool ok = bag_infer_plan(&infer, NULL, &problem);
    if (ok) {
        assert_true(bag_infer_prepare(&infer, &world.buffers, &problem));
        assert_true(bag_fanout_make(&(struct bag_infer *){&infer}, 1, &fanout, &problem));
        count_joined(&infer.plan);
        ok = ask_shards(&fanout, &problem);
        bag_infer_pool(&infer, bag_split_all(infer.plan.num_ops));
        if (ok)
            bag_fanout_merge(&fanout, &infer);
        bag_fanout_free(&fanout);
        bag_infer_finish(&infer);
    }
    *reply_bytes = ok ? infer.output.bytes : strlen(problem.text);
    char *reply = bag_buffers_get(&world.buffers, *reply_bytes + 1);
    memcpy(reply, ok ? infer.output.reply : problem.text, *reply_bytes);
    reply[*reply_bytes] = 0;
    bag_infer_free(&infer);
    return reply;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    (void)state;
    world.limits = (struct bag_infer_limits){
        .max_body_bytes = 1 << 20, .max_reply_bytes = 64 << 20, .explains = true};
    bag_isa_use(bag_isa_best());
    return bag_buffers_init(&world.buffers, true, NULL) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    bag_buffers_free(&world.buffers);
    return 0;
}

AROUND_ALL(set_up, tear_down)

static void reject(uint64_t seed, const char *body, const char *whole, const char *front)
{
    fprintf(stderr, "asked %s\none server: %s\nfront: %s\n", body, whole, front);
    fail_msg("seed %llu, %zu parts by %s, %s", (unsigned long long)seed, world.num_parts,
             bag_part_way_names[world.by], bag_dtypes[world.dtype].name);
}

/* -0 + 0 is 0 in every order; the largest of zeros may have either sign. */
static void drop_signs_of_zeros(char *reply)
{
    for (char *zero = strstr(reply, "-0.0"); zero; zero = strstr(reply, "-0.0"))
        memmove(zero, zero + 1, strlen(zero));
}

/* Asks both, and compares. Returns whether one server took the request. */
static inline bool compare_both(uint64_t seed, const struct bag_model *one,
                                const struct bag_model *other, const struct text *body)
{
    size_t whole_bytes, front_bytes, header_bytes;
    char *whole = answer(one, body->bytes, body->used, body->used, &whole_bytes, &header_bytes);
    char *front = ask_front(other, body->bytes, body->used, &front_bytes);
    drop_signs_of_zeros(whole);
    drop_signs_of_zeros(front);
    bool takes_default_elsewhere = strstr(front, "'default_index' cannot be another key") != NULL;
    /* The problem may name any of several missing keys, and any other fault before them. */
    bool miss_keys =
        strstr(whole, "a key that the table does not have") &&
        (strstr(front, "a key that the table does not have") ||
         strstr(front, "cannot be combined with unsorted segments") ||
         strstr(front, "output 'embeddings' needs one type") || strstr(front, "reduction none"));
    if (!takes_default_elsewhere && !miss_keys && strcmp(whole, front) != 0)
        reject(seed, body->bytes, whole, front);
    bag_buffers_put(whole);
    bag_buffers_put(front);
    return header_bytes != SIZE_MAX;
}

static inline uint64_t first_seed(void)
{
    const char *given = getenv("BAG_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : 1;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)first + REQUESTS - 1);
    return first;
}
