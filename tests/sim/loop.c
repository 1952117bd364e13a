/* libuv's loops, as far as the server uses them; see sim.h.
 *
 * The seed decides the order in which events that are ready at the same time are handled. Timers
 * run before or after the loop has waited, as in older or newer versions of libuv. */
#include "sim.h"

#include <signal.h>
#include <string.h>
#include <uv.h>

#define MAX_HANDLES 256
#define MAX_LOOPS   8

struct handle {
    uv_handle_t *handle; /* NULL: free */
    uv_handle_type type;
    bool active, closing, pending;
    uv_close_cb on_close;
    uint64_t due_ms, repeat_ms, order; /* times and order of a timer */
    uv_timer_cb on_timer;
    int fd; /* descriptor of a poll handle, or number of a signal */
    uv_poll_cb on_poll;
    uv_async_cb on_async;
    uv_idle_cb on_idle;
    uv_prepare_cb on_prepare;
    uv_signal_cb on_signal;
};

struct loop {
    uv_loop_t *loop;
    struct handle handles[MAX_HANDLES];
    size_t count;
    uint64_t now_ms, order;
    bool timers_last;
};

static struct {
    struct loop *loops[MAX_LOOPS];
    size_t count;
    bool signals[64]; /* signals that arrived while no handle caught them */
} world;

static struct loop *loop_of(const uv_loop_t *loop)
{
    return loop->internal_fields;
}

/* Stands for handles that were closed: callers may ask for its state only. */
static struct handle closed = {.closing = true};

static struct handle *state_of(const void *uv_handle)
{
    const uv_handle_t *handle = uv_handle;
    uintptr_t place = (uintptr_t)handle->u.reserved[0];
    return place < MAX_HANDLES ? &loop_of(handle->loop)->handles[place] : &closed;
}

static struct handle *handle_of(const void *uv_handle)
{
    struct handle *handle = state_of(uv_handle);
    sim_require(handle->handle == uv_handle, "a handle is used after its end");
    return handle;
}

static struct handle *add(uv_loop_t *uv_loop, void *uv_handle, uv_handle_type type)
{
    struct loop *loop = loop_of(uv_loop);
    uv_handle_t *handle = uv_handle;
    size_t i = 0;
    while (i < loop->count && loop->handles[i].handle)
        i++;
    sim_require(i < MAX_HANDLES, "too many handles");
    if (i == loop->count)
        loop->count++;
    loop->handles[i] = (struct handle){.handle = handle, .type = type};
    handle->loop = uv_loop;
    handle->type = type;
    handle->u.reserved[0] = (void *)(uintptr_t)i;
    return &loop->handles[i];
}

/* ---- loops ----------------------------------------------------------------------------------- */

int uv_loop_init(uv_loop_t *uv_loop)
{
    struct loop *loop = sim_alloc(sizeof *loop);
    memset(uv_loop, 0, sizeof *uv_loop);
    uv_loop->internal_fields = loop;
    loop->loop = uv_loop;
    loop->timers_last = sim_one_in(2);
    loop->now_ms = sim.now_ns / MS;
    sim_require(world.count < MAX_LOOPS, "too many loops");
    world.loops[world.count++] = loop;
    return 0;
}

int uv_loop_close(uv_loop_t *uv_loop)
{
    const struct loop *loop = loop_of(uv_loop);
    for (size_t i = 0; i < loop->count; i++)
        sim_require(!loop->handles[i].handle, "a loop is closed with open handles");
    size_t at = 0;
    while (world.loops[at] != loop)
        at++;
    world.loops[at] = world.loops[--world.count];
    return 0;
}

uint64_t uv_now(const uv_loop_t *uv_loop)
{
    return loop_of(uv_loop)->now_ms;
}

int uv_backend_fd(const uv_loop_t *uv_loop)
{
    (void)uv_loop;
    return -2; /* epoll_ctl does nothing with it */
}

void sim_loops_wake(void)
{
    for (size_t i = 0; i < world.count; i++)
        sim_wake_all(world.loops[i]);
}

static bool is_alive(const struct loop *loop)
{
    for (size_t i = 0; i < loop->count; i++) {
        if (loop->handles[i].handle && (loop->handles[i].active || loop->handles[i].closing))
            return true;
    }
    return false;
}

static bool is_ready(const struct handle *handle)
{
    return handle->handle && handle->active &&
           (handle->pending || (handle->type == UV_POLL && sim_is_readable(handle->fd)));
}

