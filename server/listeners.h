/* The sockets that the options ask for: the first one, and the one for admin. */
#ifndef BAG_LISTENERS_H
#define BAG_LISTENERS_H

#include "config/config.h"
#include "http/listen.h"

struct bag_listeners {
    struct bag_listener first, admin;
    bool has_admin;
};

/* Opens them; what systemd passes is taken in their place. Nothing is left open on failure, but for
 * what was passed. To be called before there are threads. */
bool bag_listeners_open(struct bag_listeners *listeners, const struct bag_option_values *options,
                        struct bag_problem *problem);

/* Logs where clients find the server. */
void bag_listeners_log(const struct bag_listeners *listeners,
                       const struct bag_option_values *options);

/* Closes these descriptors; others that share the sockets go on. */
void bag_listeners_close(struct bag_listeners *listeners);

/* Removes what would be left behind where the process ends without a drain. */
void bag_listeners_abandon(const struct bag_listeners *listeners);

#endif
