/* Building an index of keys; see load.h.
 *
 * Each builder takes the next piece of the keys, reads it, and adds the keys that have room in
 * their home lines. The others, about an eighth, are kept until all keys were read, and then
 * inserted by the thread that waited for the builders. */
#include "load.h"

#include "server/memory/memory.h"
#include "server/system/crew.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define PIECE_KEYS ((size_t)64 << 10)
#define MAX_TRIES  4

/* ---- the builders' common state -------------------------------------------------------------- */

/* Keys of one piece that had no room in their home lines. */
struct crowd {
    struct crowd *next;
    size_t count;
    struct bag_keys_entry entries[];
};

/* Lives on the stack of the thread that called bag_keys_index_build, which outlives the builders.
 */
struct building {
    /* Set before the builders start. */
    const struct bag_keys_source *source;
    const struct bag_load_options *options;
    struct bag_keys keys;
    uint64_t *rows; /* keys.rows, which the builders set */

    struct bag_crew crew; /* whose lock guards what follows; it counts keys */
    size_t next_key;
    struct crowd *crowds; /* owned */
    bool duplicate;       /* a key was found twice; stops all builders */
};

struct piece {
    size_t first, count;
};

static bool next_piece(struct building *building, struct piece *piece)
{
    pthread_mutex_lock(&building->crew.lock);
    size_t left = building->source->num_keys - building->next_key;
    bool more = left > 0 && !building->crew.failed && !building->duplicate;
    *piece = (struct piece){building->next_key, left < PIECE_KEYS ? left : PIECE_KEYS};
    if (more)
        building->next_key += piece->count;
    pthread_mutex_unlock(&building->crew.lock);
    return more;
}

/* ---- one builder ----------------------------------------------------------------------------- */

/* What a builder works with. */
struct buffers {
    uint64_t keys[PIECE_KEYS];
    struct bag_keys_entry crowded[PIECE_KEYS];
};

static bool no_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for a piece of the keys");
}

static bool build_piece(struct building *building, struct piece piece, struct buffers *buffers,
                        struct bag_problem *problem)
{
    const struct bag_keys_source *source = building->source;
    uint64_t *rows = building->rows ? building->rows + piece.first : NULL;
    size_t count;
    if (!source->read(source->context, piece.first, piece.count, buffers->keys, rows, problem))
        return false;
    if (!bag_keys_fill(&building->keys, buffers->keys, piece.count, (int64_t)piece.first,
                       buffers->crowded, &count)) {
        pthread_mutex_lock(&building->crew.lock);
        building->duplicate = true;
        pthread_mutex_unlock(&building->crew.lock);
        return true;
    }
    struct crowd *crowd = malloc(sizeof *crowd + count * sizeof *crowd->entries);
    if (!crowd)
        return no_memory(problem);
    crowd->count = count;
    memcpy(crowd->entries, buffers->crowded, count * sizeof *crowd->entries);
    pthread_mutex_lock(&building->crew.lock);
    crowd->next = building->crowds;
    building->crowds = crowd;
    pthread_mutex_unlock(&building->crew.lock);
    bag_crew_did(&building->crew, piece.count);
    return true;
}

static bool run_builder(void *context, struct bag_problem *problem)
{
    struct building *building = context;
    struct piece piece;
    struct buffers *buffers = malloc(sizeof *buffers);
    bool ok = buffers || no_memory(problem);
    while (ok && next_piece(building, &piece))
        ok = build_piece(building, piece, buffers, problem);
    free(buffers);
    return ok;
}

/* On the thread that waits for the builders. */
static void tell_progress(void *context, size_t keys)
{
    bag_load_tell(((const struct building *)context)->options, keys * sizeof(uint64_t));
}

static bool run_builders(struct building *building, struct bag_problem *problem)
{
    size_t pieces = (building->source->num_keys + PIECE_KEYS - 1) / PIECE_KEYS;
    unsigned threads = building->options->threads ? building->options->threads : 1;
    unsigned wanted = threads > pieces ? (unsigned)pieces : threads;
    building->next_key = building->crew.done = 0;
    return wanted == 0 ||
           bag_crew_run(&building->crew, wanted, run_builder, tell_progress, building, problem);
}

