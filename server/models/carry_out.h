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

/* Announces the plan, unless that has been done, loads its tables and publishes the next snapshot.
 * If nothing changes, only the desired states are remembered. Returns false and sets *problem to
 * the kind of the failure. The versions that were LOADING are then UNAVAILABLE. If one entry
 * could not be loaded, plan->failed is that entry. */
bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem);

/* Decides whether the change is planned again without the version that made
 * bag_change_plan_carry_out() fail, see bag_plan_goes_without(). If so, remembers the failure, and
 * retains the tables that were loaded for the next plan. */
bool bag_change_plan_may_go_without(const struct bag_change_plan *plan,
                                    const struct bag_problem *why);

/* ---- loading (load.c) ------------------------------------------------------------------------ */

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

/* ---- what is shown --------------------------------------------------------------------------- */

/* Publishes the error of the last plan that could not be made, if one version is to blame. */
void bag_models_show_error(struct bag_models *models);

/* Applies the deltas of the tables that serve: of all models, or of those in `control` if it is not
 * NULL. See bag_updates_take_deltas(). Returns false and sets *problem to the first failure. */
bool bag_models_take_deltas(struct bag_models *models, const struct bag_control *control,
                            bool polls, struct bag_problem *problem);
