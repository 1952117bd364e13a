/* The yardstick of rows that are not pooled: gathers the rows of the ids of a request and writes
 * them to its socket, with nothing around it.
 *
 *   bare_rows TABLE ROW_BYTES
 *
 * TABLE has rows of ROW_BYTES at its end. The ids are the INT64 elements behind the JSON header of
 * a request, and are not checked. One connection is served at a time, with blocking calls and
 * memory that is used again. Table and memory have huge pages as those of the server. Prints its
 * port; a signal ends it.
 *
 * Uses nothing of the project. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define LINE_BYTES      64
#define HEAD_BYTES      4096
#define BODY_BYTES      ((size_t)4 << 20)
#define REPLY_BYTES     ((size_t)64 << 20)
#define FETCHED_ROWS    8

struct bare {
    const char *rows;
    size_t row_bytes;
    char head[HEAD_BYTES + 1];
    char *body, *reply;
};

static void die(const char *why)
{
    perror(why);
    exit(1);
}

static char *map(size_t bytes, int advice)
{
    char *memory = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    memory += -(uintptr_t)memory % HUGE_PAGE_BYTES;
    madvise(memory, bytes, advice);
    return memory;
}

/* Reads the last rows of the file, which are all but its header. */
static void load(struct bare *bare, const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat stat;
    if (!file || fstat(fileno(file), &stat) != 0)
        die(path);
    size_t bytes = (size_t)stat.st_size / bare->row_bytes * bare->row_bytes;
    char *rows = map(bytes, MADV_HUGEPAGE);
    if (fseek(file, stat.st_size - (off_t)bytes, SEEK_SET) != 0 ||
        fread(rows, 1, bytes, file) != bytes)
        die(path);
    fclose(file);
    bare->rows = rows;
}

/* Returns the number behind a header's name. */
static size_t number_of(const char *head, const char *name)
{
    const char *at = strcasestr(head, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static void gather(const struct bare *bare, const int64_t *ids, size_t count)
{
    char *to = bare->reply;
    for (size_t i = 0; i < count; i++, to += bare->row_bytes) {
        const char *next = bare->rows + (size_t)ids[i + FETCHED_ROWS] * bare->row_bytes;
        for (size_t at = 0; at < bare->row_bytes; at += LINE_BYTES)
            __builtin_prefetch(next + at);
        memcpy(to, bare->rows + (size_t)ids[i] * bare->row_bytes, bare->row_bytes);
    }
}

static void send_all(int fd, const char *head, size_t head_bytes, char *body, size_t body_bytes)
{
    char copy[HEAD_BYTES];
    memcpy(copy, head, head_bytes);
    struct iovec parts[2] = {{copy, head_bytes}, {body, body_bytes}};
    while (parts[1].iov_len > 0) {
        ssize_t sent = writev(fd, parts, 2);
        if (sent < 0)
            die("writev");
        for (int i = 0; i < 2; i++) {
            size_t part = (size_t)sent < parts[i].iov_len ? (size_t)sent : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + part;
            parts[i].iov_len -= part;
            sent -= (ssize_t)part;
        }
    }
}

/* Reads a request. Returns the bytes of its body, or 0 at the end of the connection. */
static size_t receive(struct bare *bare, int fd)
{
    size_t bytes = 0;
    char *end = NULL;
    while (!end) {
        ssize_t count = recv(fd, bare->head + bytes, HEAD_BYTES - bytes, 0);
        if (count <= 0)
            return 0;
        bytes += (size_t)count;
        bare->head[bytes] = 0;
        end = strstr(bare->head, "\r\n\r\n");
    }
    end += strlen("\r\n\r\n");
    size_t body_bytes = number_of(bare->head, "\r\nContent-Length:");
    size_t have = bytes - (size_t)(end - bare->head);
    if (body_bytes > BODY_BYTES || have > body_bytes)
        return 0;
    memcpy(bare->body, end, have);
    while (have < body_bytes) {
        ssize_t count = recv(fd, bare->body + have, body_bytes - have, 0);
        if (count <= 0)
            return 0;
        have += (size_t)count;
    }
    return body_bytes;
}

static void serve(struct bare *bare, int fd)
{
    for (size_t body_bytes; (body_bytes = receive(bare, fd)) > 0;) {
        char head[256];
        size_t json_bytes = number_of(bare->head, "\r\nInference-Header-Content-Length:");
        size_t count = (body_bytes - json_bytes) / sizeof(int64_t);
        int64_t *ids = (void *)(bare->body + BODY_BYTES); /* aligned, with rows to prefetch */
        memcpy(ids, bare->body + json_bytes, count * sizeof *ids);
        memset(ids + count, 0, FETCHED_ROWS * sizeof *ids);
        gather(bare, ids, count);
        int head_bytes = snprintf(head, sizeof head,
                                  "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
                                  "Content-Length: %zu\r\n\r\n",
                                  count * bare->row_bytes);
        send_all(fd, head, (size_t)head_bytes, bare->reply, count * bare->row_bytes);
    }
}

int main(int count, char **arguments)
{
    static struct bare bare;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (count != 3) {
        fprintf(stderr, "Usage: %s TABLE ROW_BYTES\n", arguments[0]);
        return 2;
    }
    bare.row_bytes = strtoull(arguments[2], NULL, 10);
    bare.body = map(2 * BODY_BYTES + HUGE_PAGE_BYTES, MADV_NOHUGEPAGE);
    bare.reply = map(REPLY_BYTES, MADV_NOHUGEPAGE);
    load(&bare, arguments[1]);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 ||
        listen(listener, 16) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        die("listen");
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) {
        int yes = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        serve(&bare, fd);
        close(fd);
    }
    die("accept");
}
