/* Reads tables under rare behaviour of the kernel: short and interrupted reads, errors, files that
 * end early, and threads that cannot be started. The two functions below replace those of libc. */
#include "table_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/uio.h>

/* The behaviour of pread for reads beyond the header. Set while no reader runs. */
static enum { HONEST, SHORT, INTERRUPTED, FAILING, ENDING } mood;
static _Atomic unsigned reads;

/* Where FAILING and ENDING begin. */
#define TROUBLE_AT ((off_t)9000000)

static ssize_t moody(int fd, void *out, size_t bytes, off_t at,
                     ssize_t (*real)(int, void *, size_t, off_t))
{
    unsigned read = reads++;
    if (mood == SHORT)
        return real(fd, out, bytes > 100000 ? 99999 : bytes, at);
    if (mood == INTERRUPTED && read % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    if ((mood != FAILING && mood != ENDING) || at + (off_t)bytes <= TROUBLE_AT)
        return real(fd, out, bytes, at);
    if (at < TROUBLE_AT)
        return real(fd, out, (size_t)(TROUBLE_AT - at), at);
    errno = EIO;
    return mood == FAILING ? -1 : 0;
}

ssize_t pread(int fd, void *out, size_t bytes, off_t at)
{
    ssize_t (*real)(int, void *, size_t, off_t) =
        (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    return mood == HONEST || at < 64 ? real(fd, out, bytes, at) : moody(fd, out, bytes, at, real);
}

/* How many threads may still be started. */
static unsigned threads_left;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(
            RTLD_NEXT, "pthread_create");
    if (threads_left == 0)
        return EAGAIN;
    threads_left--;
    return real(thread, attributes, run, argument);
}

/* ---- expectations ---------------------------------------------------------------------------- */

static bool load_in(int new_mood, unsigned threads, unsigned allowed_threads,
                    struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct bag_table_file file = open_file();
    threads_left = allowed_threads;
    mood = new_mood;
    bool ok =
        bag_table_load(&file, 1, &(struct bag_load_options){.threads = threads}, memory, problem);
    mood = HONEST;
    return ok;
}

static void check_loads(int new_mood, unsigned threads, unsigned allowed_threads)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    if (!load_in(new_mood, threads, allowed_threads, &memory, &problem))
        fail_msg("%s", problem.text);
    check_many(&memory);
    bag_table_unload(&memory);
}

static void check_rejects(int new_mood, unsigned threads, unsigned allowed_threads,
                          const char *sentence)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    char expected[BAG_PROBLEM_TEXT_BYTES];
    size_t before = mapped_bytes();
    assert_false(load_in(new_mood, threads, allowed_threads, &memory, &problem));
    snprintf(expected, sizeof expected, "%s: %s", path, sentence);
    assert_string_equal(problem.text, expected);
    assert_null(memory.mapping);
    assert_true(mapped_bytes() < before + MANY_BYTES);
}

/* Returns the number of places, one in each half MiB, whose page is in the page cache. Returns -1
 * if the file system does not say. */
static int count_cached(int fd)
{
    int cached = 0;
    char byte;
    struct iovec piece = {&byte, 1};
    for (off_t at = 1 << 18; at < (off_t)MANY_BYTES; at += 1 << 19) {
        ssize_t got = preadv2(fd, &piece, 1, at, RWF_NOWAIT);
        if (got < 0 && errno != EAGAIN)
            return -1;
        cached += got == 1;
    }
    return cached;
}

/* Loading gives back what it brought into the page cache, and keeps what was there. */
TEST(test_page_cache_is_as_before)
{
    const int places = (int)(MANY_BYTES >> 19);
    write_many();
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    check_loads(HONEST, 2, 2);
    int warm = count_cached(fd);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    int cold = count_cached(fd);
    check_loads(HONEST, 2, 2);
    int loaded = count_cached(fd);
    close(fd);
    if (cold != 0) /* such as tmpfs */
        skip();
    assert_int_equal(warm, places);
    assert_in_range(loaded, 0, places / 8);
}

static int set_up_with_one_arena(void **state)
{
    mallopt(M_ARENA_MAX, 1); /* mapped_bytes would count what a thread's arena reserves */
    return set_up(state);
}

AROUND_ALL(set_up_with_one_arena, tear_down)

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(goes_on_after_short_and_interrupted_reads)
{
    write_many();
    for (unsigned threads = 1; threads <= 3; threads++) {
        check_loads(SHORT, threads, threads);
        check_loads(INTERRUPTED, threads, threads);
    }
}

TEST(says_where_reading_failed)
{
    write_many();
    /* One reader, so that no other one fails further on before it. */
    check_rejects(FAILING, 1, 1, "reading at byte 9000000 failed: Input/output error");
    check_rejects(ENDING, 1, 1,
                  "the file shrank to 9000000 bytes while it was read; publish a table by renaming "
                  "a complete file");
}

TEST(stops_all_readers_after_a_failure)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    write_many();
    for (unsigned threads = 2; threads <= 4; threads++) {
        assert_false(load_in(FAILING, threads, threads, &memory, &problem));
        assert_non_null(strstr(problem.text, " failed: Input/output error"));
    }
}

TEST(makes_do_with_fewer_threads)
{
    write_many();
    check_loads(HONEST, 3, 2);
    check_loads(HONEST, 3, 1);
    check_rejects(HONEST, 3, 0, "no thread can be started: Resource temporarily unavailable");
}

TEST(starts_no_thread_that_has_nothing_to_read)
{
    write_many();
    check_loads(HONEST, 100, 100);
    assert_int_equal(threads_left, 100 - 3);
    check_loads(HONEST, 0, 1);
}
