/* Copies of bytes that do not overlap. Longer ones the C library leaves to an instruction of the processor, which takes two
 * to three times as long where the two lie differently within a cache line; vectors take the same anywhere. */
#ifndef TORCHIPU_COPY_BYTES
#define TORCHIPU_COPY_BYTES
enum { TI_VECTOR_COPY = 512, TI_LONG_COPY = 4096, TI_CACHE_LINE = 64 };  /* bytes */
#endif
static __attribute__((noinline)) void FN(copy_vectors)(char *restrict d, const char *restrict s, int64_t n) {
  const int64_t bytes = VL * 4;
  VU a, b, c, e;
  /* the first vector may end anywhere, those behind it are written to whole lines, and the last one ends with the bytes */
  memcpy(&a, s, (size_t)bytes);
  memcpy(d, &a, (size_t)bytes);
  int64_t i = bytes - (int64_t)((uintptr_t)d % (uintptr_t)bytes);
  for (; i + 4 * bytes <= n; i += 4 * bytes) {
    memcpy(&a, s + i, (size_t)bytes);
    memcpy(&b, s + i + bytes, (size_t)bytes);
    memcpy(&c, s + i + 2 * bytes, (size_t)bytes);
    memcpy(&e, s + i + 3 * bytes, (size_t)bytes);
    memcpy(d + i, &a, (size_t)bytes);
    memcpy(d + i + bytes, &b, (size_t)bytes);
    memcpy(d + i + 2 * bytes, &c, (size_t)bytes);
    memcpy(d + i + 3 * bytes, &e, (size_t)bytes);
    __asm__ volatile("" : : : "memory");  /* or the compiler sees a copy, and calls the C library */
  }
  for (; i + bytes <= n; i += bytes) {
    memcpy(&a, s + i, (size_t)bytes);
    memcpy(d + i, &a, (size_t)bytes);
    __asm__ volatile("" : : : "memory");
  }
  memcpy(&a, s + n - bytes, (size_t)bytes);
  memcpy(d + n - bytes, &a, (size_t)bytes);
}
TI_INLINE void FN(copy_bytes)(char *d, const char *s, int64_t n) {
  const int lie_alike = ((uintptr_t)d - (uintptr_t)s) % TI_CACHE_LINE == 0;
  if (n < TI_VECTOR_COPY || (n >= TI_LONG_COPY && lie_alike)) memcpy(d, s, (size_t)n);
  else FN(copy_vectors)(d, s, n);
}
