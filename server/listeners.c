/* Sockets from options; see listeners.h. */
#include "listeners.h"

#include "isa.h"
#include "log.h"
#include "systemd.h"
#include "unix_socket.h"

static bool open_first(struct bag_listener *listener, const struct bag_option_values *options,
                       int passed_fd, struct bag_problem *problem)
{
    mode_t mode;
    if (!bag_unix_mode_parse(options->unix_permissions, &mode, problem))
        return false;
    if (passed_fd >= 0) {
        bag_listener_take(listener, passed_fd);
        return true;
    }
    return options->unix_path
               ? bag_listener_open_unix(listener, options->unix_path, mode, problem)
               : bag_listener_open(listener, options->host, options->port, "--port", problem);
}

static const char *admin_host(const struct bag_option_values *options)
{
    return options->admin_host ? options->admin_host : options->host;
}

static bool open_admin(struct bag_listeners *listeners, const struct bag_option_values *options,
                       int passed_fd, struct bag_problem *problem)
{
    listeners->has_admin = passed_fd >= 0 || options->admin_port != 0;
    if (passed_fd >= 0)
        bag_listener_take(&listeners->admin, passed_fd);
    return passed_fd >= 0 || !listeners->has_admin ||
           bag_listener_open(&listeners->admin, admin_host(options), options->admin_port,
                             "--admin-port", problem);
}

bool bag_listeners_open(struct bag_listeners *listeners, const struct bag_option_values *options,
                        struct bag_problem *problem)
{
    struct bag_systemd_sockets passed;
    if (!bag_systemd_take_sockets(&passed, problem) ||
        !open_first(&listeners->first, options, passed.first, problem))
        return false;
    if (open_admin(listeners, options, passed.admin, problem))
        return true;
    bag_listener_reject(&listeners->first);
    bag_listener_close(&listeners->first);
    return false;
}

/* Where a listener is found, if it is TCP's at that host. */
static const char *place_of(const struct bag_listener *listener, const char *host)
{
    return listener->kind == BAG_LISTENER_TCP    ? host
           : listener->kind == BAG_LISTENER_UNIX ? listener->path
                                                 : "passed by systemd";
}

void bag_listeners_log(const struct bag_listeners *listeners,
                       const struct bag_option_values *options)
{
    const struct bag_listener *first = &listeners->first, *admin = &listeners->admin;
    bag_log(BAG_LOG_LEVEL_INFO, "listening", BAG_LOG_TEXT("host", place_of(first, options->host)),
            BAG_LOG_NUMBER("port", first->port), BAG_LOG_TEXT("version", BAG_VERSION),
            BAG_LOG_TEXT("isa", bag_isa_names[bag_isa_used()]));
    if (listeners->has_admin)
        bag_log(BAG_LOG_LEVEL_INFO, "listening for admin",
                BAG_LOG_TEXT("host", place_of(admin, admin_host(options))),
                BAG_LOG_NUMBER("port", admin->port));
}

void bag_listeners_close(struct bag_listeners *listeners)
{
    bag_listener_close(&listeners->first);
    if (listeners->has_admin)
        bag_listener_close(&listeners->admin);
}

void bag_listeners_abandon(const struct bag_listeners *listeners)
{
    if (listeners->first.kind == BAG_LISTENER_UNIX)
        bag_listener_reject(&listeners->first);
}
