/* A persistent pool of POSIX threads: workers spin while a run goes on and a moment after it, then sleep on a futex.
 *
 * Not OpenMP's (but see team.h): libgomp hangs for ever in a forked child such as a DataLoader worker. After a fork
 * the child has no workers; the at-fork handler makes it start its own when it first needs them.
 */
#ifndef TORCHIPU_THREADS_H
#define TORCHIPU_THREADS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifdef TI_PORTABLE
#include "portable.h"
#else
#include <immintrin.h>
#endif
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "abi.h"
#include "wake.h"

enum { TI_MAX_THREADS = 256, TI_MAX_ARGS = 64, TI_SPARE_BYTES = 4096 };

/* How long a worker without work spins before it sleeps, in nanoseconds. Within a run, what one thread does by itself is
 * seldom longer than a wake-up takes; behind it, another call may follow at once, and other processes want the core. */
enum { TI_SPIN_WITHIN = 200000, TI_SPIN_AFTER = 20000, TI_PAUSES = 32 };

/* What ends a step: a kernel that takes over the items of each chunk right after they are computed, on the same thread.
 * The results that it reads lie where argument `from` of the step says; or, where an item writes `item_floats` of them side
 * by side, in the thread's scratch alone, `scratch_bytes` into it. */
typedef struct {
  ti_kernel fn;
  const int64_t *ints;
  int64_t item_floats, scratch_bytes;  /* item_floats is 0 where results are in memory */
  int from, to, random;                /* arguments of the step; random is -1 for none */
} ti_ending;

/* A step of one lane, or of several: runs of the program on other micro-batches, each with arguments of its own. Lanes
 * that write memory of their own go side by side. Where all add onto the same memory, the lanes of a chunk take turns
 * in their order, while threads share out the chunks. Items may be made in rounds, which read what those before made. */
typedef struct {
  ti_kernel fn;
  char *const *args;                   /* of the first lane */
  const int64_t *ints;
  const double *scalars;
  int64_t items, grain;
  int64_t lanes;
  int64_t scratch_bytes;
  int num_args;                        /* from the arguments of a lane to those of the next */
  int takes_turns;
  const ti_ending *endings;
  int num_endings;
  int64_t first_item, round_items;     /* items of a round, which all threads end before the next; 0 for a single one */
} ti_job;

/* An argument that only the steps of a strand touch, so many bytes of it for each unit: a thread has those of one unit in
 * its scratch, where they stay in its cache, and not all of them in memory. */
typedef struct { int64_t offset, unit_bytes; int argument; } ti_near;

/* A step of a phase, `per_unit` items of which belong to a unit of its strand. */
typedef struct {
  ti_job job;                          /* of one lane */
  int64_t per_unit;
  const ti_near *near;
  int num_near;
  int number;                          /* of the step in its plan */
} ti_part;

/* Steps of which a thread runs a unit one after another: chunks of one step, or samples that go through several. What
 * they have near lies behind the scratch of each of them. */
typedef struct { const ti_part *parts; int64_t units, near_at, near_bytes; int num_parts; } ti_strand;

/* What runs between two meetings of all threads: no strand needs what another one makes. */
typedef struct { const ti_strand *strands; int64_t units; int num_strands; } ti_phase;

typedef struct { _Alignas(64) _Atomic int64_t unit; } ti_share;

/* The gate lets workers into the current job: a round number, odd while the job is open, above the number of workers
 * inside. The caller closes it when no chunk is left and waits only for those inside, so that a worker to which the
 * system gives no processor holds nothing up. */
typedef struct {
  _Alignas(64) _Atomic uint64_t gate;
  _Alignas(64) _Atomic int within;     /* whether a run goes on */
  _Atomic int64_t trap;                /* the first step that trapped, above its trap; 0 for none */
  ti_job job;
  const ti_phase *phase;               /* what is open instead of the job, or NULL */
  int most;                            /* threads that may take part in the current job */
  int started;
  pthread_t thread[TI_MAX_THREADS];
  ti_sleeper sleeper[TI_MAX_THREADS];  /* by thread, as all of these; 0 is the caller */
  char *scratch[TI_MAX_THREADS];
  int64_t scratch_bytes;
  ti_share next[TI_MAX_THREADS];       /* what was taken of each thread's share */
} ti_pool;

