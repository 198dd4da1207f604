/* Transposes of any size; transpose_body.h comes before it. */
typedef float FN(lone) __attribute__((aligned(1), may_alias));  /* or what else has 4 bytes, such as pairs of halves */
/* Rows and columns that fill no tile, one by one. */
static inline void FN(transpose_rest)(FN(lone) *d, int64_t ds, const FN(lone) *s, int64_t ss, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) d[i * ds + j] = s[j * ss + i];
}

/* d[rows][columns] = the transpose of s[columns][rows]. */
static inline void FN(transpose_any)(float *d, int64_t ds, const float *s, int64_t ss, int64_t rows, int64_t columns) {
  const int64_t whole = rows / 8 * 8, across = columns / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int64_t j = 0; j < across; j += 8) FN(transpose8)(d + i * ds + j, ds, s + j * ss + i, ss);
    FN(transpose_rest)(d + i * ds + across, ds, s + across * ss + i, ss, 8, columns - across);
  }
  FN(transpose_rest)(d + whole * ds, ds, s + whole, ss, rows - whole, columns);
}
