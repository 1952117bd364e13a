/* Why a request is rejected, or why the server cannot start: the kind of error and one sentence.
 *
 * The kind says what went wrong, not what becomes of it: HTTP maps kinds to statuses and to the
 * reasons in metrics (server/http/message.h), the commands map them to exit codes
 * (server/commands.h). A problem is a plain value; the caller owns it. */
#ifndef BAG_PROBLEM_H
#define BAG_PROBLEM_H

#include "kernels/bag.h"

#define BAG_PROBLEM_TEXT_BYTES 512

/* X(KIND): the kinds of errors. The last four are found at start only. */
#define BAG_ERRORS(X)                                                                       \
    X(BAD_REQUEST)          /* malformed, or not what the model takes */                    \
    X(UNAUTHORIZED)         /* without a valid token */                                     \
    X(FORBIDDEN)            /* the token's scope does not cover it */                       \
    X(WRONG_PORT)           /* inference on the admin port */                               \
    X(NOT_FOUND)            /* no such path, model or version */                            \
    X(METHOD_NOT_ALLOWED)   /* the path has other methods */                                \
    X(TIMEOUT)              /* the request took too long to arrive */                       \
    X(CONFLICT)             /* with the present state of what it would change */            \
    X(LENGTH_REQUIRED)      /* it comes in chunks, which are not read */                    \
    X(TOO_LARGE)            /* the body, as sent or decompressed */                         \
    X(UNSUPPORTED_ENCODING) /* of the body: an unknown or forbidden Content-Encoding */     \
    X(TARGET_TOO_LONG)      /* of the first line */                                         \
    X(MISDIRECTED)          /* for a host that this server is not */                        \
    X(HEADERS_TOO_LARGE)                                                                    \
    X(NOT_IMPLEMENTED)       /* a feature of HTTP that is not supported */                  \
    X(VERSION_NOT_SUPPORTED) /* of HTTP */                                                  \
    X(NO_MEMORY)             /* an allocation failed, or a limit of memory is reached */    \
    X(TOO_MANY_CONNECTIONS)                                                                 \
    X(STORAGE)            /* a disk, or what a table keeps for new rows, is full */         \
    X(QUEUE_FULL)         /* no room for another request, or change, that waits */          \
    X(TIMED_OUT_IN_QUEUE) /* no worker took it in time */                                   \
    X(CANCELLED)          /* the client has gone */                                         \
    X(NOT_READY)          /* tables are still being loaded */                               \
    X(DRAINING)           /* the server is stopping */                                      \
    X(BAD_GATEWAY)        /* a shard's answer is wrong */                                   \
    X(SHARD_UNAVAILABLE)  /* a shard cannot be asked */                                     \
    X(SHARD_TIMEOUT)      /* a shard has not answered in time */                            \
    X(INTERNAL)           /* a fault of the server */                                       \
    X(USAGE)              /* a flag or an argument of the command line */                   \
    X(CONFIGURATION)      /* an option's value, a configuration file, a folder of models */ \
    X(FILE)               /* cannot be read, or is not of its format */                     \
    X(SYSTEM)             /* a system call or a library failed */

enum bag_error {
#define BAG_X(kind) BAG_ERROR_##kind,
    BAG_ERRORS(BAG_X)
#undef BAG_X
        BAG_ERROR_COUNT
};

struct bag_problem {
    enum bag_error kind;
    char text[BAG_PROBLEM_TEXT_BYTES]; /* valid UTF-8 without control characters, ends with NUL */
};

/* Fills `problem`; returns false, so that a parser can `return bag_problem_set(...)`. Text that
 * does not fit is truncated between two characters. Bytes that a client chose are shown through
 * bag_quote, which escapes them. */
bool bag_problem_set(struct bag_problem *problem, enum bag_error kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Says "not enough memory", for what is too small to be named; returns false. */
bool bag_problem_no_memory(struct bag_problem *problem);

/* Puts "where: " in front of the text, as in "model 'items': ...". */
void bag_problem_prefix(struct bag_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Makes the sentence of a kernel's finding, of kind BAD_REQUEST; returns false. */
bool bag_problem_from_fault(struct bag_problem *problem, const struct bag_fault *fault);

/* A client's bytes for use in a message: printable ASCII and valid UTF-8 stay, control characters,
 * quotes and broken bytes are escaped, and after 64 bytes comes "...". Returned by value so that it
 * can stand in an argument list: bag_quote(name, n).text */
struct bag_quoted {
    char text[280];
};
struct bag_quoted bag_quote(const char *bytes, size_t count);

#endif
