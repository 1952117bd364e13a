/* Sockets of the simulated machine: the server's side and the clients'; see machine.h.
 *
 * Sockets are full for a while, as the seed says; bytes arrive in pieces, after a delay and in
 * their order. */
#include "machine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

static void put(struct bytes *bytes, const void *from, size_t count)
{
    if (bytes->begin + bytes->count + count > bytes->room) {
        size_t room = 2 * (bytes->count + count) + 256;
        char *larger = sim_alloc(room);
        if (bytes->count)
            memcpy(larger, bytes->at + bytes->begin, bytes->count);
        *bytes = (struct bytes){larger, 0, bytes->count, room};
    }
    memcpy(bytes->at + bytes->begin + bytes->count, from, count);
    bytes->count += count;
}

static size_t get(struct bytes *bytes, void *to, size_t count, bool keeps)
{
    if (count > bytes->count)
        count = bytes->count;
    if (count)
        memcpy(to, bytes->at + bytes->begin, count);
    if (!keeps) {
        bytes->begin += count;
        bytes->count -= count;
    }
    return count;
}

enum packet_kind { DATA, FIN, RESET };
static void dispatch(struct sim_socket *socket, enum packet_kind what, const void *bytes,
                     size_t count);

/* ---- sockets: the server's side -------------------------------------------------------------- */

/* If a socket is closed with unread bytes, its peer gets a reset, which may destroy bytes on their
 * way to the peer. */
void close_socket(struct sim_socket *socket)
{
    bool unread = socket->in.count > 0;
    socket->file = NULL;
    sim_note("close", socket->port, unread);
    if (unread) {
        socket->server_reset = true;
        if (sim_one_in(2))
            socket->out.count = 0;
    }
    socket->server_ended = true;
    if (socket->on_event && !socket->client_gone)
        sim_at(socket->shows_ns + sim_below(MS / 10), socket->on_event, socket->context);
}

SIM_PUBLIC int socket(int domain, int type, int protocol)
{
    (void)domain, (void)type, (void)protocol;
    return give_fd(make_file(LISTENER));
}

SIM_PUBLIC int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct sockaddr_in in;
    sim_require(file_of(fd) && address->sa_family == AF_INET && bytes >= sizeof in,
                "an address that the simulation lacks");
    memcpy(&in, address, sizeof in);
    file_of(fd)->port = ntohs(in.sin_port);
    return 0;
}

SIM_PUBLIC int listen(int fd, int backlog)
{
    (void)backlog;
    file_of(fd)->listens = true;
    file_of(fd)->waiting = sim_alloc(BACKLOG * sizeof *file_of(fd)->waiting);
    machine.listeners[machine.num_listeners++] = file_of(fd);
    return 0;
}

static void set_address(struct sockaddr *to, socklen_t *bytes, uint32_t address, int port)
{
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(address)}};
    memcpy(to, &in, *bytes < sizeof in ? *bytes : sizeof in);
    *bytes = sizeof in;
}

SIM_PUBLIC int getsockname(int fd, struct sockaddr *address, socklen_t *bytes)
{
    if (!file_of(fd))
        return fail(EBADF);
    set_address(address, bytes, INADDR_LOOPBACK, file_of(fd)->port);
    return 0;
}

SIM_PUBLIC int getpeername(int fd, struct sockaddr *address, socklen_t *bytes)
{
    const struct file *file = file_of(fd);
    if (!file || file->kind != CONNECTION)
        return fail(ENOTCONN);
    set_address(address, bytes, file->socket->address, file->socket->port);
    return 0;
}

SIM_PUBLIC int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    (void)level, (void)value, (void)bytes;
    if (!file_of(fd))
        return fail(EBADF);
    if (name == SO_ATTACH_FILTER && level == SOL_SOCKET)
        file_of(fd)->rejects = true;
    return 0;
}

SIM_PUBLIC int getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
    const struct file *file = file_of(fd);
    if (!file)
        return fail(EBADF);
    memset(value, 0, *bytes);
    if (level == IPPROTO_TCP && name == TCP_INFO && file->kind == CONNECTION) {
        struct tcp_info info = {0};
        info.tcpi_last_data_recv = (uint32_t)((sim.now_ns - file->socket->last_data_ns) / MS);
        memcpy(value, &info, *bytes < sizeof info ? *bytes : sizeof info);
    } else if (level == SOL_SOCKET && name == SO_TYPE) {
        memcpy(value, &(int){SOCK_STREAM}, sizeof(int));
    }
    return 0;
}

