/* The hottest rows of a feature, estimated from a sample of the ids that requests look up.
 *
 * About one of BAG_HOT_ROWS_EVERY ids is sampled. The distances between samples are random, so that
 * no regular order of ids in requests can hide some of them. The samples go into a sketch of fixed
 * size, which has two tables of counts:
 *
 *   top     counts the ids that are sampled most. It is space-saving with random admission: an id
 *           that has no count replaces the one with the smallest count C of its set, with the
 *           probability 1 / (C + 1). So counts are not biased.
 *   spread  counts all samples of the ids whose hashes end with `level` zero bits. These ids are a
 *           random sample of the rows. They show how lookups are spread over the rows that are not
 *           among the hottest.
 *
 * All counts are halved from time to time, so that they follow the requests. The hash has a secret
 * seed, so that clients cannot choose ids that crowd out others.
 *
 * Each feature of a model has one. It is made with the model and starts empty. Its memory, 64 KiB,
 * is mapped for the first sample. It does not count towards max_table_bytes: a table that fits must
 * not be rejected because the table before it was queried. Any thread may call the functions.
 * Threads that add samples never wait: samples are dropped while another thread has the lock. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The mean distance of samples. */
#define BAG_HOT_ROWS_EVERY 128

/* The maximum number of rows in a report. */
#define BAG_HOT_ROWS_TOP 100

struct bag_hot_rows {
    uint64_t seed;                 /* secret seed of the hash */
    atomic_ullong sampled;         /* ids that were added so far */
    atomic_ullong missing;         /* keys that the table did not have, without sampling */
    pthread_mutex_t lock;          /* guards the member below */
    struct bag_hot_sketch *sketch; /* owned; NULL: no id was sampled */
};

/* A row and the estimated share of its lookups. */
struct bag_hot_row {
    uint64_t id; /* row number, or key */
    double share;
};

/* The state of a sketch at one moment. */
struct bag_hot_report {
    size_t hottest;       /* number of rows that are the hottest 1 % */
    double hottest_share; /* estimated share of the lookups that are of them; 0 without samples */
    size_t num_top;
    struct bag_hot_row top[BAG_HOT_ROWS_TOP]; /* hottest first */
};

/* Makes an empty one. Returns NULL without memory or random numbers. The caller frees it with
 * bag_hot_rows_free(). */
struct bag_hot_rows *bag_hot_rows_make(void);

/* Frees it. NULL is ignored. */
void bag_hot_rows_free(struct bag_hot_rows *hot);

/* Counts sampled ids. Drops them if another thread has the lock or memory is exhausted. */
void bag_hot_rows_add(struct bag_hot_rows *hot, const uint64_t *ids, size_t count);

/* Reports the hottest rows of a table with `num_rows` rows. */
void bag_hot_rows_read(struct bag_hot_rows *hot, uint64_t num_rows, struct bag_hot_report *report);

/* ---- which ids are sampled ------------------------------------------------------------------- */

/* The calling thread's sampling, over all requests and features. */
struct bag_hot_sampling {
    size_t next;     /* number of ids before the next sample */
    uint64_t random; /* state of the random distances */
};
extern _Thread_local struct bag_hot_sampling bag_hot_sampling;

/* Returns a random distance from one sample to the next, at least 1. */
size_t bag_hot_distance(void);
