/* Tables whose rows change while requests read them.
 *
 * A request sees all rows of a batch or none of them. A reader holds the table's lock from the
 * first key that it looks up to the last row that it pools. A batch is applied while the lock is
 * held for writing. A request over several tables holds all their locks at once, so it sees one
 * state of each. A job that is split over workers takes the lock once, for all of them. A loop
 * never waits for a lock: if it cannot have it at once, a worker takes the job.
 *
 * Readers share the lock by one atomic compare-and-exchange. A writer first lets readers pass for
 * up to 5 ms, because a long request before it would otherwise hold up all short ones. Then it
 * keeps new ones out until the earlier ones have gone; those that waited meanwhile go before the
 * next writer. A table has one writer at a time. Tables without updates have no lock, and their
 * models' num_live is 0. */
#pragma once

#include "rows_batch.h"
#include "server/system/monitor.h"

#include <stdatomic.h>
#include <sys/queue.h>

struct bag_updates_stream;

/* The lock and the free rows of one table, and its place in a stream of updates. */
struct bag_live_rows {
    /* The lock: the number of readers, and the bits of a writer (see live_rows.c). */
    _Alignas(64) atomic_uint state;
    struct bag_monitor monitor; /* guards the lock's members below */
    unsigned waiting;           /* readers that wait */
    unsigned admitted;          /* number of these that go before the next writer */

    /* Used by the writer only. */
    struct bag_table_memory *memory; /* borrowed */
    int64_t next_spare, end_spare;   /* rows that never had a key */
    int64_t *freed;                  /* owned; rows whose keys were removed */
    size_t num_freed, freed_room;
    int64_t *found; /* owned; rows of a batch's keys while it is applied */
    size_t found_room;
    int64_t kept_rows; /* this many rows from the first are not given to other keys: they stand in
                          for missing keys */
    int64_t first_reused; /* the first row that was given to another key, at least kept_rows;
                             INT64_MAX: none was */

    /* Used by the stream, see server/updates/updates.h. */
    SLIST_HEAD(, bag_live_reader) readers;
    struct bag_updates_stream *stream;
    void (*detach)(struct bag_live_rows *live); /* gives the table up, and frees this */
    SLIST_ENTRY(bag_live_rows) next;
    uint64_t version;          /* version of its model */
    bool fell_behind;          /* an update could not be applied: it gets no more */
    const char *closed_by;     /* reason why the rows take no more updates; NULL: open */
    _Atomic uint64_t through;  /* the last update that it has; may be read at any time */
    uint64_t snapshot_through; /* the last update that it had when it was loaded */

    /* Set by the writer of a keyed table; may be read at any time. */
    _Atomic int64_t num_keys;
    _Atomic int64_t num_spare; /* rows that new keys can have */
};

/* A reader of a live table's rows: a model of it, or a feature of a collection. While it is
 * entered, its default key cannot be removed, and rows that stand in for missing keys are not given
 * to other keys. All members but `live` and `next` are borrowed and set by the owner. */
struct bag_live_reader {
    const char *model, *feature; /* for messages; feature is NULL for the model of the table */
    const struct bag_rules *rules;
    struct bag_live_rows *live; /* NULL: it is not entered */
    SLIST_ENTRY(bag_live_reader) next;
};

/* Returns how many rows of a keyed table stand in for missing keys by these rules. */
int64_t bag_live_rows_kept_by(const struct bag_rules *rules);

/* Makes a table's rows live: sets memory->live. The spare rows of a keyed table are for new keys;
 * its first kept_rows rows are not given to other keys. From then on the table's num_rows counts
 * the spare rows, too, because any of them may get a key. Returns false without memory. */
bool bag_live_rows_make(struct bag_table_memory *memory, int64_t kept_rows);

/* Makes the first `kept_rows` rows stand in for missing keys: from now on they are not given to
 * other keys. Returns false if one of them was given to another key already. */
bool bag_live_rows_keep(struct bag_live_rows *live, int64_t kept_rows);

/* Frees memory->live, which no thread may use any more. NULL is ignored. */
void bag_live_rows_free(struct bag_live_rows *live);

/* ---- readers --------------------------------------------------------------------------------- */

/* Locks `count` tables for reading, each once and in the order of their addresses. Returns false at
 * once if it would have to wait. Any thread may unlock what another has locked. */
bool bag_live_rows_try_read(struct bag_live_rows *const *live, size_t count);

/* Locks them as bag_live_rows_try_read does, and waits. */
void bag_live_rows_read(struct bag_live_rows *const *live, size_t count);

/* Unlocks tables that were locked for reading. */
void bag_live_rows_read_end(struct bag_live_rows *const *live, size_t count);

/* ---- the writer ------------------------------------------------------------------------------ */

/* Leaves out keys of other parts (bag_rows_batch_decide), checks that the batch can be applied, and
 * reserves memory for that. All earlier updates that change keys were applied. Sets *changes_keys
 * if it adds or removes keys. Returns false and sets *problem if an id is wrong
 * (BAG_ERROR_BAD_REQUEST), there is no room for new keys (BAG_ERROR_TABLE_FULL), or without memory
 * (BAG_ERROR_NO_MEMORY). */
bool bag_live_rows_check(struct bag_live_rows *live, struct bag_rows_batch *batch,
                         bool *changes_keys, struct bag_problem *problem);

/* Returns false and sets *problem (BAG_ERROR_BAD_REQUEST) if a reader needs a key that the batch
 * removes. */
bool bag_live_rows_check_readers(const struct bag_live_rows *live,
                                 const struct bag_rows_batch *batch, struct bag_problem *problem);

/* Applies a batch that was checked, with this table or with another version of it, completely or
 * not at all. Keys to be removed that are not there are ignored. Returns false and sets *problem if
 * the batch cannot be applied:
 *
 *   FILE         a row is outside a dense table
 *   STORAGE      there is no room for new keys
 *   BAD_REQUEST  likewise, and the table never had any room
 *   INTERNAL     the index has no place for a new key
 *   NO_MEMORY    there is not enough memory */
bool bag_live_rows_apply(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                         struct bag_problem *problem);

/* ---- size ------------------------------------------------------------------------------------ */

/* Returns the number of rows of a table, without spare ones: of a live keyed table the keys that it
 * has now. Any thread may ask. */
int64_t bag_table_rows_now(const struct bag_table_memory *memory);

/* Returns how many rows new keys can have now; 0 for dense tables. Any thread may ask. */
int64_t bag_table_spare_rows_now(const struct bag_table_memory *memory);
