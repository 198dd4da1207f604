/* Random programs on the engine's own pool of threads, for ThreadSanitizer: races PROGRAMS THREADS SEED [race].
 *
 * Two threads call the pool in turns, under a lock as the engine has one. Each program is steps, phases of several
 * strands, and lanes that take turns; every step reads what the one before it wrote, wherever other threads did, so that
 * a missing fence is a race. Prints how many programs gave wrong values, and how
 * many chunks workers took. With "race", a step writes where it must not.
 */
#include "threads.h"  /* first: it asks the system for what is its own */
#include <stdio.h>

enum { ITEMS = 512, STEPS = 6, CALLERS = 2, MOST_GRAIN = 40, SCRATCH = 64 };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int programs, threads, is_racing;
static int64_t wrong, shared;
static _Atomic int64_t away;           /* chunks that workers have taken */
static _Thread_local int is_caller;
static uint64_t seed;

static uint64_t drawn(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* to[i] = from[items - 1 - i] + 1: another thread has written what is read. The scratch is the thread's own. */
static int turned(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  int64_t *to = (int64_t *)args[0], *own = (int64_t *)scratch;
  const int64_t *from = (const int64_t *)args[1];
  (void)scalars;
  if (!is_caller) atomic_fetch_add_explicit(&away, 1, memory_order_relaxed);  /* which orders nothing */
  if (begin % 3 == 0) sched_yield();  /* lets workers in where there are few processors */
  for (int64_t i = begin; i < end; i++) {
    own[i % 8] = from[ints[0] - 1 - i] + 1;
    to[i] = own[i % 8];
    if (is_racing) shared += to[i];
  }
  return 0;
}

/* to[i] = from[i]: of a strand whose thread has near what the step before it made of the same unit. */
static int kept(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)ints, (void)scalars, (void)scratch;
  for (int64_t i = begin; i < end; i++) ((int64_t *)args[0])[i] = ((const int64_t *)args[1])[i];
  return 0;
}

/* to[0] += 1, in lanes that take turns. */
static int counted(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)ints, (void)scalars, (void)scratch;
  for (int64_t i = begin; i < end; i++) ((int64_t *)args[0])[i]++;
  return 0;
}

static void run_program(uint64_t *state) {
  static int64_t memory[STEPS + 1][2][ITEMS];
  const int64_t items = 1 + (int64_t)(drawn(state) % ITEMS), lanes = 1 + (int64_t)(drawn(state) % 3);
  int64_t sums[ITEMS] = {0};
  for (int64_t i = 0; i < items; i++) memory[0][0][i] = memory[0][1][i] = i;
  if (ti_prepare(threads, SCRATCH + 8 * MOST_GRAIN)) exit(3);
  ti_begin(&TI_POOL);
  for (int step = 0; step < STEPS; step++) {
    char *args[4] = {(char *)memory[step + 1][0], (char *)memory[step][0], (char *)memory[step + 1][1],
                     (char *)memory[step][1]};
    const int64_t grain = 1 + (int64_t)(drawn(state) % MOST_GRAIN);
    ti_job job = {.fn = turned, .args = args, .ints = &items, .items = items, .grain = grain, .lanes = 2,
                  .scratch_bytes = SCRATCH, .num_args = 2};
    if (drawn(state) % 2) {
      const int64_t units = (items + grain - 1) / grain;
      const int by_near = drawn(state) % 2;  /* whether the second strand hands on in the scratch of its threads */
      const ti_near made = {.unit_bytes = 8 * grain, .argument = 0}, read = {.unit_bytes = 8 * grain, .argument = 1};
      char *through[2] = {NULL, args[3]}, *out_of[2] = {args[2], NULL};  /* where it is near no address counts */
      job.lanes = 1;
      ti_part first = {.job = job, .per_unit = grain}, parts[2] = {first, first};
      parts[0].job.args = by_near ? through : args + 2, parts[0].number = 1;
      if (by_near) parts[0].near = &made, parts[0].num_near = 1;
      parts[1].job.fn = kept, parts[1].job.args = out_of, parts[1].near = &read, parts[1].num_near = 1, parts[1].number = 2;
      ti_strand strands[2] = {
        {.parts = &first, .units = units, .num_parts = 1},
        {.parts = parts, .units = units, .near_at = SCRATCH, .near_bytes = by_near ? 8 * grain : 0,
         .num_parts = 1 + by_near},
      };
      ti_phase phase = {.strands = strands, .units = 2 * units, .num_strands = 2};
      ti_run_phase(&TI_POOL, &phase, threads);
    } else {
      ti_run(&TI_POOL, &job, threads);
    }
  }
  char *counters[3] = {(char *)sums, (char *)sums, (char *)sums};
  ti_job count = {.fn = counted, .args = counters, .items = items, .grain = 1 + (int64_t)(drawn(state) % 9),
                  .lanes = lanes, .num_args = 1, .takes_turns = 1};
  ti_run(&TI_POOL, &count, threads);
  ti_end(&TI_POOL);
  for (int64_t i = 0; i < items; i++)  /* an even number of turns round */
    if (memory[STEPS][0][i] != i + STEPS || memory[STEPS][1][i] != i + STEPS || sums[i] != lanes) { wrong++; break; }
}

static void *call(void *argument) {
  uint64_t state = seed + (uint64_t)(intptr_t)argument;
  is_caller = 1;
  for (int program = 0; program < programs / CALLERS; program++) {
    pthread_mutex_lock(&turn);
    run_program(&state);
    pthread_mutex_unlock(&turn);
    if (drawn(&state) % 8 == 0) {  /* long enough for workers to fall asleep */
      struct timespec pause = {0, 2000000};
      nanosleep(&pause, NULL);
    }
  }
  return NULL;
}

int main(int count, char **words) {
  if (count < 4) return 2;
  programs = atoi(words[1]), threads = atoi(words[2]), seed = (uint64_t)atoi(words[3]), is_racing = count > 4;
  pthread_t callers[CALLERS];
  for (int i = 0; i < CALLERS; i++) pthread_create(&callers[i], NULL, call, (void *)(intptr_t)i);
  for (int i = 0; i < CALLERS; i++) pthread_join(callers[i], NULL);
  printf("%lld %lld\n", (long long)wrong, (long long)away);
  fflush(stdout);
  return 0;
}
