/* Definitions that the handlers of documents share: descriptions of models, and access to metrics.
 *
 * The functions run on the loop's thread or on a worker, while the request holds its snapshot. */
#pragma once

#include "proto/json_writer.h"
#include "request.h"
#include "routes.h"
#include "server/models/load_status.h"

/* The text that a stopping server puts into documents. */
extern const char bag_http_stopping[];

/* Answers with a document that must not be cached. NULL: there was not enough memory for it. */
enum bag_http_outcome bag_http_answer_now(struct bag_http_request *request, char *document);

/* Sets `text` to the reason why a loaded model does not answer completely. Returns false if it
 * does. */
bool bag_http_find_fault(const struct bag_model *model, char *text, size_t room);

/* Returns whether a signal has asked the server to stop, even if it still serves everything. */
bool bag_http_is_stopping(const struct bag_http_request *request);

/* The state of a model, and why it is not READY. The reason may be in `text`, or the snapshot's. */
struct bag_http_model_state {
    enum bag_model_state state;
    const char *reason;
    char text[BAG_PROBLEM_TEXT_BYTES];
};

/* Finds the state of a model and the reason for it. `stops`: the server is stopping, so that every
 * model is UNLOADING. `view` is the progress of the change that loads tables now. */
void bag_http_find_state(const struct bag_listed *listed, bool stops,
                         const struct bag_load_view *view, struct bag_http_model_state *found);

/* Writes a model's name, version, state and reason. */
void bag_http_write_state(struct bag_json_writer *json, const struct bag_model *model,
                          const struct bag_http_model_state *found);

/* Returns the memory whose dimensions after the first are those of the output's rows: that of the
 * table, or of the matrix of a projection. */
static inline const struct bag_table_memory *bag_http_shape_of(const struct bag_feature *feature)
{
    return feature->projection ? &feature->projection->matrix : feature->memory;
}

/* The versions of a model as its documents show them. */
struct bag_http_versions {
    const char *const *ready; /* borrowed */
    size_t num_ready;
    struct bag_version_policy policy; /* the versions on disk that are served */
};

/* Returns the document of GET /v2/models/M. A table's model lists the inputs of its shown form and
 * its output. A collection lists the inputs of KeyedJaggedTensor's layout with lengths; its outputs
 * are the features and, if they have one type, their concatenation. A dimension of any size is -1.
 * The parameters describe the tables. The model is READY. The caller frees the document, which is
 * NULL if there is not enough memory. */
char *bag_http_describe_model(const struct bag_model *model,
                              const struct bag_http_versions *versions);

/* Returns the document of GET /v2/models/M/config: the same facts under the names of Triton's
 * ModelConfig, and the pooling rules as parameters. */
char *bag_http_describe_config(const struct bag_model *model,
                               const struct bag_http_versions *versions);

/* Return whether metrics are counted, and whether the request's listener shows them. Otherwise fill
 * in the error reply. */
bool bag_http_are_metrics_on(struct bag_http_request *request);
bool bag_http_are_metrics_here(struct bag_http_request *request);