#define TI_ROUND ((uint64_t)1 << 16)
#define TI_TRAP ((int64_t)1 << 32)     /* from a step to the next in what a pool keeps of a trap */

/* The IPU flushes subnormal float32 to zero and keeps subnormal halves: so do the kernels. The bits (15: results, 6:
 * operands) are set in the register of the thread that runs a kernel, while it does; conversions to and from half
 * ignore them. */
#ifndef TI_PORTABLE
#define TI_FLUSH_SUBNORMALS 0x8040u
#endif

static ti_pool TI_POOL;                /* threads of our own */
static ti_pool TI_TEAM;                /* threads that OpenMP lends for the length of a run, see team.h */

static inline int64_t ti_chunks(const ti_job *job) { return (job->items + job->grain - 1) / job->grain; }

/* Units that threads share out: chunks of lanes, or of all lanes together. */
static inline int64_t ti_units(const ti_job *job) { return ti_chunks(job) * (job->takes_turns ? 1 : job->lanes); }

/* Computes items and ends them. */
static int ti_call_ended(const ti_job *job, char *const *args, int64_t begin, int64_t end, char *scratch) {
  char *own[TI_MAX_ARGS];
  memcpy(own, args, sizeof *own * (size_t)job->num_args);
  for (const ti_ending *e = job->endings; e < job->endings + job->num_endings; e++)
    if (e->item_floats)  /* as if all results began there of which this chunk has the first in scratch */
      own[e->from] = (char *)((uintptr_t)scratch + (uintptr_t)e->scratch_bytes - 4 * (uintptr_t)(begin * e->item_floats));
  int trap = job->fn(own, job->ints, job->scalars, begin, end, scratch);
  for (const ti_ending *e = job->endings; e < job->endings + job->num_endings && !trap; e++) {
    char *rounded[3] = {own[e->from], args[e->to], e->random < 0 ? NULL : args[e->random]};
    trap = e->fn(rounded, e->ints, NULL, begin, end, scratch);
  }
  return trap;
}

static inline int ti_call_with(const ti_job *job, char *const *args, int64_t chunk, void *scratch) {
  const int64_t begin = job->first_item + chunk * job->grain, last = job->first_item + job->items;
  const int64_t end = begin + job->grain < last ? begin + job->grain : last;
  if (!job->num_endings) return job->fn(args, job->ints, job->scalars, begin, end, scratch);
  return ti_call_ended(job, args, begin, end, (char *)scratch);
}
static inline int ti_call(const ti_job *job, int64_t lane, int64_t chunk, void *scratch) {
  return ti_call_with(job, job->args + lane * job->num_args, chunk, scratch);
}

/* Computes one chunk of the lanes [first, first + lanes). */
static inline int ti_call_lanes(const ti_job *job, int64_t first, int64_t lanes, int64_t chunk, void *scratch) {
  int trap = 0;
  for (int64_t lane = first; lane < first + lanes && !trap; lane++) trap = ti_call(job, lane, chunk, scratch);
  return trap;
}

/* Keeps the trap of the first step that has one: the same for any number of threads. */
static inline void ti_note_trap(ti_pool *pool, int number, int trap) {
  const int64_t found = TI_TRAP * number + trap;
  int64_t known = atomic_load_explicit(&pool->trap, memory_order_relaxed);
  while ((!known || found < known) && !atomic_compare_exchange_weak(&pool->trap, &known, found)) {}
}

/* Closes what lies in the scratch of a thread behind that of the step. */
static inline void ti_fence_scratch(ti_pool *pool, const ti_job *job, int id) {
  if (!TI_CHECKED || !pool->scratch[id]) return;
  TI_OPEN(pool->scratch[id], (size_t)job->scratch_bytes);
  TI_CLOSE(pool->scratch[id] + job->scratch_bytes, (size_t)(pool->scratch_bytes + TI_SPARE_BYTES - job->scratch_bytes));
}

/* Says where the arguments of a step lie for a unit: as if all of what is near began where the unit has its part. */
static inline void ti_place_near(const ti_part *part, char *near, int64_t unit, char **args) {
  memcpy(args, part->job.args, sizeof *args * (size_t)part->job.num_args);
  for (const ti_near *n = part->near; n < part->near + part->num_near; n++)
    args[n->argument] = (char *)((uintptr_t)near + (uintptr_t)n->offset - (uintptr_t)(unit * n->unit_bytes));
}

