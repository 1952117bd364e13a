/* placeholder */
extern int bag_kernels_placeholder;
int bag_kernels_placeholder;
