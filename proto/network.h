/* IP addresses, and networks of them as an operator writes them. An address has 16 bytes; IPv4's is
 * ::ffff:a.b.c.d. */
#pragma once

#include "problem.h"

#include <stddef.h>
#include <stdint.h>

/* The first bytes of an IPv4 address among IPv6's. */
extern const uint8_t bag_ipv4_prefix[12];

struct bag_networks {
    struct bag_network {
        uint8_t address[16];
        unsigned bits; /* length of the prefix in the 16 bytes: 104 for 127.0.0.0/8 */
    } list[64];
    size_t count;
};

/* Parses addresses and networks separated by commas ("10.0.0.0/8, ::1"). NULL is an empty list.
 * Returns false and sets *problem (CONFIGURATION) if one of them is malformed or there are too
 * many. */
bool bag_networks_parse(struct bag_networks *networks, const char *text,
                        struct bag_problem *problem);

/* Returns whether one of the networks contains the address. */
bool bag_networks_have(const struct bag_networks *networks, const uint8_t address[16]);

/* Returns whether the address is a loopback address. */
bool bag_address_is_loopback(const uint8_t address[16]);
