/* Makes calls of a program fail on purpose, and its clocks jump: preloaded (LD_PRELOAD) by
 * tests/torture.
 *
 * The file that FAIL_CONTROL names is mapped and shared with the test, which may arm it at any
 * moment. Then the Nth call of one kind fails with an errno, or every call from the Nth on, or
 * system calls transfer only one byte. Calls are counted while armed. Nothing here allocates. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The functions of this file replace those of the C library. */
#pragma GCC visibility push(default)

enum kind {
    NOTHING,
    ALLOCATION,
    ACCEPT,
    RECEIVE,
    SEND,
    READ,
    EPOLL,
    EVENTFD,
    THREAD,
    MAP,
    WRITE,
    SYNC
};
enum mode { ONCE, FROM, SHORT };

/* As tests/torture writes it: nine 64-bit words, little-endian. */
struct control {
    _Atomic uint64_t kind, mode, at, error;
    _Atomic uint64_t armed;
    _Atomic uint64_t calls;                  /* calls of that kind since the file was armed */
    _Atomic uint64_t failed;                 /* how many of these calls failed */
    _Atomic int64_t realtime_s, monotonic_s; /* added to what these clocks tell */
};

static struct control unarmed;
static struct control *control = &unarmed;

__attribute__((constructor)) static void map_control(void)
{
    const char *path = getenv("FAIL_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        control = mapped;
    close(fd);
}

/* Counts the call. Returns whether it is one that fails. */
static bool hit(enum kind kind)
{
    if (!control->armed || control->kind != kind)
        return false;
    uint64_t call = atomic_fetch_add(&control->calls, 1) + 1;
    bool fails = control->mode == ONCE ? call == control->at : call >= control->at;
    if (fails)
        atomic_fetch_add(&control->failed, 1);
    return fails;
}

static bool fails(enum kind kind)
{
    if (control->mode == SHORT || !hit(kind))
        return false;
    errno = (int)control->error;
    return true;
}

/* How many bytes a call may move. */
static size_t shortened(enum kind kind, size_t bytes)
{
    return control->mode == SHORT && bytes > 1 && hit(kind) ? 1 : bytes;
}

/* The events that epoll waits for, by descriptor. */
static struct interest {
    int epoll; /* 0: nothing is known */
    struct epoll_event event;
} interests[1024];

#define REAL(name)                 \
    static __typeof__(name) *real; \
    if (!real)                     \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

/* ---- memory ---------------------------------------------------------------------------------- */

/* AddressSanitizer ends the program if it cannot find a thread's stack. */
static _Thread_local __attribute__((tls_model("initial-exec"))) bool in_sanitizer;

int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes)
{
    REAL(pthread_getattr_np);
    in_sanitizer = true;
    int result = real(thread, attributes);
    in_sanitizer = false;
    return result;
}

/* Returns whether the allocation of `caller` fails. Allocations of libgfortran, which OpenBLAS
 * loads, never fail: without memory its constructor calls itself until the stack ends, and this
 * program cannot prevent that. */
static bool allocation_fails(const void *caller)
{
    Dl_info from;
    if (in_sanitizer || control->mode == SHORT || !hit(ALLOCATION) ||
        (dladdr(caller, &from) && from.dli_fname && strstr(from.dli_fname, "libgfortran")))
        return false;
    errno = (int)control->error;
    return true;
}

#define ALLOCATION_FAILS() allocation_fails(__builtin_return_address(0))

/* dlsym may allocate, so that these go to the C library by its own names. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

/* AddressSanitizer's, where the program has it: it knows the memory that it gave, and counts leaks.
 */
#define WEAK __attribute__((weak))
extern WEAK void *__interceptor_malloc(size_t bytes);
extern WEAK void *__interceptor_calloc(size_t count, size_t bytes);
extern WEAK void *__interceptor_realloc(void *memory, size_t bytes);
extern WEAK void *__interceptor_memalign(size_t alignment, size_t bytes);

