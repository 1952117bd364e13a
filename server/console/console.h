/* The files of the page at /console, which the build puts into the program: those of this folder,
 * and Chart.js with its licence as Debian has them. */
#pragma once

#include "proto/embedded.h"

extern const struct bag_embedded bag_console_parts[];
extern const struct bag_embedded bag_chart_js[];
