/* Descriptors of the simulated machine, epoll and eventfd, and calls that must not reach the real
 * one; see machine.h. Descriptors of files are the real machine's. */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_WATCHED 256

struct machine machine;

/* ---- descriptors ----------------------------------------------------------------------------- */

struct file *file_of(int fd)
{
    return fd >= FIRST_FD && fd < FIRST_FD + MAX_FDS ? machine.files[fd - FIRST_FD] : NULL;
}

int give_fd(struct file *file)
{
    for (int i = 0; i < MAX_FDS; i++) {
        if (!machine.files[i]) {
            machine.files[i] = file;
            file->references++;
            return FIRST_FD + i;
        }
    }
    errno = EMFILE;
    return -1;
}

struct file *make_file(enum kind kind)
{
    struct file *file = sim_alloc(sizeof *file);
    file->kind = kind;
    return file;
}

int fail(int error)
{
    errno = error;
    return -1;
}

void sim_network_begin(void)
{
    machine.num_epolls = machine.num_listeners = 0;
    machine.next_port = 20000;
}

void sim_network_close(void)
{
    for (int i = 0; i < MAX_FDS; i++) {
        if (machine.files[i])
            close(FIRST_FD + i);
    }
}

void sim_network_end(void)
{
    for (int i = 0; i < MAX_FDS; i++)
        sim_require(!machine.files[i], "descriptor %d (kind %d) is left open", FIRST_FD + i,
                    (int)machine.files[i]->kind);
}

/* ---- readiness ------------------------------------------------------------------------------- */

size_t room_of(const struct sim_socket *socket)
{
    return !socket->is_full && socket->out.count < socket->window
               ? socket->window - socket->out.count
               : 0;
}

static uint32_t events_of(const struct file *file)
{
    const struct sim_socket *socket = file->socket;
    switch (file->kind) {
    case LISTENER:
        return file->num_waiting ? EPOLLIN : 0;
    case EVENT:
        return (file->count ? EPOLLIN : 0) | EPOLLOUT;
    case EPOLL:
        for (size_t i = 0; i < file->num_watched; i++) {
            const struct watched *at = &file->watched[i];
            if (at->file && at->pending &&
                (events_of(at->file) & (at->events | EPOLLERR | EPOLLHUP)))
                return EPOLLIN;
        }
        return 0;
    case CONNECTION:
        return (socket->in.count || socket->ended || socket->reset || socket->reads_ended ? EPOLLIN
                                                                                          : 0) |
               (room_of(socket) || socket->reset ? EPOLLOUT : 0) |
               (socket->ended || socket->reads_ended ? EPOLLRDHUP : 0) |
               (socket->reset ? EPOLLERR | EPOLLHUP | EPOLLRDHUP : 0) |
               (socket->ended && socket->server_ended ? EPOLLHUP : 0);
    default:
        return 0;
    }
}

bool sim_is_readable(int fd)
{
    const struct file *file = file_of(fd);
    return file && (events_of(file) & (EPOLLIN | EPOLLERR | EPOLLHUP));
}

void changed(const struct file *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < machine.num_epolls; i++) {
        struct file *epoll = machine.epolls[i];
        for (size_t j = 0; j < epoll->num_watched; j++) {
            if (epoll->watched[j].file == file)
                epoll->watched[j].pending = true;
        }
    }
    sim_loops_wake();
}

/* ---- epoll and eventfd ----------------------------------------------------------------------- */

SIM_PUBLIC int epoll_create1(int flags)
{
    struct file *file = make_file(EPOLL);
    (void)flags;
    sim_require(machine.num_epolls < sizeof machine.epolls / sizeof *machine.epolls,
                "too many epolls");
    file->watched = sim_alloc(MAX_WATCHED * sizeof *file->watched);
    machine.epolls[machine.num_epolls++] = file;
    return give_fd(file);
}

static struct watched *find_watched(struct file *epoll, int fd, const struct file *file)
{
    for (size_t i = 0; i < epoll->num_watched; i++) {
        if (epoll->watched[i].file == file && (!file || epoll->watched[i].fd == fd))
            return &epoll->watched[i];
    }
    return NULL;
}

