/* Threads as fibers, virtual time and events; see sim.h.
 *
 * One fiber runs at a time, until it waits or a call lets others go on. The scheduler picks the
 * next one, or an event that is due, by the seed; when nothing can run, time jumps. */
#include "sim.h"

#include "kernels/random.h"
#include "server/http/connection.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <uv.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define start_switch(save, bottom, bytes) __sanitizer_start_switch_fiber(save, bottom, bytes)
#define finish_switch(save)               __sanitizer_finish_switch_fiber(save, NULL, NULL)
#else
#define start_switch(save, bottom, bytes) ((void)(save), (void)(bottom), (void)(bytes))
#define finish_switch(save)               ((void)(save))
#endif

#define MAX_THREADS 64
#define MAX_EVENTS  4096
#define STACK_BYTES (512 << 10)

/* Maximum memory of a schedule from sim_alloc. */
#define MEMORY_BYTES ((size_t)256 << 20)

/* A schedule takes a few thousand turns. */
#define MAX_STEPS 2000000

/* Duration of a call in virtual time. */
#define CALL_NS 50

struct sim sim;

enum state { FREE, READY, WAITING, ENDED };

struct thread {
    enum state state;
    bool woken, joined;
    const void *on;    /* the object that the thread waits on */
    uint64_t ready_ns; /* READY: not before; WAITING: no longer than */
    void *(*run)(void *context);
    void *context;
    ucontext_t place;
    void *stack; /* kept for the next schedule */
    void *fake_stack;
    int error; /* errno of the thread */
};

struct event {
    uint64_t when_ns, order;
    void (*fire)(void *context);
    void *context;
};

static struct {
    struct thread threads[MAX_THREADS];
    struct thread *current; /* NULL: the scheduler */
    ucontext_t place;       /* the scheduler's */
    void *fake_stack;
    void *stack_bottom;
    size_t stack_bytes;
    struct event events[MAX_EVENTS]; /* a heap */
    size_t num_events;
    uint64_t order;
    uint64_t state; /* state of the random numbers */
    char *memory;   /* memory of sim_alloc */
    size_t memory_used;
} world;

size_t sim_thread(void)
{
    return world.current ? (size_t)(world.current - world.threads) : MAX_THREADS;
}

/* ---- what happened --------------------------------------------------------------------------- */

void sim_fail(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr,
            "seed %llu, %.6f s, turn %llu: %s\nrepeat it by: tests/simulate --seed %llu --show\n",
            (unsigned long long)sim.seed, (double)sim.now_ns / 1e9, (unsigned long long)sim.steps,
            text, (unsigned long long)sim.seed);
    for (size_t i = 0; i < MAX_THREADS; i++) {
        const struct thread *thread = &world.threads[i];
        if (thread->state == READY || thread->state == WAITING)
            fprintf(stderr, "  thread %zu %s\n", i,
                    thread == world.current  ? "runs"
                    : thread->state == READY ? "is ready"
                                             : "waits");
    }
    fflush(NULL);
    abort();
}

uint64_t sim_random(void)
{
    return bag_random(&world.state);
}

uint64_t sim_below(uint64_t limit)
{
    return sim_random() % limit;
}

bool sim_one_in(uint64_t count)
{
    return sim_below(count) == 0;
}

static size_t number_of(const struct thread *thread)
{
    return thread ? (size_t)(thread - world.threads) : MAX_THREADS;
}

void sim_note_bytes(const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    uint64_t hash = sim.trace;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001B3);
    sim.trace = hash;
}

void sim_note(const char *what, uint64_t a, uint64_t b)
{
    uint64_t numbers[4] = {sim.now_ns, number_of(world.current), a, b};
    sim_note_bytes(what, strlen(what));
    sim_note_bytes(numbers, sizeof numbers);
    if (sim.shows)
        printf("%12.6f ms  %2zd  %-10s %lld %lld\n", (double)sim.now_ns / 1e6,
               world.current ? (ssize_t)numbers[1] : -1, what, (long long)a, (long long)b);
}