SIM_PUBLIC int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    struct file *listener = file_of(fd);
    (void)flags;
    sim_pause();
    if (!listener || !listener->listens)
        return fail(EBADF);
    if (!listener->num_waiting)
        return fail(EAGAIN);
    if (sim_one_in(200))
        return fail(sim_one_in(2) ? EMFILE : ECONNABORTED);
    struct sim_socket *socket = listener->waiting[0];
    memmove(listener->waiting, listener->waiting + 1,
            --listener->num_waiting * sizeof *listener->waiting);
    struct file *file = make_file(CONNECTION);
    file->socket = socket;
    socket->file = file;
    set_address(address, bytes, socket->address, socket->port);
    int made = give_fd(file);
    sim_note("accept", socket->port, (uint64_t)made);
    return made;
}

SIM_PUBLIC ssize_t recv(int fd, void *bytes, size_t count, int flags)
{
    struct file *file = file_of(fd);
    if (!file || file->kind != CONNECTION)
        return fail(EBADF);
    struct sim_socket *socket = file->socket;
    bool peeks = flags & MSG_PEEK;
    if (!peeks)
        sim_pause();
    if (socket->reset)
        return fail(ECONNRESET);
    char dropped[65536];
    bool drops = flags & MSG_TRUNC; /* received bytes are discarded */
    size_t got = drops ? get(&socket->in, dropped, sizeof dropped, peeks)
                       : get(&socket->in, bytes, count, peeks);
    if (!peeks)
        sim_note("recv", socket->port, got);
    if (got)
        return (ssize_t)got;
    return socket->ended || socket->reads_ended ? 0 : fail(EAGAIN);
}

/* How much has come; at times it says more, so that small requests count as large. */
SIM_PUBLIC int ioctl(int fd, unsigned long what, ...)
{
    const struct file *file = file_of(fd);
    va_list arguments;
    va_start(arguments, what);
    int *waiting = va_arg(arguments, int *);
    va_end(arguments);
    if (!file || file->kind != CONNECTION || what != FIONREAD)
        return fail(EBADF);
    *waiting = (int)file->socket->in.count + (sim_one_in(2) ? 1 << 20 : 0);
    sim_note("waiting", file->socket->port, (uint64_t)*waiting);
    return 0;
}

static void empty_again(void *context)
{
    struct sim_socket *socket = context;
    socket->is_full = false;
    changed(socket->file);
}

/* Accepts fewer than `count` bytes only if no more fit, like a kernel. */
static size_t take_some(struct sim_socket *socket, size_t count)
{
    size_t room = room_of(socket);
    if (count > 1 && sim_one_in(8)) {
        size_t most = 1 + sim_below(count - 1);
        room = room < most ? room : most;
        socket->is_full = true;
        sim_at(sim.now_ns + sim_below(MS), empty_again, socket);
    }
    return count < room ? count : room;
}

static ssize_t send_out(int fd, const void *bytes, size_t count)
{
    struct file *file = file_of(fd);
    sim_pause();
    if (!file || file->kind != CONNECTION)
        return fail(EBADF);
    struct sim_socket *socket = file->socket;
    if (socket->reset || socket->server_ended)
        return fail(socket->reset ? ECONNRESET : EPIPE);
    if (room_of(socket) == 0)
        return fail(EAGAIN);
    count = take_some(socket, count);
    put(&socket->out, bytes, count);
    sim_note("send", socket->port, count);
    sim_note_bytes(bytes, count);
    socket->shows_ns = sim.now_ns + sim_below(MS / 5);
    if (socket->client_gone)
        dispatch(socket, RESET, NULL, 0);
    else
        sim_at(socket->shows_ns, socket->on_event, socket->context);
    return (ssize_t)count;
}

SIM_PUBLIC ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    (void)flags;
    return send_out(fd, bytes, count);
}

SIM_PUBLIC ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    char all[65536];
    size_t count = 0;
    (void)flags;
    for (size_t i = 0; i < (size_t)message->msg_iovlen && count < sizeof all; i++) {
        const struct iovec *part = &message->msg_iov[i];
        size_t taken = part->iov_len < sizeof all - count ? part->iov_len : sizeof all - count;
        if (taken)
            memcpy(all + count, part->iov_base, taken);
        count += taken;
    }
    return send_out(fd, all, count);
}

