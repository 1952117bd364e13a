/* Networks as an operator writes them, and which addresses are in them. */
#include "testing.h"

#include "proto/network.h"

#include <arpa/inet.h>

static void address_of(const char *text, uint8_t address[16])
{
    memcpy(address, bag_ipv4_prefix, sizeof bag_ipv4_prefix);
    if (inet_pton(AF_INET, text, address + 12) != 1)
        assert_int_equal(inet_pton(AF_INET6, text, address), 1);
}

static bool have(const char *networks, const char *text)
{
    struct bag_networks parsed;
    struct bag_problem problem;
    uint8_t address[16];
    address_of(text, address);
    assert_true(bag_networks_parse(&parsed, networks, &problem));
    return bag_networks_have(&parsed, address);
}

TEST(test_addresses_in_networks)
{
    static const struct {
        const char *networks, *address;
        bool have;
    } cases[] = {{NULL, "10.0.0.1", false},
                 {"", "::", false},
                 {"10.0.0.1", "10.0.0.1", true},
                 {"10.0.0.1", "10.0.0.2", false},
                 {"10.0.0.0/8, ::1", "10.255.255.255", true},
                 {"10.0.0.0/8, ::1", "::1", true},
                 {"10.0.0.0/8 ::1", "11.0.0.0", false},
                 {"192.168.4.0/23", "192.168.5.255", true},
                 {"192.168.4.0/23", "192.168.6.0", false},
                 {"10.0.0.7/0", "203.0.113.9", true},
                 {"10.0.0.7/0", "2001:db8::1", false},
                 {"::/0", "203.0.113.9", true},
                 {"2001:db8:0:8000::/49", "2001:db8:0:ffff::1", true},
                 {"2001:db8:0:8000::/49", "2001:db8:0:7fff::1", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (have(cases[i].networks, cases[i].address) != cases[i].have)
            fail_msg("'%s' in '%s'", cases[i].address, cases[i].networks);
    }
}

TEST(test_what_is_no_network)
{
    static const char *const texts[] = {"10.0.0", "10.0.0.0/33", "::/129",      "10.0.0.0/",
                                        "/8",     "10.0.0.0/-1", "10.0.0.0/8x", "proxy"};
    struct bag_networks networks;
    struct bag_problem problem;
    char message[200], long_text[400];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_false(bag_networks_parse(&networks, texts[i], &problem));
        assert_int_equal(problem.kind, BAG_ERROR_CONFIGURATION);
        snprintf(message, sizeof message,
                 "trusted_proxies: '%s' is neither an address nor a network such as 10.0.0.0/8",
                 texts[i]);
        assert_string_equal(problem.text, message);
    }
    memset(long_text, '1', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    assert_false(bag_networks_parse(&networks, long_text, &problem));
}

TEST(test_how_many)
{
    struct bag_networks networks;
    struct bag_problem problem;
    char text[65 * 4 + 1] = "";
    for (int i = 0; i < 64; i++)
        strcat(text, "::1,");
    assert_true(bag_networks_parse(&networks, text, &problem));
    assert_int_equal(networks.count, 64);
    strcat(text, "::1");
    assert_false(bag_networks_parse(&networks, text, &problem));
    assert_string_equal(problem.text, "trusted_proxies has more than 64 entries");
}

TEST(test_loopback)
{
    static const struct {
        const char *text;
        bool is_loopback;
    } cases[] = {{"127.0.0.1", true},  {"127.255.0.9", true}, {"126.255.255.255", false},
                 {"128.0.0.0", false}, {"::1", true},         {"::2", false},
                 {"::", false}};
    uint8_t address[16];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        address_of(cases[i].text, address);
        assert_int_equal(bag_address_is_loopback(address), cases[i].is_loopback);
    }
}
