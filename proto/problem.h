/* A problem: why a request is rejected or the server cannot start, as a kind and one sentence.
 *
 * The kind says what went wrong, not what follows from it. HTTP maps kinds to status codes and to
 * the reasons in metrics (server/http/message.h). The commands map them to exit codes
 * (server/commands.h). A problem is a plain value that the caller owns. */
#pragma once

#include "kernels/bag.h"

#define BAG_PROBLEM_TEXT_BYTES 512

/* X(KIND): the kinds of errors. The last four are not about a request: they occur on the command
 * line, at the start, and when models are loaded later. */
#define BAG_ERRORS(X)                                                                       \
    X(BAD_REQUEST)          /* malformed, or not accepted by the model */                   \
    X(UNAUTHORIZED)         /* without a valid token */                                     \
    X(FORBIDDEN)            /* the token's scope does not cover it */                       \
    X(WRONG_PORT)           /* inference on the admin port */                               \
    X(NOT_FOUND)            /* no such path, model or version */                            \
    X(METHOD_NOT_ALLOWED)   /* the path has other methods */                                \
    X(TIMEOUT)              /* the request took too long to arrive */                       \
    X(CONFLICT)             /* does not fit the present state */                            \
    X(LENGTH_REQUIRED)      /* chunked bodies are not accepted */                           \
    X(TOO_LARGE)            /* the body, as sent or decompressed */                         \
    X(UNSUPPORTED_ENCODING) /* an unknown or forbidden Content-Encoding of the body */      \
    X(TARGET_TOO_LONG)      /* the request line is too long */                              \
    X(MISDIRECTED)          /* for a host name that is not the server's */                  \
    X(HEADERS_TOO_LARGE)                                                                    \
    X(NOT_IMPLEMENTED)       /* a feature of HTTP that is not supported */                  \
    X(VERSION_NOT_SUPPORTED) /* an unsupported version of HTTP */                           \
    X(NO_MEMORY)             /* an allocation failed, or a limit of memory is reached */    \
    X(TOO_MANY_CONNECTIONS)                                                                 \
    X(STORAGE)            /* a disk, or what a table keeps for new rows, is full */         \
    X(QUEUE_FULL)         /* too many requests, or changes, are waiting */                  \
    X(TIMED_OUT_IN_QUEUE) /* no worker was free in time */                                  \
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

/* Sets *problem and returns false, so that a parser can `return bag_problem_set(...)`. A text that
 * is too long is truncated between two characters. Bytes that a client chose must pass through
 * bag_quote, which escapes them. */
bool bag_problem_set(struct bag_problem *problem, enum bag_error kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets *problem to NO_MEMORY with the text "not enough memory". Returns false. */
bool bag_problem_no_memory(struct bag_problem *problem);

/* Prepends a context and ": " to the text, as in "model 'items': ...". Returns false. */
bool bag_problem_prefix(struct bag_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets *problem (BAD_REQUEST) to the sentence that describes a fault found by a kernel. Returns
 * false. */
bool bag_problem_from_fault(struct bag_problem *problem, const struct bag_fault *fault);

/* Returns a client's bytes for use in a message. Printable ASCII and valid UTF-8 are kept. Control
 * characters, quotes and invalid bytes are escaped. After 64 bytes the text ends with "...". The
 * result is a value, so that bag_quote(name, n).text can be an argument. */
struct bag_quoted {
    char text[280];
};
struct bag_quoted bag_quote(const char *bytes, size_t count);
