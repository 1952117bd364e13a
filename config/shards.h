/* The addresses of servers that have the parts of a model's table, as they are configured. */
#ifndef BAG_CONFIG_SHARDS_H
#define BAG_CONFIG_SHARDS_H

#include "config.h"
#include "proto/http_client.h"
#include "proto/v2_shard.h"

/* What the path of a model of shards begins with; addresses follow, with blanks between them. */
#define BAG_SHARDS_PREFIX "shards:"

/* No more than a table may have parts. */
#define BAG_MAX_SHARDS 4096

/* Whether it is a model of shards. */
bool bag_model_is_front(const struct bag_model_config *model);

/* One of them: http://HOST:PORT, with a path in front of the protocol's where there is one, or
 * unix:PATH. */
struct bag_shard_address {
    char text[512];     /* as it is written, for messages */
    const char *socket; /* the path in `text`; NULL: TCP, by url */
    struct bag_url url; /* its path is in `text`; of a socket it is localhost's */
};

/* A path of an array of texts, on the heap; NULL without memory. */
struct cJSON;
char *bag_shards_path(const struct cJSON *addresses);

/* The name on the shards. */
const char *bag_shards_model(const struct bag_model_config *model);

/* Reads the next address of a path; *at is the path before the first one. False behind the last,
 * and with *problem (CONFIGURATION) set where one is none, which bag_shards_check finds. */
bool bag_shards_next(const char **at, struct bag_shard_address *address,
                     struct bag_problem *problem);

/* Whether a model's addresses are some, no two the same. */
bool bag_shards_check(const struct bag_model_config *model, struct bag_problem *problem);

/* Takes the rules by which a shard pools, of GET /v2/models/M/versions/V/config and the type of its
 * output, into a model, but for those that are set there; and into the table those that the shard
 * goes by in any case. False with *problem, which begins behind the shard's name, where the
 * document is none, or rows are projected on the shard. */
bool bag_shards_take_rules(struct bag_model_config *model, const char *text, size_t bytes,
                           struct bag_shard_table *table, struct bag_problem *problem);

#endif
