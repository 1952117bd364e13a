/* Sockets from systemd, and news for it; see systemd.h. */
#include "systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The first descriptor that is passed. */
#define FIRST_FD 3

/* A positive number from the environment; 0 where there is none. */
static uint64_t read_number(const char *name)
{
    const char *text = getenv(name);
    return text && *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : 0;
}

/* Variables are inherited by other processes, too: they say whom they are for. */
static bool is_for_us(const char *name)
{
    return read_number(name) == (uint64_t)getpid();
}

static bool is_listening(int fd)
{
    int type = 0, listening = 0;
    socklen_t bytes = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) == 0 && listening;
}

bool bag_systemd_take_socket(int *fd, struct bag_problem *problem)
{
    uint64_t count = is_for_us("LISTEN_PID") ? read_number("LISTEN_FDS") : 0;
    *fd = -1;
    if (count == 0)
        return true;
    if (count > 1)
        return bag_problem_set(problem, 500, "%d sockets were passed (LISTEN_FDS); one is served",
                               (int)count);
    if (!is_listening(FIRST_FD))
        return bag_problem_set(problem, 500,
                               "the descriptor that was passed (LISTEN_FDS) must be a listening "
                               "stream socket");
    *fd = FIRST_FD;
    fcntl(*fd, F_SETFD, FD_CLOEXEC);
    fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) | O_NONBLOCK);
    return true;
}

void bag_systemd_notify(const char *format, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[512];
    va_list arguments;
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof address.sun_path)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    strcpy(address.sun_path, path);
    if (*path == '@')
        address.sun_path[0] = 0; /* of the abstract namespace */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    /* There is nobody else to tell. */
    sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&address,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
    close(fd);
}

/* Half of the time after which systemd gives up. */
uint64_t bag_systemd_watchdog_ms(void)
{
    if (getenv("WATCHDOG_PID") && !is_for_us("WATCHDOG_PID"))
        return 0;
    uint64_t ms = read_number("WATCHDOG_USEC") / 2000;
    return ms > 0 || !read_number("WATCHDOG_USEC") ? ms : 1;
}
