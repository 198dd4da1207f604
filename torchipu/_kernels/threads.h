/* A persistent pool of POSIX threads: workers spin for a while, then sleep on a futex.
 *
 * Not OpenMP: libgomp hangs for ever in a forked child such as a DataLoader worker. After a fork the child has no
 * workers; the at-fork handler makes it start its own when it first needs them.
 */
#ifndef TORCHIPU_THREADS_H
#define TORCHIPU_THREADS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "abi.h"

enum { TI_MAX_THREADS = 256, TI_SPINS = 4000 };

typedef struct {
  ti_kernel fn;
  char *const *args;
  const int64_t *ints;
  const double *scalars;
  int64_t items, grain;
} ti_job;

typedef struct {
  _Alignas(64) _Atomic int generation;
  _Alignas(64) _Atomic int running;    /* workers still in the current job */
  _Alignas(64) _Atomic int64_t next;   /* next chunk */
  _Alignas(64) _Atomic int sleepers;
  _Atomic int trap;
  ti_job job;
  int active;                          /* workers that take part in the current job */
  int started;
  int first_seen[TI_MAX_THREADS];      /* generation when the worker was started */
  pthread_t thread[TI_MAX_THREADS];
  char *scratch[TI_MAX_THREADS];
  int64_t scratch_bytes;
} ti_pool;

static ti_pool TI_POOL;

static inline void ti_take_chunks(ti_pool *pool, int id) {
  const ti_job job = pool->job;
  const int64_t chunks = (job.items + job.grain - 1) / job.grain;
  for (;;) {
    int64_t chunk = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
    if (chunk >= chunks) return;
    int64_t begin = chunk * job.grain, end = begin + job.grain;
    if (end > job.items) end = job.items;
    int trap = job.fn(job.args, job.ints, job.scalars, begin, end, pool->scratch[id]);
    if (trap) atomic_store_explicit(&pool->trap, trap, memory_order_relaxed);
  }
}

static void *ti_worker(void *argument) {
  ti_pool *pool = &TI_POOL;
  const int id = (int)(intptr_t)argument;
  int seen = pool->first_seen[id];
  for (;;) {
    int spins = 0, generation;
    while ((generation = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen) {
      if (++spins < TI_SPINS) { _mm_pause(); continue; }
      atomic_fetch_add(&pool->sleepers, 1);
      if (atomic_load(&pool->generation) == seen)
        syscall(SYS_futex, &pool->generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
      atomic_fetch_sub(&pool->sleepers, 1);
      spins = 0;
    }
    seen = generation;
    if (id > pool->active) { atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release); continue; }
    ti_take_chunks(pool, id);
    atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release);
  }
  return NULL;
}

static void ti_forget_workers(void) {
  TI_POOL.started = 0;
  atomic_store(&TI_POOL.generation, 0);
  atomic_store(&TI_POOL.running, 0);
  atomic_store(&TI_POOL.sleepers, 0);
}

/* Makes sure that `threads - 1` workers and `threads` scratch areas exist; returns 0, or -1 without memory. */
static int ti_prepare(int threads, int64_t scratch_bytes) {
  static int registered = 0;
  ti_pool *pool = &TI_POOL;
  if (!registered) { pthread_atfork(NULL, NULL, ti_forget_workers); registered = 1; }
  if (threads > TI_MAX_THREADS) threads = TI_MAX_THREADS;
  int most = threads > pool->started + 1 ? threads : pool->started + 1;
  if (scratch_bytes > pool->scratch_bytes || !pool->scratch[most - 1]) {
    int64_t bytes = scratch_bytes > pool->scratch_bytes ? scratch_bytes : pool->scratch_bytes;
    bytes = (bytes + 4095) / 4096 * 4096 + 4096;
    for (int i = 0; i < TI_MAX_THREADS; i++) {
      if (!pool->scratch[i] && i >= most) break;
      free(pool->scratch[i]);
      pool->scratch[i] = (char *)aligned_alloc(4096, (size_t)bytes);
      if (!pool->scratch[i]) return -1;
    }
    pool->scratch_bytes = bytes - 4096;
  }
  while (pool->started < threads - 1) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int id = pool->started + 1;
    pool->first_seen[id] = atomic_load(&pool->generation);
    int failed = pthread_create(&pool->thread[id], &attributes, ti_worker, (void *)(intptr_t)id);
    pthread_attr_destroy(&attributes);
    if (failed) return -1;
    pool->started++;
  }
  return 0;
}

/* Runs one step on up to `threads` threads, the caller among them; the caller holds the engine's lock. */
static int ti_run(const ti_job *job, int threads) {
  ti_pool *pool = &TI_POOL;
  const int64_t chunks = (job->items + job->grain - 1) / job->grain;
  if (chunks <= 0) return 0;
  if (chunks == 1 || threads <= 1) {
    for (int64_t begin = 0; begin < job->items; begin += job->grain) {
      int64_t end = begin + job->grain < job->items ? begin + job->grain : job->items;
      int trap = job->fn(job->args, job->ints, job->scalars, begin, end, pool->scratch[0]);
      if (trap) return trap;
    }
    return 0;
  }
  pool->job = *job;
  pool->active = (threads < chunks ? threads : (int)chunks) - 1;
  atomic_store_explicit(&pool->trap, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->running, pool->started, memory_order_relaxed);
  atomic_fetch_add(&pool->generation, 1);
  if (atomic_load(&pool->sleepers)) syscall(SYS_futex, &pool->generation, FUTEX_WAKE_PRIVATE, TI_MAX_THREADS, NULL, NULL, 0);
  ti_take_chunks(pool, 0);
  int spins = 0;
  while (atomic_load_explicit(&pool->running, memory_order_acquire) > 0) {
    _mm_pause();
    if (++spins > 2000) { sched_yield(); spins = 0; }
  }
  return atomic_load_explicit(&pool->trap, memory_order_relaxed);
}
#endif
