/* Definitions that the program's commands share: exit codes, the configuration, the instruction set
 * and OpenBLAS. */
#pragma once

#include "config/config.h"
#include "kernels/isa.h"
#include "kernels/project.h"
#include "proto/problem.h"

/* NO_VERDICT: `bench` measured, but a sweep found no highest rate. */
enum { BAG_EXIT_OK = 0, BAG_EXIT_FAILED = 1, BAG_EXIT_USAGE = 2, BAG_EXIT_NO_VERDICT = 3 };

/* Returns the exit code of a command other than `serve` after that error: BAG_EXIT_USAGE if the
 * command line, the configuration or a file is wrong. `serve` ends with BAG_EXIT_USAGE only if its
 * command line is wrong (BAG_ERROR_USAGE). */
static inline int bag_commands_exit_code(enum bag_error kind)
{
    bool is_usage =
        kind == BAG_ERROR_USAGE || kind == BAG_ERROR_CONFIGURATION || kind == BAG_ERROR_FILE;
    return is_usage ? BAG_EXIT_USAGE : BAG_EXIT_FAILED;
}

/* Run a command with the arguments after its name. Return an exit code. */
int bag_cmd_serve(int argc, char *argv[]);
int bag_cmd_convert(int argc, char *argv[]);
int bag_cmd_inspect(int argc, char *argv[]);
int bag_cmd_verify(int argc, char *argv[]);
int bag_cmd_bench(int argc, char *argv[]);
int bag_cmd_version(int argc, char *argv[]);

/* ---- the configuration ----------------------------------------------------------------------- */

/* The sources of the configuration: files, environment, flags, and the demo. */

/* Fills the configuration from the file that the arguments or the environment name, then from the
 * environment and the arguments. Returns false and sets *problem if any of them is wrong. The
 * caller must call bag_config_free in either case. */
bool bag_configure(struct bag_config *config, int argc, char *argv[], struct bag_problem *problem);

/* Returns whether one of the arguments is `flag`. */
bool bag_arguments_have(int argc, char *argv[], const char *flag);

/* Returns whether one of the arguments is --help or -h. */
bool bag_arguments_ask_help(int argc, char *argv[]);

/* Fills the configuration of a server as bag_configure does. Adds the models of `--demo`. If the
 * options do not set the number of loops and workers, chooses them for this machine. */
bool bag_configure_serve(struct bag_config *config, int argc, char *argv[],
                         struct bag_problem *problem);

/* ---- what computes --------------------------------------------------------------------------- */

/* The instruction set of the kernels, and OpenBLAS for projections. */

/* Selects the kernels of this name, or the best ones for the processor if `name` is NULL. Returns
 * false and sets *problem, which lists the usable names, if the name is unknown or the processor
 * does not support it. Must be called before threads start. */
bool bag_isa_choose(const char *name, struct bag_problem *problem);

/* Sets environment variables for OpenBLAS: one thread, and the processor's instruction set, which
 * an old version may not recognise. Existing variables are kept. Must be called before threads
 * start. */
void bag_blas_prepare(void);

/* Loads OpenBLAS once. Returns NULL and sets *problem if it cannot be loaded. Only one thread at a
 * time may call it. */
bag_gemm_fn *bag_blas_load(struct bag_problem *problem);
