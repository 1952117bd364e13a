/* Which requests are rejected for their form, before anything is done with them.
 *
 * libmicrohttpd lets pass what another server in front of this one may read differently: two
 * lengths, a length beside chunks, a folded line. Where two readers can differ about where a
 * request ends, one client can write another's request; such a request is rejected and its
 * connection closed. Must not know: libmicrohttpd. */
#ifndef BAG_HTTP_GUARD_H
#define BAG_HTTP_GUARD_H

#include "proto/problem.h"

/* A head is checked in three steps, as its parts are handed out: the first line, each header line,
 * the end. The texts must lie in one memory as they came, with NULs only where a part ends: what
 * the library joined, cut or left out then shows as a gap between two of them. */
struct bag_guard {
    const char *next; /* where the next line must begin */
    bool http_1_0;
    unsigned hosts, lengths, codings; /* how many lines of each there are */
    const char *host, *coding;        /* the last one's value */
};

/* The target goes from `target` to `target_end`, where a blank was. */
bool bag_guard_first_line(struct bag_guard *guard, const char *method, const char *target,
                          const char *target_end, const char *version, struct bag_problem *problem);

/* One name, which is a token, and one value, without control bytes. */
bool bag_guard_line(struct bag_guard *guard, const char *name, size_t name_bytes, const char *value,
                    size_t value_bytes, struct bag_problem *problem);

/* The head ends at `end`, and its headers, taken together, say in one way where the body does. */
bool bag_guard_end(const struct bag_guard *guard, const char *end, struct bag_problem *problem);

/* Why a request's target cannot be one, as a sentence; NULL where it can. `target` is all between
 * the method and the version. */
const char *bag_guard_target(const char *target);

/* The path of a sound target, which may be a whole URL. */
const char *bag_guard_path(const char *target);

#endif
