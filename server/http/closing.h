/* A connection that was answered before its body was read is closed in two steps: closing a socket
 * with unread bytes resets it, and a client that is still sending may then never see the answer. So
 * its bytes are read and dropped until the client closes, for a bounded time. */
#ifndef BAG_HTTP_CLOSING_H
#define BAG_HTTP_CLOSING_H

#include "connection.h"

/* Goes on reading from a socket that its owner is about to close. Where it cannot (too many, no
 * memory), the connection is reset as it would have been. */
void bag_http_connection_linger(struct bag_http_connections *connections, int fd);

#endif
