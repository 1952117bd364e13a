/* Sends results as a server would have to: a thread writes them to a socket of the loopback
 * interface, and a process of its own reads them. For bench_inprocess. */
#ifndef BENCH_SEND_H
#define BENCH_SEND_H

#include <stddef.h>

/* Results that are on their way at once: as many as a client with that many connections asks for,
 * and the one that is pooled. */
#define BENCH_SEND_BUFFERS 5

struct bench_send;

/* Starts the thread and the reader, both on processor `cpu`. Ends the process where it cannot. */
struct bench_send *bench_send_start(int cpu, size_t result_bytes);

/* The buffer for the next result; waits for one that has been sent. */
void *bench_send_buffer(struct bench_send *send);

/* Hands the buffer over that was got last. */
void bench_send_result(struct bench_send *send);

/* Waits until all is read, and ends the thread and the reader. */
void bench_send_end(struct bench_send *send);

#endif
