/* UTF-8, one character at a time. */
#ifndef BAG_UTF8_H
#define BAG_UTF8_H

#include <stddef.h>

/* Bytes (2 to 4) of the multi-byte character that starts at `at` < `end`; 0 where it is broken, cut
 * off by `end`, overlong, a surrogate or beyond U+10FFFF, or where the byte starts none. */
size_t bag_utf8_bytes(const char *at, const char *end);

#endif
