/* Files that are read whole; see text_file.h. */
#include "text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads up to `room` bytes; the number read, or -1 with errno. */
static ssize_t read_all(int fd, char *text, size_t room)
{
    size_t used = 0;
    while (used < room) {
        ssize_t count = read(fd, text + used, room - used);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        used += (size_t)count;
    }
    return (ssize_t)used;
}

/* Reads the file and closes it. */
static char *read_file(int fd, const char *path, size_t max_bytes, size_t *bytes,
                       struct bag_problem *problem)
{
    char *text = fd >= 0 ? malloc(max_bytes + 2) : NULL;
    ssize_t count = text ? read_all(fd, text, max_bytes + 1) : -1;
    int error = errno;
    if (fd >= 0)
        close(fd);
    if (count >= 0 && (size_t)count <= max_bytes) {
        text[count] = 0;
        *bytes = (size_t)count;
        return text;
    }
    free(text);
    if (count < 0)
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: cannot be read: %s", path, strerror(error));
    else
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: larger than %zu bytes", path, max_bytes);
    return NULL;
}

char *bag_file_read(const char *path, size_t max_bytes, size_t *bytes, struct bag_problem *problem)
{
    return read_file(open(path, O_RDONLY | O_CLOEXEC), path, max_bytes, bytes, problem);
}

/* Does not wait for the writer of a pipe. */
char *bag_file_read_private(const char *path, size_t max_bytes, size_t *bytes,
                            struct bag_problem *problem)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0)
        return read_file(fd, path, max_bytes, bytes, problem);
    if (S_ISREG(facts.st_mode) && (facts.st_mode & (S_IRWXG | S_IRWXO)) == 0)
        return read_file(fd, path, max_bytes, bytes, problem);
    close(fd);
    if (S_ISREG(facts.st_mode))
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "%s: others than its owner may use it (mode %03o); chmod 600 it", path,
                        (unsigned)facts.st_mode & 0777);
    else
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: is not a regular file", path);
    return NULL;
}
