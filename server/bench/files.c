/* Files that are read; see files.h. */
#include "files.h"

#include "server/system/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TEXT_BYTES  ((size_t)64 << 20) /* of lengths */
#define MAX_TOKEN_BYTES ((size_t)1 << 20)

/* ---- .npy ------------------------------------------------------------------------------------ */

/* False where the file ends before. */
static bool read_at(int fd, void *out, size_t bytes, size_t at, struct bag_problem *problem)
{
    for (size_t have = 0; have < bytes;) {
        ssize_t got = pread(fd, (char *)out + have, bytes - have, (off_t)(at + have));
        if (got > 0)
            have += (size_t)got;
        else if (got == 0)
            return bag_problem_set(problem, BAG_ERROR_FILE, "the file is truncated");
        else if (errno != EINTR)
            return bag_problem_set(problem, BAG_ERROR_FILE, "%s", strerror(errno));
    }
    return true;
}

static bool read_header(int fd, size_t file_bytes, struct bag_npy *npy, struct bag_problem *problem)
{
    unsigned char preamble[BAG_NPY_PREAMBLE_BYTES];
    size_t count = file_bytes < sizeof preamble ? file_bytes : sizeof preamble;
    if (!read_at(fd, preamble, count, 0, problem))
        return false;
    size_t header_bytes = bag_npy_header_bytes(preamble, count);
    if (header_bytes == 0 || header_bytes > file_bytes) /* which the parser explains */
        return bag_npy_parse(preamble, count, BAG_DTYPE_COUNT, npy, problem) &&
               bag_problem_set(problem, BAG_ERROR_FILE, "the file is truncated");
    unsigned char *header = malloc(header_bytes);
    bool ok = header ? read_at(fd, header, header_bytes, 0, problem) &&
                           bag_npy_parse(header, header_bytes, BAG_DTYPE_COUNT, npy, problem)
                     : bag_problem_no_memory(problem);
    free(header);
    return ok;
}

static bool read_elements(int fd, const struct bag_npy *npy, unsigned char **data,
                          struct bag_problem *problem)
{
    unsigned char *block = malloc(npy->data_bytes + 1);
    *data = block;
    if (!block)
        return bag_problem_no_memory(problem);
    if (!read_at(fd, block, npy->data_bytes, npy->data_offset, problem))
        return false;
    if (bag_npy_is_plain(npy) || npy->count == 0)
        return true;
    struct bag_npy_tile all = {.num_columns = npy->num_columns, .count = npy->column_elements};
    if (!(*data = malloc(npy->data_bytes + 1))) {
        free(block);
        return bag_problem_no_memory(problem);
    }
    bag_npy_place(npy, all, block, *data);
    free(block);
    return true;
}

bool bag_bench_array_read(const char *path, struct bag_bench_array *array,
                          struct bag_problem *problem)
{
    struct stat state;
    *array = (struct bag_bench_array){.data = NULL};
    int fd = bag_file_open(path, &state, problem);
    bool ok = fd >= 0 && read_header(fd, (size_t)state.st_size, &array->npy, problem) &&
              read_elements(fd, &array->npy, &array->data, problem);
    if (fd >= 0)
        close(fd);
    if (ok)
        return true;
    bag_bench_array_free(array);
    bag_problem_prefix(problem, "%s", path);
    return false;
}

void bag_bench_array_free(struct bag_bench_array *array)
{
    free(array->data);
    array->data = NULL;
}

bool bag_bench_keys_read(const char *path, struct bag_bench_array *keys,
                         struct bag_problem *problem)
{
    struct stat state;
    char *inside = NULL;
    if (stat(path, &state) == 0 && S_ISDIR(state.st_mode) &&
        asprintf(&inside, "%s/keys.npy", path) < 0)
        return bag_problem_no_memory(problem);
    bool ok = bag_bench_array_read(inside ? inside : path, keys, problem);
    free(inside);
    if (!ok)
        return false;
    if (keys->npy.rank == 1 && keys->npy.count > 0 &&
        (keys->npy.dtype == BAG_I64 || keys->npy.dtype == BAG_U64))
        return true;
    bag_bench_array_free(keys);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: keys are INT64 or UINT64 of one dimension, at least one", path);
}

