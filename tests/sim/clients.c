/* The clients; see sim.h. Readers compare every element of every reply, one client loads and
 * unloads models, and one changes rows.
 *
 * Every row says which table, version and update it is of. A reply must have the state of the
 * tables at one moment between its request and its arrival. That state has one version of each
 * model, and all updates of its rows up to one update. */
#include "clients.h"

#include <string.h>

struct sim_story story;

/* A reply comes within this, or it is lost: a batch waits for up to 12 s, and who does not read is
 * given up after up to 7 s more. */
#define PATIENCE_NS (30 * S)

static struct {
    size_t left; /* clients */
    bool told;
} world;

static void ask(void *context);
static void begin(void *context);
static void start_others(void);

static void end_client(struct client *client)
{
    client->left = 0;
    client->busy = false;
    client->socket = NULL;
    if (client->role == PROBE)
        return;
    if (--world.left == 0 && !world.told) {
        world.told = true;
        sim_on_clients_done();
    }
}

static uint64_t think_ns(void)
{
    if (story.polls && sim_one_in(3))
        return sim_below(2 * POLL_S * S);
    return sim_one_in(12) ? sim_below(400 * MS) : sim_below(sim_one_in(3) ? 10 * MS : MS);
}

/* Ends a request. The next request follows, on the same connection if it is still open. */
static void go_on(struct client *client)
{
    client->busy = false;
    client->number++;
    client->tries = 0;
    if (client->role == PROBE) {
        start_others();
        end_client(client);
    } else if (--client->left == 0) {
        if (client->socket)
            sim_client_finish(client->socket);
        end_client(client);
    } else {
        uint64_t rest_ns = think_ns();
        /* To the server it is idle while its bytes are on their way, too. */
        client->outlasts_idle = rest_ns + 100 * MS >= story.idle_timeout_s * S;
        sim_at(sim.now_ns + rest_ns, client->socket ? ask : begin, client);
    }
}

/* Prepares to send a request again that got no reply. */
static void try_again(struct client *client)
{
    client->busy = false;
    client->socket = NULL;
    client->number++;
    client->tries++;
    client->outlasts_idle = false;
    if (client->tries > 20 && client->role != PROBE) {
        end_client(client);
        return;
    }
    sim_at(sim.now_ns + sim_below(5 * MS), begin, client);
}

static void on_reply(struct client *client, const struct reply *reply)
{
    client->sent_before += client->request.count;
    sim_note("reply", (uint64_t)reply->status, reply->body_bytes);
    if (reply->closes) {
        sim_client_finish(client->socket);
        client->socket = NULL;
    }
    if (client->role == PROBE) {
        if (reply->status == 200) {
            history.ready = true;
            client->left = 1;
            go_on(client);
        } else {
            sim_require(reply->status == 503, "readiness is answered %d", reply->status);
            try_again(client);
        }
        return;
    }
    check_reply(client, reply);
    go_on(client);
}

/* The connection has ended without a reply. */
static void on_end(struct client *client, bool reset)
{
    struct sim_socket *socket = client->socket;
    client->socket = NULL;
    if (!reset)
        sim_client_finish(socket);
    if (!client->busy)
        return;
    sim_note("end", reset, client->reply.count);
    if (client->breaks_http) {
        go_on(client);
        return;
    }
    sim_require(client->reply.count == 0, "a reply ends after %zu bytes: %.200s",
                client->reply.count, client->reply.at);
    /* A request that is sent when the connection's idle timeout ends may be lost, as the server
     * closes the connection. */
    sim_require(sim_closed_before(socket, client->sent_before) || client->outlasts_idle,
                "a request is lost: its connection is %s", reset ? "reset" : "closed");
    sim_require(is_signalled() || client->on_connection > 1,
                "a connection is closed before its first request");
    if (client->role == CONTROLLER)
        end_changes(client, UNKNOWN);
    try_again(client);
}

/* Waits for the server to lose its patience. */
static void stall(struct client *client)
{
    char bytes[4096];
    ssize_t got = -1;
    if (client->manner == STALLS || sim_has_ended(client->socket)) {
        while ((got = sim_client_read(client->socket, bytes, sizeof bytes)) > 0)
            ;
    }
    if (got == -1)
        return;
    if (got == 0)
        sim_client_finish(client->socket);
    client->socket = NULL;
    go_on(client);
}

static void on_readable(void *context)
{
    struct client *client = context;
    char bytes[65536];
    struct reply reply;
    ssize_t got;
    if (!client->socket)
        return;
    if (client->busy && client->manner >= STALLS) {
        stall(client);
        return;
    }
    while ((got = sim_client_read(client->socket, bytes, client->reads)) > 0) {
        add_text(&client->reply, bytes, (size_t)got);
        sim_require(client->busy, "bytes that nobody asked for: %.200s", client->reply.at);
        if (parse_reply(&client->reply, &reply)) {
            on_reply(client, &reply);
            if (!client->socket || !client->busy)
                return;
        }
        if (client->reads < sizeof bytes) { /* the client reads slowly */
            sim_at(sim.now_ns + sim_below(MS / 2), on_readable, client);
            return;
        }
    }
    if (got == 0 || got == -2)
        on_end(client, got == -2);
}

