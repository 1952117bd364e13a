/* What loadgen is told on its command line. */
#ifndef BENCH_LOADGEN_OPTIONS_H
#define BENCH_LOADGEN_OPTIONS_H

#include "query.h"

#define BENCH_MAX_PHASES 16

struct bench_loadgen_options {
    struct bench_query query;
    unsigned port;
    unsigned bodies; /* different ones, sent in turn */
    uint64_t seed;
    uint64_t requests; /* closed loop: no more than these */
    bool open;
    unsigned connections; /* closed loop: as many; open loop: at the most */
    size_t num_phases;
    struct {
        double rate, seconds;
    } phases[BENCH_MAX_PHASES];
    double drain_seconds; /* open loop: wait so long for the last answers */
    double normal_ms;     /* open loop: what counts as a normal answer, for recovery */
};

/* Ends the program with a message where the arguments make no sense. */
void bench_loadgen_options_read(struct bench_loadgen_options *options, int count, char **arguments);

#endif
