/* Which connections are accepted at the limit: how many of one client, and that some places are
 * left for others. The clients are addresses of 127.0.0.0/8. The loop of the connections does not
 * run, as if its iteration were long, unless a test lets it take them. */
#include "server/engine/engine.h"
#include "server/http/accept.h"
#include "testing.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 8
#define ACCEPTED    24
#define WAIT_MS     10000

static struct {
    uv_loop_t loop;
    struct bag_listener listener;
    struct bag_http_acceptor acceptor;
    struct bag_http_connections connections;
    struct bag_http_overload overload;
    struct bag_workers workers; /* not started */
    struct bag_engine engine;   /* without jobs */
    int clients[200];           /* sockets of the clients */
    size_t num_clients;
} world;

static int set_up(void **state)
{
    const struct bag_http_limits limits = {
        .connections = CONNECTIONS, .accepted = ACCEPTED, .per_client = 1000};
    struct bag_problem problem;
    (void)state;
    memset(&world, 0, sizeof world);
    assert_int_equal(uv_loop_init(&world.loop), 0);
    assert_true(bag_listener_open(&world.listener, "127.0.0.1", 0, "--port", &problem));
    assert_true(bag_http_acceptor_init(&world.acceptor, &world.loop, 1, &world.listener, &limits,
                                       "", &problem));
    world.engine.wake_fd = eventfd(0, EFD_NONBLOCK);
    world.engine.workers = &world.workers;
    world.engine.clock = uv_hrtime;
    bag_queue_init(&world.engine.queue);
    world.connections.clients = &world.acceptor.clients;
    world.overload.connections = &world.connections;
    world.overload.engine = &world.engine;
    world.connections.engine = &world.engine;
    bag_http_connections_init(&world.connections);
    uv_timer_init(&world.loop, &world.connections.timer);
    world.acceptor.loops[world.acceptor.clients.num_loops++] = &world.connections;
    assert_true(bag_http_acceptor_start(&world.acceptor, &problem));
    return 0;
}

/* Closes a connection that was accepted. */
static void end(struct bag_http_connection *connection)
{
    close(connection->fd);
    bag_http_connection_remove(&world.connections, connection);
}

static int tear_down(void **state)
{
    struct bag_http_connection_list *admitted =
        &world.connections.lists[BAG_HTTP_CONNECTION_ADMITTED];
    (void)state;
    bag_http_new_connections_take(&world.overload);
    while (admitted->count)
        end(TAILQ_FIRST(&admitted->queue));
    assert_null(world.acceptor.clients.tree);
    assert_int_equal(atomic_load(&world.acceptor.clients.counted), 0);
    for (size_t i = 0; i < world.num_clients; i++)
        close(world.clients[i]);
    uv_close((uv_handle_t *)&world.acceptor.poll, NULL);
    uv_close((uv_handle_t *)&world.acceptor.timer, NULL);
    uv_close((uv_handle_t *)&world.connections.timer, NULL);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&world.loop), 0);
    bag_http_acceptor_free(&world.acceptor);
    bag_listener_close(&world.listener);
    close(world.engine.wake_fd);
    return 0;
}

/* Connects from 127.0.0.`host`, and returns the socket. */
static int connect_from(uint8_t host)
{
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr = {htonl(INADDR_LOOPBACK - 1 + host)}};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)world.listener.port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_true(world.num_clients < COUNT_OF(world.clients));
    return world.clients[world.num_clients++] = fd;
}

/* Runs the acceptor until no connection waits. */
static void accept_all(void)
{
    uint64_t until_ms = uv_now(&world.loop) + WAIT_MS;
    do
        uv_run(&world.loop, UV_RUN_NOWAIT);
    while (bag_listener_has_waiting(&world.listener) && uv_now(&world.loop) < until_ms);
    assert_false(bag_listener_has_waiting(&world.listener));
}