/* Computes one unit of a strand, chunk by chunk as each step has them. */
static inline void ti_call_unit(ti_pool *pool, const ti_strand *strand, int64_t unit, int id) {
  char *placed[TI_MAX_ARGS], *const near = pool->scratch[id] + strand->near_at;
  for (const ti_part *part = strand->parts; part < strand->parts + strand->num_parts; part++) {
    const int64_t last = (unit + 1) * part->per_unit, items = part->job.items, end = last < items ? last : items;
    char *const *args = part->job.args;
    ti_fence_scratch(pool, &part->job, id);
    if (TI_CHECKED && strand->near_bytes) TI_OPEN(near, (size_t)strand->near_bytes);
    if (part->num_near) {
      ti_place_near(part, near, unit, placed);
      args = placed;
    }
    for (int64_t at = unit * part->per_unit; at < end; at += part->job.grain) {
      const int trap = ti_call_with(&part->job, args, at / part->job.grain, pool->scratch[id]);
      if (trap) { ti_note_trap(pool, part->number, trap); return; }
    }
  }
}

/* A share of a phase is about as much of every strand, so that a thread meets the samples that it has had before. */
static inline void ti_take_units(ti_pool *pool, int id) {
  const ti_phase phase = *pool->phase;
  const int shares = pool->most;
  for (int turn = 0; turn < shares; turn++) {
    const int share = (id + turn) % shares;
    int64_t before = 0;                /* units of the share in the strands before this one */
    int64_t at = atomic_fetch_add_explicit(&pool->next[share].unit, 1, memory_order_relaxed);
    for (int i = 0; i < phase.num_strands; i++) {
      const ti_strand *strand = &phase.strands[i];
      const int64_t first = (strand->units * share + i % shares) / shares;
      const int64_t count = (strand->units * (share + 1) + i % shares) / shares - first;
      while (at - before < count) {
        ti_call_unit(pool, strand, first + at - before, id);
        at = atomic_fetch_add_explicit(&pool->next[share].unit, 1, memory_order_relaxed);
      }
      before += count;
    }
  }
}

/* Takes units of its own share first, so that a thread finds in its cache what it wrote a step ago, then what is left
 * of the others'. With lanes for all threads each share is whole lanes, and goes from chunk to chunk through all of
 * them: they read the same weights. Which thread computes a unit has no effect on what it computes. */
static inline void ti_take_chunks(ti_pool *pool, int id) {
  const ti_job job = pool->job;
  const int64_t chunks = ti_chunks(&job), units = ti_units(&job);
  const int shares = pool->most, by_lane = !job.takes_turns && job.lanes >= shares;
  for (int turn = 0; turn < shares; turn++) {
    const int share = (id + turn) % shares;
    const int64_t of = by_lane ? job.lanes : units;
    const int64_t first = of * share / shares, count = of * (share + 1) / shares - first;
    const int64_t last = by_lane ? count * chunks : count;
    for (;;) {
      const int64_t unit = atomic_fetch_add_explicit(&pool->next[share].unit, 1, memory_order_relaxed);
      if (unit >= last) break;
      int trap;
      if (by_lane) trap = ti_call(&job, first + unit % count, unit / count, pool->scratch[id]);
      else if (job.takes_turns) trap = ti_call_lanes(&job, 0, job.lanes, first + unit, pool->scratch[id]);
      else trap = ti_call(&job, (first + unit) / chunks, (first + unit) % chunks, pool->scratch[id]);
      if (trap) ti_note_trap(pool, 0, trap);
    }
  }
}

/* Whether a gate lets those in who have seen the given round last. */
static inline int ti_lets_in(uint64_t gate, uint64_t seen) { return (gate / TI_ROUND) & 1 && gate / TI_ROUND != seen; }

/* Enters the open job unless this round was seen before; returns whether it did. */
static inline int ti_enter(ti_pool *pool, uint64_t *seen) {
  uint64_t gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
  while (ti_lets_in(gate, *seen))
    if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1)) {
      *seen = gate / TI_ROUND;
      return 1;
    }
  return 0;
}

static inline int64_t ti_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

