/* What a loop of the plan does between its steps: counts trips, moves the rows of this trip, draws anew. */
#include <string.h>

TI_KERNEL(count) {
  (void)scalars, (void)begin, (void)end, (void)scratch;
  int64_t *counter = (int64_t *)args[0];
  *counter += 1;
  *(uint8_t *)args[1] = *counter >= ((const count_ints *)ints)->trips;
  return TI_OK;
}

TI_KERNEL(take_row) {
  (void)scalars, (void)scratch;
  const int64_t trip = *(const int64_t *)args[2];
  memcpy(args[0] + begin, args[1] + trip * ((const row_ints *)ints)->row_bytes + begin, (size_t)(end - begin));
  return TI_OK;
}

TI_KERNEL(put_row) {
  (void)scalars, (void)scratch;
  const int64_t trip = *(const int64_t *)args[2];
  memcpy(args[0] + trip * ((const row_ints *)ints)->row_bytes + begin, args[1] + begin, (size_t)(end - begin));
  return TI_OK;
}

/* Each trip draws under a seed of its own, mixed as SplitMix64 does (Steele, Lea and Flood, OOPSLA 2014). */
TI_KERNEL(fork) {
  (void)ints, (void)scalars, (void)begin, (void)end, (void)scratch;
  int64_t *mine = (int64_t *)args[0];
  const int64_t *all = (const int64_t *)args[1];
  uint64_t z = (uint64_t)all[0] + 0x9e3779b97f4a7c15u * ((uint64_t)*(const int64_t *)args[2] + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  memcpy(mine, all, 4 * sizeof(int64_t));
  mine[0] = (int64_t)(z ^ (z >> 31));
  return TI_OK;
}
