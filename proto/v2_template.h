/* JSON headers that were decoded before, and others like them.
 *
 * What a client sends in front of its binary tensors differs from one request to the next in a few
 * places at most: the numbers of "shape" and "binary_data_size", and the "id". A template is a
 * decoded header in which these are open: a header that fits is read at those places alone. */
#ifndef BAG_V2_TEMPLATE_H
#define BAG_V2_TEMPLATE_H

#include "v2_request.h"

struct bag_v2_template;

/* Decodes the body again, into memory of the template's own. NULL where it cannot be one: a tensor
 * is JSON or BYTES, there is something to warn of, something is written with a backslash or a
 * fraction, it takes too much memory, or bag_v2_request_decode rejects the body. */
struct bag_v2_template *bag_v2_template_make(const char *body, size_t body_bytes,
                                             size_t header_bytes);

/* What bag_v2_request_decode makes of a body (arguments as there), valid until the next call; NULL
 * where the header does not fit, or would be rejected. */
const struct bag_v2_request *bag_v2_template_match(struct bag_v2_template *template,
                                                   const char *body, size_t body_bytes,
                                                   size_t header_bytes);

/* NULL is ignored. */
void bag_v2_template_free(struct bag_v2_template *template);

#endif
