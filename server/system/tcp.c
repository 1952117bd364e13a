/* Reads the kernel's state of an open TCP connection; see tcp.h. This is a file of its own because
 * the kernel's header, which has more members than libc's, cannot be included together with it. */
#include "tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

bool bag_tcp_read_state(int fd, struct bag_tcp_state *state)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return false;
    *state = (struct bag_tcp_state){.received_bytes = info.tcpi_bytes_received,
                                    .received_ms = info.tcpi_last_data_recv,
                                    .sent_ms = info.tcpi_last_data_sent};
    return true;
}
