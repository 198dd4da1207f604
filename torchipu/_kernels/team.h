/* Threads on loan: a run may take place inside one parallel region of the OpenMP that the process has loaded already.
 *
 * Between two compiled graphs torch runs the loss and the optimiser on OpenMP's threads, which then spin for a while in
 * the hope of more work. Workers of our own would share the CPUs with them; so where torch's threads are as many as a
 * run wants, they do its work. We neither link OpenMP nor start it: its functions are looked up. A forked child, in
 * which libgomp hangs, has only threads of our own.
 */
#ifndef TORCHIPU_TEAM_H
#define TORCHIPU_TEAM_H
#include "threads.h"
#include <dlfcn.h>

typedef int (*ti_body)(void *context);
typedef struct { ti_body body; void *context; int result; _Atomic int over; } ti_loan;
enum { TI_SPINS_ON_LOAN = 20000, TI_LENT_AGO = 1000000 };  /* nanoseconds; lenders may sleep by then */

static struct {
  void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
  int (*thread_num)(void);
  int (*in_parallel)(void);
  int forked;
} TI_OPENMP;

static void ti_refuse_loans(void) { TI_OPENMP.forked = 1; }

/* Whether a run may borrow threads now. */
static int ti_can_borrow(void) {
  static int looked = 0;
  if (!looked) {
    looked = 1;
    pthread_atfork(NULL, NULL, ti_refuse_loans);
    *(void **)&TI_OPENMP.thread_num = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    *(void **)&TI_OPENMP.in_parallel = dlsym(RTLD_DEFAULT, "omp_in_parallel");
    *(void **)&TI_OPENMP.parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
  }
  return TI_OPENMP.parallel && TI_OPENMP.thread_num && TI_OPENMP.in_parallel && !TI_OPENMP.forked && !TI_OPENMP.in_parallel();
}

static void ti_on_loan(void *argument) {
  ti_loan *loan = (ti_loan *)argument;
  const int id = TI_OPENMP.thread_num();
  if (id == 0) {
    loan->result = loan->body(loan->context);
    atomic_store(&loan->over, 1);
    return;
  }
  ti_take_place(&TI_TEAM.sleeper[id]);
  ti_come_back(&TI_TEAM.sleeper[id]);
  const unsigned int lenders = _mm_getcsr();
  _mm_setcsr(lenders | TI_FLUSH_SUBNORMALS);
  uint64_t seen = 0;
  for (int spins = 0; !atomic_load_explicit(&loan->over, memory_order_acquire);) {
    if (!ti_enter(&TI_TEAM, &seen)) {
      _mm_pause();
      if (++spins > TI_SPINS_ON_LOAN) { sched_yield(); spins = 0; }
      continue;
    }
    spins = 0;
    ti_take(&TI_TEAM, id);
    atomic_fetch_sub_explicit(&TI_TEAM.gate, 1, memory_order_release);
  }
  _mm_setcsr(lenders);
}

/* Calls `body` on this thread while `threads - 1` others serve TI_TEAM; returns what it returns. */
static int ti_borrow(ti_body body, void *context, int threads) {
  static int64_t last = 0;
  ti_loan loan = {.body = body, .context = context};
  for (int i = 1; i < threads && i < TI_MAX_THREADS && ti_nanoseconds() - last > TI_LENT_AGO; i++)
    ti_keep_off(&TI_TEAM.sleeper[i]);
  TI_OPENMP.parallel(ti_on_loan, &loan, (unsigned)threads, 0);
  last = ti_nanoseconds();
  return loan.result;
}
#endif
