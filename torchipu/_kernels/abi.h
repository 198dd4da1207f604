/* The one function type of all host kernels.
 *
 * A kernel computes the items [begin, end) of a step. What it writes for an item must not depend on where the
 * range begins or ends beyond multiples of the step's grain: ranges are cut at the same places whatever the
 * number of threads, so that results are bit-identical. It allocates nothing and calls no Python.
 *
 *   args     pointers: outputs first, then inputs, in the order the emitter gave them
 *   ints     shapes, strides (in elements) and flags, as documented at each kernel
 *   scalars  numbers, likewise
 *   scratch  private to the thread, 64-byte aligned, as large as the step asked for; contents undefined
 *
 * Returns 0, or a positive trap number (TI_TRAP_*) that stops the program.
 */
#ifndef TORCHIPU_ABI_H
#define TORCHIPU_ABI_H
#include <stdint.h>
/* In the checked flavour (make checked) an access to memory that is closed ends the process; in the plain one nothing is. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { TI_CHECKED = 1 };
#define TI_CLOSE(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define TI_OPEN(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
enum { TI_CHECKED = 0 };
#define TI_CLOSE(at, bytes) ((void)(at), (void)(bytes))
#define TI_OPEN(at, bytes) ((void)(at), (void)(bytes))
#endif
typedef int (*ti_kernel)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                         void *scratch);
enum {
  TI_OK = 0, TI_TRAP_INDEX = 1, TI_TRAP_RANGE = 2, TI_TRAP_INTERNAL = 3, TI_TRAP_OVERFLOW = 4, TI_TRAP_INVALID = 5,
  TI_TRAP_DIVISION = 6, TI_TRAP_ASSERTION = 7
};
#endif