/* ---- timers ---------------------------------------------------------------------------------- */

static struct handle *next_timer(struct loop *loop)
{
    struct handle *next = NULL;
    for (struct handle *at = loop->handles; at < loop->handles + loop->count; at++) {
        if (at->handle && at->type == UV_TIMER && at->active &&
            (!next || at->due_ms < next->due_ms ||
             (at->due_ms == next->due_ms && at->order < next->order)))
            next = at;
    }
    return next;
}

static void run_timers(struct loop *loop)
{
    struct handle *next;
    while ((next = next_timer(loop)) != NULL && next->due_ms <= loop->now_ms) {
        uv_timer_t *timer = (uv_timer_t *)next->handle;
        uv_timer_cb on_timer = next->on_timer;
        next->active = false;
        if (next->repeat_ms)
            uv_timer_start(timer, on_timer, next->repeat_ms, next->repeat_ms);
        sim_note("timer", (uint64_t)(next - loop->handles), 0);
        on_timer(timer);
    }
}

int uv_timer_init(uv_loop_t *uv_loop, uv_timer_t *timer)
{
    add(uv_loop, timer, UV_TIMER);
    return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb on_timer, uint64_t timeout_ms, uint64_t repeat_ms)
{
    struct handle *handle = handle_of(timer);
    struct loop *loop = loop_of(timer->loop);
    if (handle->closing)
        return UV_EINVAL;
    handle->active = true;
    handle->on_timer = on_timer;
    handle->due_ms = loop->now_ms + timeout_ms;
    handle->repeat_ms = repeat_ms;
    handle->order = loop->order++;
    return 0;
}

int uv_timer_stop(uv_timer_t *timer)
{
    handle_of(timer)->active = false;
    return 0;
}

/* ---- other handles --------------------------------------------------------------------------- */

int uv_idle_init(uv_loop_t *uv_loop, uv_idle_t *idle)
{
    add(uv_loop, idle, UV_IDLE);
    return 0;
}

int uv_idle_start(uv_idle_t *idle, uv_idle_cb on_idle)
{
    struct handle *handle = handle_of(idle);
    if (!handle->closing && !handle->active) {
        handle->active = true;
        handle->on_idle = on_idle;
    }
    return 0;
}

int uv_idle_stop(uv_idle_t *idle)
{
    handle_of(idle)->active = false;
    return 0;
}

int uv_prepare_init(uv_loop_t *uv_loop, uv_prepare_t *prepare)
{
    add(uv_loop, prepare, UV_PREPARE);
    return 0;
}

int uv_prepare_start(uv_prepare_t *prepare, uv_prepare_cb on_prepare)
{
    struct handle *handle = handle_of(prepare);
    handle->active = true;
    handle->on_prepare = on_prepare;
    return 0;
}

int uv_poll_init(uv_loop_t *uv_loop, uv_poll_t *poll, int fd)
{
    add(uv_loop, poll, UV_POLL)->fd = fd;
    return 0;
}

int uv_poll_start(uv_poll_t *poll, int events, uv_poll_cb on_poll)
{
    struct handle *handle = handle_of(poll);
    sim_require(events == UV_READABLE && !handle->closing, "a poll that the simulation lacks");
    handle->active = true;
    handle->on_poll = on_poll;
    return 0;
}

int uv_poll_stop(uv_poll_t *poll)
{
    handle_of(poll)->active = false;
    return 0;
}

int uv_async_init(uv_loop_t *uv_loop, uv_async_t *async, uv_async_cb on_async)
{
    struct handle *handle = add(uv_loop, async, UV_ASYNC);
    handle->active = true;
    handle->on_async = on_async;
    return 0;
}

int uv_async_send(uv_async_t *async)
{
    struct handle *handle = handle_of(async);
    sim_pause();
    if (!handle->pending) {
        handle->pending = true;
        sim_wake_all(loop_of(async->loop));
    }
    return 0;
}

int uv_signal_init(uv_loop_t *uv_loop, uv_signal_t *signal)
{
    add(uv_loop, signal, UV_SIGNAL);
    return 0;
}

int uv_signal_start(uv_signal_t *signal, uv_signal_cb on_signal, int number)
{
    struct handle *handle = handle_of(signal);
    handle->active = true;
    handle->fd = number;
    handle->on_signal = on_signal;
    handle->pending = world.signals[number];
    world.signals[number] = false;
    return 0;
}

