/* Descriptors of the simulated machine: sockets, epoll, eventfd; see sim.h.
 *
 * Sockets are full for a while, as the seed says; bytes arrive in pieces, after a delay and in
 * their order. Descriptors of files are the real machine's. */
#include "sim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Simulated descriptors begin here. */
#define FIRST_FD 200
#define MAX_FDS  400

#define MAX_WATCHED 256
#define BACKLOG     128

enum kind { PLAIN, LISTENER, CONNECTION, EPOLL, EVENT };

struct bytes {
    char *at;
    size_t begin, count, room;
};

struct watched {
    int fd;
    struct file *file; /* NULL: free */
    uint32_t events;
    bool pending;
    epoll_data_t data;
};

/* An open file, which several descriptors may name. */
struct file {
    enum kind kind;
    unsigned references;
    int flags;
    /* LISTENER */
    int port;
    bool listens, rejects;
    struct sim_socket **waiting;
    size_t num_waiting;
    /* EPOLL */
    struct watched *watched;
    size_t num_watched;
    /* EVENT */
    uint64_t count;
    /* CONNECTION */
    struct sim_socket *socket;
};

struct sim_socket {
    struct file *file; /* the server's; NULL before it is accepted, and after it is closed */
    uint32_t address;
    uint16_t port;
    struct bytes in, out;  /* to the server; to the client */
    size_t window;         /* of `out` */
    uint64_t arrives_ns;   /* when what the client sent last comes */
    uint64_t shows_ns;     /* when what the server sent last comes */
    uint64_t last_data_ns; /* when the last bytes came */
    bool is_full;          /* for a while, whatever `window` says */
    bool ended;            /* the client's FIN has come */
    bool reset;            /* by the client */
    bool server_ended;     /* by FIN; `server_reset`: by a reset */
    bool server_reset, reads_ended;
    size_t arrived; /* bytes that have come before the server closed */
    bool client_gone;
    void (*on_event)(void *context);
    void *context;
};

static struct {
    struct file *files[MAX_FDS]; /* by descriptor, from FIRST_FD on */
    struct file *epolls[16];
    size_t num_epolls;
    struct file *listeners[8];
    size_t num_listeners;
    uint16_t next_port;
} world;

/* ---- descriptors ----------------------------------------------------------------------------- */

static struct file *file_of(int fd)
{
    return fd >= FIRST_FD && fd < FIRST_FD + MAX_FDS ? world.files[fd - FIRST_FD] : NULL;
}

static int give_fd(struct file *file)
{
    for (int i = 0; i < MAX_FDS; i++) {
        if (!world.files[i]) {
            world.files[i] = file;
            file->references++;
            return FIRST_FD + i;
        }
    }
    errno = EMFILE;
    return -1;
}

static struct file *make_file(enum kind kind)
{
    struct file *file = sim_alloc(sizeof *file);
    file->kind = kind;
    return file;
}

static int fail(int error)
{
    errno = error;
    return -1;
}

void sim_network_begin(void)
{
    world.num_epolls = world.num_listeners = 0;
    world.next_port = 20000;
}

void sim_network_end(void)
{
    for (int i = 0; i < MAX_FDS; i++)
        sim_require(!world.files[i], "descriptor %d (kind %d) is left open", FIRST_FD + i,
                    (int)world.files[i]->kind);
}

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

/* ---- readiness ------------------------------------------------------------------------------- */

static size_t room_of(const struct sim_socket *socket)
{
    return !socket->is_full && socket->out.count < socket->window
               ? socket->window - socket->out.count
               : 0;
}

