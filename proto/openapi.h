/* The description of the protocol that a client can read: proto/openapi.json, put into the program
 * by the build. */
#ifndef BAG_OPENAPI_H
#define BAG_OPENAPI_H

#include <stddef.h>

extern const char bag_openapi[]; /* ends with a NUL that bag_openapi_bytes does not count */
extern const size_t bag_openapi_bytes;

#endif
