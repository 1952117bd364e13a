/* Polling a shard whose name has eight addresses, none of which answers: the time limit is one for
 * all of them. */
#include "testing.h"

#include "server/shards/shards.h"
#include "server/system/sockets.h"

#include <netinet/in.h>
#include <unistd.h>

enum { ADDRESSES = 8, MAX_WAITING = 64 };

static struct sockaddr_in address = {.sin_family = AF_INET};

/* Take the place of the C library's: every name has eight addresses, which are one and the same. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    static struct addrinfo entries[ADDRESSES];
    (void)node, (void)service, (void)hints;
    for (size_t i = 0; i < ADDRESSES; i++)
        entries[i] = (struct addrinfo){.ai_family = AF_INET,
                                       .ai_socktype = SOCK_STREAM,
                                       .ai_addr = (struct sockaddr *)&address,
                                       .ai_addrlen = sizeof address,
                                       .ai_next = i + 1 < ADDRESSES ? &entries[i + 1] : NULL};
    *list = entries;
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    (void)list;
}

/* Listens, and lets so many connections wait that the kernel answers no further one. */
static void fill_listener(int fds[MAX_WAITING])
{
    socklen_t bytes = sizeof address;
    size_t count = 0;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fds[count] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fds[count], (void *)&address, sizeof address), 0);
    assert_int_equal(listen(fds[count], 0), 0);
    assert_int_equal(getsockname(fds[count], (void *)&address, &bytes), 0);
    while (fds[count] >= 0) {
        assert_true(++count < MAX_WAITING);
        fds[count] = bag_address_connect(&address, sizeof address, 100);
    }
}

TEST(takes_two_seconds_for_all_addresses)
{
    static struct bag_shard_report said;
    struct bag_model_config config = {.name = (char *)(uintptr_t) "m",
                                      .path = (char *)(uintptr_t) "shards:http://shard.test:1",
                                      .version = (char *)(uintptr_t) "1"};
    enum bag_shard_contact contact;
    struct bag_problem problem;
    int fds[MAX_WAITING];
    fill_listener(fds);
    struct bag_shards *shards = bag_shards_make();
    assert_non_null(shards);
    struct bag_shard_group *group = bag_shards_find(shards, &config, &problem);
    assert_non_null(group);
    uint64_t begun_ns = uv_hrtime();
    assert_false(bag_shard_poll(group, group->members[0].host, NULL, &said, &contact, &problem));
    uint64_t took_ms = (uv_hrtime() - begun_ns) / 1000000;
    assert_in_range(took_ms, 1900, 3900);
    assert_int_equal(contact, BAG_SHARD_SILENT);
    assert_string_equal(problem.text, "Connection timed out");
    assert_int_equal(group->members[0].host->num_endpoints, ADDRESSES);
    bag_shard_report_free(&said);
    bag_shard_group_release(group);
    bag_shards_free(shards);
    for (size_t i = 0; fds[i] >= 0; i++)
        close(fds[i]);
}
