/* A problem: why a request is rejected or the server cannot start, as a kind and one sentence.
 *
 * The kind says what went wrong, not what follows from it. Programs read the kind, by its code, and
 * the place; the sentence is for people. HTTP maps kinds to status codes and to the reasons in
 * metrics (server/http/message.h). The commands map them to exit codes (server/commands.h). A
 * problem is a plain value that the caller owns. */
#pragma once

#include "kernels/bag.h"

#include <stdint.h>

#define BAG_PROBLEM_TEXT_BYTES 512

/* clang-format off */

/* X(KIND, "code"): the kinds of errors. Clients read the codes, which stay (deploy/RELEASES.md). The
 * last four are not about a request: they occur on the command line, at the start, and when models
 * are loaded later. */
#define BAG_ERRORS(X)                                                                             \
    X(BAD_REQUEST,           "bad_request")           /* malformed, or not accepted by the model */ \
    X(UNAUTHORIZED,          "unauthorized")          /* without a valid token */                 \
    X(FORBIDDEN,             "forbidden")             /* the token's scope does not cover it */   \
    X(WRONG_PORT,            "wrong_port")            /* inference on the admin port */           \
    X(NOT_FOUND,             "not_found")             /* no such path, model or version */        \
    X(METHOD_NOT_ALLOWED,    "method_not_allowed")    /* the path has other methods */            \
    X(TIMEOUT,               "request_timeout")       /* the request took too long to arrive */   \
    X(CONFLICT,              "conflict")              /* does not fit the present state */        \
    X(LENGTH_REQUIRED,       "length_required")       /* chunked bodies are not accepted */       \
    X(TOO_LARGE,             "too_large")             /* the body, as sent or decompressed */     \
    X(UNSUPPORTED_ENCODING,  "unsupported_encoding")  /* an unknown or forbidden Content-Encoding */ \
    X(TARGET_TOO_LONG,       "target_too_long")       /* the request line is too long */          \
    X(MISDIRECTED,           "misdirected")           /* for a host name that is not the server's */ \
    X(HEADERS_TOO_LARGE,     "headers_too_large")     /* the head is too long */                  \
    X(NOT_IMPLEMENTED,       "not_implemented")       /* a feature of HTTP that is not supported */ \
    X(VERSION_NOT_SUPPORTED, "version_not_supported") /* an unsupported version of HTTP */        \
    X(NO_MEMORY,             "no_memory")             /* an allocation failed, or a limit of memory is reached */ \
    X(TOO_MANY_CONNECTIONS,  "too_many_connections")  /* max_connections */                       \
    X(STORAGE,               "storage_failed")        /* a disk is full or fails */               \
    X(TABLE_FULL,            "table_full")            /* there are no spare rows for new keys */  \
    X(QUEUE_FULL,            "queue_full")            /* too many requests, or changes, are waiting */ \
    X(TIMED_OUT_IN_QUEUE,    "timed_out_in_queue")    /* no worker was free in time */            \
    X(CANCELLED,             "cancelled")             /* the client has gone */                   \
    X(NOT_READY,             "not_ready")             /* tables are still being loaded */         \
    X(DRAINING,              "draining")              /* the server is stopping */                \
    X(BAD_GATEWAY,           "bad_gateway")           /* a shard's answer is wrong */             \
    X(SHARD_UNAVAILABLE,     "shard_unavailable")     /* a shard cannot be asked */               \
    X(SHARD_TIMEOUT,         "shard_timeout")         /* a shard has not answered in time */      \
    X(INTERNAL,              "internal")              /* a fault of the server */                 \
    X(USAGE,                 "usage")                 /* a flag or an argument of the command line */ \
    X(CONFIGURATION,         "configuration")         /* an option's value, a configuration file, a folder of models */ \
    X(FILE,                  "file")                  /* cannot be read, or is not of its format */ \
    X(SYSTEM,                "system")                /* a system call or a library failed */

/* clang-format on */

enum bag_error {
#define BAG_X(kind, code) BAG_ERROR_##kind,
    BAG_ERRORS(BAG_X)
#undef BAG_X
        BAG_ERROR_COUNT
};

/* The codes by kind. */
extern const char *const bag_error_codes[BAG_ERROR_COUNT];

/* The position of a problem that is not about one element. */
#define BAG_PROBLEM_NOWHERE SIZE_MAX

struct bag_problem {
    enum bag_error kind;
    const char *input; /* name of the tensor that is wrong; static; NULL: none */
    size_t position;   /* flat position of the element there; BAG_PROBLEM_NOWHERE: none */
    char text[BAG_PROBLEM_TEXT_BYTES]; /* valid UTF-8 without control characters, ends with NUL */
};

/* Sets *problem and returns false, so that a parser can `return bag_problem_set(...)`. A text that
 * is too long is truncated between two characters. Bytes that a client chose must pass through
 * bag_quote, which escapes them. */
bool bag_problem_set(struct bag_problem *problem, enum bag_error kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds the place of a problem that was set: a tensor, whose name is static, and a flat position in
 * it. The sentence must name the same place. Returns false. */
bool bag_problem_at(struct bag_problem *problem, const char *input, size_t position);

/* Sets *problem to NO_MEMORY with the text "not enough memory". Returns false. */
bool bag_problem_no_memory(struct bag_problem *problem);

/* Prepends a context and ": " to the text, as in "model 'items': ...". Returns false. */
bool bag_problem_prefix(struct bag_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets *problem (BAD_REQUEST) to the sentence that describes a fault found by a kernel, and to its
 * place. Returns false. */
bool bag_problem_from_fault(struct bag_problem *problem, const struct bag_fault *fault);

/* Returns a client's bytes for use in a message. Printable ASCII and valid UTF-8 are kept. Control
 * characters, quotes and invalid bytes are escaped. After 64 bytes the text ends with "...". The
 * result is a value, so that bag_quote(name, n).text can be an argument. */
struct bag_quoted {
    char text[280];
};
struct bag_quoted bag_quote(const char *bytes, size_t count);
