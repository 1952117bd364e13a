/* The GET handlers of figures: /metrics and statistics. */
#include "routes.h"
#include "server/metrics/expose.h"

#include <stdlib.h>

/* While tables load, the registry is the loader's. */
static size_t num_models(const struct bag_service *service)
{
    return service->state == BAG_SERVICE_LOADING ? 0 : service->registry.count;
}

/* Whether there are figures; otherwise the reply says why not. */
static bool are_on(const struct bag_service *service, struct bag_http_reply *reply)
{
    if (!service->metrics.on)
        bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND, "metrics are switched off (metrics)");
    return service->metrics.on;
}

void bag_http_get_metrics(const struct bag_service *service, const struct bag_http_target *target,
                          struct bag_http_reply *reply)
{
    (void)target;
    if (!are_on(service, reply))
        return;
    char *text = bag_expose_prometheus(&service->metrics, num_models(service), BAG_VERSION);
    bag_http_reply_json(reply, 200, text);
    reply->prometheus = text != NULL;
}

/* The statistics of models that stand side by side in the registry. */
static void reply_statistics(const struct bag_service *service, const struct bag_model *models,
                             size_t count, struct bag_http_reply *reply)
{
    struct bag_v2_statistics *statistics = malloc((count + 1) * sizeof *statistics);
    for (size_t i = 0; statistics && i < count; i++)
        bag_expose_statistics(&service->metrics, &models[i], &statistics[i]);
    bag_http_reply_json(reply, 200,
                        statistics ? bag_v2_describe_statistics(statistics, count) : NULL);
    free(statistics);
}

void bag_http_get_all_statistics(const struct bag_service *service,
                                 const struct bag_http_target *target, struct bag_http_reply *reply)
{
    (void)target;
    if (are_on(service, reply))
        reply_statistics(service, service->registry.models, num_models(service), reply);
}

/* All versions of a model, or the one that the path names. */
void bag_http_get_statistics(const struct bag_service *service,
                             const struct bag_http_target *target, struct bag_http_reply *reply)
{
    const struct bag_model *model;
    size_t count = 1;
    if (!are_on(service, reply) || !(model = bag_http_find_model(service, target, reply)))
        return;
    if (!*target->version)
        model = bag_registry_versions(&service->registry, model->name, &count);
    reply_statistics(service, model, count, reply);
}