/* A loop's own epoll is none of these: what it waits for is known by its handles. */
SIM_PUBLIC int epoll_ctl(int epfd, int what, int fd, struct epoll_event *event)
{
    struct file *epoll = file_of(epfd), *file = file_of(fd);
    if (epfd == -2)
        return 0;
    if (!epoll || !file)
        return fail(EBADF);
    struct watched *watched = find_watched(epoll, fd, file);
    if (what == EPOLL_CTL_ADD ? watched != NULL : watched == NULL)
        return fail(what == EPOLL_CTL_ADD ? EEXIST : ENOENT);
    if (what == EPOLL_CTL_DEL) {
        watched->file = NULL;
        return 0;
    }
    if (!watched && !(watched = find_watched(epoll, fd, NULL))) {
        sim_require(epoll->num_watched < MAX_WATCHED, "too many descriptors in an epoll");
        watched = &epoll->watched[epoll->num_watched++];
    }
    *watched = (struct watched){fd, file, event->events, true, event->data};
    sim_loops_wake();
    return 0;
}

/* Never waits: the loops do. */
SIM_PUBLIC int epoll_wait(int epfd, struct epoll_event *events, int max_events, int timeout_ms)
{
    struct file *epoll = file_of(epfd);
    int count = 0;
    (void)timeout_ms;
    if (!epoll)
        return fail(EBADF);
    size_t first = epoll->num_watched ? sim_below(epoll->num_watched) : 0;
    for (size_t i = 0; i < epoll->num_watched && count < max_events; i++) {
        struct watched *at = &epoll->watched[(first + i) % epoll->num_watched];
        uint32_t ready =
            at->file && at->pending ? events_of(at->file) & (at->events | EPOLLERR | EPOLLHUP) : 0;
        if (!ready)
            continue;
        if (at->events & EPOLLET)
            at->pending = false;
        events[count++] = (struct epoll_event){.events = ready, .data = at->data};
    }
    sim_note("epoll", (uint64_t)epfd, (uint64_t)count);
    return count;
}

SIM_PUBLIC int eventfd(unsigned count, int flags)
{
    struct file *file = make_file(EVENT);
    (void)flags;
    file->count = count;
    return give_fd(file);
}

/* ---- what files and sockets share ------------------------------------------------------------ */

SIM_PUBLIC ssize_t read(int fd, void *bytes, size_t count)
{
    struct file *file = file_of(fd);
    if (!file)
        return syscall(SYS_read, fd, bytes, count);
    sim_require(file->kind == EVENT, "read of a descriptor that the simulation lacks");
    if (!file->count)
        return fail(EAGAIN);
    memcpy(bytes, &file->count, sizeof file->count);
    file->count = 0;
    return sizeof file->count;
}

SIM_PUBLIC ssize_t write(int fd, const void *bytes, size_t count)
{
    struct file *file = file_of(fd);
    if (fd == STDERR_FILENO) { /* the log */
        sim_note_bytes(bytes, count);
        return sim.shows ? (ssize_t)fwrite(bytes, 1, count, stdout) : (ssize_t)count;
    }
    if (!file)
        return syscall(SYS_write, fd, bytes, count);
    uint64_t added;
    sim_require(file->kind == EVENT && count == sizeof added,
                "write to a descriptor that the simulation lacks");
    memcpy(&added, bytes, sizeof added);
    file->count += added;
    changed(file);
    sim_pause();
    return (ssize_t)count;
}

/* Called by code that reads files slowly to leave the disk to others. */
SIM_PUBLIC int nanosleep(const struct timespec *time, struct timespec *left)
{
    sim_wait(time, sim.now_ns + (uint64_t)time->tv_sec * S + (uint64_t)time->tv_nsec);
    (void)left;
    return 0;
}

/* A disk takes its time. */
SIM_PUBLIC int fdatasync(int fd)
{
    sim_wait(&machine, sim.now_ns + sim_below(sim_one_in(4) ? 10 * MS : MS));
    (void)fd;
    return 0;
}

SIM_PUBLIC int fsync(int fd)
{
    return fdatasync(fd);
}

SIM_PUBLIC int eventfd_write(int fd, eventfd_t count)
{
    return write(fd, &count, sizeof count) == sizeof count ? 0 : -1;
}

SIM_PUBLIC int eventfd_read(int fd, eventfd_t *count)
{
    return read(fd, count, sizeof *count) == sizeof *count ? 0 : -1;
}

