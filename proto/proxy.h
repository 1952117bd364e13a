/* The header of the PROXY protocol, version 2. A proxy sends it as the first bytes of a connection
 * to name the client whose connection it forwards. Specification: haproxy's doc/proxy-protocol.txt,
 * section 2.2. */
#pragma once

#include "problem.h"

#include <stddef.h>
#include <stdint.h>

/* The 12 bytes with which a header begins. */
#define BAG_PROXY_SIGNATURE "\r\n\r\n\0\r\nQUIT\n"

/* Size of the fixed part, which contains the length of the rest. */
#define BAG_PROXY_FIXED_BYTES 16

/* Size of the fixed part and the longest addresses that are read (IPv6). */
#define BAG_PROXY_KEPT_BYTES 52

/* A header that is being read. It starts as zeros. */
struct bag_proxy_header {
    uint8_t kept[BAG_PROXY_KEPT_BYTES];
    size_t bytes;       /* bytes read so far */
    size_t total_bytes; /* size of the whole header; 0: not known yet */

    /* The outcome. */
    bool is_complete;
    bool has_source; /* false: the connection's own address counts, because the proxy connected for
                        itself (LOCAL) or its client has no IP address */
    uint8_t source[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint16_t source_port;
};

/* Reads the next bytes of a header that is not complete, and sets *used to the number that belong
 * to it. Returns false and sets *problem (BAD_REQUEST) as soon as the bytes cannot be a header. */
bool bag_proxy_read(struct bag_proxy_header *header, const char *data, size_t bytes, size_t *used,
                    struct bag_problem *problem);
