/* Building an index of keys; see keys_index.h. */
#include "keys_index.h"

#include "server/memory/memory.h"
#include "server/system/thread_team.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* The number of keys that a builder reads and adds at a time. */
#define PIECE_KEYS ((size_t)64 << 10)
/* The number of seeds that are tried. With random seeds the first one practically always suffices.
 */
#define MAX_TRIES 4

/* ---- the builders' common state -------------------------------------------------------------- */

/* The keys of one piece that had no room in their home lines. */
struct crowd {
    struct crowd *next;
    size_t count;
    struct bag_keys_entry entries[];
};

/* The state that the builders share. It is on the stack of the thread that called
 * bag_keys_index_build(), which outlives the builders. */
struct building {
    /* Set before the builders start. */
    const struct bag_keys_source *source;
    const struct bag_load_options *options;
    struct bag_keys keys;
    uint64_t *rows; /* keys.rows, set by the builders; NULL: not kept */

    struct bag_thread_team team; /* counts keys; its lock guards the members below */
    size_t next_key;
    struct crowd *crowds; /* owned */
    bool duplicate;       /* a key was found twice: all builders stop */
};

/* A range of keys, by their rows in the index. */
struct piece {
    size_t first, count;
};

/* Takes the next piece. Returns false if there is none, or if the builders have to stop. */
static bool next_piece(struct building *building, struct piece *piece)
{
    pthread_mutex_lock(&building->team.lock);
    size_t left = building->source->num_keys - building->next_key;
    bool more = left > 0 && !building->team.failed && !building->duplicate;
    *piece = (struct piece){building->next_key, left < PIECE_KEYS ? left : PIECE_KEYS};
    if (more)
        building->next_key += piece->count;
    pthread_mutex_unlock(&building->team.lock);
    return more;
}

/* ---- one builder ----------------------------------------------------------------------------- */

/* A builder's own memory. */
struct buffers {
    uint64_t keys[PIECE_KEYS];
    struct bag_keys_entry crowded[PIECE_KEYS];
};

static bool no_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for a piece of the keys");
}

/* Reads the keys of a piece and fills those in whose home lines have room. The others become a
 * crowd. Returns false and sets *problem if reading fails or there is no memory. A duplicate key is
 * not a failure yet: reject_duplicate() finds out which rows have it. */
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
        pthread_mutex_lock(&building->team.lock);
        building->duplicate = true;
        pthread_mutex_unlock(&building->team.lock);
        return true;
    }
    struct crowd *crowd = malloc(sizeof *crowd + count * sizeof *crowd->entries);
    if (!crowd)
        return no_memory(problem);
    crowd->count = count;
    memcpy(crowd->entries, buffers->crowded, count * sizeof *crowd->entries);
    pthread_mutex_lock(&building->team.lock);
    crowd->next = building->crowds;
    building->crowds = crowd;
    pthread_mutex_unlock(&building->team.lock);
    bag_thread_team_did(&building->team, piece.count);
    return true;
}

/* Runs on each builder thread until no piece is left. */
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

/* Reports keys as bytes that were read. Runs on the thread that waits for the builders. */
static void report_progress(void *context, size_t keys)
{
    bag_load_progress(((const struct building *)context)->options, keys * sizeof(uint64_t));
}

