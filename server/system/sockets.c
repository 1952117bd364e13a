/* Addresses and Unix-domain sockets; see sockets.h. */
#include "sockets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct addrinfo *bag_address_find(const char *host, int64_t port, int flags,
                                  struct bag_problem *problem)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", (int)port);
    int error = getaddrinfo(host, service, &hints, &list);
    if (!error)
        return list;
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "host '%s': %s", host, gai_strerror(error));
    return NULL;
}

/* ---- Unix-domain sockets --------------------------------------------------------------------- */

bool bag_unix_mode_parse(const char *text, mode_t *mode, struct bag_problem *problem)
{
    size_t digits = strspn(text, "01234567");
    *mode = (mode_t)strtoul(text, NULL, 8);
    if (digits > 0 && digits <= 4 && !text[digits] && *mode <= 0777)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "unix_permissions '%s': must be octal digits from 0 to 777", text);
}

static bool make_address(const char *path, struct sockaddr_un *address, struct bag_problem *problem)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address->sun_path)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "socket '%s': the path must be shorter than %zu bytes", path,
                               sizeof address->sun_path);
    strcpy(address->sun_path, path);
    return true;
}

int bag_unix_connect(const char *path, struct bag_problem *problem)
{
    struct sockaddr_un address;
    int fd = -1;
    if (!make_address(path, &address, problem))
        return -1;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "socket '%s': %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The permissions are there from the first moment on: no other client slips in before a chmod. */
static bool bind_to(int fd, const struct sockaddr_un *address, mode_t mode)
{
    mode_t before = umask(0777 & ~mode);
    int result = bind(fd, (const struct sockaddr *)address, sizeof *address);
    int error = errno;
    umask(before);
    errno = error;
    return result == 0;
}

/* Removes a socket that a server has left; false where there is something else. */
static bool remove_stale(const char *path, const struct sockaddr_un *address)
{
    struct stat there;
    if (lstat(path, &there) != 0)
        return errno == ENOENT;
    if (!S_ISSOCK(there.st_mode))
        return false;
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool rejected = probe >= 0 &&
                    connect(probe, (const struct sockaddr *)address, sizeof *address) != 0 &&
                    errno == ECONNREFUSED;
    if (probe >= 0)
        close(probe);
    return rejected && unlink(path) == 0;
}

int bag_unix_bind(const char *path, mode_t mode, struct bag_problem *problem)
{
    struct sockaddr_un address;
    if (!make_address(path, &address, problem))
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind_to(fd, &address, mode))
        return fd;
    if (fd >= 0 && errno == EADDRINUSE && remove_stale(path, &address) &&
        bind_to(fd, &address, mode))
        return fd;
    int error = errno;
    bag_problem_set(
        problem, BAG_ERROR_SYSTEM, "cannot listen on the socket '%s': %s%s", path, strerror(error),
        error == EADDRINUSE ? "; stop what listens there or choose another --unix" : "");
    if (fd >= 0)
        close(fd);
    return -1;
}
