/* Unix-domain sockets by path. */
#ifndef BAG_UNIX_SOCKET_H
#define BAG_UNIX_SOCKET_H

#include "proto/problem.h"

#include <sys/stat.h>

/* Reads permissions in octal digits, such as "660". */
bool bag_unix_mode_parse(const char *text, mode_t *mode, struct bag_problem *problem);

/* Connects to a listening one. -1 with *problem. */
int bag_unix_connect(const char *path, struct bag_problem *problem);

/* Binds a non-blocking, close-on-exec one, which is not listening yet, with these permissions from
 * the first moment on. A socket that nobody listens on any more is replaced; anything else at that
 * path is left alone. -1 with *problem. To be called before there are threads. */
int bag_unix_bind(const char *path, mode_t mode, struct bag_problem *problem);

#endif