struct deadline {
    struct client *client;
    unsigned number;
};

static void on_deadline(void *context)
{
    const struct deadline *deadline = context;
    const struct client *client = deadline->client;
    sim_require(!client->busy || client->number != deadline->number,
                "a request is lost: no reply within %d s; %zu bytes came", (int)(PATIENCE_NS / S),
                client->reply.count);
}

static void set_deadline(struct client *client)
{
    struct deadline *deadline = sim_alloc(sizeof *deadline);
    *deadline = (struct deadline){client, client->number};
    sim_at(sim.now_ns + PATIENCE_NS, on_deadline, deadline);
}

/* A client that has enough of it goes; what it asked for may happen or not. */
static void vanish(void *context)
{
    const struct deadline *deadline = context;
    struct client *client = deadline->client;
    if (!client->busy || client->number != deadline->number || !client->socket)
        return;
    counters.aborted++;
    if (client->manner == RESETS)
        sim_client_reset(client->socket);
    else
        sim_client_finish(client->socket);
    client->socket = NULL;
    client->reply.count = 0;
    if (client->role == CONTROLLER)
        end_changes(client, UNKNOWN);
    if (client->role == UPDATER) {
        history.streams[client->model].in_doubt = true;
        try_again(client); /* sends the same update again */
    } else {
        go_on(client);
    }
}

static void send_more(void *context)
{
    const struct deadline *deadline = context;
    struct client *client = deadline->client;
    if (!client->socket || client->number != deadline->number)
        return;
    size_t left = client->request.count - client->sent;
    size_t count = sim_one_in(2) ? left : 1 + sim_below(left);
    if (client->manner == STALLS && (count == left || sim_one_in(3))) {
        set_deadline(client);
        return;
    }
    sim_client_send(client->socket, client->request.at + client->sent, count);
    client->sent += count;
    if (client->sent < client->request.count)
        sim_at(sim.now_ns + sim_below(sim_one_in(4) ? 3 * MS : MS / 10), send_more, context);
    else
        set_deadline(client);
}

static enum manner choose_manner(const struct client *client)
{
    if (client->role == READER && sim_one_in(40))
        return sim_one_in(2) ? STALLS : IGNORES;
    return client->role == PROBE || !sim_one_in(8) ? PATIENT : sim_one_in(2) ? RESETS : FINISHES;
}

static void ask(void *context)
{
    struct client *client = context;
    struct deadline *now = sim_alloc(sizeof *now);
    if (!client->socket) {
        begin(client);
        return;
    }
    *now = (struct deadline){client, client->number};
    client->busy = true;
    client->on_connection++;
    counters.asked++;
    make_request(client);
    client->manner = choose_manner(client);
    send_more(now);
    if (client->manner == RESETS || client->manner == FINISHES)
        sim_at(sim.now_ns + sim_below(sim_one_in(3) ? 20 * MS : MS), vanish, now);
}

static void begin(void *context)
{
    struct client *client = context;
    bool dropped;
    client->sent_before = 0;
    client->on_connection = 0;
    client->reads = sim_one_in(4) ? 1 + sim_below(500) : 65536;
    client->socket = sim_connect(client->port, client->address, on_readable, client, &dropped);
    if (client->socket) {
        ask(client);
    } else if (dropped) {
        sim_at(sim.now_ns + S, begin, client);
    } else if (!is_signalled()) {
        sim_require(!history.ready, "a connection is refused");
        sim_at(sim.now_ns + MS, begin, client);
    } else {
        end_client(client);
    }
}

static struct client *make_client(enum role role, uint32_t address)
{
    struct client *client = sim_alloc(sizeof *client);
    client->role = role;
    client->address = 0x0A000001 + address;
    client->port = role == READER || role == PROBE ? PORT : ADMIN_PORT;
    client->left = 1 + (unsigned)sim_below(role == READER ? 5 : 8);
    return client;
}

static void start_client(enum role role, uint32_t address, size_t model)
{
    struct client *client = make_client(role, address);
    client->model = model;
    sim_at(sim.now_ns + think_ns(), begin, client);
}

/* The server is ready. */
static void start_others(void)
{
    sim_on_ready();
    world.left = story.clients + story.controls + 2 * story.updates;
    for (size_t i = 0; i < story.clients; i++)
        start_client(READER, (uint32_t)sim_below(8), 0);
    if (story.controls)
        start_client(CONTROLLER, 100, 0);
    if (story.updates) {
        start_client(UPDATER, 101, U);
        start_client(UPDATER, 102, K);
    }
}

void sim_clients_begin(void)
{
    memset(&world, 0, sizeof world);
    begin_history();
    if (!story.hurries) {
        sim_at(0, begin, make_client(PROBE, 200));
        return;
    }
    world.left = story.clients;
    for (size_t i = 0; i < story.clients; i++)
        start_client(READER, (uint32_t)sim_below(8), 0);
}
