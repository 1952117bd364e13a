/* Percent-encoding in request paths (RFC 3986). Must not know: routes. */
#ifndef BAG_URL_H
#define BAG_URL_H

#include <stdbool.h>
#include <stddef.h>

/* Decodes `count` bytes of a path segment into `out`, which has room for `out_bytes` with the NUL
 * that ends it. False where a '%' is not followed by two hexadecimal digits, where a NUL byte would
 * come out, or where there is too little room. */
bool bag_url_decode(const char *segment, size_t count, char *out, size_t out_bytes);

#endif