static bool is_open(int fd)
{
    struct pollfd closed = {.fd = fd, .events = POLLIN};
    return poll(&closed, 1, 0) == 0;
}

static size_t count_open(void)
{
    size_t count = 0;
    for (size_t i = 0; i < world.num_clients; i++)
        count += is_open(world.clients[i]);
    return count;
}

/* Four clients want all places in one iteration of the loop. */
TEST_BETWEEN(leaves_places_for_others, set_up, tear_down)
{
    for (int i = 0; i < 30; i++) {
        for (uint8_t host = 2; host < 6; host++)
            connect_from(host);
    }
    accept_all();
    assert_int_equal(bag_http_clients_room(&world.acceptor.clients), ACCEPTED - count_open());
    assert_in_range(count_open(), CONNECTIONS + 4 * 3, CONNECTIONS + 4 * 4);
    int other = connect_from(9);
    accept_all();
    assert_true(is_open(other));
    assert_in_range(bag_http_clients_room(&world.acceptor.clients), 1, 4);
}

/* One client gets half of the places beyond the limit, whether the loop has taken its connections
 * or not. */
TEST_BETWEEN(shares_places_beyond_the_limit, set_up, tear_down)
{
    const size_t expected = CONNECTIONS + (ACCEPTED - CONNECTIONS) / 2 + 1;
    for (int i = 0; i < 40; i++)
        connect_from(2);
    accept_all();
    assert_int_equal(count_open(), expected);
    bag_http_new_connections_take(&world.overload);
    assert_int_equal(atomic_load(&world.acceptor.clients.counted), CONNECTIONS);
    connect_from(2);
    accept_all();
    assert_int_equal(count_open(), expected);
}

/* No connection up to the limit is closed, and no client's only connection. */
TEST_BETWEEN(accepts_all_up_to_the_limit, set_up, tear_down)
{
    for (int i = 0; i < CONNECTIONS; i++)
        connect_from(2);
    accept_all();
    for (uint8_t host = 3; host < 3 + ACCEPTED - CONNECTIONS; host++)
        connect_from(host);
    accept_all();
    assert_int_equal(count_open(), ACCEPTED);
    assert_int_equal(bag_http_clients_room(&world.acceptor.clients), 0);
}

/* Closes the oldest connections that count. */
static void end_counted(int count)
{
    struct bag_http_connection *connection =
        TAILQ_FIRST(&world.connections.lists[BAG_HTTP_CONNECTION_ADMITTED].queue);
    while (connection && count > 0) {
        struct bag_http_connection *next = TAILQ_NEXT(connection, link);
        if (connection->counts) {
            end(connection);
            count--;
        }
        connection = next;
    }
    assert_int_equal(count, 0);
}

/* A client that gives way gets no more places beyond max_connections than at other times, though
 * some of those within it are free. Otherwise the next clients would find none at all. */
TEST_BETWEEN(leaves_places_while_a_client_gives_way, set_up, tear_down)
{
    const size_t beyond = ACCEPTED - CONNECTIONS;
    for (int i = 0; i < CONNECTIONS; i++)
        connect_from(2);
    accept_all();
    connect_from(9);
    accept_all();
    bag_http_new_connections_take(&world.overload);
    assert_int_equal(atomic_load(&world.acceptor.clients.counted), CONNECTIONS);
    end_counted(3); /* the client has more than three left, and gives way */
    assert_int_equal(atomic_load(&world.acceptor.clients.counted), CONNECTIONS - 3);
    for (int i = 0; i < 40; i++)
        connect_from(2);
    accept_all();
    assert_int_equal(atomic_load(&world.acceptor.clients.counted), CONNECTIONS - 3);
    assert_int_equal(bag_http_clients_surplus_room(&world.acceptor.clients), (beyond - 1) / 2);
    assert_int_equal(bag_http_clients_room(&world.acceptor.clients), 3 + (beyond - 1) / 2);
}
