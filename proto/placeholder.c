/* placeholder */
extern int bag_proto_placeholder;
int bag_proto_placeholder;
