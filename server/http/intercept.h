/* The bytes that libmicrohttpd receives, seen before it sees them.
 *
 * The library reads sockets by recv(), and offers no place to check what it read before it parses
 * it. This program defines recv() itself: the dynamic linker prefers a program's symbols to those
 * of libraries, so the library calls ours, which reads as libc's does and passes on what an
 * observer makes of it. A library that read in another way would go unseen: whoever relies on the
 * observer checks that it has seen what the library hands out. */
#ifndef BAG_HTTP_INTERCEPT_H
#define BAG_HTTP_INTERCEPT_H

#include <sys/types.h>

/* Gets a socket, what was read and recv's result (errno is set where it is -1); returns the result
 * for the caller, with errno likewise. It may take bytes out of what was read; where none is left,
 * more is read. */
typedef ssize_t bag_http_observer(void *context, int fd, char *data, ssize_t result);

/* From now on this thread's plain recv() calls (without flags) are observed; NULL: no more. */
void bag_http_intercept(bag_http_observer *observer, void *context);

#endif
