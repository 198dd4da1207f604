/* Bytes of tiles: moved, with who owns them; and halves, rounded by the numbers of elements. */
#include "rounding_body.h"

TI_INLINE int FN(is_owned)(const uint32_t *owners, int64_t bytes, uint32_t owner) {
  uint32_t other = 0;
  for (int64_t i = 0; i < bytes; i++) other |= owners[i] ^ owner;
  return other == 0;
}

TI_INLINE void FN(own)(uint32_t *owners, int64_t bytes, uint32_t owner) {
  for (int64_t i = 0; i < bytes; i++) owners[i] = owner;
}

/* Elements of a size that the compiler knows. */
TI_INLINE int64_t FN(move)(char *const *args, const tile_move_ints *const shape, const int64_t bytes) {
  char *const to = args[0];
  uint32_t *const to_owners = (uint32_t *)args[1];
  const char *const from = args[3];
  const uint32_t *const from_owners = (const uint32_t *)args[4];
  const int64_t *const to_places = (const int64_t *)args[5], *const from_places = (const int64_t *)args[6];
  for (int64_t i = 0; i < shape->elements; i++) {
    const int64_t at = from_places[i];
    if (at >= 0 && !FN(is_owned)(from_owners + at, bytes, (uint32_t)shape->from_owner)) return i;
    memcpy(to + to_places[i], at >= 0 ? from + at : (const char *)&shape->pad, (size_t)bytes);
    FN(own)(to_owners + to_places[i], bytes, (uint32_t)shape->to_owner);
  }
  return -1;
}

TI_KERNEL(tile_move) {
  const tile_move_ints *const shape = (const tile_move_ints *)ints;
  int64_t *const fault = (int64_t *)args[2];
  switch (shape->element_bytes) {
    case 1: *fault = FN(move)(args, shape, 1); break;
    case 2: *fault = FN(move)(args, shape, 2); break;
    case 4: *fault = FN(move)(args, shape, 4); break;
    default: *fault = FN(move)(args, shape, shape->element_bytes);
  }
  return TI_OK;
}

TI_KERNEL(tile_own) {
  const tile_own_ints *const shape = (const tile_own_ints *)ints;
  const int64_t *const first = (const int64_t *)args[1], *const bytes = (const int64_t *)args[2];
  for (int64_t i = 0; i < shape->ranges; i++) FN(own)((uint32_t *)args[0] + first[i], bytes[i], (uint32_t)shape->owner);
  return TI_OK;
}

TI_KERNEL(tile_check) {
  const tile_own_ints *const shape = (const tile_own_ints *)ints;
  const int64_t *const first = (const int64_t *)args[2], *const bytes = (const int64_t *)args[3];
  int64_t *const fault = (int64_t *)args[0];
  *fault = -1;
  for (int64_t i = 0; i < shape->ranges; i++)
    if (!FN(is_owned)((const uint32_t *)args[1] + first[i], bytes[i], (uint32_t)shape->owner)) {
      *fault = i;
      return TI_OK;
    }
  return TI_OK;
}

TI_KERNEL(tile_widen) {
  const tile_widen_ints *const shape = (const tile_widen_ints *)ints;
  for (int64_t i = 0; i < shape->elements; i++) ((double *)args[0])[i] = (double)((const float *)args[1])[i];
  return TI_OK;
}

TI_KERNEL(tile_narrow) {
  const tile_widen_ints *const shape = (const tile_widen_ints *)ints;
  for (int64_t i = 0; i < shape->elements; i++) ((float *)args[0])[i] = (float)((const double *)args[1])[i];
  return TI_OK;
}

TI_KERNEL(tile_round) {
  uint16_t *h = (uint16_t *)args[0];
  const float *s = (const float *)args[1];
  const int64_t *const state = (const int64_t *)args[2], *run = (const int64_t *)args[3];
  const int64_t runs = *(const int64_t *)args[4];
  const int overflow = (int)((const tile_round_ints *)ints)->overflow;
  const int to_nearest = FN(rounds_to_nearest)(state);
  const FN(keys) keys = FN(keys_of)(state);
  for (int64_t r = 0; r < runs; r++, run += 3) {
    if (to_nearest) FN(round_nearest)(h, s, (long)run[1], overflow);
    else FN(round_apart)(h, s, keys, run[0], run[2], run[1], overflow);
    h += run[1];
    s += run[1];
  }
  return TI_OK;
}
