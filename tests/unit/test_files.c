/* Which files are read, and who may read one of secrets. The latter takes root, which becomes other
 * users for a while. */
#include "testing.h"

#include "server/system/files.h"

#include <grp.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define USER  10001
#define GROUP 20002

static char path[] = "/tmp/test_files.XXXXXX";

static void write_secret(uid_t owner, gid_t group, mode_t mode)
{
    strcpy(strchr(path, '.'), ".XXXXXX");
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "secret", 6), 6);
    assert_int_equal(fchown(fd, owner, group), 0);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

/* Reads the secret as who this is, and removes it; NULL or what was wrong. */
static const char *read_secret(void)
{
    static struct bag_problem problem;
    size_t bytes;
    char *text = bag_file_read_private(path, 100, &bytes, &problem);
    if (text)
        assert_string_equal(text, "secret");
    free(text);
    return text ? NULL : problem.text;
}

/* Reads the secret as USER in GROUP. */
static const char *read_secret_as_user(void)
{
    gid_t extra = GROUP;
    assert_int_equal(setgroups(1, &extra), 0);
    assert_int_equal(setegid(USER), 0);
    assert_int_equal(seteuid(USER), 0);
    const char *problem = read_secret();
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(setegid(0), 0);
    assert_int_equal(setgroups(0, NULL), 0);
    unlink(path);
    return problem;
}

static const char *read_as_user(uid_t owner, gid_t group, mode_t mode)
{
    write_secret(owner, group, mode);
    return read_secret_as_user();
}

static const char *read_as_root(uid_t owner, gid_t group, mode_t mode)
{
    write_secret(owner, group, mode);
    const char *problem = read_secret();
    unlink(path);
    return problem;
}

static void expect_rejected(const char *text, const char *words)
{
    if (!text || !strstr(text, words))
        fail_msg("'%s' lacks '%s'", text ? text : "(read)", words);
}

TEST(test_private_files)
{
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
    expect_rejected(read_as_user(0, 30003, 0440), "cannot be opened");
    expect_rejected(read_as_user(0, GROUP, 0400), "cannot be opened");
}

/* Tests a file that would block and one that never ends. */
TEST(test_other_files)
{
    struct bag_problem problem;
    size_t bytes;
    strcpy(strchr(path, '.'), ".fifo");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(10);
    assert_null(bag_file_read(path, 100, &bytes, &problem));
    alarm(0);
    expect_rejected(problem.text,
                    "test_files.fifo: is not a regular file; write what a pipe brings "
                    "to a file first");
    expect_rejected(read_secret(), "is not a regular file");
    unlink(path);
    assert_null(bag_file_read("/dev/zero", 100, &bytes, &problem));
    expect_rejected(problem.text, "/dev/zero: is not a regular file; name one");
    assert_null(bag_file_read("/tmp", 100, &bytes, &problem));
    expect_rejected(problem.text, "/tmp: is a directory; name a file");
}

/* As Kubernetes mounts it for a container whose user is root. */
TEST(test_files_of_root)
{
    if (geteuid() != 0)
        skip();
    assert_null(read_as_root(0, 0, 0600));
    assert_null(read_as_root(0, 0, 0440));
    assert_null(read_as_root(0, GROUP, 0440));
    assert_null(read_as_root(USER, 0, 0640));
    expect_rejected(read_as_root(0, 0, 0640),
                    "(mode 640); chmod 600 it, or 440 where root owns it");
    expect_rejected(read_as_root(0, 0, 0444), "(mode 444)");
    expect_rejected(read_as_root(0, 0, 0460), "(mode 460)");
    expect_rejected(read_as_root(USER, GROUP, 0440), "(mode 440)");
}

/* As systemd's LoadCredential makes it for a service's user: root's, with an entry for that user.
 */
TEST(test_access_lists)
{
    enum { VERSION = 2, OWNER = 1, NAMED = 2, OWNING_GROUP = 4, MASK = 16, OTHERS = 32, READ = 4 };
    const struct {
        uint32_t version;
        struct {
            uint16_t who, may;
            uint32_t id;
        } entries[5];
    } list = {VERSION,
              {{OWNER, READ, UINT32_MAX},
               {NAMED, READ, USER},
               {OWNING_GROUP, 0, UINT32_MAX},
               {MASK, READ, UINT32_MAX},
               {OTHERS, 0, UINT32_MAX}}};
    if (geteuid() != 0)
        skip();
    write_secret(0, 0, 0400);
    if (setxattr(path, "system.posix_acl_access", &list, sizeof list, 0) != 0) {
        unlink(path);
        skip(); /* the file system has none */
    }
    assert_null(read_secret_as_user());
}