SIM_PUBLIC int shutdown(int fd, int how)
{
    struct file *file = file_of(fd);
    if (!file || file->kind != CONNECTION)
        return fail(ENOTCONN);
    struct sim_socket *socket = file->socket;
    sim_note("shutdown", socket->port, (uint64_t)how);
    if (how != SHUT_WR)
        socket->reads_ended = true;
    if (how != SHUT_RD && !socket->server_ended) {
        socket->server_ended = true;
        socket->shows_ns = sim.now_ns + sim_below(MS / 5);
        if (!socket->client_gone)
            sim_at(socket->shows_ns, socket->on_event, socket->context);
    }
    changed(file);
    return 0;
}

/* ---- sockets: the client's side -------------------------------------------------------------- */

struct sim_socket *sim_connect(int port, uint32_t address, void (*on_event)(void *context),
                               void *context, bool *dropped)
{
    struct file *listener = NULL;
    for (size_t i = 0; i < machine.num_listeners; i++) {
        if (machine.listeners[i]->port == port)
            listener = machine.listeners[i];
    }
    *dropped = listener && (listener->rejects || listener->num_waiting == BACKLOG);
    if (!listener || *dropped)
        return NULL;
    struct sim_socket *socket = sim_alloc(sizeof *socket);
    *socket = (struct sim_socket){.address = address,
                                  .port = machine.next_port++,
                                  .window = 1 + (sim_one_in(3) ? sim_below(200) : 65536),
                                  .last_data_ns = sim.now_ns,
                                  .on_event = on_event,
                                  .context = context};
    listener->waiting[listener->num_waiting++] = socket;
    sim_note("connect", socket->port, address);
    changed(listener);
    return socket;
}

/* Something that the client sent, on its way. */
struct packet {
    struct sim_socket *socket;
    enum packet_kind what;
    size_t count;
    char bytes[];
};

static void arrive(void *context)
{
    struct packet *packet = context;
    struct sim_socket *socket = packet->socket;
    bool closed = socket->server_ended && !socket->file;
    if (packet->what == RESET) {
        socket->reset = true;
    } else if (packet->what == FIN) {
        socket->ended = true;
    } else if (closed || socket->server_reset) { /* the answer is a reset */
        socket->server_reset = true;
        if (sim_one_in(2))
            socket->out.count = 0;
        if (!socket->client_gone)
            sim_at(sim.now_ns + sim_below(MS / 10), socket->on_event, socket->context);
        return;
    } else {
        if (!socket->server_ended)
            socket->arrived += packet->count;
        socket->last_data_ns = sim.now_ns;
        put(&socket->in, packet->bytes, packet->count);
    }
    sim_note(packet->what == DATA  ? "arrive"
             : packet->what == FIN ? "fin"
                                   : "reset",
             socket->port, packet->count);
    changed(socket->file);
}

static void dispatch(struct sim_socket *socket, enum packet_kind what, const void *bytes,
                     size_t count)
{
    struct packet *packet = sim_alloc(sizeof *packet + count);
    packet->socket = socket;
    packet->what = what;
    packet->count = count;
    if (count)
        memcpy(packet->bytes, bytes, count);
    uint64_t when_ns = sim.now_ns + sim_below(sim_one_in(8) ? 5 * MS : MS / 5);
    if (when_ns > socket->arrives_ns)
        socket->arrives_ns = when_ns;
    sim_at(socket->arrives_ns, arrive, packet);
}

void sim_client_send(struct sim_socket *socket, const void *bytes, size_t count)
{
    dispatch(socket, DATA, bytes, count);
}

/* Bytes that the client has not read, and bytes that arrive later, are answered by a reset. */
void sim_client_finish(struct sim_socket *socket)
{
    socket->client_gone = true;
    dispatch(socket, socket->out.count ? RESET : FIN, NULL, 0);
}

void sim_client_reset(struct sim_socket *socket)
{
    socket->client_gone = true;
    dispatch(socket, RESET, NULL, 0);
}

ssize_t sim_client_read(struct sim_socket *socket, void *bytes, size_t count)
{
    bool was_full = socket->out.count >= socket->window;
    size_t got = get(&socket->out, bytes, count, false);
    if (got && was_full)
        changed(socket->file);
    if (got)
        return (ssize_t)got;
    return socket->server_reset ? -2 : socket->server_ended ? 0 : -1;
}

bool sim_has_ended(const struct sim_socket *socket)
{
    return socket->server_ended || socket->server_reset;
}

bool sim_closed_before(const struct sim_socket *socket, size_t before)
{
    return socket->arrived <= before;
}
