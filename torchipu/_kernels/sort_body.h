/* Sorting, selection, and search in sorted rows.
 *
 * A row becomes entries of an unsigned key, which orders as eager does (NaN above all numbers, -0 equal to 0), and a
 * position: every order here is by key, then by position, so that results are the same in all ways of computing them.
 */
#ifndef TORCHIPU_SORT_ENTRY
#define TORCHIPU_SORT_ENTRY
typedef struct { uint64_t key; int64_t at; } ti_entry;
_Static_assert(sizeof(ti_entry) == TI_ENTRY_BYTES, "table/sort.py");
enum { TI_SORT_RUN = 16 }; /* elements sorted by insertion */
enum { TI_SORT_FEW = 64, TI_SORT_FEW_OF = 8 }; /* entries kept sorted while a row is read, of at least so many times as much */
#endif

static inline uint64_t FN(float_key)(const float *x) {
  uint32_t bits;
  memcpy(&bits, x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  if ((bits << 1) == 0) bits = 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
/* Loads n elements, `stride` apart; with `descending` the greatest gets the smallest key. */
static void FN(load_entries)(ti_entry *e, const char *x, int64_t n, int64_t stride, int is_long, int descending) {
  if (is_long) {
    const uint64_t turn = descending ? ~0ull : 0;
    for (int64_t i = 0; i < n; i++)
      e[i] = (ti_entry){((uint64_t)((const int64_t *)x)[i * stride] ^ 0x8000000000000000ull) ^ turn, i};
  } else {
    const uint64_t turn = descending ? 0xffffffffull : 0;
    for (int64_t i = 0; i < n; i++) e[i] = (ti_entry){FN(float_key)((const float *)x + i * stride) ^ turn, i};
  }
}
static void FN(merge_sort)(ti_entry *e, ti_entry *spare, int64_t n) {
  for (int64_t r = 0; r < n; r += TI_SORT_RUN)
    for (int64_t i = r + 1; i < n && i < r + TI_SORT_RUN; i++) {
      const ti_entry moved = e[i];
      int64_t j = i;
      for (; j > r && e[j - 1].key > moved.key; j--) e[j] = e[j - 1];
      e[j] = moved;
    }
  ti_entry *from = e, *to = spare;
  for (int64_t run = TI_SORT_RUN; run < n; run *= 2) {
    for (int64_t r = 0; r < n; r += 2 * run) {
      const int64_t middle = r + run < n ? r + run : n, last = r + 2 * run < n ? r + 2 * run : n;
      int64_t i = r, j = middle;
      for (int64_t k = r; k < last; k++)
        to[k] = i < middle && (j >= last || from[i].key <= from[j].key) ? from[i++] : from[j++];
    }
    ti_entry *other = from;
    from = to;
    to = other;
  }
  if (from != e) memcpy(e, from, (size_t)n * sizeof *e);
}
/* Sorts by key, stably; a byte that all keys share takes no pass. */
static void FN(sort_entries)(ti_entry *e, ti_entry *spare, int64_t n) {
  if (n <= TI_SORT_SMALL) {
    FN(merge_sort)(e, spare, n);
    return;
  }
  int64_t count[8][256];
  memset(count, 0, sizeof count);
  for (int64_t i = 0; i < n; i++)
    for (int b = 0; b < 8; b++) count[b][e[i].key >> 8 * b & 255]++;
  ti_entry *from = e, *to = spare;
  for (int b = 0; b < 8; b++) {
    if (count[b][from[0].key >> 8 * b & 255] == n) continue;
    int64_t place = 0;
    for (int d = 0; d < 256; d++) {
      const int64_t here = count[b][d];
      count[b][d] = place;
      place += here;
    }
    for (int64_t i = 0; i < n; i++) to[count[b][from[i].key >> 8 * b & 255]++] = from[i];
    ti_entry *other = from;
    from = to;
    to = other;
  }
  if (from != e) memcpy(e, from, (size_t)n * sizeof *e);
}
/* Returns the entry of rank k, by narrowing the keys byte by byte; the entries are lost. */
static ti_entry FN(select_entry)(ti_entry *e, ti_entry *spare, int64_t n, int64_t k) {
  for (int b = 7; b >= 0 && n > TI_SORT_SMALL; b--) {
    int64_t count[256] = {0}, kept = 0;
    for (int64_t i = 0; i < n; i++) count[e[i].key >> 8 * b & 255]++;
    int d = 0;
    for (; k >= count[d]; d++) k -= count[d];
    if (count[d] == n) continue;
    for (int64_t i = 0; i < n; i++)
      if ((int)(e[i].key >> 8 * b & 255) == d) e[kept++] = e[i];
    n = kept;
  }
  if (n <= TI_SORT_SMALL) FN(merge_sort)(e, spare, n);
  return e[k];
}
/* Puts the k smallest entries in front, sorted. */
static void FN(sort_smallest)(ti_entry *e, ti_entry *spare, int64_t n, int64_t k) {
  if (k < n && n > TI_SORT_SMALL) {
    memcpy(spare, e, (size_t)n * sizeof *e);
    const ti_entry last = FN(select_entry)(spare, spare + n, n, k - 1);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
      if (e[i].key < last.key || (e[i].key == last.key && e[i].at <= last.at)) e[kept++] = e[i];
    n = kept;
  }
  FN(sort_entries)(e, spare, n);
}
static inline void FN(put_entry)(char *const *args, int64_t to, const char *x, int64_t stride, int64_t at, int is_long) {
  if (is_long) ((int64_t *)args[0])[to] = ((const int64_t *)x)[at * stride];
  else memcpy((float *)args[0] + to, (const float *)x + at * stride, sizeof(float));
  ((int64_t *)args[1])[to] = at;
}

static inline void FN(insert_entry)(ti_entry *e, int64_t last, ti_entry entry) {
  for (; last > 0 && e[last - 1].key > entry.key; last--) e[last] = e[last - 1];
  e[last] = entry;
}

/* The k smallest entries of a dense row of floats, sorted: few, so that most of the row is passed by, a vector at a time. */
static void FN(few_smallest)(ti_entry *e, const float *x, int64_t n, int64_t k, int descending) {
  const uint64_t turn = descending ? 0xffffffffull : 0;
  for (int64_t i = 0; i < k; i++) FN(insert_entry)(e, i, (ti_entry){FN(float_key)(x + i) ^ turn, i});
  for (int64_t i = k; i < n; i += VL) {
    const VF v = FN(load_most)(x + i, n - i), worst = FN(set)(x[e[k - 1].at]);
    /* What is not better in floats has no smaller key; a NaN on either side is left to keys. */
    const VM kept = descending ? FN(le)(v, worst) : FN(le)(worst, v);
    if (!FN(any)(FN(isnan)(FN(sel)(kept, FN(set)(0.0f), FN(set)(NAN))))) continue;
    for (int64_t at = i; at < ti_min(n, i + VL); at++) {
      const uint64_t key = FN(float_key)(x + at) ^ turn;
      if (key < e[k - 1].key) FN(insert_entry)(e, k - 1, (ti_entry){key, at});
    }
  }
}

/* The same of a dense row of whole numbers: which of a few are better is one comparison for all of them. */
static void FN(few_smallest_whole)(ti_entry *e, const int64_t *x, int64_t n, int64_t k, int descending) {
  enum { TOGETHER = 8 };
  const uint64_t turn = descending ? ~0ull : 0;
#define TI_KEY(at) (((uint64_t)x[at] ^ 0x8000000000000000ull) ^ turn)
  for (int64_t i = 0; i < k; i++) FN(insert_entry)(e, i, (ti_entry){TI_KEY(i), i});
  int64_t i = k;
  while (i < n) {
    const int64_t worst = x[e[k - 1].at], last = ti_min(n, i + TOGETHER);
    if (last == i + TOGETHER) {
      int64_t better = 0;
      if (descending) for (int j = 0; j < TOGETHER; j++) better |= -(int64_t)(x[i + j] > worst);
      else for (int j = 0; j < TOGETHER; j++) better |= -(int64_t)(x[i + j] < worst);
      if (!better) { i = last; continue; }
    }
    for (; i < last; i++) {
      const uint64_t key = TI_KEY(i);
      if (key < e[k - 1].key) FN(insert_entry)(e, k - 1, (ti_entry){key, i});
    }
  }
#undef TI_KEY
}

#define TI_DENSE_ROWS(type, name) \
  static void FN(dense_rows_##name)(type *to, const type *x, int64_t n, int64_t inner, int64_t rows) { \
    if (rows == (int64_t)(sizeof(ti_entry) / sizeof(type))) \
      for (int64_t i = 0; i < n; i++) \
        for (int64_t r = 0; r < (int64_t)(sizeof(ti_entry) / sizeof(type)); r++) to[r * n + i] = x[i * inner + r]; \
    else \
      for (int64_t i = 0; i < n; i++) \
        for (int64_t r = 0; r < rows; r++) to[r * n + i] = x[i * inner + r]; \
  }
TI_DENSE_ROWS(float, float)
TI_DENSE_ROWS(int64_t, long)
#undef TI_DENSE_ROWS
TI_KERNEL(sort) {
  (void)scalars;
  const sort_ints *const shape = (const sort_ints *)ints;
  const int64_t n = shape->length, inner = shape->inner, k = shape->kept;
  const int is_long = (int)shape->is_long;
  ti_entry *e = scratch, *spare = e + n;
  const int is_few = k > 0 && k <= TI_SORT_FEW && k * TI_SORT_FEW_OF <= n;
  const int64_t size = is_long ? 8 : 4, at_once = sizeof(ti_entry) / size;
  for (int64_t item = begin, rows; item < end; item += rows) {
    const int64_t outer = item / inner, position = item % inner;
    const char *const x = args[2] + (outer * n * inner + position) * size;
    rows = is_few && inner > 1 ? ti_min(ti_min(at_once, inner - position), end - item) : 1;
    const char *dense = x;
    if (is_few && inner > 1) {
      /* rows that lie beside each other are brought into dense ones together: each line of them has some of all */
      dense = (const char *)spare;
      if (is_long) FN(dense_rows_long)((int64_t *)spare, (const int64_t *)x, n, inner, rows);
      else FN(dense_rows_float)((float *)spare, (const float *)x, n, inner, rows);
    }
    for (int64_t r = 0; r < rows; r++, dense += n * size) {
      if (is_few && is_long) FN(few_smallest_whole)(e, (const int64_t *)dense, n, k, (int)shape->descending);
      else if (is_few) FN(few_smallest)(e, (const float *)dense, n, k, (int)shape->descending);
      else {
        FN(load_entries)(e, x, n, inner, is_long, (int)shape->descending);
        FN(sort_smallest)(e, spare, n, k);
      }
      const int64_t to = outer * k * inner + position + r;
      for (int64_t i = 0; i < k; i++) FN(put_entry)(args, to + i * inner, x + r * size, inner, e[i].at, is_long);
    }
  }
  return TI_OK;
}

/* The last position of the most frequent value, the smallest of several; each NaN is a value of its own. */
static int64_t FN(most_frequent)(ti_entry *e, ti_entry *spare, int64_t n, int is_long) {
  FN(sort_entries)(e, spare, n);
  int64_t best = 0, most = 0, run = 0;
  for (int64_t i = 0; i < n; i++) {
    run++;
    const int is_nan = !is_long && e[i].key == 0xffffffffu;
    if (i + 1 < n && e[i].key == e[i + 1].key && !is_nan) continue;
    if (run > most) most = run, best = e[i].at;
    run = 0;
  }
  return best;
}

TI_KERNEL(select) {
  (void)scalars;
  const select_ints *const shape = (const select_ints *)ints;
  const int64_t n = shape->length, inner = shape->inner;
  const int is_long = (int)shape->is_long, selection = (int)shape->selection;
  ti_entry *e = scratch, *spare = e + n;
  for (int64_t item = begin; item < end; item++) {
    const char *x = args[2] + (item / inner * n * inner + item % inner) * (is_long ? 8 : 4);
    FN(load_entries)(e, x, n, inner, is_long, 0);
    int64_t k = shape->rank, nans = 0, first_nan = -1;
    if (selection == TI_SELECTION_MODE) {
      FN(put_entry)(args, item, x, inner, FN(most_frequent)(e, spare, n, is_long), is_long);
      continue;
    }
    if (selection != TI_SELECTION_RANK && !is_long)
      for (int64_t i = n - 1; i >= 0; i--)
        if (e[i].key == 0xffffffffu) nans++, first_nan = i;
    if (selection != TI_SELECTION_RANK) k = nans == n || selection == TI_SELECTION_MEDIAN ? (n - 1) / 2 : (n - nans - 1) / 2;
    const int64_t at = selection == TI_SELECTION_MEDIAN && nans ? first_nan : FN(select_entry)(e, spare, n, k).at;
    FN(put_entry)(args, item, x, inner, at, is_long);
  }
  return TI_OK;
}

#define TI_SEARCH(type) do { \
    const type *row = (const type *)args[1] + base, x = ((const type *)args[2])[item]; \
    while (low < high) { \
      const int64_t middle = low + (high - low) / 2; \
      const type y = row[order ? order[middle] : middle]; \
      if (shape->right ? !(y > x) : !(y >= x)) low = middle + 1; \
      else high = middle; \
    } \
  } while (0)
TI_KERNEL(search) {
  const search_ints *const shape = (const search_ints *)ints;
  (void)scalars, (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t base = shape->values ? item / shape->values * shape->length : 0;
    const int64_t *order = shape->has_order ? (const int64_t *)args[3] + base : NULL;
    int64_t low = 0, high = shape->length;
    if (shape->is_long) TI_SEARCH(int64_t);
    else TI_SEARCH(float);
    ((int64_t *)args[0])[item] = low;
  }
  return TI_OK;
}
#undef TI_SEARCH

TI_KERNEL(histogram) {
  const histogram_ints *const shape = (const histogram_ints *)ints;
  (void)scalars, (void)scratch;
  const float *x = (const float *)args[1];
  float low = ((const float *)args[2])[0], high = ((const float *)args[2])[1];
  if (low == high) low -= 1.0f, high += 1.0f;
  if (!(isfinite(low) && isfinite(high))) return TI_TRAP_RANGE;
  const int64_t bins = shape->bins;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    int64_t *counts = (int64_t *)args[0] + chunk * bins;
    const int64_t last = ti_min((chunk + 1) * shape->chunk, shape->elements);
    memset(counts, 0, (size_t)bins * sizeof *counts);
    for (int64_t i = chunk * shape->chunk; i < last; i++) {
      if (!(x[i] >= low && x[i] <= high)) continue;
      const int64_t bin = (int64_t)((x[i] - low) * (float)bins / (high - low));
      counts[bin < bins ? bin : bins - 1]++;
    }
  }
  return TI_OK;
}