#define GIVE(name, ...) \
    (__interceptor_##name ? __interceptor_##name(__VA_ARGS__) : __libc_##name(__VA_ARGS__))

void *malloc(size_t bytes)
{
    return ALLOCATION_FAILS() ? NULL : GIVE(malloc, bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return ALLOCATION_FAILS() ? NULL : GIVE(calloc, count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return ALLOCATION_FAILS() ? NULL : GIVE(realloc, memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return ALLOCATION_FAILS() ? NULL : GIVE(memalign, alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    void *got = ALLOCATION_FAILS() ? NULL : GIVE(memalign, alignment, bytes);
    if (!got)
        return ENOMEM;
    *memory = got;
    return 0;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    REAL(mmap);
    return fails(MAP) ? MAP_FAILED : real(address, bytes, protection, flags, fd, offset);
}

/* ---- system calls ---------------------------------------------------------------------------- */

int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    REAL(accept4);
    return fails(ACCEPT) ? -1 : real(fd, address, bytes, flags);
}

int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    REAL(accept);
    return fails(ACCEPT) ? -1 : real(fd, address, bytes);
}

/* A call that is cut short by the kernel is followed by an edge for epoll once there is room, or
 * more has come. */
static void tell_edge(int fd)
{
    struct interest *interest = fd < 1024 ? &interests[fd] : interests;
    if (control->mode == SHORT && interest->epoll)
        epoll_ctl(interest->epoll, EPOLL_CTL_MOD, fd, &interest->event);
}

ssize_t recv(int fd, void *bytes, size_t count, int flags)
{
    REAL(recv);
    if (fails(RECEIVE))
        return -1;
    ssize_t got = real(fd, bytes, shortened(RECEIVE, count), flags);
    if (control->kind == RECEIVE && got > 0 && !(flags & MSG_PEEK))
        tell_edge(fd);
    return got;
}

ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    REAL(send);
    if (fails(SEND))
        return -1;
    ssize_t sent = real(fd, bytes, shortened(SEND, count), flags);
    tell_edge(fd);
    return sent;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    REAL(sendmsg);
    if (fails(SEND))
        return -1;
    struct msghdr one = *message;
    struct iovec first;
    if (message->msg_iovlen > 0 && shortened(SEND, 2) == 1) {
        first = message->msg_iov[0];
        first.iov_len = first.iov_len ? 1 : 0;
        one.msg_iov = &first;
        one.msg_iovlen = 1;
    }
    ssize_t sent = real(fd, &one, flags);
    tell_edge(fd);
    return sent;
}

/* Reads of files alone: those of an event's descriptor do not fail in a working system. */
ssize_t read(int fd, void *bytes, size_t count)
{
    REAL(read);
    struct stat status;
    if (!control->armed || control->kind != READ || fstat(fd, &status) != 0 ||
        !S_ISREG(status.st_mode))
        return real(fd, bytes, count);
    return fails(READ) ? -1 : real(fd, bytes, shortened(READ, count));
}

ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
    REAL(pread);
    return fails(READ) ? -1 : real(fd, bytes, shortened(READ, count), offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    REAL(pwrite);
    return fails(WRITE) ? -1 : real(fd, bytes, shortened(WRITE, count), offset);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    return fails(SYNC) ? -1 : real(fd);
}

int fsync(int fd)
{
    REAL(fsync);
    return fails(SYNC) ? -1 : real(fd);
}

/* Only a descriptor that is not waited for yet takes memory. */
static bool is_new(int epoll, int operation, int fd)
{
    return operation == EPOLL_CTL_ADD && (fd >= 1024 || interests[fd].epoll != epoll);
}

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    REAL(epoll_ctl);
    if (is_new(epoll, operation, fd) && fails(EPOLL))
        return -1;
    if (operation != EPOLL_CTL_DEL && fd < 1024)
        interests[fd] = (struct interest){epoll, *event};
    else if (fd < 1024)
        interests[fd].epoll = 0;
    return real(epoll, operation, fd, event);
}

int close(int fd)
{
    REAL(close);
    if (fd >= 0 && fd < 1024)
        interests[fd].epoll = 0;
    return real(fd);
}

int eventfd(unsigned count, int flags)
{
    REAL(eventfd);
    return fails(EVENTFD) ? -1 : real(count, flags);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    REAL(pthread_create);
    return fails(THREAD) ? (int)control->error : real(thread, attributes, run, argument);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *now)
{
    REAL(clock_gettime);
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += control->realtime_s;
    else if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE)
        now->tv_sec += control->monotonic_s;
    return result;
}

time_t time(time_t *copy)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (copy)
        *copy = now.tv_sec;
    return now.tv_sec;
}
