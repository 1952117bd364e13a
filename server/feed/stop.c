/* The signals that end the feed. */
#include "feed.h"

volatile sig_atomic_t bag_feed_stopping;

static void on_signal(int number)
{
    (void)number;
    bag_feed_stopping = 1;
}

void bag_feed_handle_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}
