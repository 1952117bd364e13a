/* A loaded table whose rows change while requests read it.
 *
 * A request sees all of a batch of rows or none of it, because who reads keys or rows holds the
 * table's lock for reading from the first key that it looks up to the last row that it pools, and a
 * batch is applied with the lock held for writing. Requests over several tables hold all their
 * locks at once: they see one state of each. A job that is split over workers takes the lock once,
 * for all of them. A loop never waits for a lock: where it cannot have it at once, a worker takes
 * the job.
 *
 * Readers share the lock by one atomic addition. A writer lets readers pass for a while, and then
 * keeps new ones out until those before have gone; those that waited for it go before the next
 * writer. There is one writer of a table at a time. Tables without updates have no lock, and their
 * models' num_live is 0. */
#ifndef BAG_TABLES_LIVE_ROWS_H
#define BAG_TABLES_LIVE_ROWS_H

#include "load.h"
#include "proto/arena.h"
#include "proto/v2_documents.h"

#include <pthread.h>
#include <stdatomic.h>

struct bag_updates_stream;

/* Rows to be put in, or keys to be taken out. All is borrowed. */
struct bag_rows_batch {
    bool deletes;
    size_t count;
    const uint64_t *ids; /* row numbers or keys; none is there twice */
    bool may_be_gone;    /* keys that it deletes may have been deleted before */
    const char *rows; /* count of them as the table stores them, at any alignment; NULL: deletes */
    size_t left_out;  /* ids that came with them, of other parts of the table */
    const size_t *positions; /* where each id was among all that came; NULL: where it is */
};

/* Makes a batch for a table of tensors that came from outside: `ids` are its indices or keys,
 * `rows` (NULL: it deletes) are FP32, or as the table stores them (UINT8 where it is quantised). Of
 * a part of a table they are those of the whole one: ids of other parts are left out, and rows cut.
 * False with *problem (BAD_REQUEST) where they do not fit, or an id is there twice; `merged`: then
 * the last place counts. */
bool bag_rows_batch_make(const struct bag_table_memory *memory, const struct bag_tensor *ids,
                         const struct bag_tensor *rows, bool merged, struct bag_arena *arena,
                         struct bag_rows_batch *batch, struct bag_problem *problem);

/* Whether rows as table `a` stores them are stored by `b` as they are. */
bool bag_live_rows_same(const struct bag_table *a, const struct bag_table *b);

/* Whether they can be converted: both stand for as many floats, and `from` for none beyond 32 bits.
 */
bool bag_live_rows_converts(const struct bag_table *from, const struct bag_table *to);

/* Rows as one table stores them, as another one does. False where a value does not fit: *position
 * says in which row. */
bool bag_live_rows_convert(const struct bag_table *from, const void *rows, size_t count,
                           const struct bag_table *to, void *out, size_t *position);

struct bag_live_rows {
    /* Of the lock: readers, and the bits of a writer (see live_rows.c). */
    _Alignas(64) atomic_uint state;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    unsigned waiting;  /* readers that wait */
    unsigned admitted; /* of them, that go before the next writer */

    /* The writer's. */
    struct bag_table_memory *memory; /* borrowed */
    int64_t next_spare, end_spare;   /* rows that no key ever had */
    int64_t *freed;                  /* owned; rows whose keys were removed */
    size_t num_freed, freed_room;
    int64_t *found; /* owned; rows of the keys of a batch, while it is applied */
    size_t found_room;
    int64_t kept_rows;    /* the first so many are not given to other keys: they stand in for keys
                             that are missing */
    int64_t first_reused; /* the first row that was given to another key; kept_rows is at most it */

    /* The stream's, see server/updates/updates.h. */
    struct bag_live_reader *readers;
    struct bag_updates_stream *stream;
    void (*detach)(struct bag_live_rows *live); /* gives the table up, and frees this */
    struct bag_live_rows *next;
    uint64_t version;          /* of its model */
    bool fell_behind;          /* an update could not be applied: it gets no more */
    bool is_closed;            /* no update may be asked of it */
    _Atomic uint64_t through;  /* the last update that it has; may be read at any time */
    uint64_t snapshot_through; /* the last one that it had when it was loaded */
};

/* Who pools a live table's rows: a model of it, or a feature of a collection. While it is entered,
 * its default key is not removed, and rows that stand in for missing keys are not given to others,
 * whoever asks. All but `live` and `next` is borrowed, and set by the owner. */
struct bag_live_reader {
    const char *model, *feature; /* for messages; feature is NULL of the table's own model */
    const struct bag_rules *rules;
    struct bag_live_rows *live; /* NULL: it is not entered */
    struct bag_live_reader *next;
};

/* How many rows of a keyed table stand in for missing keys by these rules. */
int64_t bag_live_rows_kept_by(const struct bag_rules *rules);

/* Makes a table's rows live: memory->live. Of a keyed table memory->spare_rows rows behind the
 * table's own are there for new keys, and the first kept_rows are not given to other keys. False
 * without memory. */
bool bag_live_rows_make(struct bag_table_memory *memory, int64_t kept_rows);

/* Keeps the first rows from now on. False where one of them was given to another key. */
bool bag_live_rows_keep(struct bag_live_rows *live, int64_t kept_rows);

/* Frees memory->live, which nobody uses any more; NULL is ignored. */
void bag_live_rows_free(struct bag_live_rows *live);

/* ---- readers --------------------------------------------------------------------------------- */

/* Locks `count` tables, each once and in the order of their addresses. The first never waits, and
 * is false where it would have to. Any thread may unlock what another has locked. */
bool bag_live_rows_try_read(struct bag_live_rows *const *live, size_t count);
void bag_live_rows_read(struct bag_live_rows *const *live, size_t count);
void bag_live_rows_read_end(struct bag_live_rows *const *live, size_t count);

/* ---- the writer ------------------------------------------------------------------------------ */

/* Whether the batch can be applied; otherwise *problem says which id is wrong (BAD_REQUEST), or
 * that there is no room for new keys (STORAGE). *changes_keys says whether it adds or removes some.
 * Makes room for what applying it needs. */
bool bag_live_rows_check(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                         bool *changes_keys, struct bag_problem *problem);

/* Whether no reader of the table needs a key that the batch deletes. */
bool bag_live_rows_check_readers(const struct bag_live_rows *live,
                                 const struct bag_rows_batch *batch, struct bag_problem *problem);

/* Applies a batch that was checked, with this table or another one. Keys to be removed that it does
 * not have are left out. All or nothing; false with *problem where a row is outside of a dense
 * table, or there is no room for new keys. */
bool bag_live_rows_apply(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                         struct bag_problem *problem);

/* Rows that new keys can have; 0 of dense tables. */
size_t bag_live_rows_spare(const struct bag_live_rows *live);

#endif