/* Adds all keys but the crowds, by at most one thread for each piece. */
static bool run_builders(struct building *building, struct bag_problem *problem)
{
    size_t pieces = (building->source->num_keys + PIECE_KEYS - 1) / PIECE_KEYS;
    unsigned threads = building->options->threads ? building->options->threads : 1;
    unsigned wanted = threads > pieces ? (unsigned)pieces : threads;
    building->next_key = building->team.done = 0;
    return wanted == 0 || bag_thread_team_run(&building->team, wanted, run_builder, report_progress,
                                              building, problem);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Removes all keys, before they are added once more. */
static void clear_lines(struct building *building)
{
    memset(building->keys.lines, 0, building->keys.num_lines * sizeof *building->keys.lines);
}

/* Sets a problem that names two rows of the table with the same key. `twin` and `other` have their
 * rows in the index; reading the keys once more replaces these by rows of the table if the index
 * counts them otherwise. Returns false. */
static bool name_duplicate(const struct building *building, struct bag_keys_entry twin,
                           int64_t other, struct bag_problem *problem)
{
    const struct bag_keys_source *source = building->source;
    uint64_t rows[2] = {(uint64_t)other, (uint64_t)twin.row}, key;
    char text[24]; /* the key */
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

/* Adds all keys again in order, to find the first pair. Always returns false. */
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
        for (size_t i = 0; ok && i < piece.count; i++)
            buffers->crowded[i] =
                (struct bag_keys_entry){buffers->keys[i], (int64_t)(piece.first + i)};
        if (ok && bag_keys_insert_all(&building->keys, buffers->crowded, piece.count, &stopped,
                                      &other) == BAG_KEYS_DUPLICATE)
            ok = name_duplicate(building, buffers->crowded[stopped], other, problem);
    }
    free(buffers);
    return ok && bag_problem_set(problem, BAG_ERROR_FILE, "the keys changed while they were read");
}

/* Tries seeds until every key has room. Practically the first one always does. */
static bool try_seeds(struct building *building, struct bag_problem *problem)
{
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        if (tries > 0)
            clear_lines(building);
        struct bag_keys_seed *seed = &building->keys.seed;
        /* A random seed, so that clients cannot choose keys that collide. */
        bool ok = getrandom(seed, sizeof *seed, 0) == (ssize_t)sizeof *seed ||
                  bag_problem_set(problem, BAG_ERROR_SYSTEM, "no random numbers can be had: %s",
                                  strerror(errno));
        ok = ok && run_builders(building, problem);
        /* Insert the keys that had no room in their home lines, and free the lists. If the builders
         * stopped, only free the lists. */
        enum bag_keys_outcome outcome =
            building->duplicate || building->team.failed ? BAG_KEYS_DUPLICATE : BAG_KEYS_ADDED;
        while (building->crowds) {
            struct crowd *crowd = building->crowds;
            size_t stopped;
            int64_t other;
            if (outcome == BAG_KEYS_ADDED)
                outcome = bag_keys_insert_all(&building->keys, crowd->entries, crowd->count,
                                              &stopped, &other);
            building->crowds = crowd->next;
            free(crowd);
        }
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
    bag_thread_team_init(&building.team);
    bool ok = try_seeds(&building, problem);
    bag_thread_team_free(&building.team);
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

bool bag_keys_index_of_files(const struct bag_keys_source *source,
                             const struct bag_open_files *files,
                             const struct bag_load_options *options, struct bag_keys_index *index,
                             struct bag_problem *problem)
{
    struct bag_keys_source typed = *source;
    typed.is_signed = files->files[0].npy.dtype == BAG_I64;
    if (!bag_keys_index_build(&typed, options, index, problem))
        return bag_file_reject(files->files[0].path, problem);
    if (bag_open_files_check(files, problem))
        return true;
    bag_keys_index_free(index);
    return false;
}

/* Reads keys from open files, for bag_keys_index_load(). Their rows are those of the table. */
static bool read_files(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                       struct bag_problem *problem)
{
    (void)rows;
    return bag_open_files_read(context, first, count, keys, problem);
}

bool bag_keys_index_load(const struct bag_table_file *files, size_t count, size_t spare_keys,
                         const struct bag_load_options *options, struct bag_keys_index *index,
                         struct bag_problem *problem)
{
    struct bag_open_files opened;
    if (!bag_open_files_open(files, count, &opened, problem))
        return false;
    struct bag_keys_source source = {
        .read = read_files, .context = &opened, .spare_keys = spare_keys};
    for (size_t i = 0; i < count; i++)
        source.num_keys += files[i].npy.count;
    bool ok = bag_keys_index_of_files(&source, &opened, options, index, problem);
    bag_open_files_close(&opened);
    return ok;
}
