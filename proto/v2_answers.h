/* What a program that calls a server reads in its answers. They may be anything: whatever is not
 * understood counts as absent. */
#ifndef BAG_V2_ANSWERS_H
#define BAG_V2_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The whole number `name` of a JSON object, or of the object `within` inside it where that is not
 * NULL: from 0 to 2^53. False where there is none. */
bool bag_v2_answer_number(const char *text, size_t bytes, const char *within, const char *name,
                          uint64_t *number);

/* The sentence of an error, {"error": "..."}, cut to `room` with its NUL: printable characters
 * alone, others become '?'. Where there is no such sentence it is the text's own beginning. */
void bag_v2_answer_error(const char *text, size_t bytes, char *sentence, size_t room);

#endif