void *sim_alloc(size_t bytes)
{
    if (!world.memory)
        world.memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bytes = (bytes + 15) / 16 * 16;
    sim_require(world.memory != MAP_FAILED && bytes <= MEMORY_BYTES - world.memory_used,
                "no memory for the simulation");
    void *block = world.memory + world.memory_used;
    world.memory_used += bytes;
    return memset(block, 0, bytes);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->when_ns != b->when_ns ? a->when_ns < b->when_ns : a->order < b->order;
}

void sim_at(uint64_t when_ns, void (*fire)(void *context), void *context)
{
    sim_require(world.num_events < MAX_EVENTS, "too many events");
    struct event event = {when_ns < sim.now_ns ? sim.now_ns : when_ns, world.order++, fire,
                          context};
    size_t at = world.num_events++;
    for (; at > 0 && is_before(&event, &world.events[(at - 1) / 2]); at = (at - 1) / 2)
        world.events[at] = world.events[(at - 1) / 2];
    world.events[at] = event;
}

static struct event take_event(void)
{
    struct event first = world.events[0], last = world.events[--world.num_events];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < world.num_events) {
        if (child + 1 < world.num_events &&
            is_before(&world.events[child + 1], &world.events[child]))
            child++;
        if (!is_before(&world.events[child], &last))
            break;
        world.events[at] = world.events[child];
        at = child;
    }
    world.events[at] = last;
    return first;
}

/* ---- fibers ---------------------------------------------------------------------------------- */

static void go_to(struct thread *thread)
{
    world.current = thread;
    errno = thread->error;
    start_switch(&world.fake_stack, thread->stack, STACK_BYTES);
    swapcontext(&world.place, &thread->place);
    finish_switch(world.fake_stack);
    world.current = NULL;
}

/* Back to the scheduler. */
static void leave(void)
{
    struct thread *thread = world.current;
    thread->error = errno;
    start_switch(thread->state == ENDED ? NULL : &thread->fake_stack, world.stack_bottom,
                 world.stack_bytes);
    swapcontext(&thread->place, &world.place);
    finish_switch(thread->fake_stack);
    errno = thread->error;
}

static void run_fiber(void)
{
    finish_switch(NULL);
    struct thread *thread = world.current;
    thread->run(thread->context);
    thread->state = ENDED;
    sim_wake_all(thread);
    leave();
    abort();
}

static void make_fiber(struct thread *thread)
{
    getcontext(&thread->place);
    thread->place.uc_stack.ss_sp = thread->stack;
    thread->place.uc_stack.ss_size = STACK_BYTES;
    thread->place.uc_link = NULL;
    makecontext(&thread->place, run_fiber, 0);
    thread->place.uc_stack.ss_size = 0; /* asan would clear all of it with every switch */
}

size_t sim_thread_start(void *(*run)(void *context), void *context)
{
    struct thread *thread = world.threads;
    while (thread < world.threads + MAX_THREADS && thread->state != FREE)
        thread++;
    sim_require(thread < world.threads + MAX_THREADS, "too many threads");
    void *stack = thread->stack;
    if (!stack)
        stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sim_require(stack != MAP_FAILED, "no memory for a stack");
    *thread = (struct thread){
        .state = READY, .ready_ns = sim.now_ns, .run = run, .context = context, .stack = stack};
    make_fiber(thread);
    sim_note("thread", number_of(thread), 0);
    return number_of(thread);
}

void sim_thread_join(size_t number)
{
    struct thread *thread = &world.threads[number];
    while (thread->state != ENDED)
        sim_wait(thread, UINT64_MAX);
    thread->state = FREE;
}

/* ---- the scheduler --------------------------------------------------------------------------- */

static bool may_run(const struct thread *thread)
{
    return (thread->state == READY && thread->ready_ns <= sim.now_ns) ||
           (thread->state == WAITING && thread->ready_ns <= sim.now_ns);
}

/* One of the threads that may run, or an event that is due: NULL. False: there is none. */
static bool choose(struct thread **chosen)
{
    struct thread *ready[MAX_THREADS + 1];
    size_t count = 0;
    for (struct thread *thread = world.threads; thread < world.threads + MAX_THREADS; thread++) {
        if (may_run(thread))
            ready[count++] = thread;
    }
    if (world.num_events && world.events[0].when_ns <= sim.now_ns)
        ready[count++] = NULL;
    if (count)
        *chosen = ready[count == 1 ? 0 : sim_below(count)];
    return count > 0;
}