/* ---- lengths of bags ------------------------------------------------------------------------- */

static bool reject_lengths(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "lengths of bags are whole numbers from 0 to %d, at least one",
                           BAG_BENCH_MAX_IDS);
}

static bool lengths_of_array(const struct bag_bench_array *array, struct bag_bench_lengths *lengths,
                             struct bag_problem *problem)
{
    size_t bytes = bag_dtypes[array->npy.dtype].bytes;
    enum bag_dtype dtype = array->npy.dtype;
    bool is_whole = dtype == BAG_I64 || dtype == BAG_U64 || dtype == BAG_I32 || dtype == BAG_U32;
    for (size_t i = 0; is_whole && i < array->npy.count; i++) {
        uint64_t value = 0;
        memcpy(&value, array->data + i * bytes, bytes);
        if (value > BAG_BENCH_MAX_IDS) /* as negative ones are */
            return reject_lengths(problem);
        lengths->list[lengths->count++] = value;
    }
    return lengths->count > 0 || reject_lengths(problem);
}

static bool lengths_of_text(const char *text, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem)
{
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (!*text)
            return lengths->count > 0 || reject_lengths(problem);
        char *end;
        unsigned long long value = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || value > BAG_BENCH_MAX_IDS ||
            (*end && !strchr(" \t\r\n", *end)))
            return reject_lengths(problem);
        lengths->list[lengths->count++] = value;
        text = end;
    }
}

static bool read_array_lengths(const char *path, struct bag_bench_lengths *lengths,
                               struct bag_problem *problem)
{
    struct bag_bench_array array;
    if (!bag_bench_array_read(path, &array, problem))
        return false;
    lengths->list = calloc(array.npy.count + 1, sizeof *lengths->list);
    bool ok =
        lengths->list ? lengths_of_array(&array, lengths, problem) : bag_problem_no_memory(problem);
    bag_bench_array_free(&array);
    return ok;
}

bool bag_bench_read_lengths(const char *path, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem)
{
    size_t bytes = strlen(path);
    *lengths = (struct bag_bench_lengths){.kind = BAG_BENCH_SAMPLE};
    if (bytes > 4 && strcmp(path + bytes - 4, ".npy") == 0)
        return read_array_lengths(path, lengths, problem);
    char *text = bag_file_read(path, MAX_TEXT_BYTES, &bytes, problem);
    if (!text)
        return false;
    lengths->list = calloc(bytes / 2 + 1, sizeof *lengths->list);
    bool ok =
        lengths->list ? lengths_of_text(text, lengths, problem) : bag_problem_no_memory(problem);
    free(text);
    return ok;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A line of the server's own file has the scope before the token. */
char *bag_bench_read_token(const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *rest, *line, *last, *token = NULL;
    char *text = bag_file_read_private(path, MAX_TOKEN_BYTES, &bytes, problem);
    if (!text)
        return NULL;
    for (line = strtok_r(text, "\r\n", &rest); line && !token;
         line = strtok_r(NULL, "\r\n", &rest)) {
        char *word = strtok_r(line, " \t", &last);
        for (char *next; word && (next = strtok_r(NULL, " \t", &last));)
            word = word[0] == '#' ? word : next;
        if (word && word[0] != '#' && !(token = strdup(word)))
            bag_problem_no_memory(problem);
    }
    if (!token)
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: there is no token in it", path);
    for (char *byte = token; byte && *byte; byte++) {
        if (*byte < '!' || *byte > '~') {
            free(token);
            token = NULL;
            bag_problem_set(problem, BAG_ERROR_FILE, "%s: a token is visible ASCII", path);
        }
        if (!token)
            break;
    }
    free(text);
    return token;
}
