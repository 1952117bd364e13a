/* Reads a PROXY header piece by piece; see proxy.h. */
#include "proxy.h"

#include <string.h>

static const uint8_t signature[12] = BAG_PROXY_SIGNATURE;

/* The command in the low four bits of byte 12. LOCAL: the proxy connected for itself. */
enum { LOCAL, PROXY };

/* The byte of address family and transport. */
enum { UNSPECIFIED = 0x00, TCP_4 = 0x11, TCP_6 = 0x21, UNIX_STREAM = 0x31 };

/* Compares as many bytes of the signature as have arrived. */
static bool check_signature(const struct bag_proxy_header *header, struct bag_problem *problem)
{
    size_t bytes = header->bytes < sizeof signature ? header->bytes : sizeof signature;
    if (memcmp(header->kept, signature, bytes) == 0)
        return true;
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "a connection of a trusted proxy must begin with a header of the PROXY "
                           "protocol, version 2%s",
                           bytes >= 6 && memcmp(header->kept, "PROXY ", 6) == 0
                               ? "; this one looks like version 1"
                               : "");
}

/* Returns the length of a family's addresses, or SIZE_MAX if the family is unknown. */
static size_t address_bytes(unsigned family)
{
    switch (family) {
    case UNSPECIFIED:
        return 0;
    case TCP_4:
        return 12;
    case TCP_6:
        return 36;
    case UNIX_STREAM:
        return 216;
    default:
        return SIZE_MAX;
    }
}

/* Returns the big-endian number of two bytes. */
static unsigned number_at(const uint8_t *at)
{
    return (unsigned)at[0] << 8 | at[1];
}

/* Checks the fixed part, which is complete. The family of a LOCAL header does not matter. */
static bool check_fixed_part(struct bag_proxy_header *header, struct bag_problem *problem)
{
    unsigned version = header->kept[12] >> 4, command = header->kept[12] & 15;
    unsigned family = header->kept[13];
    size_t length = number_at(header->kept + 14);
    header->total_bytes = BAG_PROXY_FIXED_BYTES + length;
    if (version != 2)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the PROXY header is of version %u; it must be 2", version);
    if (command != LOCAL && command != PROXY)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the PROXY header has command %u; there are 0 (LOCAL) and 1 (PROXY)",
                               command);
    if (command == LOCAL)
        return true;
    if (address_bytes(family) == SIZE_MAX)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the PROXY header is of family 0x%02x; it must be 0x11 (TCP over "
                               "IPv4), 0x21 (IPv6), 0x31 (a Unix-domain socket) or 0x00",
                               family);
    return length >= address_bytes(family) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "the PROXY header has %zu bytes of addresses; family 0x%02x has %zu",
                           length, family, address_bytes(family));
}

/* Reads the addresses of a complete header. Anything after them is ignored. */
static void complete(struct bag_proxy_header *header)
{
    const uint8_t *addresses = header->kept + BAG_PROXY_FIXED_BYTES;
    unsigned family = header->kept[13];
    header->is_complete = true;
    header->has_source = (header->kept[12] & 15) == PROXY && (family == TCP_4 || family == TCP_6);
    if (!header->has_source)
        return;
    if (family == TCP_6) {
        memcpy(header->source, addresses, 16);
        header->source_port = (uint16_t)number_at(addresses + 32);
    } else {
        memset(header->source, 0, 10);
        memset(header->source + 10, 0xFF, 2);
        memcpy(header->source + 12, addresses, 4);
        header->source_port = (uint16_t)number_at(addresses + 8);
    }
}

/* Takes bytes until the header has `until` bytes. Returns the number of bytes taken. */
static size_t take(struct bag_proxy_header *header, const char *data, size_t bytes, size_t until)
{
    size_t taken = until - header->bytes < bytes ? until - header->bytes : bytes;
    for (size_t i = 0; i < taken && header->bytes + i < sizeof header->kept; i++)
        header->kept[header->bytes + i] = (uint8_t)data[i];
    header->bytes += taken;
    return taken;
}

bool bag_proxy_read(struct bag_proxy_header *header, const char *data, size_t bytes, size_t *used,
                    struct bag_problem *problem)
{
    *used = 0;
    if (!header->total_bytes) {
        *used = take(header, data, bytes, BAG_PROXY_FIXED_BYTES);
        if (!check_signature(header, problem))
            return false;
        if (header->bytes < BAG_PROXY_FIXED_BYTES)
            return true;
        if (!check_fixed_part(header, problem))
            return false;
    }
    *used += take(header, data + *used, bytes - *used, header->total_bytes);
    if (header->bytes == header->total_bytes)
        complete(header);
    return true;
}