void sim_signal(int number)
{
    sim_note("signal", (uint64_t)number, 0);
    for (size_t i = 0; i < world.count; i++) {
        struct loop *loop = world.loops[i];
        for (struct handle *at = loop->handles; at < loop->handles + loop->count; at++) {
            if (at->handle && at->type == UV_SIGNAL && at->active && at->fd == number) {
                at->pending = true;
                sim_wake_all(loop);
                return;
            }
        }
    }
    world.signals[number] = true;
}

int uv_is_active(const uv_handle_t *handle)
{
    return state_of(handle)->active;
}

int uv_is_closing(const uv_handle_t *handle)
{
    return state_of(handle)->closing;
}

int uv_fileno(const uv_handle_t *handle, uv_os_fd_t *fd)
{
    *fd = handle_of(handle)->fd;
    return 0;
}

void uv_close(uv_handle_t *uv_handle, uv_close_cb on_close)
{
    struct handle *handle = handle_of(uv_handle);
    sim_require(!handle->closing, "a handle is closed twice");
    handle->active = false;
    handle->closing = true;
    handle->on_close = on_close;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void run_idle(struct loop *loop)
{
    for (size_t i = 0; i < loop->count; i++) {
        struct handle *at = &loop->handles[i];
        if (at->handle && at->type == UV_IDLE && at->active)
            at->on_idle((uv_idle_t *)at->handle);
    }
}

static void run_prepare(struct loop *loop)
{
    for (size_t i = 0; i < loop->count; i++) {
        struct handle *at = &loop->handles[i];
        if (at->handle && at->type == UV_PREPARE && at->active)
            at->on_prepare((uv_prepare_t *)at->handle);
    }
}

static bool is_any_ready(const struct loop *loop)
{
    for (size_t i = 0; i < loop->count; i++) {
        const struct handle *at = &loop->handles[i];
        if (is_ready(at) || (at->handle && (at->closing || (at->type == UV_IDLE && at->active))))
            return true;
    }
    return false;
}

static void wait_for_any(struct loop *loop)
{
    sim_pause();
    while (!is_any_ready(loop)) {
        const struct handle *timer = next_timer(loop);
        uint64_t until_ns = timer ? timer->due_ms * MS : UINT64_MAX;
        if (until_ns <= sim.now_ns)
            break;
        sim_wait(loop, until_ns);
    }
    loop->now_ms = sim.now_ns / MS;
}

static void call(struct handle *handle)
{
    sim_note("ready", handle->type, (uint64_t)handle->fd);
    handle->pending = false;
    if (handle->type == UV_POLL)
        handle->on_poll((uv_poll_t *)handle->handle, 0, UV_READABLE);
    else if (handle->type == UV_ASYNC)
        handle->on_async((uv_async_t *)handle->handle);
    else
        handle->on_signal((uv_signal_t *)handle->handle, handle->fd);
}

/* Calls the handles that were ready at the beginning, unless a callback has stopped them
 * meanwhile. */
static void call_ready(struct loop *loop)
{
    size_t ready[MAX_HANDLES], count = 0;
    for (size_t i = 0; i < loop->count; i++) {
        if (is_ready(&loop->handles[i]))
            ready[count++] = i;
    }
    while (count) {
        size_t at = count == 1 ? 0 : sim_below(count);
        struct handle *handle = &loop->handles[ready[at]];
        ready[at] = ready[--count];
        if (handle->handle && handle->active)
            call(handle);
    }
}

static void end_closing(struct loop *loop)
{
    for (size_t i = 0; i < loop->count; i++) {
        struct handle *at = &loop->handles[i];
        if (!at->handle || !at->closing)
            continue;
        uv_handle_t *handle = at->handle;
        uv_close_cb on_close = at->on_close;
        *at = (struct handle){0};
        handle->u.reserved[0] = (void *)(uintptr_t)MAX_HANDLES;
        if (on_close)
            on_close(handle);
    }
}

int uv_run(uv_loop_t *uv_loop, uv_run_mode mode)
{
    struct loop *loop = loop_of(uv_loop);
    (void)mode;
    while (is_alive(loop)) {
        if (!loop->timers_last) {
            loop->now_ms = sim.now_ns / MS;
            run_timers(loop);
        }
        run_idle(loop);
        run_prepare(loop);
        wait_for_any(loop);
        call_ready(loop);
        end_closing(loop);
        if (loop->timers_last)
            run_timers(loop);
    }
    return 0;
}