/* Inserts the keys that had no room at home, unless the builders stopped, and frees them. */
static enum bag_keys_outcome insert_crowds(struct building *building)
{
    enum bag_keys_outcome outcome =
        building->duplicate || building->crew.failed ? BAG_KEYS_DUPLICATE : BAG_KEYS_ADDED;
    while (building->crowds) {
        struct crowd *crowd = building->crowds;
        size_t stopped;
        int64_t other;
        if (outcome == BAG_KEYS_ADDED)
            outcome = bag_keys_insert_all(&building->keys, crowd->entries, crowd->count, &stopped,
                                          &other);
        building->crowds = crowd->next;
        free(crowd);
    }
    return outcome;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bool choose_seed(struct bag_keys_seed *seed, struct bag_problem *problem)
{
    if (getrandom(seed, sizeof *seed, 0) == (ssize_t)sizeof *seed)
        return true;
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "no random numbers can be had: %s",
                           strerror(errno));
}

static void clear_lines(struct building *building)
{
    memset(building->keys.lines, 0, building->keys.num_lines * sizeof *building->keys.lines);
}

/* Adds the keys of one piece one after the other. */
static enum bag_keys_outcome insert_piece(struct building *building, struct piece piece,
                                          struct buffers *buffers, size_t *stopped, int64_t *other)
{
    for (size_t i = 0; i < piece.count; i++)
        buffers->crowded[i] = (struct bag_keys_entry){buffers->keys[i], (int64_t)(piece.first + i)};
    return bag_keys_insert_all(&building->keys, buffers->crowded, piece.count, stopped, other);
}

/* Rejects a key that two rows of the index have, by their rows in the table; returns false. */
static bool name_duplicate(const struct building *building, struct bag_keys_entry twin,
                           int64_t other, struct bag_problem *problem)
{
    const struct bag_keys_source *source = building->source;
    uint64_t rows[2] = {(uint64_t)other, (uint64_t)twin.row}, key;
    char text[24]; /* of the key, as the file's type shows it */
    for (int i = 0; i < 2; i++) {
        if (!source->read(source->context, (size_t)rows[i], 1, &key, &rows[i], problem))
            return false;
    }
    snprintf(text, sizeof text, source->is_signed ? "%" PRId64 : "%" PRIu64, twin.key);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "key %s is duplicated, in rows %" PRIu64 " and %" PRIu64
                           " (counted from 0); every row needs a key of its own",
                           text, rows[0], rows[1]);
}

/* Which pair is the first depends on the order in which keys are added: adds them again, in order.
 * Always false. */
static bool reject_duplicate(struct building *building, struct bag_problem *problem)
{
    const struct bag_keys_source *source = building->source;
    struct buffers *buffers = malloc(sizeof *buffers);
    struct piece piece;
    size_t stopped;
    int64_t other;
    bool ok = buffers || no_memory(problem);
    clear_lines(building);
    building->next_key = 0;
    building->duplicate = false;
    while (ok && next_piece(building, &piece)) {
        ok = source->read(source->context, piece.first, piece.count, buffers->keys, NULL, problem);
        if (ok && insert_piece(building, piece, buffers, &stopped, &other) == BAG_KEYS_DUPLICATE)
            ok = name_duplicate(building, buffers->crowded[stopped], other, problem);
    }
    free(buffers);
    return ok && bag_problem_set(problem, BAG_ERROR_FILE, "the keys changed while they were read");
}

/* Tries seeds until no key is crowded out: with random ones the first try does. */
static bool try_seeds(struct building *building, struct bag_problem *problem)
{
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        if (tries > 0)
            clear_lines(building);
        bool ok = choose_seed(&building->keys.seed, problem) && run_builders(building, problem);
        enum bag_keys_outcome outcome = insert_crowds(building);
        if (!ok || outcome == BAG_KEYS_ADDED)
            return ok;
        if (outcome == BAG_KEYS_DUPLICATE)
            return reject_duplicate(building, problem);
    }
    return bag_problem_set(problem, BAG_ERROR_INTERNAL,
                           "no seed spreads the keys evenly; are they chosen?");
}

size_t bag_keys_index_bytes(size_t num_keys, bool keeps_rows)
{
    const struct bag_keys keys = bag_keys_for(num_keys);
    return keys.num_lines * sizeof *keys.lines + (keeps_rows ? num_keys * sizeof *keys.rows : 0);
}

