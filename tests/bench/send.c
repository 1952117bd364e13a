/* Sends results to a reader; see send.h. */
#include "send.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* What a client reads at once: as `bagserve bench` does. */
#define READ_BYTES (256 * 1024)

struct bench_send {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    pid_t reader;
    int fd;
    size_t result_bytes;
    char *buffers[BENCH_SEND_BUFFERS];
    unsigned long pooled, sent; /* results so far; guarded by the lock */
    bool ends;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        die("sched_setaffinity");
}

/* Two ends of a connection over the loopback interface. */
static void connect_ends(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || ends[0] < 0 ||
        bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0 ||
        connect(ends[0], (struct sockaddr *)&address, sizeof address) != 0 ||
        (ends[1] = accept(listener, NULL, NULL)) < 0)
        die("socket");
    close(listener);
}

/* Reads until the other end closes. */
static void read_all(int fd)
{
    static char scratch[READ_BYTES];
    while (recv(fd, scratch, sizeof scratch, 0) > 0)
        ;
}

static pid_t start_reader(int fd, int other_end, int cpu)
{
    pid_t reader = fork();
    if (reader < 0)
        die("fork");
    if (reader > 0)
        return reader;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(other_end);
    stay_on(cpu);
    read_all(fd);
    _exit(0);
}

static void write_result(const struct bench_send *send, const char *result)
{
    for (size_t done = 0; done < send->result_bytes;) {
        ssize_t count = write(send->fd, result + done, send->result_bytes - done);
        if (count <= 0)
            die("write");
        done += (size_t)count;
    }
}

static void *send_all(void *context)
{
    struct bench_send *send = context;
    pthread_mutex_lock(&send->lock);
    for (;;) {
        while (send->sent == send->pooled && !send->ends)
            pthread_cond_wait(&send->changed, &send->lock);
        if (send->sent == send->pooled)
            break;
        pthread_mutex_unlock(&send->lock);
        write_result(send, send->buffers[send->sent % BENCH_SEND_BUFFERS]);
        pthread_mutex_lock(&send->lock);
        send->sent++;
        pthread_cond_broadcast(&send->changed);
    }
    pthread_mutex_unlock(&send->lock);
    return NULL;
}

/* On one processor, which the thread inherits; the caller goes back to where it was. */
static void start_thread(struct bench_send *send, int cpu)
{
    cpu_set_t before;
    if (sched_getaffinity(0, sizeof before, &before) != 0)
        die("sched_getaffinity");
    stay_on(cpu);
    if (pthread_create(&send->thread, NULL, send_all, send) != 0)
        die("pthread_create");
    if (sched_setaffinity(0, sizeof before, &before) != 0)
        die("sched_setaffinity");
}

struct bench_send *bench_send_start(int cpu, size_t result_bytes)
{
    static struct bench_send send = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                     .changed = PTHREAD_COND_INITIALIZER};
    int ends[2];
    size_t room = (result_bytes + HUGE_PAGE_BYTES) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    connect_ends(ends);
    send.fd = ends[0];
    send.result_bytes = result_bytes;
    for (int i = 0; i < BENCH_SEND_BUFFERS; i++) {
        send.buffers[i] = aligned_alloc(HUGE_PAGE_BYTES, room);
        if (!send.buffers[i])
            die("aligned_alloc");
        madvise(send.buffers[i], room, MADV_HUGEPAGE);
    }
    send.reader = start_reader(ends[1], ends[0], cpu);
    close(ends[1]);
    start_thread(&send, cpu);
    return &send;
}

void *bench_send_buffer(struct bench_send *send)
{
    pthread_mutex_lock(&send->lock);
    while (send->pooled - send->sent == BENCH_SEND_BUFFERS)
        pthread_cond_wait(&send->changed, &send->lock);
    void *buffer = send->buffers[send->pooled % BENCH_SEND_BUFFERS];
    pthread_mutex_unlock(&send->lock);
    return buffer;
}

void bench_send_result(struct bench_send *send)
{
    pthread_mutex_lock(&send->lock);
    send->pooled++;
    pthread_cond_broadcast(&send->changed);
    pthread_mutex_unlock(&send->lock);
}

void bench_send_end(struct bench_send *send)
{
    pthread_mutex_lock(&send->lock);
    send->ends = true;
    pthread_cond_broadcast(&send->changed);
    pthread_mutex_unlock(&send->lock);
    pthread_join(send->thread, NULL);
    close(send->fd);
    waitpid(send->reader, NULL, 0);
    for (int i = 0; i < BENCH_SEND_BUFFERS; i++)
        free(send->buffers[i]);
}
