/* The operating system's calls for files of row updates, and functions that read whole files; see
 * files.h. */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENS_MAX_BYTES ((size_t)64 << 10)

static int make_folder(void *context, const char *path)
{
    (void)context;
    return mkdir(path, 0750) == 0 || errno == EEXIST ? 0 : errno;
}

static int list(void *context, const char *folder, void (*found)(void *to, const char *name),
                void *to)
{
    (void)context;
    DIR *entries = opendir(folder);
    if (!entries)
        return errno;
    errno = 0;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL; errno = 0) {
        if (entry->d_name[0] != '.')
            found(to, entry->d_name);
    }
    int error = errno;
    closedir(entries);
    return error;
}

static int sync_folder(void *context, const char *path)
{
    (void)context;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error;
}

/* Locks a folder. The kernel releases the lock when the process ends. If the file system does not
 * support locks, the folder is assumed to be used by this process only. */
static int lock_folder(void *context, const char *folder, int *file)
{
    (void)context;
    *file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*file < 0)
        return errno;
    if (flock(*file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0;
    close(*file);
    *file = -1;
    return EWOULDBLOCK;
}

static int rename_file(void *context, const char *from, const char *to)
{
    (void)context;
    return rename(from, to) == 0 ? 0 : errno;
}

static int remove_file(void *context, const char *path)
{
    (void)context;
    return unlink(path) == 0 ? 0 : errno;
}

static int open_file(void *context, const char *path, bool create, int *file)
{
    (void)context;
    *file = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0640);
    return *file < 0 ? errno : 0;
}

static int size(void *context, int file, uint64_t *bytes)
{
    struct stat status;
    (void)context;
    if (fstat(file, &status) != 0)
        return errno;
    *bytes = (uint64_t)status.st_size;
    return 0;
}

static int read_bytes(void *context, int file, void *out, size_t bytes, uint64_t at)
{
    (void)context;
    ssize_t got = bag_file_read_bytes(file, out, bytes, at);
    if (got < 0)
        return errno;
    return (size_t)got == bytes ? 0 : EIO;
}

static int write_bytes(void *context, int file, const void *data, size_t bytes, uint64_t at)
{
    (void)context;
    while (bytes > 0) {
        ssize_t put = pwrite(file, data, bytes, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : EIO;
        data = (const char *)data + put;
        at += (uint64_t)put;
        bytes -= (size_t)put;
    }
    return 0;
}

static int truncate_file(void *context, int file, uint64_t bytes)
{
    (void)context;
    return ftruncate(file, (off_t)bytes) == 0 ? 0 : errno;
}

/* Syncs a file's data and size. Its other metadata does not matter, so fdatasync is enough. */
static int sync_file(void *context, int file)
{
    (void)context;
    return fdatasync(file) == 0 ? 0 : errno;
}

static void close_file(void *context, int file)
{
    (void)context;
    close(file);
}

const struct bag_disk bag_system_disk = {.make_folder = make_folder,
                                         .list = list,
                                         .sync_folder = sync_folder,
                                         .lock = lock_folder,
                                         .rename = rename_file,
                                         .remove = remove_file,
                                         .open = open_file,
                                         .size = size,
                                         .read = read_bytes,
                                         .write = write_bytes,
                                         .truncate = truncate_file,
                                         .sync = sync_file,
                                         .close = close_file};

/* ---- reading files --------------------------------------------------------------------------- */

bool bag_file_exists(const char *path)
{
    struct stat state;
    return stat(path, &state) == 0;
}

/* Opens with O_NONBLOCK, because opening a FIFO would block. Rejects other kinds of files; a device
 * has no size. */
int bag_file_open(const char *path, struct stat *state, struct bag_problem *problem)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, state) != 0) {
        bag_problem_set(problem, BAG_ERROR_FILE, "cannot be opened: %s", strerror(errno));
    } else if (S_ISDIR(state->st_mode)) {
        bag_problem_set(problem, BAG_ERROR_FILE, "is a directory; name a file");
    } else if (!S_ISREG(state->st_mode)) {
        bag_problem_set(problem, BAG_ERROR_FILE, "is not a regular file; %s",
                        S_ISFIFO(state->st_mode) ? "write what a pipe brings to a file first"
                                                 : "name one");
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

ssize_t bag_file_read_bytes(int fd, void *out, size_t bytes, uint64_t at)
{
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = pread(fd, (char *)out + have, bytes - have, (off_t)(at + have));
        if (got < 0 && errno != EINTR)
            return -1;
        if (got == 0)
            break;
        have += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)have;
}

