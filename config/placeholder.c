/* placeholder */
extern int bag_config_placeholder;
int bag_config_placeholder;
