/* Blocking exchanges with one deadline; see deadline.h. */
#include "deadline.h"

#include "monitor.h"
#include "sockets.h"
#include "thread_team.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

uint64_t bag_deadline_in_ms(uint64_t timeout_ms)
{
    return uv_hrtime() + timeout_ms * 1000000;
}

/* Returns the milliseconds until a deadline, or 0 with errno ETIMEDOUT. */
static int remaining_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = uv_hrtime();
    errno = ETIMEDOUT;
    return now_ns < deadline_ns ? (int)((deadline_ns - now_ns + 999999) / 1000000) : 0;
}

/* Makes calls on a socket time out at the deadline. `option` is SO_RCVTIMEO or SO_SNDTIMEO. */
static bool limit_time(int fd, int option, uint64_t deadline_ns)
{
    const int ms = remaining_ms(deadline_ns);
    const struct timeval timeout = {ms / 1000, ms % 1000 * 1000};
    return ms > 0 && setsockopt(fd, SOL_SOCKET, option, &timeout, sizeof timeout) == 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

int bag_deadline_connect(const void *address, socklen_t bytes, uint64_t deadline_ns)
{
    const int ms = remaining_ms(deadline_ns);
    int fd = ms > 0 ? bag_address_connect(address, bytes, ms) : -1;
    if (fd < 0 && errno == EAGAIN) /* the backlog of a Unix-domain socket is full */
        errno = ETIMEDOUT;
    return fd;
}

/* A look-up of a name, of the thread that waits for it and of the one that does it. The last one to
 * be done with it frees it. */
struct lookup {
    struct bag_monitor monitor; /* guards the members below */
    bool is_done, is_abandoned;
    struct addrinfo *list; /* owned until the waiting thread takes it */
    struct bag_problem problem;
    int64_t port;
    char host[]; /* constant */
};

static atomic_int num_lookups;

static void free_lookup(struct lookup *lookup)
{
    if (lookup->list)
        freeaddrinfo(lookup->list);
    bag_monitor_free(&lookup->monitor);
    free(lookup);
}

static void *look_up(void *context)
{
    struct lookup *lookup = context;
    struct addrinfo *list = bag_address_find(lookup->host, lookup->port, 0, &lookup->problem);
    atomic_fetch_sub(&num_lookups, 1);
    bag_monitor_lock(&lookup->monitor);
    lookup->is_done = true;
    lookup->list = list;
    bool is_abandoned = lookup->is_abandoned;
    bag_monitor_wake(&lookup->monitor);
    bag_monitor_unlock(&lookup->monitor);
    if (is_abandoned)
        free_lookup(lookup);
    return NULL;
}

/* Starts a look-up. Returns NULL and sets *problem if that is not possible. */
static struct lookup *start_lookup(const char *host, int64_t port, struct bag_problem *problem)
{
    size_t host_bytes = strlen(host) + 1;
    struct lookup *lookup = calloc(1, sizeof *lookup + host_bytes);
    pthread_t thread;
    if (!lookup || !bag_monitor_init(&lookup->monitor)) {
        free(lookup);
        bag_problem_no_memory(problem);
        return NULL;
    }
    memcpy(lookup->host, host, host_bytes);
    lookup->port = port;
    int error = atomic_fetch_add(&num_lookups, 1) < BAG_DEADLINE_MAX_LOOKUPS
                    ? bag_thread_start(&thread, look_up, lookup)
                    : EAGAIN;
    if (!error) {
        pthread_detach(thread);
        return lookup;
    }
    atomic_fetch_sub(&num_lookups, 1);
    free_lookup(lookup);
    bag_problem_set(problem, BAG_ERROR_SYSTEM,
                    "host '%s': too many names are being looked up without an answer", host);
    return NULL;
}

struct addrinfo *bag_deadline_find(const char *host, int64_t port, uint64_t deadline_ns,
                                   struct bag_problem *problem)
{
    struct addrinfo *list = bag_address_find(host, port, AI_NUMERICHOST, problem);
    struct lookup *lookup = list ? NULL : start_lookup(host, port, problem);
    if (!lookup)
        return list;
    bag_monitor_lock(&lookup->monitor);
    while (!lookup->is_done && bag_monitor_wait(&lookup->monitor, deadline_ns))
        continue;
    bool is_done = lookup->is_done;
    lookup->is_abandoned = !is_done;
    bag_monitor_unlock(&lookup->monitor);
    if (!is_done) {
        bag_problem_set(problem, BAG_ERROR_SYSTEM, "host '%s': looking up the name took too long",
                        host);
        return NULL;
    }
    list = lookup->list;
    lookup->list = NULL;
    if (!list)
        *problem = lookup->problem;
    free_lookup(lookup);
    return list;
}

int bag_deadline_connect_host(const char *host, int64_t port, uint64_t deadline_ns,
                              struct bag_problem *problem)
{
    struct addrinfo *list = bag_deadline_find(host, port, deadline_ns, problem);
    int fd = -1;
    if (!list)
        return -1;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
        fd = bag_deadline_connect(at->ai_addr, at->ai_addrlen, deadline_ns);
    if (fd < 0)
        bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s port %d: %s", host, (int)port,
                        strerror(errno));
    freeaddrinfo(list);
    return fd;
}

/* ---- sending and receiving ------------------------------------------------------------------- */

bool bag_deadline_send(int fd, const void *bytes, size_t count, uint64_t deadline_ns)
{
    for (const char *at = bytes, *end = at + count; at < end;) {
        ssize_t sent = limit_time(fd, SO_SNDTIMEO, deadline_ns)
                           ? send(fd, at, (size_t)(end - at), MSG_NOSIGNAL)
                           : -1;
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            errno = errno == EAGAIN ? ETIMEDOUT : errno;
            return false;
        }
        at += sent;
    }
    return true;
}

ssize_t bag_deadline_receive(int fd, void *buffer, size_t room, uint64_t deadline_ns)
{
    for (;;) {
        ssize_t count = limit_time(fd, SO_RCVTIMEO, deadline_ns) ? recv(fd, buffer, room, 0) : -1;
        if (count >= 0 || errno != EINTR) {
            errno = count < 0 && errno == EAGAIN ? ETIMEDOUT : errno;
            return count;
        }
    }
}

size_t bag_deadline_receive_head(int fd, char text[BAG_REPLY_HEAD_BYTES], size_t *used,
                                 uint64_t deadline_ns)
{
    size_t searched = *used = 0;
    for (;;) {
        size_t head_bytes = bag_reply_head_end(text, *used, searched);
        if (head_bytes > 0)
            return head_bytes;
        searched = *used;
        if (*used == BAG_REPLY_HEAD_BYTES) {
            errno = EMSGSIZE;
            return 0;
        }
        ssize_t count =
            bag_deadline_receive(fd, text + *used, BAG_REPLY_HEAD_BYTES - *used, deadline_ns);
        if (count <= 0) {
            errno = count < 0 ? errno : 0;
            return 0;
        }
        *used += (size_t)count;
    }
}
