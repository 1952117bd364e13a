/* Percent-encoding; see url.h. */
#include "url.h"

#include "hex.h"

bool bag_url_decode(const char *segment, size_t count, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        int byte = (unsigned char)segment[i];
        if (byte == '%') {
            if (count - i < 3)
                return false;
            int high = bag_hex_digit(segment[i + 1]), low = bag_hex_digit(segment[i + 2]);
            byte = high < 0 || low < 0 ? 0 : high * 16 + low;
            i += 2;
        }
        if (byte == 0 || used + 1 >= out_bytes)
            return false;
        out[used++] = (char)byte;
    }
    out[used] = 0;
    return true;
}
