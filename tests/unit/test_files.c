/* Who may read a file of secrets. Takes root, which becomes other users for a while. */
#include "testing.h"

#include "server/system/files.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#define USER  10001
#define GROUP 20002

/* Reads a secret of such an owner as USER in GROUP; NULL or what was wrong. */
static const char *read_as_user(uid_t owner, gid_t group, mode_t mode)
{
    static struct bag_problem problem;
    char path[] = "/tmp/test_files.XXXXXX";
    gid_t extra = GROUP;
    size_t bytes;
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "secret", 6), 6);
    assert_int_equal(fchown(fd, owner, group), 0);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    assert_int_equal(setgroups(1, &extra), 0);
    assert_int_equal(setegid(USER), 0);
    assert_int_equal(seteuid(USER), 0);
    char *text = bag_file_read_private(path, 100, &bytes, &problem);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(setegid(0), 0);
    assert_int_equal(setgroups(0, NULL), 0);
    unlink(path);
    if (text)
        assert_string_equal(text, "secret");
    free(text);
    return text ? NULL : problem.text;
}

static void expect_rejected(const char *text, const char *words)
{
    if (!text || !strstr(text, words))
        fail_msg("'%s' lacks '%s'", text ? text : "(read)", words);
}

static void test_private_files(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_null(read_as_user(USER, USER, 0600));
    assert_null(read_as_user(USER, GROUP, 0400));
    assert_null(read_as_user(0, GROUP, 0440)); /* as Kubernetes mounts it */
    assert_null(read_as_user(0, USER, 0640));
    expect_rejected(read_as_user(USER, GROUP, 0640), "(mode 640); chmod 600 it");
    expect_rejected(read_as_user(0, GROUP, 0444), "(mode 444)");
    expect_rejected(read_as_user(0, GROUP, 0460), "(mode 460)");
    expect_rejected(read_as_user(0, GROUP, 0450), "(mode 450)");
    expect_rejected(read_as_user(0, 30003, 0444), "(mode 444)");
    expect_rejected(read_as_user(0, 30003, 0440), "cannot be read");
    expect_rejected(read_as_user(0, GROUP, 0400), "cannot be read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_private_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
