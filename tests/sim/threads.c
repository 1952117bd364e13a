/* Threads as fibers, locks, virtual time and events; see sim.h.
 *
 * One fiber runs at a time, until it waits or a call lets others go on. The scheduler picks the
 * next one, or an event that is due, by the seed; when nothing can run, time jumps. */
#include "sim.h"

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

/* What a schedule may take of sim_alloc. */
#define MEMORY_BYTES ((size_t)256 << 20)

/* A schedule takes a few thousand turns. */
#define MAX_STEPS 2000000

/* What calls take. */
#define CALL_NS 50

struct sim sim;

enum state { FREE, READY, WAITING, ENDED };

struct thread {
    enum state state;
    bool woken, joined;
    const void *on;    /* what it waits on */
    uint64_t ready_ns; /* READY: not before; WAITING: no longer than */
    void *(*run)(void *context);
    void *context;
    ucontext_t place;
    void *stack; /* kept for the next schedule */
    void *fake_stack;
    int error; /* its errno */
    bag_http_observer *observer;
    void *observer_context;
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
    uint64_t state; /* of the random numbers */
    char *memory;   /* of sim_alloc */
    size_t memory_used;
} world;

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
    uint64_t z = world.state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
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

void __real_bag_http_intercept(bag_http_observer *observer, void *context);
void __wrap_bag_http_intercept(bag_http_observer *observer, void *context);

/* It belongs to a thread of the system, of which there is one. */
void __wrap_bag_http_intercept(bag_http_observer *observer, void *context)
{
    world.current->observer = observer;
    world.current->observer_context = context;
    __real_bag_http_intercept(observer, context);
}

static void go_to(struct thread *thread)
{
    world.current = thread;
    errno = thread->error;
    __real_bag_http_intercept(thread->observer, thread->observer_context);
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

static struct thread *start_thread(void *(*run)(void *context), void *context)
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
    return thread;
}

static void join_thread(struct thread *thread)
{
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
    struct thread *thread = start_thread(run_first, &first);
    while (has_threads())
        step();
    thread->state = FREE;
    for (size_t i = 0; i < MAX_THREADS; i++)
        sim_require(world.threads[i].state == FREE, "thread %zu was never joined", i);
    while (world.num_events) {
        struct event event = take_event();
        sim.now_ns = event.when_ns;
        event.fire(event.context);
    }
    world.memory_used = 0;
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

static void wake_one(const void *on)
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

/* ---- locks ----------------------------------------------------------------------------------- */

/* In the memory of a mutex stands who holds it: 0 nobody. */
static int *holder_of(void *mutex)
{
    return mutex;
}

static void lock(void *mutex)
{
    int own = (int)number_of(world.current) + 1;
    sim_pause();
    sim_require(*holder_of(mutex) != own, "a thread locks what it holds");
    while (*holder_of(mutex))
        sim_wait(mutex, UINT64_MAX);
    *holder_of(mutex) = own;
}

static void unlock(void *mutex)
{
    sim_require(*holder_of(mutex) == (int)number_of(world.current) + 1,
                "a thread unlocks what it does not hold");
    *holder_of(mutex) = 0;
    wake_one(mutex);
    sim_pause();
}

static void destroy(void *mutex)
{
    sim_require(*holder_of(mutex) == 0, "a lock is destroyed that is held");
    *holder_of(mutex) = -1;
}

/* Waiters may wake without a reason. */
static bool wait_on(void *condition, void *mutex, uint64_t until_ns)
{
    *holder_of(mutex) = 0;
    wake_one(mutex);
    uint64_t end_ns = until_ns;
    if (sim_one_in(64) && end_ns > sim.now_ns + MS)
        end_ns = sim.now_ns + sim_below(MS);
    bool woken = sim_wait(condition, end_ns) || end_ns != until_ns;
    while (*holder_of(mutex))
        sim_wait(mutex, UINT64_MAX);
    *holder_of(mutex) = (int)number_of(world.current) + 1;
    return woken;
}

int uv_mutex_init(uv_mutex_t *mutex)
{
    *holder_of(mutex) = 0;
    return 0;
}

void uv_mutex_destroy(uv_mutex_t *mutex)
{
    destroy(mutex);
}

void uv_mutex_lock(uv_mutex_t *mutex)
{
    lock(mutex);
}

void uv_mutex_unlock(uv_mutex_t *mutex)
{
    unlock(mutex);
}

int uv_cond_init(uv_cond_t *condition)
{
    memset(condition, 0, sizeof *condition);
    return 0;
}

void uv_cond_destroy(uv_cond_t *condition)
{
    (void)condition;
}

void uv_cond_signal(uv_cond_t *condition)
{
    wake_one(condition);
    sim_pause();
}

void uv_cond_broadcast(uv_cond_t *condition)
{
    sim_wake_all(condition);
    sim_pause();
}

void uv_cond_wait(uv_cond_t *condition, uv_mutex_t *mutex)
{
    wait_on(condition, mutex, UINT64_MAX);
}

int uv_cond_timedwait(uv_cond_t *condition, uv_mutex_t *mutex, uint64_t timeout_ns)
{
    return wait_on(condition, mutex, sim.now_ns + timeout_ns) ? 0 : UV_ETIMEDOUT;
}

/* The server's own calls, by the linker's --wrap: libraries keep theirs. */
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes);
int __wrap_pthread_cond_destroy(pthread_cond_t *condition);
int __wrap_pthread_cond_signal(pthread_cond_t *condition);
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *context), void *context);
int __wrap_pthread_join(pthread_t thread, void **result);

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    return uv_mutex_init(mutex);
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    destroy(mutex);
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    lock(mutex);
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    unlock(mutex);
    return 0;
}

