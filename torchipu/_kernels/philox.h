/* Philox-4x32-10: counter-based random words, one block of four at a time.
 *
 * Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 */
#ifndef TORCHIPU_PHILOX_H
#define TORCHIPU_PHILOX_H
#include <stdint.h>
#define TI_PHILOX_M0 0xD2511F53u
#define TI_PHILOX_M1 0xCD9E8D57u
#define TI_PHILOX_W0 0x9E3779B9u
#define TI_PHILOX_W1 0xBB67AE85u
enum { TI_PHILOX_ROUNDS = 10 };

static inline void ti_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < TI_PHILOX_ROUNDS; round++) {
    const uint64_t p0 = (uint64_t)TI_PHILOX_M0 * c0, p1 = (uint64_t)TI_PHILOX_M1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    k0 += TI_PHILOX_W0;
    k1 += TI_PHILOX_W1;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}
#endif
