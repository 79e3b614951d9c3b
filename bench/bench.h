/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_H
#define WEIR_BENCH_H

/* The subjects of weir-bench, one a file.
 *
 *   copy     how fast bytes move, alone          engine × layout × size
 *   overlap  what a load costs a forward pass    the number that matters
 *   pin      how fast host memory becomes ready
 *   launch   what a load costs the host
 *   index    what the cache's decisions take
 *   gather   how fast missed experts come, alone and beside a GEMM
 *
 * Each reads its options from argv (argv[0] is what messages begin with), opens
 * a device (but for index), measures, prints, and returns the program's exit status. */

int weir_bench_copy(int argc, char **argv);
int weir_bench_overlap(int argc, char **argv);
int weir_bench_pin(int argc, char **argv);
int weir_bench_launch(int argc, char **argv);
int weir_bench_index(int argc, char **argv);
int weir_bench_gather(int argc, char **argv);

#endif
