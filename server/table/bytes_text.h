/* Numbers of bytes for people: "512 bytes", "1.50 MiB", "2.00 GiB". */
#ifndef BAG_TABLE_BYTES_TEXT_H
#define BAG_TABLE_BYTES_TEXT_H

#include <stddef.h>

/* Returned by value so that it can stand in an argument list: bag_bytes_text(n).text */
struct bag_bytes_text {
    char text[24];
};
struct bag_bytes_text bag_bytes_text(size_t bytes);

#endif