/* To when the next thread or event is due; false: nothing will ever happen. */
static bool jump(void)
{
    uint64_t next_ns = world.num_events ? world.events[0].when_ns : UINT64_MAX;
    for (const struct thread *thread = world.threads; thread < world.threads + MAX_THREADS;
         thread++) {
        if ((thread->state == READY || thread->state == WAITING) && thread->ready_ns < next_ns)
            next_ns = thread->ready_ns;
    }
    if (next_ns == UINT64_MAX)
        return false;
    sim.now_ns = next_ns;
    return true;
}

static bool has_threads(void)
{
    for (const struct thread *thread = world.threads; thread < world.threads + MAX_THREADS;
         thread++) {
        if (thread->state == READY || thread->state == WAITING)
            return true;
    }
    return false;
}

static void step(void)
{
    struct thread *thread;
    sim_require(++sim.steps < MAX_STEPS, "the server does not come to rest");
    while (!choose(&thread))
        sim_require(jump(), "all threads wait for ever");
    sim_note(thread ? "run" : "event", number_of(thread), 0);
    if (thread) {
        thread->state = READY;
        go_to(thread);
    } else {
        struct event event = take_event();
        event.fire(event.context);
    }
}

/* Fires the events that are left after the last thread has ended. */
static void end_events(void)
{
    while (world.num_events) {
        struct event event = take_event();
        sim.now_ns = event.when_ns;
        event.fire(event.context);
    }
}

struct first {
    void (*run)(void *context);
    void *context;
};

static void *run_first(void *context)
{
    struct first *first = context;
    first->run(first->context);
    return NULL;
}

void sim_run_threads(void (*run)(void *context), void *context)
{
    struct first first = {run, context};
    pthread_attr_t attributes;
    if (!world.stack_bottom && pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &world.stack_bottom, &world.stack_bytes);
        pthread_attr_destroy(&attributes);
    }
    world.state = sim.seed * UINT64_C(0xD1342543DE82EF95) + 1;
    world.order = 0;
    struct thread *thread = &world.threads[sim_thread_start(run_first, &first)];
    while (has_threads())
        step();
    thread->state = FREE;
    for (size_t i = 0; i < MAX_THREADS; i++)
        sim_require(world.threads[i].state == FREE, "thread %zu was never joined", i);
    end_events();
    world.memory_used = 0;
}

void sim_end_threads(void)
{
    world.current = NULL;
    end_events();
}

void sim_pause(void)
{
    struct thread *thread = world.current;
    if (!thread)
        return;
    sim.now_ns += CALL_NS;
    uint64_t random = sim_random();
    if (random % sim.switches_in)
        return;
    random /= sim.switches_in;
    thread->ready_ns = sim.now_ns + (random % 8 ? random / 8 % 2000 : random / 8 % 100000);
    if (random / 1000 % sim.slow_in == 0)
        thread->ready_ns = sim.now_ns + random % (20 * MS);
    leave();
}

bool sim_wait(const void *on, uint64_t until_ns)
{
    struct thread *thread = world.current;
    thread->state = WAITING;
    thread->on = on;
    thread->woken = false;
    thread->ready_ns = until_ns;
    leave();
    return thread->woken;
}

static void wake(struct thread *thread)
{
    thread->state = READY;
    thread->woken = true;
    thread->on = NULL;
    thread->ready_ns = sim.now_ns + sim_below(2000);
}

void sim_wake_all(const void *on)
{
    for (struct thread *thread = world.threads; thread < world.threads + MAX_THREADS; thread++) {
        if (thread->state == WAITING && thread->on == on)
            wake(thread);
    }
}

void sim_wake_one(const void *on)
{
    struct thread *waiting[MAX_THREADS];
    size_t count = 0;
    for (struct thread *thread = world.threads; thread < world.threads + MAX_THREADS; thread++) {
        if (thread->state == WAITING && thread->on == on)
            waiting[count++] = thread;
    }
    if (count)
        wake(waiting[count == 1 ? 0 : sim_below(count)]);
}
