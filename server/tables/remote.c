/* Tables whose parts other servers have; see remote.h. */
#include "remote.h"

#include <stdlib.h>

void bag_remote_free(struct bag_remote *remote)
{
    if (!remote)
        return;
    if (remote->drop_group)
        remote->drop_group(remote->group);
    free(remote->model);
    free(remote->version);
    free(remote->addresses);
    free(remote);
}
