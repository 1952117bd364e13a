/* What the program's commands share: exit codes, the configuration, and the longest of them. */
#ifndef BAG_COMMANDS_H
#define BAG_COMMANDS_H

#include "config/config.h"
#include "kernels/isa.h"
#include "kernels/project.h"
#include "proto/problem.h"

enum { BAG_EXIT_OK = 0, BAG_EXIT_FAILED = 1, BAG_EXIT_USAGE = 2 };

/* Returns the exit code of a command other than `serve` after that error: BAG_EXIT_USAGE if the
 * command line, the configuration or a file is wrong. `serve` ends with BAG_EXIT_USAGE only if its
 * command line is wrong (BAG_ERROR_USAGE). */
static inline int bag_commands_exit_code(enum bag_error kind)
{
    bool is_usage =
        kind == BAG_ERROR_USAGE || kind == BAG_ERROR_CONFIGURATION || kind == BAG_ERROR_FILE;
    return is_usage ? BAG_EXIT_USAGE : BAG_EXIT_FAILED;
}

/* Takes the arguments after its name; returns an exit code. */
int bag_cmd_serve(int argc, char *argv[]);
int bag_cmd_convert(int argc, char *argv[]);
int bag_cmd_inspect(int argc, char *argv[]);
int bag_cmd_verify(int argc, char *argv[]);
int bag_cmd_bench(int argc, char *argv[]);
int bag_cmd_version(int argc, char *argv[]);

/* ---- the configuration ----------------------------------------------------------------------- */

/* Where it comes from: files, environment, flags, the demo. */

/* Fills the configuration from the file that the arguments or the environment name, from the
 * environment, and from the arguments. False with *problem; in any case bag_config_free is due. */
bool bag_configure(struct bag_config *config, int argc, char *argv[], struct bag_problem *problem);

/* Whether one of the arguments is `flag`. */
bool bag_arguments_have(int argc, char *argv[], const char *flag);

/* Whether one of them is --help or -h. */
bool bag_arguments_ask_help(int argc, char *argv[]);

/* The same for a server: with the tables and the collection of `--demo`, and as many loops and
 * workers as the machine has use for where the options do not say. */
bool bag_configure_serve(struct bag_config *config, int argc, char *argv[],
                         struct bag_problem *problem);

/* ---- what computes --------------------------------------------------------------------------- */

/* The instruction set of the kernels, and OpenBLAS for projections. */

/* Puts the kernels of that name to use; NULL takes the best that the processor has. A name
 * that there is not, or that the processor cannot run, is rejected with the names it can. Before
 * there are threads. */
bool bag_isa_choose(const char *name, struct bag_problem *problem);

/* Tells the library to use one thread and the processor's instruction set, which it may be too old
 * to know: through the environment, so to be called before there are threads. What is there already
 * stays. */
void bag_blas_prepare(void);

/* Loads the library, once. NULL with the problem set where there is none. By one thread at a time.
 */
bag_gemm_fn *bag_blas_load(struct bag_problem *problem);

#endif
