/* The configured addresses of the servers that have the parts of a model's table.
 *
 * A model of shards stores its addresses in `path`, as "shards:ADDRESS ADDRESS ...". It is then
 * copied, hashed and compared as any other model, without members of its own.
 * The function bag_shards_next() reads the addresses back one by one. The threads of server/shards
 * poll them, and server/coordinator sends subrequests to them. */
#pragma once

#include "config.h"
#include "proto/http_client.h"
#include "proto/v2_shard.h"

/* Maximum number of shards, which is the maximum number of parts of a table. */
#define BAG_MAX_SHARDS 4096

/* Returns whether a model, or a table of a collection, is on shards. */
bool bag_config_uses_shards(const struct bag_config *config, const struct bag_model_config *model);

/* The address of a shard: http://HOST:PORT, which may have a path that precedes those of the
 * protocol, or unix:PATH. */
struct bag_shard_address {
    char text[512];     /* as configured, for messages */
    const char *socket; /* the path in `text`; NULL: TCP, by url */
    struct bag_url url; /* URL whose path points into `text`; for a socket, a URL of localhost */
};

/* Returns the path of a model of shards from a JSON array of strings. The caller frees it. Returns
 * NULL if memory is exhausted. */
struct cJSON;
char *bag_shards_path(const struct cJSON *addresses);

/* Returns the name that the model has on its shards. */
const char *bag_shards_model(const struct bag_model_config *model);

/* Reads the addresses of a path one by one. *at is the path before the first call. Returns false
 * after the last address. Also returns false, and sets *problem (CONFIGURATION), if an address is
 * invalid, which cannot happen after bag_shards_check. */
bool bag_shards_next(const char **at, struct bag_shard_address *address,
                     struct bag_problem *problem);

/* Checks the addresses of a model. Returns false and sets *problem if there is none, one is
 * invalid, or two are equal. */
bool bag_shards_check(const struct bag_model_config *model, struct bag_problem *problem);

/* Reads a shard's pooling rules from its reply to GET /v2/models/M/versions/V/config. Copies the
 * rules that are not set in *model into it, and the output type of *table if the model sets none.
 * Copies the rules that a shard applies to every request into *table. Returns false and sets
 * *problem, whose text follows the shard's name, if the document is invalid or the shard projects
 * rows. */
bool bag_shards_take_rules(struct bag_model_config *model, const char *text, size_t bytes,
                           struct bag_shard_table *table, struct bag_problem *problem);
