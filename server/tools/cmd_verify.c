/* `bagserve verify`: reads all of a table and says whether it is valid.
 *
 * The files are first compared with the checksums beside them, if there are any, and then read as a
 * server would read them. A table that this command accepts can be loaded. Exit codes separate a
 * table that is wrong (1) from one that cannot be read (2). */
#include "kernels/rowformat.h"
#include "proto/text.h"
#include "server/commands.h"
#include "server/system/files.h"
#include "tools.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

/* Files are read in blocks of this size. */
#define BLOCK_BYTES    ((size_t)4 << 20)
#define CHECKSUMS      "SHA256SUMS"
#define CHECKSUM_BYTES ((size_t)16 << 20) /* maximum size of that file */

enum { BAG_VERIFY_FLAGS(BAG_TOOL_ID) FLAG_COUNT };
static const struct bag_tool_flag flags[] = {BAG_VERIFY_FLAGS(BAG_TOOL_FLAG)};

static const struct bag_tool tool = {
    "bagserve verify [flags] FILE|DIR",
    "Reads all of a table: headers, sizes, every row, and keys, of which no two may be the same; "
    "and "
    "compares its files with " CHECKSUMS
    " beside them, where that is. Exit code 0: it is valid; 1: it "
    "is not; 2: it cannot be read, or the command line is wrong.",
    flags,
    FLAG_COUNT,
    1,
    1};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns false and sets *problem (CONFLICT) at the first value that is not finite. */
static bool check_rows(const struct bag_rows_reader *reader, const unsigned char *rows,
                       size_t first, size_t count, float *decoded, struct bag_problem *problem)
{
    const struct bag_table *table = &reader->source->table;
    for (size_t i = 0; i < count; i++) {
        const unsigned char *row = rows + i * reader->row_bytes;
        bag_row_to_floats(table, row, decoded);
        for (size_t column = 0; column < table->row_elements; column++) {
            if (!isfinite(bag_row_value(table, row, decoded, column)))
                return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                                       "%s: row %zu, element %zu is not finite",
                                       reader->source->model->path, first + i, column);
        }
    }
    return true;
}

/* Reads all rows, and checks their values if `finite` is set. Reading alone finds files that are
 * too short or unreadable. */
static bool read_rows(const struct bag_rows_reader *reader, bool finite,
                      struct bag_problem *problem)
{
    size_t bytes = reader->row_bytes ? reader->row_bytes : 1;
    size_t block = bytes < BLOCK_BYTES ? BLOCK_BYTES / bytes : 1;
    unsigned char *rows = malloc(block * bytes);
    float *decoded = malloc((reader->source->table.row_elements + 1) * sizeof *decoded);
    bool ok = (rows && decoded) || bag_problem_no_memory(problem);
    /* Integers are always finite. */
    finite = finite && bag_dtypes[reader->source->table.dtype].kind == BAG_KIND_FLOAT;
    for (size_t first = 0; ok && first < reader->num_rows; first += block) {
        size_t count = reader->num_rows - first < block ? reader->num_rows - first : block;
        ok = bag_rows_read(reader, first, count, rows, problem) &&
             (!finite || check_rows(reader, rows, first, count, decoded, problem));
    }
    free(rows);
    free(decoded);
    return ok;
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* Prints the SHA-256 of a file in hexadecimal. Returns false and sets *problem if it cannot be
 * read. */
static bool hash_file(const char *path, char text[2 * SHA256_DIGEST_SIZE + 1],
                      struct bag_problem *problem)
{
    unsigned char *block = malloc(BLOCK_BYTES), digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx context;
    struct stat state;
    ssize_t got = -1;
    int fd = bag_file_open(path, &state, problem);
    sha256_init(&context);
    while (fd >= 0 && block &&
           ((got = read(fd, block, BLOCK_BYTES)) > 0 || (got < 0 && errno == EINTR)))
        sha256_update(&context, got > 0 ? (size_t)got : 0, block);
    if (fd < 0)
        bag_problem_prefix(problem, "%s", path);
    else if (got < 0)
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: cannot be read: %s", path, strerror(errno));
    sha256_digest(&context, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (fd >= 0)
        close(fd);
    free(block);
    return got == 0;
}

/* Checks one line: a digest, two characters, a name. Ignores lines of other files than `only`. */
static bool check_line(const char *folder, const char *line, const char *only, size_t *checked,
                       struct bag_problem *problem)
{
    size_t digits = strspn(line, "0123456789abcdefABCDEF");
    char found[2 * SHA256_DIGEST_SIZE + 1], *path = NULL;
    /* The two characters are a blank, and a blank or * for the mode of sha256sum. */
    const char *name = line + digits + 2;
    if (digits != sizeof found - 1 || strlen(line) <= digits + 2 || line[digits] != ' ')
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s/" CHECKSUMS ": '%s' is not a line of sha256sum", folder,
                               bag_quote(line, strlen(line)).text);
    if (only && strcmp(name, only) != 0)
        return true;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return bag_problem_no_memory(problem);
    bool ok = hash_file(path, found, problem);
    if (ok && strncasecmp(found, line, digits) != 0)
        ok = bag_problem_set(problem, BAG_ERROR_CONFLICT,
                             "%s: its SHA-256 is %s; " CHECKSUMS " says %.64s", path, found, line);
    *checked += ok;
    free(path);
    return ok;
}

/* Compares the files of a folder, or only the file `only`, with the folder's checksums if it has
 * some. */
static bool check_sums(const char *folder, const char *only, size_t *checked,
                       struct bag_problem *problem)
{
    char *path = NULL, *text = NULL, *rest = NULL;
    size_t bytes;
    if (asprintf(&path, "%s/" CHECKSUMS, folder) < 0)
        return bag_problem_no_memory(problem);
    bool there = access(path, F_OK) == 0;
    bool ok = !there || (text = bag_file_read(path, CHECKSUM_BYTES, &bytes, problem));
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; ok && line;
         line = strtok_r(NULL, "\n", &rest))
        ok = check_line(folder, line, only, checked, problem);
    free(text);
    free(path);
    return ok;
}

