/* What a client is told when a request is rejected: an HTTP status and one sentence.
 *
 * Must not know: sockets, logs. A problem is a plain value; the caller owns it. */
#ifndef BAG_PROBLEM_H
#define BAG_PROBLEM_H

#include "kernels/bag.h"

#define BAG_PROBLEM_TEXT_BYTES 512

struct bag_problem {
    int http_status;                   /* 4xx or 5xx */
    char text[BAG_PROBLEM_TEXT_BYTES]; /* valid UTF-8 without control characters, ends with NUL */
};

/* Fills `problem`; returns false, so that a parser can `return bag_problem_set(...)`. Text that
 * does not fit is cut at a character's bound. Bytes that a client chose are shown through
 * bag_quote, which escapes them. */
bool bag_problem_set(struct bag_problem *problem, int http_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "where: " in front of the text, as in "model 'items': ...". */
void bag_problem_prefix(struct bag_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Makes the sentence of a kernel's finding, with status 400; returns false. */
bool bag_problem_from_fault(struct bag_problem *problem, const struct bag_fault *fault);

/* A client's bytes for use in a message: printable ASCII and valid UTF-8 stay, control characters,
 * quotes and broken bytes are escaped, and after 64 bytes comes "...". Returned by value so that it
 * can stand in an argument list: bag_quote(name, n).text */
struct bag_quoted {
    char text[280];
};
struct bag_quoted bag_quote(const char *bytes, size_t count);

#endif