/* ---- files that are read whole --------------------------------------------------------------- */

/* Reads to the end, or one byte more than max_bytes. Returns the number of bytes, or -1 with errno.
 * The caller frees *text in either case. */
static ssize_t read_whole(int fd, const struct stat *state, size_t max_bytes, char **text)
{
    bool known = state->st_size > 0; /* files of /proc have no size */
    size_t room =
        known && (uintmax_t)state->st_size < max_bytes ? (size_t)state->st_size : max_bytes;
    *text = malloc(room + 2);
    ssize_t count = *text ? bag_file_read_bytes(fd, *text, room + 1, 0) : -1;
    if (count < 0 || (size_t)count <= room || room == max_bytes)
        return count;
    char *larger = realloc(*text, max_bytes + 2); /* the file has grown */
    if (!larger)
        return -1;
    *text = larger;
    ssize_t more =
        bag_file_read_bytes(fd, larger + count, max_bytes + 1 - (size_t)count, (uint64_t)count);
    return more < 0 ? -1 : count + more;
}

/* Reads the file and closes it. If fd is negative, only adds the path to *problem. */
static char *read_file(int fd, const struct stat *state, const char *path, size_t max_bytes,
                       size_t *bytes, struct bag_problem *problem)
{
    char *text = NULL;
    if (fd < 0) {
        bag_problem_prefix(problem, "%s", path);
        return NULL;
    }
    ssize_t count = read_whole(fd, state, max_bytes, &text);
    int error = errno;
    close(fd);
    if (count >= 0 && (size_t)count <= max_bytes) {
        text[count] = 0;
        *bytes = (size_t)count;
        return text;
    }
    free(text);
    if (count < 0)
        bag_problem_set(problem, error == ENOMEM ? BAG_ERROR_NO_MEMORY : BAG_ERROR_FILE,
                        "%s: cannot be read: %s", path, strerror(error));
    else
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: larger than %zu bytes", path, max_bytes);
    return NULL;
}

char *bag_file_read(const char *path, size_t max_bytes, size_t *bytes, struct bag_problem *problem)
{
    struct stat state;
    int fd = bag_file_open(path, &state, problem);
    return read_file(fd, &state, path, max_bytes, bytes, problem);
}

static bool is_own_group(gid_t group)
{
    int count = getgroups(0, NULL);
    gid_t *groups = count > 0 ? malloc((size_t)count * sizeof *groups) : NULL;
    bool found = group == getegid();
    count = groups ? getgroups(count, groups) : 0;
    for (int i = 0; i < count; i++)
        found = found || groups[i] == group;
    free(groups);
    return found;
}

/* Returns whether the permissions keep the file private. The group may at most read it, and only in
 * two cases: this user is in the group but is not the owner, or the file is a mounted secret, which
 * root owns and nobody may write to. */
static bool is_private(const struct stat *facts)
{
    if ((facts->st_mode & (S_IRWXG | S_IRWXO)) == 0)
        return true;
    if ((facts->st_mode & (S_IWGRP | S_IXGRP | S_IRWXO)) != 0)
        return false;
    bool is_mounted = facts->st_uid == 0 && (facts->st_mode & S_IWUSR) == 0;
    return is_mounted || (facts->st_uid != geteuid() && is_own_group(facts->st_gid));
}

char *bag_file_read_private(const char *path, size_t max_bytes, size_t *bytes,
                            struct bag_problem *problem)
{
    struct stat state;
    int fd = bag_file_open(path, &state, problem);
    if (fd < 0 || is_private(&state))
        return read_file(fd, &state, path, max_bytes, bytes, problem);
    close(fd);
    bag_problem_set(problem, BAG_ERROR_FILE,
                    "%s: others than its owner may use it (mode %03o); chmod 600 it, or 440 where "
                    "root owns it, as of a mounted secret",
                    path, (unsigned)state.st_mode & 0777);
    return NULL;
}

char *bag_file_read_token(const char *path, enum bag_scope scope, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read_private(path, TOKENS_MAX_BYTES, &bytes, problem);
    if (!text)
        return NULL;
    char *token = bag_token_choose(text, bytes, scope, problem);
    if (!token)
        bag_problem_prefix(problem, "%s", path);
    explicit_bzero(text, bytes);
    free(text);
    return token;
}
