/* The progress of loading; see load_status.h. */
#include "load_status.h"

#include <uv.h>

void bag_load_status_report(struct bag_load_status *status)
{
    pthread_mutex_lock(&status->lock);
    status->reported = status->now;
    pthread_mutex_unlock(&status->lock);
}

void bag_load_status_read(struct bag_load_status *status, struct bag_load_view *view)
{
    *view = (struct bag_load_view){0};
    if (!status)
        return;
    pthread_mutex_lock(&status->lock);
    *view = status->reported;
    pthread_mutex_unlock(&status->lock);
    if (view->done_bytes && view->total_bytes > view->done_bytes)
        view->left_s = (double)(uv_hrtime() - view->started_ns) * 1e-9 / (double)view->done_bytes *
                       (double)(view->total_bytes - view->done_bytes);
}
