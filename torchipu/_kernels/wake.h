/* Threads that are woken to work beside their waker.
 *
 * A system may put a woken thread onto the very CPU that its waker keeps busy, where it waits for milliseconds: in a
 * virtual machine another CPU that has gone idle may count as taken away by the host. So a sleeper is told to run
 * anywhere else before it is woken, and may run everywhere again once it is up.
 */
#ifndef TORCHIPU_WAKE_H
#define TORCHIPU_WAKE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
  _Atomic int thread;                  /* its number in the system; 0 before it has run */
  _Atomic int is_asleep, is_kept_off;
  _Atomic int bell;                    /* the futex word on which it sleeps, changed to wake it */
  cpu_set_t own;                       /* where it may run; written by the waker, and only while it is not kept off */
} ti_sleeper;

/* The calling thread takes a place. */
static inline void ti_take_place(ti_sleeper *s) {
  static __thread int number = 0;
  if (!number) number = (int)syscall(SYS_gettid);
  if (atomic_load_explicit(&s->thread, memory_order_relaxed) != number) atomic_store(&s->thread, number);
}

/* Keeps a sleeper off the CPU of the calling thread; where that is not allowed or there is no other, nothing changes. */
static inline void ti_keep_off(ti_sleeper *s) {
  const int thread = atomic_load(&s->thread), cpu = sched_getcpu();
  if (!thread || cpu < 0 || cpu >= CPU_SETSIZE || syscall(SYS_tgkill, getpid(), thread, 0)) return;
  if (!atomic_load(&s->is_kept_off) && sched_getaffinity(thread, sizeof s->own, &s->own)) return;
  if (CPU_COUNT(&s->own) < 2 || !CPU_ISSET(cpu, &s->own)) return;
  cpu_set_t others = s->own;
  CPU_CLR(cpu, &others);
  if (!sched_setaffinity(thread, sizeof others, &others)) atomic_store(&s->is_kept_off, 1);
}

/* The calling thread may run everywhere again. */
static inline void ti_come_back(ti_sleeper *s) {
  if (!atomic_load(&s->is_kept_off)) return;
  sched_setaffinity(0, sizeof s->own, &s->own);
  atomic_store(&s->is_kept_off, 0);
}

/* The calling thread is about to sleep; what it asks next whether it need not, wakers have told before they look here.
 * Returns what its bell says. */
static inline int ti_lie_down(ti_sleeper *s) {
  ti_come_back(s);                     /* it was kept off as it got up by itself */
  const int bell = atomic_load(&s->bell);
  atomic_store(&s->is_asleep, 1);
  return bell;
}

static inline void ti_sleep(ti_sleeper *s, int bell) { syscall(SYS_futex, &s->bell, FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0); }

static inline void ti_get_up(ti_sleeper *s) {
  atomic_store(&s->is_asleep, 0);
  ti_come_back(s);
}

/* Wakes a thread if it sleeps or is about to. */
static inline void ti_wake(ti_sleeper *s) {
  if (!atomic_load(&s->is_asleep)) return;
  ti_keep_off(s);
  atomic_fetch_add(&s->bell, 1);
  syscall(SYS_futex, &s->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#endif
