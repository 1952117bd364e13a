/* One request and its reply, from libmicrohttpd's first callback to its last. */
#ifndef BAG_HTTP_REQUEST_H
#define BAG_HTTP_REQUEST_H

#include "server.h"

#include <microhttpd.h>

/* MHD_AccessHandlerCallback; `context` is the struct bag_http_server, `*client` the connection's
 * struct bag_client. Runs on the loop's thread. */
enum MHD_Result bag_http_request_on_access(void *context, struct MHD_Connection *connection,
                                           const char *url, const char *method, const char *version,
                                           const char *data, size_t *data_bytes, void **client);

/* MHD_RequestCompletedCallback: the reply has left, or the client has. */
void bag_http_request_on_completed(void *context, struct MHD_Connection *connection, void **client,
                                   enum MHD_RequestTerminationCode why);

/* Frees the exchanges that are kept for reuse. */
void bag_http_request_free_spares(struct bag_http_server *server);

#endif
