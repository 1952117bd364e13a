/* Loading what a plan needs: tables, and models over them. Private to server/models. */
#pragma once

#include "plan.h"

/* Loads the function that multiplies matrices if a model of the plan is the first one that
 * projects. Returns false and sets *problem if it cannot be loaded. */
bool bag_change_plan_load_gemm(const struct bag_change_plan *plan, struct bag_problem *problem);

/* Makes the models of all entries that have none. Returns false and sets *problem if one cannot be
 * made; plan->failed is its entry, or NULL if the function that multiplies matrices could not be
 * loaded. First makes the models of tables, then the collections over them. The load status shows
 * the progress until bag_change_plan_finish_loading(). */
bool bag_change_plan_load(struct bag_change_plan *plan, struct bag_problem *problem);

/* Ends the progress that the load status shows, and counts the change as made if `ok`. */
void bag_change_plan_finish_loading(struct bag_change_plan *plan, bool ok);
