/* A plain reply -> libmicrohttpd's response. */
#ifndef BAG_HTTP_ANSWER_H
#define BAG_HTTP_ANSWER_H

#include "message.h"

#include <microhttpd.h>

/* Queues the reply; its body goes with it, and is freed when it was sent. `close` ends the
 * connection afterwards. MHD_NO, which closes it at once, where there is no body or no memory. */
enum MHD_Result bag_http_answer(struct MHD_Connection *connection, struct bag_http_reply *reply,
                                bool close);

/* Writes a whole reply to the socket, past libmicrohttpd: for a request in whose midst it takes no
 * response, and for which nothing else was sent. False where the socket does not take it at once.
 */
bool bag_http_answer_raw(int socket_fd, const struct bag_http_reply *reply);

#endif
