/* The header of the PROXY protocol, version 2, in front of all else on a connection: a proxy says
 * whose connection it passes on. Specification: haproxy's doc/proxy-protocol.txt, section 2.2. */
#ifndef BAG_PROXY_H
#define BAG_PROXY_H

#include "problem.h"

#include <stddef.h>
#include <stdint.h>

/* 12 bytes, with which a header begins. */
#define BAG_PROXY_SIGNATURE "\r\n\r\n\0\r\nQUIT\n"

/* The fixed part, in which the length stands. */
#define BAG_PROXY_FIXED_BYTES 16

/* With the longest addresses that are looked at (IPv6's). */
#define BAG_PROXY_KEPT_BYTES 52

/* Begins as zeros. */
struct bag_proxy_header {
    uint8_t kept[BAG_PROXY_KEPT_BYTES];
    size_t bytes;       /* that have come */
    size_t total_bytes; /* of the header; 0: not known yet */

    /* The outcome. */
    bool is_complete;
    bool has_source;    /* otherwise the connection's own address holds: the proxy speaks for itself
                           (LOCAL), or of a client without an IP address */
    uint8_t source[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint16_t source_port;
};

/* Takes the next bytes; *used of them are the header's, and what follows is not looked at. False
 * with *problem (BAD_REQUEST) as soon as they cannot be a header's. Not to be called for a header
 * that is complete. */
bool bag_proxy_read(struct bag_proxy_header *header, const char *data, size_t bytes, size_t *used,
                    struct bag_problem *problem);

#endif
