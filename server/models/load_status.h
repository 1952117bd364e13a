/* The progress of loading, for metrics, the index of models and the console.
 *
 * The reconciler's thread changes `now` and reports it; any thread reads the last report. */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* The progress, as other threads see it. */
struct bag_load_view {
    char name[129];      /* model whose table is being read; empty: none */
    char version[21];    /* version of that model */
    size_t done_bytes;   /* bytes read of all tables of the change */
    size_t total_bytes;  /* bytes of all tables of the change; 0: nothing is being loaded */
    uint64_t num_done;   /* changes that published a new snapshot */
    uint64_t num_failed; /* changes that failed, and versions that cannot be loaded */
    uint64_t
        done_at_ms; /* time at which a model last began or ceased to serve, since 1970; 0: none */
    size_t num_retained;   /* retained versions */
    size_t retained_bytes; /* memory of their tables */
    uint64_t started_ns;   /* start of loading, by CLOCK_MONOTONIC */
    double left_s;         /* estimated remaining time; 0: unknown */
};

struct bag_load_status {
    struct bag_load_view now; /* the reconciler's; see bag_load_status_report() */
    pthread_mutex_t lock;     /* guards `reported` */
    struct bag_load_view reported;
};

/* Makes `now` visible to other threads. */
void bag_load_status_report(struct bag_load_status *status);

/* Copies the last report to *view, with an estimate of the remaining time. All members become 0 if
 * `status` is NULL. */
void bag_load_status_read(struct bag_load_status *status, struct bag_load_view *view);
