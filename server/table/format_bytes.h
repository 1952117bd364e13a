/* Numbers of bytes for people: "512 bytes", "1.50 MiB", "2.00 GiB". */
#ifndef BAG_TABLE_FORMAT_BYTES_H
#define BAG_TABLE_FORMAT_BYTES_H

#include <stddef.h>

/* Returned by value so that it can stand in an argument list: bag_format_bytes(n).text */
struct bag_format_bytes {
    char text[24];
};
struct bag_format_bytes bag_format_bytes(size_t bytes);

#endif