int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    (void)attributes;
    return uv_cond_init(condition);
}

int __wrap_pthread_cond_destroy(pthread_cond_t *condition)
{
    (void)condition;
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition)
{
    uv_cond_signal(condition);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    uv_cond_broadcast(condition);
    return 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    wait_on(condition, mutex, UINT64_MAX);
    return 0;
}

/* All of the server's count on the monotonic clock. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    uint64_t until_ns = (uint64_t)until->tv_sec * S + (uint64_t)until->tv_nsec;
    if (until_ns <= sim.now_ns)
        return ETIMEDOUT;
    return wait_on(condition, mutex, until_ns) ? 0 : ETIMEDOUT;
}

/* ---- threads as the server starts them ------------------------------------------------------- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *context), void *context)
{
    (void)attributes;
    *thread = number_of(start_thread(run, context)) + 1;
    sim_pause();
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    (void)result;
    join_thread(&world.threads[thread - 1]);
    return 0;
}

struct entry {
    uv_thread_cb run;
    void *context;
};

static void *run_entry(void *context)
{
    struct entry *entry = context;
    entry->run(entry->context);
    return NULL;
}

int uv_thread_create(uv_thread_t *thread, uv_thread_cb run, void *context)
{
    struct entry *entry = sim_alloc(sizeof *entry);
    *entry = (struct entry){run, context};
    return __wrap_pthread_create(thread, NULL, run_entry, entry);
}

int uv_thread_join(uv_thread_t *thread)
{
    return __wrap_pthread_join(*thread, NULL);
}

unsigned uv_available_parallelism(void)
{
    return 2;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* When the simulation begins, for those who ask for the date. */
#define EPOCH_S 1700000000

uint64_t uv_hrtime(void)
{
    sim_pause();
    return sim.now_ns;
}

SIM_PUBLIC int clock_gettime(clockid_t clock, struct timespec *time)
{
    sim_pause();
    *time =
        (struct timespec){.tv_sec = (time_t)(sim.now_ns / S), .tv_nsec = (long)(sim.now_ns % S)};
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        time->tv_sec += EPOCH_S;
    return 0;
}

SIM_PUBLIC time_t time(time_t *seconds)
{
    time_t now = EPOCH_S + (time_t)(sim.now_ns / S);
    if (seconds)
        *seconds = now;
    return now;
}

SIM_PUBLIC int sched_yield(void)
{
    sim_pause();
    return 0;
}
