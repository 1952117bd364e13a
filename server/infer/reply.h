/* The bytes of an inference's reply: how many it can take, its JSON header, its numbers. Private to
 * server/infer. */
#ifndef BAG_REPLY_H
#define BAG_REPLY_H

#include "infer.h"

/* After the plan: sets output.bytes to the most that the reply can take; false with *problem where
 * that passes a limit. */
bool bag_reply_bound(struct bag_infer *infer, struct bag_problem *problem);

/* Takes memory for the reply, writes what comes in front of the numbers, and gives every op its
 * place. False, holding nothing of it, without memory. */
bool bag_reply_begin(struct bag_infer *infer);

/* When all is pooled: prints the numbers where JSON is wanted, and compresses the reply where that
 * is. Returns whether there was anything to do. */
bool bag_reply_end(struct bag_infer *infer);

/* Gives back what bag_reply_begin took. */
void bag_reply_drop(struct bag_infer *infer);

/* How many numbers will be printed. */
uint64_t bag_reply_count_printed(const struct bag_infer *infer);

/* How many bytes will be compressed. */
size_t bag_reply_count_packed(const struct bag_infer *infer);

#endif
