/* What a request costs on the loop's thread: a whole server runs in this process, on a thread of
 * its own, and its loop is watched from inside. libuv polls once in a turn, and a turn's CPU time
 * is that of all its callbacks: so no callback takes longer than the longest turn.
 *
 * The linker puts __wrap_uv_run and __wrap_bag_infer_plan in the place of the functions of these
 * names. */
#include "testing.h"

#include "server/commands.h"
#include "server/infer/infer.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>
#include <zlib.h>

/* Most CPU time of a turn. Other builds than the one for release are slower, each in its own way.
 */
#ifdef BAG_LOOP_LIMIT_US
#define LIMIT_NS (1000 * (uint64_t)BAG_LOOP_LIMIT_US)
#else
#define LIMIT_NS UINT64_MAX
#endif

#define ROWS    1000
#define COLUMNS 64

static struct {
    char folder[64];
    int port;
    uv_thread_t server;
    int exit_code;
    uint64_t turn_began_ns;
    _Atomic uint64_t longest_turn_ns;
    atomic_uint plans;
    char *reply;
    size_t reply_room;
    char excerpt[700]; /* of the first bytes of the last reply that was an error */
} world;

/* ---- what the server's calls go through ------------------------------------------------------ */

int __real_uv_run(uv_loop_t *loop, uv_run_mode mode);
int __wrap_uv_run(uv_loop_t *loop, uv_run_mode mode);
bool __real_bag_infer_plan(struct bag_infer *infer, struct bag_header_cache *cache,
                           struct bag_problem *problem);
bool __wrap_bag_infer_plan(struct bag_infer *infer, struct bag_header_cache *cache,
                           struct bag_problem *problem);

static void on_turn(uv_prepare_t *turn)
{
    struct timespec now;
    (void)turn;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    uint64_t took_ns = now_ns - world.turn_began_ns;
    if (took_ns > atomic_load(&world.longest_turn_ns))
        atomic_store(&world.longest_turn_ns, took_ns);
    world.turn_began_ns = now_ns;
}

int __wrap_uv_run(uv_loop_t *loop, uv_run_mode mode)
{
    uv_prepare_t turn;
    uv_prepare_init(loop, &turn);
    uv_prepare_start(&turn, on_turn);
    uv_unref((uv_handle_t *)&turn);
    int left = __real_uv_run(loop, mode);
    uv_close((uv_handle_t *)&turn, NULL);
    __real_uv_run(loop, UV_RUN_NOWAIT);
    return left;
}

bool __wrap_bag_infer_plan(struct bag_infer *infer, struct bag_header_cache *cache,
                           struct bag_problem *problem)
{
    atomic_fetch_add(&world.plans, 1);
    return __real_bag_infer_plan(infer, cache, problem);
}

/* ---- the server ------------------------------------------------------------------------------ */

static void write_file(const char *name, const void *bytes, size_t count)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", world.folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* A table of ones, served as "sorted" and, with segments in any order, as "unsorted". */
static void write_models(void)
{
    static const char config[] =
        "{\"models\":[{\"name\":\"sorted\",\"path\":\"t.npy\"},"
        "{\"name\":\"unsorted\",\"path\":\"t.npy\",\"unsorted_segments\":true},"
        "{\"name\":\"mean\",\"path\":\"t.npy\",\"reduction\":\"mean\",\"default_index\":7}]}";
    size_t head_bytes = 128, bytes = head_bytes + sizeof(float) * ROWS * COLUMNS;
    char *file = malloc(bytes);
    assert_non_null(file);
    memset(file, ' ', head_bytes);
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    int count =
        snprintf(file + 10, head_bytes - 10,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", ROWS, COLUMNS);
    file[10 + count] = ' ';
    file[head_bytes - 1] = '\n';
    float third = 1.0F / 3;
    for (size_t at = head_bytes; at < bytes; at += sizeof third)
        memcpy(file + at, &third, sizeof third);
    write_file("t.npy", file, bytes);
    write_file("c.json", config, sizeof config - 1);
    free(file);
}

static int find_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    return ntohs(address.sin_port);
}

#define TEXT(literal) ((char[]){literal})

static void run_server(void *unused)
{
    char config[96], port[16];
    (void)unused;
    snprintf(config, sizeof config, "%s/c.json", world.folder);
    snprintf(port, sizeof port, "%d", world.port);
    char *arguments[] = {TEXT("--config"), config,
                         TEXT("--port"),   port,
                         TEXT("--demo"),   TEXT("--log-level"),
                         TEXT("error"),    TEXT("--reply-compression"),
                         TEXT("on"),       NULL};
    world.exit_code = bag_cmd_serve((int)COUNT_OF(arguments) - 1, arguments);
}