static uint32_t events_of(const struct file *file)
{
    const struct sim_socket *socket = file->socket;
    switch (file->kind) {
    case LISTENER:
        return file->num_waiting ? EPOLLIN : 0;
    case EVENT:
        return (file->count ? EPOLLIN : 0) | EPOLLOUT;
    case EPOLL:
        for (size_t i = 0; i < file->num_watched; i++) {
            const struct watched *at = &file->watched[i];
            if (at->file && at->pending &&
                (events_of(at->file) & (at->events | EPOLLERR | EPOLLHUP)))
                return EPOLLIN;
        }
        return 0;
    case CONNECTION:
        return (socket->in.count || socket->ended || socket->reset || socket->reads_ended ? EPOLLIN
                                                                                          : 0) |
               (room_of(socket) || socket->reset ? EPOLLOUT : 0) |
               (socket->ended || socket->reads_ended ? EPOLLRDHUP : 0) |
               (socket->reset ? EPOLLERR | EPOLLHUP | EPOLLRDHUP : 0) |
               (socket->ended && socket->server_ended ? EPOLLHUP : 0);
    default:
        return 0;
    }
}

bool sim_is_readable(int fd)
{
    const struct file *file = file_of(fd);
    return file && (events_of(file) & (EPOLLIN | EPOLLERR | EPOLLHUP));
}

/* Something about the file has changed. */
static void changed(const struct file *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < world.num_epolls; i++) {
        struct file *epoll = world.epolls[i];
        for (size_t j = 0; j < epoll->num_watched; j++) {
            if (epoll->watched[j].file == file)
                epoll->watched[j].pending = true;
        }
    }
    sim_loops_look();
}

/* ---- epoll and eventfd ----------------------------------------------------------------------- */

SIM_PUBLIC int epoll_create1(int flags)
{
    struct file *file = make_file(EPOLL);
    (void)flags;
    sim_require(world.num_epolls < sizeof world.epolls / sizeof *world.epolls, "too many epolls");
    file->watched = sim_alloc(MAX_WATCHED * sizeof *file->watched);
    world.epolls[world.num_epolls++] = file;
    return give_fd(file);
}

static struct watched *find_watched(struct file *epoll, int fd, const struct file *file)
{
    for (size_t i = 0; i < epoll->num_watched; i++) {
        if (epoll->watched[i].file == file && (!file || epoll->watched[i].fd == fd))
            return &epoll->watched[i];
    }
    return NULL;
}

/* A loop's own epoll is none of these: what it waits for is known by its handles. */
SIM_PUBLIC int epoll_ctl(int epfd, int what, int fd, struct epoll_event *event)
{
    struct file *epoll = file_of(epfd), *file = file_of(fd);
    if (epfd == -2)
        return 0;
    if (!epoll || !file)
        return fail(EBADF);
    struct watched *watched = find_watched(epoll, fd, file);
    if (what == EPOLL_CTL_ADD ? watched != NULL : watched == NULL)
        return fail(what == EPOLL_CTL_ADD ? EEXIST : ENOENT);
    if (what == EPOLL_CTL_DEL) {
        watched->file = NULL;
        return 0;
    }
    if (!watched && !(watched = find_watched(epoll, fd, NULL))) {
        sim_require(epoll->num_watched < MAX_WATCHED, "too many descriptors in an epoll");
        watched = &epoll->watched[epoll->num_watched++];
    }
    *watched = (struct watched){fd, file, event->events, true, event->data};
    sim_loops_look();
    return 0;
}

/* Never waits: the loops do. */
SIM_PUBLIC int epoll_wait(int epfd, struct epoll_event *events, int max_events, int timeout_ms)
{
    struct file *epoll = file_of(epfd);
    int count = 0;
    (void)timeout_ms;
    if (!epoll)
        return fail(EBADF);
    size_t first = epoll->num_watched ? sim_below(epoll->num_watched) : 0;
    for (size_t i = 0; i < epoll->num_watched && count < max_events; i++) {
        struct watched *at = &epoll->watched[(first + i) % epoll->num_watched];
        uint32_t ready =
            at->file && at->pending ? events_of(at->file) & (at->events | EPOLLERR | EPOLLHUP) : 0;
        if (!ready)
            continue;
        if (at->events & EPOLLET)
            at->pending = false;
        events[count++] = (struct epoll_event){.events = ready, .data = at->data};
    }
    sim_note("epoll", (uint64_t)epfd, (uint64_t)count);
    return count;
}

SIM_PUBLIC int eventfd(unsigned count, int flags)
{
    struct file *file = make_file(EVENT);
    (void)flags;
    file->count = count;
    return give_fd(file);
}

