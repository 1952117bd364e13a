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

/* The name of the one for health, metrics and models. */
#define ADMIN "admin"

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

static bool take(int fd, int *place, uint64_t count, struct bag_problem *problem)
{
    if (*place >= 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "%llu sockets were passed (LISTEN_FDS); one is served, and beside "
                               "it one that is named admin (LISTEN_FDNAMES, of a unit's "
                               "FileDescriptorName)",
                               (unsigned long long)count);
    if (!is_listening(fd))
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "descriptor %d, which was passed (LISTEN_FDS), must be a listening "
                               "stream socket",
                               fd);
    *place = fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return true;
}

/* A socket that nobody named has the name of its unit. */
bool bag_systemd_take_sockets(struct bag_systemd_sockets *sockets, struct bag_problem *problem)
{
    uint64_t count = is_for_us("LISTEN_PID") ? read_number("LISTEN_FDS") : 0;
    const char *names = getenv("LISTEN_FDNAMES");
    *sockets = (struct bag_systemd_sockets){.first = -1, .admin = -1};
    for (uint64_t i = 0; i < count; i++) {
        size_t bytes = names ? strcspn(names, ":") : 0;
        bool is_admin = bytes == strlen(ADMIN) && memcmp(names, ADMIN, bytes) == 0;
        if (!take(FIRST_FD + (int)i, is_admin ? &sockets->admin : &sockets->first, count, problem))
            return false;
        names = names && names[bytes] ? names + bytes + 1 : NULL;
    }
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