static int connect_to_server(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)world.port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(fd >= 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        close(fd);
        sched_yield();
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static void send_all(int fd, const char *bytes, size_t count)
{
    while (count) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        assert_true(sent > 0);
        bytes += sent;
        count -= (size_t)sent;
    }
}

/* Reads a reply; returns its status, and the bytes of its body. */
static int read_reply(int fd, size_t *body_bytes)
{
    char *end = NULL, *length;
    size_t count = 0;
    int status;
    while (!end) {
        ssize_t got = recv(fd, world.reply + count, 65535 - count, 0);
        assert_true(got > 0);
        count += (size_t)got;
        world.reply[count] = '\0';
        end = strstr(world.reply, "\r\n\r\n");
    }
    assert_int_equal(sscanf(world.reply, "HTTP/1.1 %d", &status), 1);
    if (status != 200)
        snprintf(world.excerpt, sizeof world.excerpt, "%s", world.reply);
    length = strcasestr(world.reply, "\r\nContent-Length: ");
    assert_non_null(length);
    *body_bytes = strtoul(length + strlen("\r\nContent-Length: "), NULL, 10);
    size_t left = *body_bytes - (count - (size_t)(end + 4 - world.reply));
    while (left) {
        ssize_t got = recv(fd, world.reply, left < world.reply_room ? left : world.reply_room, 0);
        assert_true(got > 0);
        left -= (size_t)got;
    }
    return status;
}

struct message {
    const char *path;
    const char *headers; /* each ends with CR LF */
    const char *body;
    size_t body_bytes;
};

/* Asks and returns the status; the times are those of this request. */
static int ask(const struct message *message, size_t *reply_bytes)
{
    char head[512];
    int bytes = snprintf(head, sizeof head,
                         "%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: "
                         "%zu\r\n%s\r\n",
                         message->body ? "POST" : "GET", message->path, message->body_bytes,
                         message->headers);
    int fd = connect_to_server();
    atomic_store(&world.longest_turn_ns, 0);
    atomic_store(&world.plans, 0);
    send_all(fd, head, (size_t)bytes);
    send_all(fd, message->body, message->body_bytes);
    int status = read_reply(fd, reply_bytes);
    /* The turn that sent the last byte has ended when the server closes. */
    assert_int_equal(recv(fd, head, sizeof head, 0), 0);
    close(fd);
    struct message health = {"/v2/health/live", "", NULL, 0};
    if (strcmp(message->path, health.path) != 0) {
        uint64_t longest_ns = atomic_load(&world.longest_turn_ns);
        unsigned plans = atomic_load(&world.plans);
        size_t ignored;
        ask(&health, &ignored);
        atomic_store(&world.plans, plans);
        if (atomic_load(&world.longest_turn_ns) < longest_ns)
            atomic_store(&world.longest_turn_ns, longest_ns);
    }
    return status;
}