/* Compares a file, or all files of a folder, with the checksums beside them. *checked is their
 * number. */
static bool check_files(const char *path, size_t *checked, struct bag_problem *problem)
{
    struct stat state;
    if (stat(path, &state) == 0 && S_ISDIR(state.st_mode))
        return check_sums(path, NULL, checked, problem);
    char *folder = strdup(path), *name = strdup(path);
    bool ok = (folder && name) || bag_problem_no_memory(problem);
    ok = ok && check_sums(dirname(folder), basename(name), checked, problem);
    free(folder);
    free(name);
    return ok;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Opens a table and reads all rows and keys. */
static bool check_table(struct bag_source *source, bool finite, struct bag_problem *problem)
{
    struct bag_rows_reader reader;
    if (!bag_source_open_table(source, problem) || !bag_rows_reader_open(&reader, source, problem))
        return false;
    bool ok = read_rows(&reader, finite, problem) &&
              bag_tool_check_keys(source, (unsigned)uv_available_parallelism(), problem) &&
              bag_rows_reader_check(&reader, problem);
    bag_rows_reader_close(&reader);
    return ok;
}

/* Checks checksums and contents, and prints the result if the table is valid. */
static bool verify_table(struct bag_source *source, const char *in, const char *const *values,
                         struct bag_problem *problem)
{
    const char *path = source->model->path;
    size_t checked = 0;
    if (!check_files(path, &checked, problem))
        return false;
    if (!check_table(source, values[FLAG_FINITE] != NULL, problem)) {
        if (problem->kind == BAG_ERROR_FILE && access(path, R_OK) == 0)
            problem->kind = BAG_ERROR_CONFLICT; /* the file can be read; its contents are wrong */
        return false;
    }
    printf("%s is valid: %zu rows of %zu elements%s; ", in, (size_t)source->table.num_rows,
           source->table.row_elements, bag_source_is_keyed(source) ? ", no key duplicated" : "");
    if (checked > 0)
        printf("%zu of its files have the right checksum\n", checked);
    else
        puts("it has no file of checksums");
    return true;
}

static bool verify(const char *const *operands, const char *const *values,
                   struct bag_problem *problem)
{
    struct bag_source *source = bag_source_find(operands[0], problem);
    bool ok = source && verify_table(source, operands[0], values, problem);
    bag_source_free(source);
    return ok;
}

int bag_cmd_verify(int argc, char *argv[])
{
    const char *values[FLAG_COUNT];
    return bag_tool_run(&tool, argc, argv, values, verify);
}
