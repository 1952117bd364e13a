/* Numbers of bytes for people: "512 bytes", "1.50 MiB", "2.00 GiB". */
#ifndef BAG_TABLE_ROUNDED_BYTES_H
#define BAG_TABLE_ROUNDED_BYTES_H

#include <stddef.h>

/* Returned by value so that it can stand in an argument list: bag_rounded_bytes(n).text */
struct bag_rounded_bytes {
    char text[24];
};
struct bag_rounded_bytes bag_rounded_bytes(size_t bytes);

#endif
