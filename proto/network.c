/* Addresses and networks; see network.h. */
#include "network.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

const uint8_t bag_ipv4_prefix[12] = {[10] = 0xFF, [11] = 0xFF};

/* Returns whether the first network->bits bits of the addresses are equal. */
static bool is_in(const struct bag_network *network, const uint8_t address[16])
{
    unsigned bytes = network->bits / 8, bits = network->bits % 8;
    uint8_t mask = (uint8_t)(0xFF00 >> bits);
    return memcmp(network->address, address, bytes) == 0 &&
           (bits == 0 || ((network->address[bytes] ^ address[bytes]) & mask) == 0);
}

bool bag_networks_have(const struct bag_networks *networks, const uint8_t address[16])
{
    size_t i = 0;
    while (i < networks->count && !is_in(&networks->list[i], address))
        i++;
    return i < networks->count;
}

bool bag_address_is_loopback(const uint8_t address[16])
{
    static const struct bag_networks loopback = {
        .list = {{.address = {[10] = 0xFF, [11] = 0xFF, [12] = 127}, .bits = 104},
                 {.address = {[15] = 1}, .bits = 128}},
        .count = 2};
    return bag_networks_have(&loopback, address);
}

/* Parses "10.0.0.0/8" or "::1", and changes the text. An address without a length is a network of
 * one address. The length of an IPv4 network is counted from the beginning of the 128 bits. Returns
 * false if the text is malformed. */
static bool parse_network(struct bag_network *network, char *text)
{
    char *length = strchr(text, '/'), *end;
    if (length)
        *length++ = 0;
    memcpy(network->address, bag_ipv4_prefix, sizeof bag_ipv4_prefix);
    bool four = inet_pton(AF_INET, text, network->address + sizeof bag_ipv4_prefix) == 1;
    if (!four && inet_pton(AF_INET6, text, network->address) != 1)
        return false;
    unsigned long most = four ? 32 : 128, bits = most;
    if (length) {
        bits = *length >= '0' && *length <= '9' ? strtoul(length, &end, 10) : most + 1;
        if (bits > most || *end)
            return false;
    }
    network->bits = (unsigned)(bits + 128 - most);
    return true;
}

bool bag_networks_parse(struct bag_networks *networks, const char *text,
                        struct bag_problem *problem)
{
    const size_t most = sizeof networks->list / sizeof networks->list[0];
    networks->count = 0;
    while (text && *text) {
        char word[INET6_ADDRSTRLEN + 8];
        size_t bytes = strcspn(text, ", ");
        if (networks->count == most)
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "trusted_proxies has more than %zu entries", most);
        /* A word that is too long is no address. It is replaced by an empty one, which is rejected.
         */
        memcpy(word, text, bytes < sizeof word ? bytes : 0);
        word[bytes < sizeof word ? bytes : 0] = 0;
        if (!parse_network(&networks->list[networks->count++], word))
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "trusted_proxies: '%s' is neither an address nor a network such "
                                   "as 10.0.0.0/8",
                                   bag_quote(text, bytes).text);
        text += bytes;
        text += strspn(text, ", ");
    }
    return true;
}
