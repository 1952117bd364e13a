/* Limits of an inference request's JSON header.
 *
 * They are checked while the text is scanned, before any tree is built, so that a header takes
 * memory for what it may hold and not for what was sent. */
#ifndef BAG_JSON_LIMITS_H
#define BAG_JSON_LIMITS_H

#include <stddef.h>

struct bag_json_limits {
    size_t max_tensors;    /* elements of "inputs", and of "outputs" */
    size_t max_dimensions; /* elements of an input's "shape" */
    size_t max_parameters; /* members of each "parameters" */
    size_t max_values;     /* in the tree, each "data" counted as one */
    size_t max_bytes;      /* of the text outside of "data" */
    unsigned max_depth;    /* of arrays and objects, outside of "data" */
};

/* The defaults: a thousand features of three tensors fit, with 256 bytes for each input and output.
 * The tree takes at most 12 MB: up to 144 bytes for each value, and the texts of 2 MB. */
#define BAG_JSON_MAX_TENSORS    4096
#define BAG_JSON_MAX_PARAMETERS 128
#define BAG_JSON_MAX_VALUES     65536
#define BAG_JSON_MAX_BYTES      (2 << 20)
#define BAG_JSON_MAX_DEPTH      128
extern const struct bag_json_limits bag_json_default_limits;

#endif