/* ---- what files and sockets share ------------------------------------------------------------ */

SIM_PUBLIC ssize_t read(int fd, void *bytes, size_t count)
{
    struct file *file = file_of(fd);
    if (!file)
        return syscall(SYS_read, fd, bytes, count);
    sim_require(file->kind == EVENT, "read of a descriptor that the simulation lacks");
    if (!file->count)
        return fail(EAGAIN);
    memcpy(bytes, &file->count, sizeof file->count);
    file->count = 0;
    return sizeof file->count;
}

SIM_PUBLIC ssize_t write(int fd, const void *bytes, size_t count)
{
    struct file *file = file_of(fd);
    if (fd == STDERR_FILENO) { /* the log */
        sim_note_bytes(bytes, count);
        return sim.shows ? (ssize_t)fwrite(bytes, 1, count, stdout) : (ssize_t)count;
    }
    if (!file)
        return syscall(SYS_write, fd, bytes, count);
    uint64_t added;
    sim_require(file->kind == EVENT && count == sizeof added,
                "write to a descriptor that the simulation lacks");
    memcpy(&added, bytes, sizeof added);
    file->count += added;
    changed(file);
    sim_pause();
    return (ssize_t)count;
}

/* Who reads files slowly, so as to leave the disk to others. */
SIM_PUBLIC int nanosleep(const struct timespec *time, struct timespec *left)
{
    sim_wait(time, sim.now_ns + (uint64_t)time->tv_sec * S + (uint64_t)time->tv_nsec);
    (void)left;
    return 0;
}

/* A disk takes its time. */
SIM_PUBLIC int fdatasync(int fd)
{
    sim_wait(&world, sim.now_ns + sim_below(sim_one_in(4) ? 10 * MS : MS));
    (void)fd;
    return 0;
}

SIM_PUBLIC int fsync(int fd)
{
    return fdatasync(fd);
}

SIM_PUBLIC int eventfd_write(int fd, eventfd_t count)
{
    return write(fd, &count, sizeof count) == sizeof count ? 0 : -1;
}

SIM_PUBLIC int eventfd_read(int fd, eventfd_t *count)
{
    return read(fd, count, sizeof *count) == sizeof *count ? 0 : -1;
}

/* What has come and was not read makes a close a reset, which may destroy what was sent. */
static void close_socket(struct sim_socket *socket)
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

static void end_file(struct file *file)
{
    for (size_t i = 0; i < world.num_epolls; i++) {
        if (world.epolls[i] == file)
            world.epolls[i] = world.epolls[--world.num_epolls];
    }
    for (size_t i = 0; i < world.num_epolls; i++) {
        for (size_t j = 0; j < world.epolls[i]->num_watched; j++) {
            if (world.epolls[i]->watched[j].file == file)
                world.epolls[i]->watched[j].file = NULL;
        }
    }
    for (size_t i = 0; i < world.num_listeners; i++) {
        if (world.listeners[i] == file)
            world.listeners[i] = world.listeners[--world.num_listeners];
    }
    for (size_t i = 0; i < file->num_waiting; i++) { /* nobody accepted them */
        file->waiting[i]->server_reset = true;
        file->waiting[i]->in.count = 0;
        close_socket(file->waiting[i]);
    }
    if (file->kind == CONNECTION)
        close_socket(file->socket);
}

SIM_PUBLIC int close(int fd)
{
    struct file *file = file_of(fd);
    if (!file)
        return (int)syscall(SYS_close, fd);
    world.files[fd - FIRST_FD] = NULL;
    if (--file->references == 0)
        end_file(file);
    return 0;
}

SIM_PUBLIC int dup(int fd)
{
    struct file *file = file_of(fd);
    return file ? give_fd(file) : (int)syscall(SYS_dup, fd);
}