/* Asks three times: what disturbs a turn from outside does so once. */
static void expect_short_turns(const char *what, int status, const struct message *message)
{
    uint64_t least_ns = UINT64_MAX;
    size_t reply_bytes = 0;
    for (int i = 0; i < 3; i++) {
        int got = ask(message, &reply_bytes);
        if (got != status)
            fail_msg("%s: status %d: %s", what, got, world.excerpt);
        uint64_t longest_ns = atomic_load(&world.longest_turn_ns);
        least_ns = longest_ns < least_ns ? longest_ns : least_ns;
    }
    printf("%-44s %9zu bytes in %9zu out, longest turn %5llu us\n", what, message->body_bytes,
           reply_bytes, (unsigned long long)least_ns / 1000);
    if (least_ns > LIMIT_NS)
        fail_msg("%s: %llu us on the loop's thread", what, (unsigned long long)least_ns / 1000);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

struct text {
    char *bytes;
    size_t count, room;
    size_t json_bytes; /* in front of binary tensors */
};

static void add(struct text *text, const void *bytes, size_t count)
{
    if (count > text->room - text->count) {
        text->room = 2 * (text->count + count);
        text->bytes = realloc(text->bytes, text->room);
        assert_non_null(text->bytes);
    }
    memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
}

__attribute__((format(printf, 2, 3))) static void print(struct text *text, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    assert_in_range(count, 0, sizeof line - 1);
    add(text, line, (size_t)count);
}

/* JSON of `bags` bags of `ids` indices each. */
static struct text make_json(size_t bags, size_t ids, const char *parameters)
{
    struct text text = {0};
    print(&text, "{%s\"inputs\":[{\"name\":\"indices\",\"shape\":[%zu],\"datatype\":\"INT64\",",
          parameters, bags * ids);
    print(&text, "\"data\":[");
    for (size_t i = 0; i < bags * ids; i++)
        print(&text, "%s%zu", i ? "," : "", i * 7919 % ROWS);
    print(&text, "]},{\"name\":\"offsets\",\"shape\":[%zu],\"datatype\":\"INT64\",\"data\":[",
          bags);
    for (size_t i = 0; i < bags; i++)
        print(&text, "%s%zu", i ? "," : "", i * ids);
    print(&text, "]}]}");
    return text;
}

/* The same in binary. With `segments` the bags are given by segment_ids, in falling order. */
static struct text make_binary(size_t bags, size_t ids, bool segments, const char *parameters)
{
    struct text text = {0};
    size_t count = bags * ids, groups = segments ? count : bags;
    print(&text,
          "{%s\"inputs\":[{\"name\":\"indices\",\"shape\":[%zu],\"datatype\":\"INT32\","
          "\"parameters\":{\"binary_data_size\":%zu}},{\"name\":\"%s\",\"shape\":[%zu],"
          "\"datatype\":\"INT32\",\"parameters\":{\"binary_data_size\":%zu}}",
          parameters, count, 4 * count, segments ? "segment_ids" : "offsets", groups, 4 * groups);
    if (segments)
        print(&text,
              ",{\"name\":\"num_segments\",\"shape\":[1],\"datatype\":\"INT32\",\"data\":[%zu]}",
              bags);
    print(&text, "]}");
    text.json_bytes = text.count;
    for (size_t i = 0; i < count; i++)
        add(&text, &(int32_t){(int32_t)(i * 7919 % ROWS)}, 4);
    for (size_t i = 0; i < groups; i++)
        add(&text, &(int32_t){(int32_t)(segments ? bags - 1 - i % bags : i * ids)}, 4);
    return text;
}

static struct text compress_text(const struct text *text)
{
    struct text packed = {0};
    z_stream stream = {0};
    packed.room = text->count + 1000;
    packed.bytes = malloc(packed.room);
    assert_non_null(packed.bytes);
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (unsigned char *)text->bytes;
    stream.avail_in = (unsigned)text->count;
    stream.next_out = (unsigned char *)packed.bytes;
    stream.avail_out = (unsigned)packed.room;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.count = stream.total_out;
    deflateEnd(&stream);
    return packed;
}

static void ask_json(const char *what, const char *model, struct text text, const char *headers)
{
    char path[64];
    snprintf(path, sizeof path, "/v2/models/%s/infer", model);
    expect_short_turns(what, 200, &(struct message){path, headers, text.bytes, text.count});
    free(text.bytes);
}

static void ask_binary(const char *what, const char *model, struct text text)
{
    char headers[64];
    snprintf(headers, sizeof headers, "Inference-Header-Content-Length: %zu\r\n", text.json_bytes);
    ask_json(what, model, text, headers);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Whatever is computed at once and whatever goes to a worker: a body is planned once. */
static void test_a_body_is_planned_once(void **state)
{
    (void)state;
    for (size_t bags = 1; bags <= 200; bags++) {
        struct text text = make_json(bags, 10, "");
        struct message message = {"/v2/models/sorted/infer", "", text.bytes, text.count};
        size_t reply_bytes;
        assert_int_equal(ask(&message, &reply_bytes), 200);
        if (atomic_load(&world.plans) != 1)
            fail_msg("%zu bags were planned %u times", bags, atomic_load(&world.plans));
        free(text.bytes);
    }
}

static void test_no_inference_holds_the_loop(void **state)
{
    static const char binary[] = "\"parameters\":{\"binary_data_output\":true},";
    static const char explain[] = "\"parameters\":{\"binary_data_output\":true,\"explain\":true},";
    (void)state;
    for (size_t bags = 1; bags <= 256; bags *= 4) {
        char what[64];
        snprintf(what, sizeof what, "JSON, %zu bags of 10", bags);
        ask_json(what, "sorted", make_json(bags, 10, ""), "");
    }
    ask_json("JSON, 1 bag of 3000", "sorted", make_json(1, 3000, ""), "");
    ask_json("JSON, 1 bag of 3 M", "sorted", make_json(1, 3000000, ""), "");
    ask_json("JSON, 1 bag of 16 M", "sorted", make_json(1, 16000000, ""), "");
    ask_json("JSON, 50,000 bags of 20", "sorted", make_json(50000, 20, ""), "");
    ask_binary("binary, 3 M ids", "sorted", make_binary(3000, 1000, false, binary));
    ask_binary("binary, 16 M ids", "sorted", make_binary(3000, 5333, false, binary));
    ask_binary("binary, 8 M unsorted ids", "unsorted", make_binary(3000, 2667, true, binary));
    ask_binary("binary, 3 M unsorted ids", "unsorted", make_binary(3000, 1000, true, binary));
    ask_binary("binary, 1 M bags of 1 unsorted id", "unsorted",
               make_binary(100000, 10, true, binary));
    ask_binary("binary, 105,000 bags, 27 MB out", "sorted", make_binary(105000, 2, false, binary));
    ask_binary("binary, 27 MB of default rows", "mean", make_binary(105000, 0, false, binary));
    ask_binary("binary, 30,000 bags, JSON out", "sorted", make_binary(30000, 2, false, ""));
    ask_binary("binary, explain of 100,000 bags", "sorted", make_binary(100000, 1, false, explain));
    ask_binary("binary, explain of 100,000 bags, none in them", "sorted",
               make_binary(100000, 0, false, explain));
    struct text text = make_json(20000, 10, ""), packed = compress_text(&text);
    free(text.bytes);
    ask_json("gzip, 20,000 bags of 10", "sorted", packed,
             "Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\n");
}

/* Few bytes that are much work to read or to answer. */
static void test_no_small_request_holds_the_loop(void **state)
{
    struct text text = {0};
    (void)state;
    print(&text, "{\"inputs\":[");
    for (int i = 0; i < 8000; i++)
        print(&text, "{},");
    print(&text, "{}]}");
    struct message message = {"/v2/models/sorted/infer", "", text.bytes, text.count};
    expect_short_turns("24 KB of empty tensors", 400, &message);
    text.count = 0;
    print(&text, "{\"inputs\":[{\"shape\":[");
    for (int i = 0; i < 12000; i++)
        print(&text, "1,");
    print(&text, "1]}]}");
    message = (struct message){"/v2/models/sorted/infer", "", text.bytes, text.count};
    expect_short_turns("24 KB of dimensions", 400, &message);
    text.count = 0;
    for (int i = 0; i < 12000; i++)
        print(&text, "[");
    for (int i = 0; i < 12000; i++)
        print(&text, "]");
    message = (struct message){"/v2/models/sorted/infer", "", text.bytes, text.count};
    expect_short_turns("24 KB of brackets", 400, &message);
    free(text.bytes);

    static const char segments[] =
        "{\"inputs\":[{\"name\":\"indices\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]},"
        "{\"name\":\"segment_ids\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]},"
        "{\"name\":\"num_segments\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[100]}]}";
    message = (struct message){"/v2/models/mean/infer", "", segments, sizeof segments - 1};
    expect_short_turns("100 default rows as JSON", 200, &message);
}

static void test_no_document_holds_the_loop(void **state)
{
    static const char *const paths[] = {
        "/v2/health/ready", "/v2",      "/v2/models/items", "/v2/models/items/config",
        "/v2/models/stats", "/metrics", "/openapi.json"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        expect_short_turns(paths[i], 200, &(struct message){paths[i], "", NULL, 0});
}

static int start_server(void **state)
{
    (void)state;
    world.reply_room = 1 << 20;
    world.reply = malloc(world.reply_room);
    snprintf(world.folder, sizeof world.folder, "/tmp/test_loop_time.XXXXXX");
    if (!world.reply || !mkdtemp(world.folder))
        return -1;
    write_models();
    world.port = find_free_port();
    if (uv_thread_create(&world.server, run_server, NULL) != 0)
        return -1;
    struct message ready = {"/v2/health/ready", "", NULL, 0};
    size_t reply_bytes;
    while (ask(&ready, &reply_bytes) != 200)
        sched_yield();
    return 0;
}

static int stop_server(void **state)
{
    char path[96];
    (void)state;
    kill(getpid(), SIGTERM);
    uv_thread_join(&world.server);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", world.folder, i ? "t.npy" : "c.json");
        unlink(path);
    }
    rmdir(world.folder);
    free(world.reply);
    return world.exit_code;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_body_is_planned_once),
        cmocka_unit_test(test_no_document_holds_the_loop),
        cmocka_unit_test(test_no_small_request_holds_the_loop),
        cmocka_unit_test(test_no_inference_holds_the_loop),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
