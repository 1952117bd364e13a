/* Carries out plans: loads tables, makes models over them, publishes snapshots and releases what is
 * not needed any more.
 *
 * A plan is all or nothing. Its tables are loaded beside what serves and published together; on any
 * failure what served goes on. Everything here runs on the reconciler's thread. */
#pragma once

#include "plan.h"

/* Checks that memory suffices, releasing retained versions if it does not. Publishes that the new
 * versions are LOADING. Models with unload_first are unloaded, and their requests waited for.
 * Returns false and sets *problem: NO_MEMORY; CONFLICT if requests do not finish; DRAINING. */
bool bag_change_plan_announce(struct bag_change_plan *plan, struct bag_problem *problem);

/* Announces the plan, loads its tables and publishes the next snapshot. If nothing changes, only
 * the desired states are remembered. A version that cannot be loaded is remembered as failed, and
 * the change goes on without it if bag_plan_goes_without() says so. Returns false and sets *problem
 * to the kind of the failure. The versions that were LOADING are then UNAVAILABLE. If one version
 * could not be loaded, plan->failed is that version. */
bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem);

/* ---- loading (load.c) ------------------------------------------------------------------------ */

/* Loads the function that multiplies matrices if a model of the plan is the first one that
 * projects. Returns false and sets *problem if it cannot be loaded. */
bool bag_change_plan_load_gemm(const struct bag_change_plan *plan, struct bag_problem *problem);

/* Makes the models of all versions that are loaded and have none. Returns false and sets *problem
 * if one cannot be made; plan->failed is its version, or NULL if the function that multiplies
 * matrices could not be loaded. First makes the models of tables, then the collections over them.
 * The load status shows the progress until bag_change_plan_finish_loading(). */
bool bag_change_plan_load(struct bag_change_plan *plan, struct bag_problem *problem);

/* Ends the progress that the load status shows, and counts the change as made if `ok`. */
void bag_change_plan_finish_loading(struct bag_change_plan *plan, bool ok);

/* ---- what is shown --------------------------------------------------------------------------- */

/* Publishes why a plan could not be made, if one version is to blame. */
void bag_change_plan_show_bad(const struct bag_change_plan *plan);

/* Removes from the index of models what only a configuration names that was rejected: versions that
 * its scan found and that do not serve. models->config is the one before again. */
void bag_models_unlist_rejected(struct bag_models *models);

/* Applies the deltas of the tables that serve: of all models, or of those in `control` if it is not
 * NULL. See bag_updates_take_deltas(). Returns false and sets *problem to the first failure. */
bool bag_models_take_deltas(struct bag_models *models, const struct bag_control *control,
                            bool polls, struct bag_problem *problem);