static inline void ti_take(ti_pool *pool, int id) {
  if (id >= pool->most) return;
  if (pool->phase) ti_take_units(pool, id);
  else ti_take_chunks(pool, id);
}

/* Spins until it has entered a job that it has not seen, or for as long as a worker may; returns whether it has. */
static int ti_spin(ti_pool *pool, uint64_t *seen) {
  int64_t end = 0;
  int was_within = 1;
  for (int spins = 0;; spins++) {
    if (ti_enter(pool, seen)) return 1;
    _mm_pause();
    if (spins % TI_PAUSES) continue;
    const int64_t now = ti_nanoseconds();
    const int within = atomic_load_explicit(&pool->within, memory_order_relaxed);
    if (!end) end = now + TI_SPIN_WITHIN;
    if (within != was_within) end = now + (within ? TI_SPIN_WITHIN : TI_SPIN_AFTER);
    was_within = within;
    if (now >= end) return 0;
  }
}

static void *ti_worker(void *argument) {
  ti_pool *pool = &TI_POOL;
  const int id = (int)(intptr_t)argument;
  ti_sleeper *sleeper = &pool->sleeper[id];
  uint64_t seen = 0;
  _mm_setcsr(_mm_getcsr() | TI_FLUSH_SUBNORMALS);
  ti_take_place(sleeper);
  for (;;) {
    if (!ti_spin(pool, &seen)) {
      const int bell = ti_lie_down(sleeper);
      if (!ti_lets_in(atomic_load(&pool->gate), seen)) ti_sleep(sleeper, bell);
      ti_get_up(sleeper);
      continue;
    }
    ti_take(pool, id);
    atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release);
  }
  return NULL;
}

static void ti_forget_workers(void) {
  TI_POOL.started = 0;
  atomic_store(&TI_POOL.gate, 0);
  atomic_store(&TI_POOL.within, 0);
  memset(TI_POOL.sleeper, 0, sizeof TI_POOL.sleeper);
}

/* Makes sure that `threads` scratch areas exist; returns 0, or -1 without memory. */
static int ti_prepare_scratch(ti_pool *pool, int threads, int64_t scratch_bytes) {
  if (threads > TI_MAX_THREADS) threads = TI_MAX_THREADS;
  int most = threads > pool->started + 1 ? threads : pool->started + 1;
  if (scratch_bytes > pool->scratch_bytes || !pool->scratch[most - 1]) {
    int64_t bytes = scratch_bytes > pool->scratch_bytes ? scratch_bytes : pool->scratch_bytes;
    bytes = (bytes + 4095) / 4096 * 4096 + TI_SPARE_BYTES;
    for (int i = 0; i < TI_MAX_THREADS; i++) {
      if (!pool->scratch[i] && i >= most) break;
      free(pool->scratch[i]);
      pool->scratch[i] = (char *)aligned_alloc(4096, (size_t)bytes);
      if (!pool->scratch[i]) return -1;
    }
    pool->scratch_bytes = bytes - TI_SPARE_BYTES;
  }
  return 0;
}

/* Makes sure that `threads - 1` workers of our own and their scratch areas exist; returns 0, or -1 without memory. */
static int ti_prepare(int threads, int64_t scratch_bytes) {
  static int registered = 0;
  ti_pool *pool = &TI_POOL;
  if (threads > TI_MAX_THREADS) threads = TI_MAX_THREADS;
  if (!registered) { pthread_atfork(NULL, NULL, ti_forget_workers); registered = 1; }
  if (ti_prepare_scratch(pool, threads, scratch_bytes)) return -1;
  while (pool->started < threads - 1) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int id = pool->started + 1;
    int failed = pthread_create(&pool->thread[id], &attributes, ti_worker, (void *)(intptr_t)id);
    pthread_attr_destroy(&attributes);
    if (failed) return -1;
    pool->started++;
  }
  return 0;
}

/* Lets workers into what is open and takes part; returns once all of it is done. */
static void ti_meet(ti_pool *pool) {
  atomic_store_explicit(&pool->trap, 0, memory_order_relaxed);
  for (int i = 0; i < pool->most; i++) atomic_store_explicit(&pool->next[i].unit, 0, memory_order_relaxed);
  atomic_fetch_add(&pool->gate, TI_ROUND);
  for (int i = 1; i < pool->most; i++) ti_wake(&pool->sleeper[i]);
  ti_take(pool, 0);
  atomic_fetch_add(&pool->gate, TI_ROUND);
  int spins = 0;
  while (atomic_load_explicit(&pool->gate, memory_order_acquire) % TI_ROUND) {
    _mm_pause();
    if (++spins > 2000) { sched_yield(); spins = 0; }
  }
}

