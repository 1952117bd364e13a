/* What the handlers of documents share: how models are described, and who is shown metrics.
 *
 * On the loop's thread or on a worker, while the request holds its snapshot. */
#ifndef BAG_HTTP_METADATA_H
#define BAG_HTTP_METADATA_H

#include "proto/json_writer.h"
#include "request.h"
#include "server/models/load_status.h"

/* Of a document that says so. */
extern const char bag_http_stopping[];

/* Answers with a document of what changes from one moment to the next; NULL: there was no memory.
 */
enum bag_http_outcome bag_http_answer_now(struct bag_http_request *request, int status,
                                          char *document);

/* Why a model that was loaded does not answer in full; false: it does. */
bool bag_http_find_fault(const struct bag_model *model, char *text, size_t room);

/* From the signal on, also while everything is still served. */
bool bag_http_is_stopping(const struct bag_http_request *request);

/* The state of a model, and why it is not READY. The reason may be in `text`, or the snapshot's. */
struct bag_http_model_state {
    enum bag_model_state state;
    const char *reason;
    char text[BAG_PROBLEM_TEXT_BYTES];
};

void bag_http_find_state(const struct bag_snapshot *snapshot, const struct bag_model *model,
                         bool stops, const struct bag_load_view *view,
                         struct bag_http_model_state *found);

/* Writes a model's name, version, state and reason. */
void bag_http_write_state(struct bag_json_writer *json, const struct bag_model *model,
                          const struct bag_http_model_state *found);

/* A feature of a model that is READY; borrows from it. */
struct bag_v2_feature bag_http_describe_feature(const struct bag_feature *feature);

/* Whether metrics are counted, and whether the request's listener shows them; otherwise the reply
 * is filled. */
bool bag_http_are_metrics_on(struct bag_http_request *request);
bool bag_http_are_metrics_here(struct bag_http_request *request);

#endif
