/* Small files, read whole; see file.h. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
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

char *bag_file_read(const char *path, size_t max_bytes, size_t *bytes, struct bag_problem *problem)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
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
        bag_problem_set(problem, 500, "%s: cannot be read: %s", path, strerror(error));
    else
        bag_problem_set(problem, 500, "%s: larger than %zu bytes", path, max_bytes);
    return NULL;
}
