/* What the handlers of documents share: how models are described, and who is shown metrics.
 *
 * On the loop's thread or on a worker, while the request holds its snapshot. */
#ifndef BAG_HTTP_METADATA_H
#define BAG_HTTP_METADATA_H

#include "request.h"
#include "server/models/load_status.h"

/* Of the progress of a version that is being loaded, or what is wrong with one that is. */
#define BAG_HTTP_REASON_BYTES BAG_PROBLEM_TEXT_BYTES

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

/* A model's state, and why it is not READY; `text` has room for a reason that is made here, which
 * the answer borrows with all else. */
struct bag_v2_index_entry bag_http_describe_state(const struct bag_snapshot *snapshot,
                                                  const struct bag_model *model, bool stops,
                                                  const struct bag_load_view *view, char *text,
                                                  size_t room);

/* A feature of a model that is READY; borrows from it. */
struct bag_v2_feature bag_http_describe_feature(const struct bag_feature *feature);

/* Whether metrics are counted, and whether the request's listener shows them; otherwise the reply
 * is filled. */
bool bag_http_are_metrics_on(struct bag_http_request *request);
bool bag_http_are_metrics_here(struct bag_http_request *request);

#endif
