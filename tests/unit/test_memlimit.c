/* Limits of memory, read from made-up trees of /proc and /sys. */
#include "server/memory/memory.h"
#include "server/tables/memory.h"
#include "testing.h"

#include <ftw.h>
#include <sys/stat.h>

#define MIB ((size_t)1 << 20)

static char root[64], proc[96], sys[96];

/* ---- trees ----------------------------------------------------------------------------------- */

/* Writes root/name with all directories on the way. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* A control group of a version under `directory`. */
static void put_group(int version, const char *directory, const char *limit, const char *usage,
                      const char *stat)
{
    const char *const files[2][3] = {
        {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"},
        {"memory.max", "memory.current", "memory.stat"}};
    const char *const texts[] = {limit, usage, stat};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        char name[256];
        snprintf(name, sizeof name, "sys/fs/cgroup%s%s/%s", version == 1 ? "/memory" : "",
                 directory, files[version - 1][i]);
        put(name, texts[i]);
    }
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/test_memlimit.XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(sys, sizeof sys, "%s/sys", root);
    put("proc/meminfo", "MemTotal:       4194304 kB\nMemFree:  99 kB\n"
                        "MemAvailable:    1048576 kB\nBuffers: 1 kB\n");
    return 0;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

AROUND_EACH(set_up, tear_down)

/* ---- expectations ---------------------------------------------------------------------------- */

/* Exactly `bytes` may be taken; one more is rejected with the sentence. */
static void check_room(size_t bytes, const char *sentence)
{
    struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
    assert_true(bag_memory_check_in(proc, sys, bytes, &problem));
    assert_int_equal(problem.kind, BAG_ERROR_COUNT);
    assert_false(bag_memory_check_in(proc, sys, bytes + 1, &problem));
    assert_string_equal(problem.text, sentence);
    assert_int_equal(problem.kind, BAG_ERROR_NO_MEMORY);
}

/* So much of the limit of a control group may be taken. */
static void check_group_room(size_t bytes, const char *group, const char *limit)
{
    char sentence[256];
    snprintf(sentence, sizeof sentence,
             "the tables need %s of memory, but the control group %s has only %s left of its limit "
             "of %s",
             bag_format_bytes(bytes + 1).text, group, bag_format_bytes(bytes).text, limit);
    check_room(bytes, sentence);
}

/* The machine's 1 GiB is the narrowest limit. */
static void check_machine_room(void)
{
    check_room(1024 * MIB, "the tables need 1.00 GiB of memory, but the machine has only 1.00 GiB "
                           "available");
}

static void check_unlimited(void)
{
    struct bag_problem problem;
    assert_true(bag_memory_check_in(proc, sys, SIZE_MAX, &problem));
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(knows_the_machine)
{
    struct bag_problem problem;
    check_machine_room();
    assert_false(bag_memory_check_in(proc, sys, 12 * 1024 * MIB, &problem));
    assert_string_equal(problem.text, "the tables need 12.00 GiB of memory, but the machine has "
                                      "only 1.00 GiB available");
}

TEST(knows_no_limit_where_nothing_can_be_read)
{
    static const char *const meminfo[] = {"",
                                          "MemAvailable:\n",
                                          "MemAvailable: x kB\n",
                                          "NotMemAvailable: 5 kB\n",
                                          "MemAvailable: -5 kB\n",
                                          "MemAvailable: 99999999999999999999999 kB\n"};
    for (size_t i = 0; i < sizeof meminfo / sizeof *meminfo; i++) {
        put("proc/meminfo", meminfo[i]);
        check_unlimited();
    }
    snprintf(proc, sizeof proc, "%s/nowhere", root);
    check_unlimited();
}

TEST(knows_a_group_of_version_2)
{
    put("proc/self/cgroup", "0::/shop/ranker\n");
    put_group(2, "/shop/ranker", "104857600\n", "41943040\n", "anon 1\nfile 2\n");
    check_group_room(60 * MIB, "/shop/ranker", "100.00 MiB");
}

TEST(counts_page_cache_as_free)
{
    put("proc/self/cgroup", "0::/a\n");
    put_group(2, "/a", "104857600\n", "94371840\n",
              "inactive_anon 7\nactive_file 1048576\nworkingset_active_file 5\n"
              "inactive_file 9437184\n");
    check_group_room(20 * MIB, "/a", "100.00 MiB");
    put_group(2, "/a", "104857600\n", "1048576\n", "inactive_file 104857600\n");
    check_group_room(100 * MIB, "/a", "100.00 MiB");
}

TEST(takes_the_narrowest_group_on_the_way_up)
{
    put("proc/self/cgroup", "0::/a/b/c\n");
    put_group(2, "/a/b/c", "max\n", "1048576\n", "");
    put_group(2, "/a/b", "31457280\n", "1048576\n", "");
    put_group(2, "/a", "20971520\n", "1048576\n", "");
    check_group_room(19 * MIB, "/a", "20.00 MiB");
    put_group(2, "/a", "max\n", "1048576\n", "");
    check_group_room(29 * MIB, "/a/b", "30.00 MiB");
    put_group(2, "/a/b", "max\n", "1048576\n", "");
    check_machine_room();
}

TEST(has_no_room_in_a_group_beyond_its_limit)
{
    put("proc/self/cgroup", "0::/a\n");
    put_group(2, "/a", "1048576\n", "2097152\n", "");
    check_group_room(0, "/a", "1.00 MiB");
}

TEST(knows_a_group_of_version_1)
{
    put("proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:hugetlb,memory:/job\n0::/y\n");
    put_group(1, "/job", "104857600\n", "52428800\n",
              "cache 9\ninactive_file 9999999\ntotal_inactive_file 1048576\n"
              "total_active_file 1048576\n");
    put_group(1, "", "9223372036854771712\n", "52428800\n", "");
    put_group(1, "/x", "1\n", "0\n", "");
    check_group_room(52 * MIB, "/job", "100.00 MiB");
}

/* In a container the path may be the host's; the container's own group is mounted at the root. */
TEST(knows_the_root_where_the_path_is_not_there)
{
    put("proc/self/cgroup", "3:memory:/docker/0123abcd\n");
    put_group(1, "", "52428800\n", "1048576\n", "");
    check_group_room(49 * MIB, "/", "50.00 MiB");
    put("proc/self/cgroup", "0::/\n");
    put_group(2, "", "31457280\n", "1048576\n", "");
    check_group_room(29 * MIB, "/", "30.00 MiB");
}

TEST(passes_over_what_it_cannot_read)
{
    static const char *const memberships[] = {
        "", "\n", "0::\n", "nonsense\n", "1:memory\n", "4:memorystick:/a\n", "0::/../outside\n"};
    put_group(2, "/a", "1048576\n", "0\n", "");
    put_group(1, "/a", "1048576\n", "0\n", "");
    put_group(2, "/../outside", "1048576\n", "0\n", "");
    for (size_t i = 0; i < sizeof memberships / sizeof *memberships; i++) {
        put("proc/self/cgroup", memberships[i]);
        check_machine_room();
    }
    put("proc/self/cgroup", "0::/a\n");
    put_group(2, "/a", "", "0\n", "");
    check_machine_room();
    put_group(2, "/a", "1048576\n", "?\n", "");
    check_machine_room();
}

TEST(cuts_a_path_that_is_too_long)
{
    char text[6000];
    memset(text, 'a', sizeof text);
    memcpy(text, "0::/", 4);
    memcpy(text + sizeof text - 2, "\n", 2);
    put("proc/self/cgroup", text);
    check_machine_room();
}

TEST(knows_this_system)
{
    struct bag_problem problem;
    assert_true(bag_memory_check(0, &problem));
    assert_false(bag_memory_check(SIZE_MAX / 2, &problem));
    assert_non_null(strstr(problem.text, "the tables need 8.00 EiB of memory, but the "));
}