/* Runs the items of one round. */
static int ti_run_round(ti_pool *pool, const ti_job *job, int threads) {
  const int64_t chunks = ti_chunks(job), units = ti_units(job);
  if (units <= 0) return 0;
  for (int i = 0; TI_CHECKED && i < threads; i++) ti_fence_scratch(pool, job, i);
  if (units == 1 || threads <= 1) {
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      const int trap = ti_call_lanes(job, 0, job->lanes, chunk, pool->scratch[0]);
      if (trap) return trap;
    }
    return 0;
  }
  pool->job = *job;
  pool->phase = NULL;
  pool->most = threads < units ? threads : (int)units;
  ti_meet(pool);
  return (int)(atomic_load_explicit(&pool->trap, memory_order_relaxed) % TI_TRAP);
}

/* Runs one step on up to `threads` threads, the caller among them; the caller holds the engine's lock and has set
 * TI_FLUSH_SUBNORMALS. */
static int ti_run_flushing(ti_pool *pool, const ti_job *job, int threads) {
  if (threads > TI_MAX_THREADS) threads = TI_MAX_THREADS;
  if (!job->round_items) return ti_run_round(pool, job, threads);
  ti_job round = *job;
  int trap = 0;
  for (; round.first_item < job->items && !trap; round.first_item += job->round_items) {
    const int64_t left = job->items - round.first_item;
    round.items = left < job->round_items ? left : job->round_items;
    trap = ti_run_round(pool, &round, threads);
  }
  return trap;
}

/* Runs a phase likewise; returns what a pool keeps of a trap. */
static int64_t ti_run_phase_flushing(ti_pool *pool, const ti_phase *phase, int threads) {
  if (threads > TI_MAX_THREADS) threads = TI_MAX_THREADS;
  if (phase->units == 1 || threads <= 1) {
    atomic_store_explicit(&pool->trap, 0, memory_order_relaxed);
    for (const ti_strand *strand = phase->strands; strand < phase->strands + phase->num_strands; strand++)
      for (int64_t unit = 0; unit < strand->units; unit++) ti_call_unit(pool, strand, unit, 0);
  } else {
    pool->phase = phase;
    pool->most = threads < phase->units ? threads : (int)phase->units;
    ti_meet(pool);
  }
  return atomic_load_explicit(&pool->trap, memory_order_relaxed);
}

static inline int64_t ti_run_phase(ti_pool *pool, const ti_phase *phase, int threads) {
  const unsigned int callers = _mm_getcsr();
  _mm_setcsr(callers | TI_FLUSH_SUBNORMALS);
  const int64_t trap = ti_run_phase_flushing(pool, phase, threads);
  _mm_setcsr(callers);
  return trap;
}

static inline int ti_run(ti_pool *pool, const ti_job *job, int threads) {
  const unsigned int callers = _mm_getcsr();
  _mm_setcsr(callers | TI_FLUSH_SUBNORMALS);
  const int trap = ti_run_flushing(pool, job, threads);
  _mm_setcsr(callers);
  return trap;
}

/* Tell workers that a run goes on, and that it is over: they then sleep soon. */
static inline void ti_begin(ti_pool *pool) { atomic_store_explicit(&pool->within, 1, memory_order_relaxed); }
static inline void ti_end(ti_pool *pool) { atomic_store_explicit(&pool->within, 0, memory_order_relaxed); }

/* Runs all items of a kernel that needs no scratch on the calling thread, beside whatever else runs. */
static inline int ti_call_flushing(ti_kernel fn, char **args, const int64_t *ints, const double *scalars, int64_t items,
                                   void *scratch) {
  const unsigned int callers = _mm_getcsr();
  _mm_setcsr(callers | TI_FLUSH_SUBNORMALS);
  const int trap = fn(args, ints, scalars, 0, items, scratch);
  _mm_setcsr(callers);
  return trap;
}
#endif
