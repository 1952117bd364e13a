/* The functions that threads call for locks, conditions, other threads and clocks; see sim.h.
 *
 * Every call lets other threads go on, if the seed says so, and so do the functions at the end. */
#include "sim.h"

#include "kernels/keys.h"
#include "server/engine/engine.h"
#include "server/models/snapshot.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <uv.h>

/* ---- locks ----------------------------------------------------------------------------------- */

/* The memory of a mutex says who holds it: 0 nobody. */
static int *holder_of(void *mutex)
{
    return mutex;
}

/* The server's own calls, by the linker's --wrap: libraries keep theirs. libuv's names for them are
 * the same functions (CMakeLists.txt). */
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    *holder_of(mutex) = 0;
    return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    sim_require(*holder_of(mutex) == 0, "a lock is destroyed that is held");
    *holder_of(mutex) = -1;
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int own = (int)sim_thread() + 1;
    sim_pause();
    sim_require(*holder_of(mutex) != own, "a thread locks what it holds");
    while (*holder_of(mutex))
        sim_wait(mutex, UINT64_MAX);
    *holder_of(mutex) = own;
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    sim_pause();
    if (*holder_of(mutex))
        return EBUSY;
    *holder_of(mutex) = (int)sim_thread() + 1;
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    sim_require(*holder_of(mutex) == (int)sim_thread() + 1,
                "a thread unlocks what it does not hold");
    *holder_of(mutex) = 0;
    sim_wake_one(mutex);
    sim_pause();
    return 0;
}

int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    (void)attributes;
    memset(condition, 0, sizeof *condition);
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *condition)
{
    (void)condition;
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition)
{
    sim_wake_one(condition);
    sim_pause();
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    sim_wake_all(condition);
    sim_pause();
    return 0;
}

/* Waiters may wake without a reason. */
static bool wait_on(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until_ns)
{
    *holder_of(mutex) = 0;
    sim_wake_one(mutex);
    uint64_t end_ns = until_ns;
    if (sim_one_in(64) && end_ns > sim.now_ns + MS)
        end_ns = sim.now_ns + sim_below(MS);
    bool woken = sim_wait(condition, end_ns) || end_ns != until_ns;
    while (*holder_of(mutex))
        sim_wait(mutex, UINT64_MAX);
    *holder_of(mutex) = (int)sim_thread() + 1;
    return woken;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    wait_on(condition, mutex, UINT64_MAX);
    return 0;
}

/* All conditions of the server use the monotonic clock. */
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
    *thread = sim_thread_start(run, context) + 1;
    sim_pause();
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    (void)result;
    sim_thread_join(thread - 1);
    return 0;
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

/* ---- where other threads go on besides ------------------------------------------------------- */

/* Functions before which others may go on: X(result, name, parameters, arguments). */
#define PAUSED(X)                                                                         \
    X(void, bag_workers_push,                                                             \
      (struct bag_workers * workers, struct bag_work * work, enum bag_work_order order),  \
      (workers, work, order))                                                             \
    X(unsigned, bag_workers_idle, (struct bag_workers * workers), (workers))              \
    X(void, bag_job_push_finished, (struct bag_engine * engine, struct bag_job * job),    \
      (engine, job))                                                                      \
    X(bool, bag_registry_publish,                                                         \
      (struct bag_registry * registry, struct bag_snapshot * snapshot,                    \
       struct bag_problem * problem),                                                     \
      (registry, snapshot, problem))                                                      \
    X(enum bag_keys_outcome, bag_keys_insert,                                             \
      (const struct bag_keys *keys, uint64_t key, int64_t row, int64_t *other),           \
      (keys, key, row, other))                                                            \
    X(int64_t, bag_keys_remove, (const struct bag_keys *keys, uint64_t key), (keys, key)) \
    X(size_t, bag_registry_collect, (struct bag_registry * registry), (registry))         \
    X(void, bag_reader_move, (struct bag_reader * reader), (reader))                      \
    X(void, bag_snapshot_free, (struct bag_snapshot * snapshot), (snapshot))              \
    X(bool, bag_live_rows_try_read, (struct bag_live_rows *const *live, size_t count),    \
      (live, count))                                                                      \
    X(void, bag_live_rows_read_end, (struct bag_live_rows *const *live, size_t count),    \
      (live, count))

#define BAG_X(result, name, parameters, arguments) \
    result __real_##name parameters;               \
    result __wrap_##name parameters                \
    {                                              \
        sim_pause();                               \
        return __real_##name arguments;            \
    }
PAUSED(BAG_X)
#undef BAG_X

/* The clients here are too few to fill a queue: with a latency target it is at times full anyway.
 */
bool __real_bag_engine_is_full(struct bag_engine *engine);

bool __wrap_bag_engine_is_full(struct bag_engine *engine)
{
    return __real_bag_engine_is_full(engine) || (engine->limits.latency_target_ns && sim_one_in(2));
}

/* While a batch of rows is applied, others may go on between two of its rows. */
static size_t applying;

bool __real_bag_live_rows_apply(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                                struct bag_problem *problem);
void *__real_memcpy(void *to, const void *from, size_t bytes);

bool __wrap_bag_live_rows_apply(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                                struct bag_problem *problem)
{
    applying = sim_thread() + 1;
    bool ok = __real_bag_live_rows_apply(live, batch, problem);
    applying = 0;
    return ok;
}

void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
    if (applying && applying == sim_thread() + 1)
        sim_pause();
    return __real_memcpy(to, from, bytes);
}
