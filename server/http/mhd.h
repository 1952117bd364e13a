/* libmicrohttpd's callbacks: what it hands out goes to requests and connections, and what they
 * decide goes back to it. All run on the loop's thread. */
#ifndef BAG_HTTP_MHD_H
#define BAG_HTTP_MHD_H

#include "accept.h"
#include "connection.h"
#include "request.h"

#include <microhttpd.h>
#include <sys/types.h>

/* The context of all callbacks; a member of the server. */
struct bag_http_mhd {
    struct bag_http_context *context; /* borrowed, as all */
    struct bag_http_connections *connections;
    struct bag_http_acceptor *acceptor;
    struct bag_http_drain *drain;
};

/* MHD_NotifyConnectionCallback: a connection has begun, or ends. */
void bag_http_mhd_on_connection(void *mhd, struct MHD_Connection *handle, void **connection,
                                enum MHD_ConnectionNotificationCode what);

/* bag_http_observer: the library is about to see these bytes. Where they are not HTTP the client is
 * told so, and the library that the connection has broken. */
ssize_t bag_http_mhd_on_received(void *mhd, int fd, char *data, ssize_t bytes);

/* MHD_OPTION_URI_LOG_CALLBACK: the first line of a request is here. Returns the connection (NULL
 * without memory), which is the state of all further callbacks of the request. */
void *bag_http_mhd_on_target(void *mhd, const char *target, struct MHD_Connection *handle);

/* MHD_AccessHandlerCallback: the head is here, then pieces of the body, then its end. */
enum MHD_Result bag_http_mhd_on_access(void *mhd, struct MHD_Connection *handle, const char *url,
                                       const char *method, const char *version, const char *data,
                                       size_t *data_bytes, void **connection);

/* MHD_RequestCompletedCallback: the reply has left, or the client has. */
void bag_http_mhd_on_completed(void *mhd, struct MHD_Connection *handle, void **connection,
                               enum MHD_RequestTerminationCode why);

#endif
