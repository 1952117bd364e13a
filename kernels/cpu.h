/* What the processor can do. */
#ifndef BAG_CPU_H
#define BAG_CPU_H

/* One bit per enum bag_isa: those whose instructions the processor has and whose registers the
 * operating system saves. */
unsigned bag_cpu_isas(void);

#endif
