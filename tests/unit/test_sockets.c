#include "server/system/deadline.h"
#include "server/system/sockets.h"
#include "testing.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static struct bag_problem problem;

static int connect_in_ms(const char *host, int64_t port, uint64_t timeout_ms)
{
    return bag_deadline_connect_host(host, port, bag_deadline_in_ms(timeout_ms), &problem);
}

TEST(connects_to_whoever_listens)
{
    struct bag_listener listener;
    assert_true(bag_listener_open(&listener, "127.0.0.1", 0, "--port", &problem));
    int fd = connect_in_ms("localhost", listener.port, 60000); /* ::1 may come first */
    if (fd < 0)
        fail_msg("%s; /etc/hosts should say where localhost is", problem.text);
    close(fd);
    bag_listener_close(&listener);
    char sentence[64];
    snprintf(sentence, sizeof sentence, "127.0.0.1 port %d: Connection refused", listener.port);
    assert_int_equal(connect_in_ms("127.0.0.1", listener.port, 60000), -1);
    assert_string_equal(problem.text, sentence);
    assert_int_equal(connect_in_ms("no..host", 1, 60000), -1);
    assert_non_null(strstr(problem.text, "host 'no..host': "));
}

/* A socket whose queue is full answers nobody. */
TEST(gives_up_connecting)
{
    struct bag_listener listener;
    char sentence[64];
    int waiting[8], count = 0;
    assert_true(bag_listener_open(&listener, "127.0.0.1", 0, "--port", &problem));
    assert_int_equal(listen(listener.fd, 1), 0);
    do {
        assert_true(count < 8);
        waiting[count] = connect_in_ms("127.0.0.1", listener.port, 30);
    } while (waiting[count++] >= 0);
    snprintf(sentence, sizeof sentence, "127.0.0.1 port %d: Connection timed out", listener.port);
    assert_string_equal(problem.text, sentence);
    while (--count > 0)
        close(waiting[count - 1]);
    bag_listener_close(&listener);
}

#define SENT_BYTES ((size_t)8 << 20) /* more than any socket keeps */

static void *receive_all(void *context)
{
    const int *fd = context;
    size_t *total = calloc(1, sizeof *total);
    char bytes[4096];
    ssize_t got;
    while ((got = recv(*fd, bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t i = 0; i < got; i++)
            *total += bytes[i] == 'x';
    }
    return total;
}

TEST(sends_all)
{
    const struct timeval soon = {.tv_usec = 1000};
    char *bytes = malloc(SENT_BYTES);
    int fds[2];
    pthread_t thread;
    void *total;
    memset(bytes, 'x', SENT_BYTES);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(pthread_create(&thread, NULL, receive_all, &fds[1]), 0);
    assert_true(bag_send_all(fds[0], bytes, SENT_BYTES));
    shutdown(fds[0], SHUT_WR);
    assert_int_equal(pthread_join(thread, &total), 0);
    assert_int_equal(*(size_t *)total, SENT_BYTES);
    free(total);
    assert_int_equal(setsockopt(fds[1], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon), 0);
    assert_false(bag_send_all(fds[1], bytes, SENT_BYTES)); /* nobody reads */
    assert_int_equal(errno, EAGAIN);
    close(fds[0]);
    assert_false(bag_send_all(fds[1], bytes, 1));
    assert_int_equal(errno, EPIPE);
    close(fds[1]);
    free(bytes);
}
