/* Square pieces of a transpose of 1, 2 and 8 bytes: as many rows as there are elements in 16 bytes. To interleave each row
 * with the one that lies half of all rows behind it, once for each power of two, turns the square.
 * Elements may be rows of narrower ones, which lie at any address of theirs.
 */
typedef uint16_t FN(lone_2) __attribute__((aligned(1), may_alias));
typedef uint64_t FN(lone_8) __attribute__((aligned(1), may_alias));
typedef uint8_t FN(few_1) __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t FN(few_2) __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t FN(few_8) __attribute__((vector_size(16), aligned(1), may_alias));
static const FN(few_1) FN(low_1) = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
static const FN(few_1) FN(high_1) = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
static const FN(few_2) FN(low_2) = {0, 8, 1, 9, 2, 10, 3, 11};
static const FN(few_2) FN(high_2) = {4, 12, 5, 13, 6, 14, 7, 15};
static const FN(few_8) FN(low_8) = {0, 2};
static const FN(few_8) FN(high_8) = {1, 3};
#define TI_TURN(size, count, type) \
  TI_INLINE void FN(turn_##size)(type *d, int64_t ds, const type *s, int64_t ss) { \
    FN(few_##size) now[count], then[count]; \
    for (int i = 0; i < count; i++) now[i] = *(const FN(few_##size) *)(s + i * ss); \
    for (int half = count / 2, done = 1; done < count; done *= 2) { \
      for (int i = 0; i < half; i++) { \
        then[2 * i] = __builtin_shuffle(now[i], now[i + half], FN(low_##size)); \
        then[2 * i + 1] = __builtin_shuffle(now[i], now[i + half], FN(high_##size)); \
      } \
      for (int i = 0; i < count; i++) now[i] = then[i]; \
    } \
    for (int i = 0; i < count; i++) *(FN(few_##size) *)(d + i * ds) = now[i]; \
  } \
  static void FN(turn_all_##size)(char *to, int64_t ds, const char *from, int64_t ss, int64_t rows, int64_t columns) { \
    type *const d = (type *)to; \
    const type *const s = (const type *)from; \
    const int64_t whole = rows / count * count, across = columns / count * count; \
    for (int64_t i = 0; i < whole; i += count) \
      for (int64_t j = 0; j < across; j += count) FN(turn_##size)(d + i * ds + j, ds, s + j * ss + i, ss); \
    for (int64_t i = 0; i < rows; i++) \
      for (int64_t j = i < whole ? across : 0; j < columns; j++) d[i * ds + j] = s[j * ss + i]; \
  }
TI_TURN(1, 16, uint8_t)
TI_TURN(2, 8, FN(lone_2))
TI_TURN(8, 2, FN(lone_8))
#undef TI_TURN