SIM_PUBLIC int fcntl(int fd, int what, ...)
{
    struct file *file = file_of(fd);
    va_list arguments;
    va_start(arguments, what);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    if (what == F_DUPFD_CLOEXEC && (file || fd == STDERR_FILENO))
        return give_fd(file ? file : make_file(PLAIN));
    if (!file)
        return (int)syscall(SYS_fcntl, fd, what, argument);
    if (what == F_SETFL)
        file->flags = (int)argument;
    return what == F_GETFL ? O_NONBLOCK | O_RDWR | file->flags : 0;
}

/* poll() for the linker alone: its declaration says that it only writes to `fds`. */
SIM_PUBLIC int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms) __asm__("poll");

SIM_PUBLIC int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    int ready = 0;
    (void)timeout_ms;
    for (nfds_t i = 0; i < count; i++) {
        fds[i].revents = sim_is_readable(fds[i].fd) ? POLLIN : 0;
        ready += fds[i].revents != 0;
    }
    return ready;
}

enum packet_kind { DATA, FIN, RESET };
static void dispatch(struct sim_socket *socket, enum packet_kind what, const void *bytes,
                     size_t count);

/* ---- sockets: the server's side -------------------------------------------------------------- */

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
    world.listeners[world.num_listeners++] = file_of(fd);
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

SIM_PUBLIC ssize_t recvfrom(int fd, void *bytes, size_t count, int flags, struct sockaddr *from,
                            socklen_t *from_bytes)
{
    struct file *file = file_of(fd);
    (void)from, (void)from_bytes;
    if (!file || file->kind != CONNECTION)
        return fail(EBADF);
    struct sim_socket *socket = file->socket;
    bool peeks = flags & MSG_PEEK;
    if (!peeks)
        sim_pause();
    if (socket->reset)
        return fail(ECONNRESET);
    size_t got = get(&socket->in, bytes, count, peeks);
    if (!peeks)
        sim_note("recv", socket->port, got);
    if (got)
        return (ssize_t)got;
    return socket->ended || socket->reads_ended ? 0 : fail(EAGAIN);
}

static void empty_again(void *context)
{
    struct sim_socket *socket = context;
    socket->is_full = false;
    changed(socket->file);
}

/* Takes less than was given only where no more fits, as a kernel does. */
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
    for (size_t i = 0; i < world.num_listeners; i++) {
        if (world.listeners[i]->port == port)
            listener = world.listeners[i];
    }
    *dropped = listener && (listener->rejects || listener->num_waiting == BACKLOG);
    if (!listener || *dropped)
        return NULL;
    struct sim_socket *socket = sim_alloc(sizeof *socket);
    *socket = (struct sim_socket){.address = address,
                                  .port = world.next_port++,
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

/* What it has not read, and what comes from now on, is answered by a reset. */
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

bool sim_closed_before(const struct sim_socket *socket, size_t before)
{
    return socket->arrived <= before;
}

/* ---- calls that would reach the real machine ------------------------------------------------- */

SIM_PUBLIC int setpriority(__priority_which_t which, id_t who, int value)
{
    (void)which, (void)who, (void)value;
    return 0;
}

SIM_PUBLIC int getpriority(__priority_which_t which, id_t who)
{
    (void)which, (void)who;
    return 0;
}

void __wrap__exit(int code);
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
void (*__wrap_signal(int number, void (*handler)(int)))(int);
int __wrap_mallopt(int what, int value);
ssize_t __wrap_getrandom(void *bytes, size_t count, unsigned flags);

void __wrap__exit(int code)
{
    sim_fail("the server ends itself: exit code %d", code);
}

/* This machine's processors have no counter that can be trusted: uv_hrtime is the only clock. */
FILE *__wrap_fopen(const char *path, const char *mode)
{
    return strstr(path, "clocksource") ? NULL : __real_fopen(path, mode);
}

void (*__wrap_signal(int number, void (*handler)(int)))(int)
{
    (void)number;
    return handler;
}

int __wrap_mallopt(int what, int value)
{
    (void)what, (void)value;
    return 1;
}

ssize_t __wrap_getrandom(void *bytes, size_t count, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < count; i++)
        ((unsigned char *)bytes)[i] = (unsigned char)sim_random();
    return (ssize_t)count;
}
