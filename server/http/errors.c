/* Kinds of errors -> statuses and reasons; see errors.h. */
#include "errors.h"

/* clang-format off */

/* X(KIND, status, REASON). Kinds that are found at start only are no client's fault. */
#define BAG_HTTP_ERRORS(X)                              \
    X(BAD_REQUEST,           400, BAD_REQUEST)          \
    X(UNAUTHORIZED,          401, UNAUTHORIZED)         \
    X(FORBIDDEN,             403, FORBIDDEN)            \
    X(WRONG_PORT,            403, WRONG_PORT)           \
    X(NOT_FOUND,             404, NOT_FOUND)            \
    X(METHOD_NOT_ALLOWED,    405, METHOD)               \
    X(TIMEOUT,               408, SLOW)                 \
    X(CONFLICT,              409, CONFLICT)             \
    X(TOO_LARGE,             413, TOO_LARGE)            \
    X(UNSUPPORTED_ENCODING,  415, ENCODING)             \
    X(TARGET_TOO_LONG,       414, HEADERS)              \
    X(HEADERS_TOO_LARGE,     431, HEADERS)              \
    X(NOT_IMPLEMENTED,       501, NOT_SUPPORTED)        \
    X(VERSION_NOT_SUPPORTED, 505, NOT_SUPPORTED)        \
    X(NO_MEMORY,             503, NO_MEMORY)            \
    X(TOO_MANY_CONNECTIONS,  503, NO_MEMORY)            \
    X(QUEUE_FULL,            503, QUEUE_FULL)           \
    X(TIMED_OUT_IN_QUEUE,    503, TIMEOUT)              \
    X(CANCELLED,             503, CANCELLED)            \
    X(NOT_READY,             503, NOT_READY)            \
    X(DRAINING,              503, NOT_READY)            \
    X(INTERNAL,              500, INTERNAL)             \
    X(USAGE,                 500, INTERNAL)             \
    X(CONFIGURATION,         500, INTERNAL)             \
    X(FILE,                  500, INTERNAL)             \
    X(SYSTEM,                500, INTERNAL)

/* clang-format on */

static const struct {
    int status;
    enum bag_rejection reason;
} errors[] = {
#define BAG_X(kind, status, reason) [BAG_ERROR_##kind] = {status, BAG_REJECTION_##reason},
    BAG_HTTP_ERRORS(BAG_X)
#undef BAG_X
};

#define BAG_X(...) +1
_Static_assert(BAG_HTTP_ERRORS(BAG_X) == BAG_ERROR_COUNT, "every kind needs a status");
#undef BAG_X

int bag_http_error_status(enum bag_error kind)
{
    return errors[kind].status;
}

enum bag_rejection bag_http_error_reason(enum bag_error kind)
{
    return errors[kind].reason;
}