bool bag_keys_index_build(const struct bag_keys_source *source,
                          const struct bag_load_options *options, struct bag_keys_index *index,
                          struct bag_problem *problem)
{
    memset(index, 0, sizeof *index);
    size_t max_keys;
    if (__builtin_add_overflow(source->num_keys, source->spare_keys, &max_keys) ||
        max_keys > (size_t)BAG_KEYS_MAX_ROWS)
        return bag_problem_set(
            problem, BAG_ERROR_FILE, "there are %zu keys%s; an index of keys takes up to %" PRId64,
            max_keys, source->spare_keys ? " with the spare ones" : "", BAG_KEYS_MAX_ROWS);
    struct building building = {
        .source = source, .options = options, .keys = bag_keys_for(max_keys)};
    index->mapping_bytes = bag_keys_index_bytes(max_keys, source->keeps_rows);
    building.keys.lines = bag_pages_map(index->mapping_bytes, problem);
    if (!building.keys.lines)
        return false;
    if (source->keeps_rows)
        building.keys.rows = building.rows =
            (uint64_t *)(building.keys.lines + building.keys.num_lines);
    bag_crew_init(&building.crew);
    bool ok = try_seeds(&building, problem);
    bag_crew_free(&building.crew);
    index->keys = building.keys;
    if (!ok)
        bag_keys_index_free(index);
    return ok;
}

void bag_keys_index_free(struct bag_keys_index *index)
{
    bag_pages_unmap(index->keys.lines, index->mapping_bytes);
    memset(index, 0, sizeof *index);
}

/* ---- keys in files --------------------------------------------------------------------------- */

/* Reads keys of one file, in the machine's byte order. */
static bool read_file_keys(const struct bag_table_file *file, int fd, size_t first, size_t count,
                           uint64_t *keys, struct bag_problem *problem)
{
    uint64_t at = file->npy.data_offset + first * sizeof *keys;
    if (!bag_file_read_at(fd, keys, count * sizeof *keys, at, problem))
        return bag_file_reject(file->path, problem);
    for (size_t i = 0; file->npy.swap && i < count; i++)
        keys[i] = __builtin_bswap64(keys[i]);
    return true;
}

bool bag_key_files_read(const struct bag_key_files *opened, size_t first, size_t count,
                        uint64_t *keys, struct bag_problem *problem)
{
    for (size_t i = 0; i < opened->count && count > 0; i++) {
        const struct bag_table_file *file = &opened->files[i];
        size_t here = file->npy.count, part = first < here ? here - first : 0;
        part = part < count ? part : count;
        if (part && !read_file_keys(file, opened->fds[i], first, part, keys, problem))
            return false;
        keys += part;
        count -= part;
        first = part ? 0 : first - here;
    }
    return true;
}

bool bag_key_files_open(const struct bag_table_file *files, size_t count,
                        struct bag_key_files *opened, struct bag_problem *problem)
{
    *opened = (struct bag_key_files){.files = files, .fds = calloc(count, sizeof *opened->fds)};
    bool ok = opened->fds != NULL ||
              bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for %zu files", count);
    while (ok && opened->count < count) {
        int fd = bag_file_reopen(&files[opened->count], problem);
        ok = fd >= 0;
        if (ok)
            opened->fds[opened->count++] = fd;
    }
    if (!ok)
        bag_key_files_close(opened);
    return ok;
}

void bag_key_files_close(struct bag_key_files *opened)
{
    for (size_t i = 0; i < opened->count; i++)
        close(opened->fds[i]);
    free(opened->fds);
    *opened = (struct bag_key_files){.count = 0};
}

bool bag_keys_index_of_files(const struct bag_keys_source *source,
                             const struct bag_key_files *files,
                             const struct bag_load_options *options,
                             struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct bag_keys_source typed = *source;
    typed.is_signed = files->files[0].npy.dtype == BAG_I64;
    typed.spare_keys = memory->spare_rows;
    if (!bag_keys_index_build(&typed, options, &memory->index, problem))
        return bag_file_reject(files->files[0].path, problem);
    memory->keys_dtype = files->files[0].npy.dtype;
    if (bag_files_check_read(files->files, files->fds, files->count, problem))
        return true;
    bag_keys_index_free(&memory->index);
    return false;
}

static bool read_files(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                       struct bag_problem *problem)
{
    (void)rows;
    return bag_key_files_read(context, first, count, keys, problem);
}

bool bag_table_load_keys(const struct bag_table_file *files, size_t count,
                         const struct bag_load_options *options, struct bag_table_memory *memory,
                         struct bag_problem *problem)
{
    struct bag_key_files opened;
    if (!bag_key_files_open(files, count, &opened, problem))
        return false;
    struct bag_keys_source source = {
        .read = read_files, .context = &opened, .num_keys = (size_t)memory->table.num_rows};
    bool ok = bag_keys_index_of_files(&source, &opened, options, memory, problem);
    bag_key_files_close(&opened);
    return ok;
}
