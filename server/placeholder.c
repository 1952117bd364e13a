/* placeholder */
extern int bag_server_placeholder;
int bag_server_placeholder;