static void end_file(struct file *file)
{
    for (size_t i = 0; i < machine.num_epolls; i++) {
        if (machine.epolls[i] == file)
            machine.epolls[i] = machine.epolls[--machine.num_epolls];
    }
    for (size_t i = 0; i < machine.num_epolls; i++) {
        for (size_t j = 0; j < machine.epolls[i]->num_watched; j++) {
            if (machine.epolls[i]->watched[j].file == file)
                machine.epolls[i]->watched[j].file = NULL;
        }
    }
    for (size_t i = 0; i < machine.num_listeners; i++) {
        if (machine.listeners[i] == file)
            machine.listeners[i] = machine.listeners[--machine.num_listeners];
    }
    for (size_t i = 0; i < file->num_waiting; i++) { /* nobody accepted them */
        file->waiting[i]->server_reset = true;
        file->waiting[i]->in.count = 0;
        close_socket(file->waiting[i]);
    }
    if (file->kind == CONNECTION)
        close_socket(file->socket);
}

SIM_PUBLIC int close(int fd)
{
    struct file *file = file_of(fd);
    if (!file)
        return (int)syscall(SYS_close, fd);
    machine.files[fd - FIRST_FD] = NULL;
    if (--file->references == 0)
        end_file(file);
    return 0;
}

SIM_PUBLIC int dup(int fd)
{
    struct file *file = file_of(fd);
    return file ? give_fd(file) : (int)syscall(SYS_dup, fd);
}

SIM_PUBLIC int fcntl(int fd, int what, ...)
{
    struct file *file = file_of(fd);
    va_list arguments;
    va_start(arguments, what);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    if (what == F_DUPFD_CLOEXEC && (file || fd == STDERR_FILENO))
        return give_fd(file ? file : make_file(PLAIN));
    if (!file)
        return (int)syscall(SYS_fcntl, fd, what, argument);
    if (what == F_SETFL)
        file->flags = (int)argument;
    return what == F_GETFL ? O_NONBLOCK | O_RDWR | file->flags : 0;
}

/* poll() for the linker alone: its declaration says that it only writes to `fds`. */
SIM_PUBLIC int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms) __asm__("poll");

SIM_PUBLIC int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    int ready = 0;
    (void)timeout_ms;
    for (nfds_t i = 0; i < count; i++) {
        const struct file *file = file_of(fds[i].fd);
        uint32_t wanted = (uint16_t)fds[i].events | EPOLLERR | EPOLLHUP;
        fds[i].revents = (short)(file ? events_of(file) & wanted : 0);
        ready += fds[i].revents != 0;
    }
    return ready;
}

/* ---- calls that would reach the real machine ------------------------------------------------- */

SIM_PUBLIC int setpriority(__priority_which_t which, id_t who, int value)
{
    (void)which, (void)who, (void)value;
    return 0;
}

SIM_PUBLIC int getpriority(__priority_which_t which, id_t who)
{
    (void)which, (void)who;
    return 0;
}

/* The seed says when a thread has waited for the disk. The count goes on from one schedule to the
 * next, since threads remember the number that they last got. */
SIM_PUBLIC int getrusage(__rusage_who_t who, struct rusage *usage)
{
    static long reads;
    if (who == RUSAGE_THREAD && sim_one_in(8))
        reads++;
    memset(usage, 0, sizeof *usage);
    usage->ru_majflt = reads;
    return 0;
}

void __wrap__exit(int code)
{
    sim_on_exit(code);
}

int __wrap_isatty(int fd)
{
    (void)fd;
    return 0;
}

FILE *__real_fopen(const char *path, const char *mode);

/* This machine's processors have no counter that can be trusted: uv_hrtime is the only clock. */
FILE *__wrap_fopen(const char *path, const char *mode)
{
    return strstr(path, "clocksource") ? NULL : __real_fopen(path, mode);
}

void (*__wrap_signal(int number, void (*handler)(int)))(int)
{
    (void)number;
    return handler;
}

int __wrap_mallopt(int what, int value)
{
    (void)what, (void)value;
    return 1;
}

ssize_t __wrap_getrandom(void *bytes, size_t count, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < count; i++)
        ((unsigned char *)bytes)[i] = (unsigned char)sim_random();
    return (ssize_t)count;
}
