/* A file that appears whole or not at all; see tools.h. */
#include "server/system/files.h"
#include "tools.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- opening --------------------------------------------------------------------------------- */

/* Opens and locks the partial file. Returns -1 and sets *problem on failure. */
static int open_partial(const char *partial, struct bag_problem *problem)
{
    struct stat opened, named;
    int fd = open(partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: cannot be written: %s", partial,
                        strerror(errno));
        return -1;
    }
    /* The lock ends with its process, so a file of a run that was killed can be taken over. Another
     * conversion may have renamed or removed it. */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &opened) != 0 ||
        lstat(partial, &named) != 0 || opened.st_dev != named.st_dev ||
        opened.st_ino != named.st_ino) {
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: another conversion is writing it", partial);
        close(fd);
        return -1;
    }
    return fd;
}

/* Checks that the new name is free or may be replaced, and is not a folder. */
static bool check_place(const char *path, bool replace, struct bag_problem *problem)
{
    struct stat state;
    if (stat(path, &state) != 0)
        return true;
    if (S_ISDIR(state.st_mode))
        return bag_problem_set(problem, BAG_ERROR_FILE, "%s: is a folder; name a file in it", path);
    return replace || bag_problem_set(problem, BAG_ERROR_FILE,
                                      "%s: exists already; --force replaces it", path);
}

bool bag_out_file_open(struct bag_out_file *file, const char *path, bool replace,
                       struct bag_problem *problem)
{
    *file = (struct bag_out_file){.path = path, .replace = replace, .fd = -1};
    if (!check_place(path, replace, problem))
        return false;
    if (asprintf(&file->partial, "%s.partial", path) < 0)
        return bag_problem_no_memory(problem);
    file->fd = open_partial(file->partial, problem);
    if (file->fd < 0)
        free(file->partial);
    return file->fd >= 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

bool bag_out_file_reserve(const struct bag_out_file *file, uint64_t bytes,
                          struct bag_problem *problem)
{
    int error = ftruncate(file->fd, 0) == 0 ? posix_fallocate(file->fd, 0, (off_t)bytes) : errno;
    return error == 0 || bag_problem_set(problem, BAG_ERROR_STORAGE,
                                         "%s: there is no room for %" PRIu64 " bytes: %s",
                                         file->partial, bytes, strerror(error));
}

bool bag_out_file_write(const struct bag_out_file *file, const void *data, size_t bytes,
                        uint64_t at, struct bag_problem *problem)
{
    int error = bag_system_disk.write(NULL, file->fd, data, bytes, at);
    return error == 0 || bag_problem_set(problem, BAG_ERROR_STORAGE,
                                         "%s: writing %zu bytes at byte %" PRIu64 " failed: %s",
                                         file->path, bytes, at, strerror(error));
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Renames the partial file. Uses link() where renaming cannot refuse to replace a file, as on NFS.
 */
static bool rename_file(const struct bag_out_file *file)
{
    unsigned flags = file->replace ? 0 : RENAME_NOREPLACE;
    if (renameat2(AT_FDCWD, file->partial, AT_FDCWD, file->path, flags) == 0)
        return true;
    return errno == EINVAL && !file->replace && link(file->partial, file->path) == 0 &&
           unlink(file->partial) == 0;
}

bool bag_out_file_publish(const struct bag_out_file *file, struct bag_problem *problem)
{
    /* The data must be on the disk before the name: after a crash, the name would otherwise refer
     * to a file without its data. */
    if (fsync(file->fd) != 0)
        return bag_problem_set(problem, BAG_ERROR_STORAGE, "%s: %s", file->partial,
                               strerror(errno));
    if (!rename_file(file))
        return bag_problem_set(problem, BAG_ERROR_STORAGE, "%s: cannot be renamed to %s: %s",
                               file->partial, file->path, strerror(errno));
    /* Write the folder's names to the disk. */
    const char *path = file->path;
    char *copy = strdup(path);
    int error = copy ? bag_system_disk.sync_folder(NULL, dirname(copy)) : ENOMEM;
    free(copy);
    return !error ||
           bag_problem_set(problem, BAG_ERROR_STORAGE,
                           "%s: it is written, but its name may not be on the disk yet: %s",
                           file->path, strerror(error));
}

void bag_out_file_close(struct bag_out_file *file, bool published)
{
    if (!published)
        unlink(file->partial);
    close(file->fd);
    free(file->partial);
}
