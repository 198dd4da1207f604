/* Fourier transforms of any length whose prime factors are small: as many rows side by side as a vector has lanes.
 *
 * Each pass takes a factor off the length, and leaves its results where the next one, and the caller after the last, finds
 * them in order. Neighbouring values of a real row are the parts of a complex one of half the length. An inverse transform
 * is a forward one of numbers whose parts have changed places.
 */
#include "table/fourier.h"
#include "transpose_body.h"
#include "transpose_any_body.h"

/* Where the rows of an item lie: lane l of value i is at l * lane + i * along. */
typedef struct { int64_t first, count, lane, along; } FN(fourier_rows);

TI_INLINE FN(fourier_rows) FN(fourier_rows_of)(const fourier_ints *p, int64_t item, int64_t length) {
  const int64_t inner = p->inner, outer = p->outer, blocks = ti_ceil(inner, TI_FOURIER_ROWS);
  const int64_t row = item * TI_FOURIER_ROWS, o = item / blocks, at = item % blocks * TI_FOURIER_ROWS;
  if (inner == 1) return (FN(fourier_rows)){row * length, ti_min(TI_FOURIER_ROWS, outer - row), length, 1};
  return (FN(fourier_rows)){o * length * inner + at, ti_min(TI_FOURIER_ROWS, inner - at), 1, inner};
}
/* Brings values of up to VL rows, from lane `from` on, side by side: each `stride` from the one before. */
static void FN(fourier_in)(
  float *d, int64_t stride, const float *s, const FN(fourier_rows) *rows, int64_t from, int64_t values) {
  const int64_t lanes = ti_min(VL, rows->count - from);
  s += rows->first + from * rows->lane;
  if (lanes < VL) for (int64_t i = 0; i < values; i++) FN(store)(d + i * stride, FN(set)(0.f));
  if (rows->along == 1) FN(transpose_any)(d, stride, s, rows->lane, values, lanes);
  else for (int64_t i = 0; i < values; i++) FN(store)(d + i * stride, FN(load_part)(s + i * rows->along, lanes));
}
static void FN(fourier_out)(
  float *d, const FN(fourier_rows) *rows, int64_t from, const float *s, int64_t stride, int64_t values) {
  const int64_t lanes = ti_min(VL, rows->count - from);
  d += rows->first + from * rows->lane;
  if (rows->along == 1) FN(transpose_any)(d, rows->lane, s, stride, lanes, values);
  else for (int64_t i = 0; i < values; i++) FN(store_part)(d + i * rows->along, FN(load)(s + i * stride), lanes);
}

/* The roots of unity by which the results of a butterfly are multiplied; none where all are one. */
typedef struct { VF re[TI_MOST_RADIX], im[TI_MOST_RADIX]; } FN(fourier_turns);

TI_INLINE void FN(fourier_store)(float *y, VF re, VF im, const FN(fourier_turns) *by, int64_t u) {
  FN(store)(y, by ? FN(fma)(re, by->re[u], -(im * by->im[u])) : re);
  FN(store)(y + VL, by ? FN(fma)(re, by->im[u], im * by->re[u]) : im);
}
/* One butterfly: its values lie `far` apart, its results `near`. */
TI_INLINE void FN(fourier_two)(const float *x, int64_t far, float *y, int64_t near, const FN(fourier_turns) *by) {
  const VF a = FN(load)(x), b = FN(load)(x + VL), c = FN(load)(x + far), d = FN(load)(x + far + VL);
  FN(fourier_store)(y, a + c, b + d, NULL, 0);
  FN(fourier_store)(y + near, a - c, b - d, by, 1);
}
TI_INLINE void FN(fourier_four)(const float *x, int64_t far, float *y, int64_t near, const FN(fourier_turns) *by) {
  const VF r0 = FN(load)(x), i0 = FN(load)(x + VL), r1 = FN(load)(x + far), i1 = FN(load)(x + far + VL);
  const VF r2 = FN(load)(x + 2 * far), i2 = FN(load)(x + 2 * far + VL);
  const VF r3 = FN(load)(x + 3 * far), i3 = FN(load)(x + 3 * far + VL);
  const VF re = r0 + r2, im = i0 + i2, rd = r0 - r2, id = i0 - i2, rs = r1 + r3, is = i1 + i3, rt = r1 - r3, it = i1 - i3;
  FN(fourier_store)(y, re + rs, im + is, NULL, 0);
  FN(fourier_store)(y + near, rd + it, id - rt, by, 1);
  FN(fourier_store)(y + 2 * near, re - rs, im - is, by, 2);
  FN(fourier_store)(y + 3 * near, rd - it, id + rt, by, 3);
}
/* Any odd factor; `unit` has its own roots. Terms t and radix - t share what they are multiplied by, and so do their results. */
TI_INLINE void FN(fourier_odd)(
  const float *x, int64_t far, float *y, int64_t near, const FN(fourier_turns) *by, const FN(fourier_turns) *unit,
  int64_t radix) {
  const int64_t pairs = radix / 2;
  const VF re = FN(load)(x), im = FN(load)(x + VL);
  VF sums[TI_MOST_RADIX], sums_im[TI_MOST_RADIX], less[TI_MOST_RADIX], less_im[TI_MOST_RADIX], first = re, first_im = im;
  for (int64_t t = 1; t <= pairs; t++) {
    const float *const a = x + t * far, *const b = x + (radix - t) * far;
    sums[t] = FN(load)(a) + FN(load)(b), sums_im[t] = FN(load)(a + VL) + FN(load)(b + VL);
    less[t] = FN(load)(a) - FN(load)(b), less_im[t] = FN(load)(a + VL) - FN(load)(b + VL);
    first = first + sums[t], first_im = first_im + sums_im[t];
  }
  FN(fourier_store)(y, first, first_im, NULL, 0);
  for (int64_t u = 1; u <= pairs; u++) {
    VF even = re, even_im = im, odd = FN(set)(0.f), odd_im = FN(set)(0.f);
    for (int64_t t = 1, k = u; t <= pairs; t++, k += k + u < radix ? u : u - radix) {
      even = FN(fma)(sums[t], unit->re[k], even), even_im = FN(fma)(sums_im[t], unit->re[k], even_im);
      odd = FN(fma)(less[t], unit->im[k], odd), odd_im = FN(fma)(less_im[t], unit->im[k], odd_im);
    }
    FN(fourier_store)(y + u * near, even - odd_im, even_im + odd, by, u);
    FN(fourier_store)(y + (radix - u) * near, even + odd_im, even_im - odd, by, radix - u);
  }
}
/* Butterflies that share their turns, `count` beside each other. */
TI_INLINE void FN(fourier_beside)(
  const float *x, int64_t far, float *y, int64_t count, const FN(fourier_turns) *by, const FN(fourier_turns) *unit,
  int64_t radix) {
  const int64_t near = count * 2 * VL;
  if (radix == 4) for (int64_t q = 0; q < count; q++) FN(fourier_four)(x + q * 2 * VL, far, y + q * 2 * VL, near, by);
  else if (radix == 2) for (int64_t q = 0; q < count; q++) FN(fourier_two)(x + q * 2 * VL, far, y + q * 2 * VL, near, by);
  else if (radix == 3) for (int64_t q = 0; q < count; q++) FN(fourier_odd)(x + q * 2 * VL, far, y + q * 2 * VL, near, by, unit, 3);
  else for (int64_t q = 0; q < count; q++) FN(fourier_odd)(x + q * 2 * VL, far, y + q * 2 * VL, near, by, unit, radix);
}
/* Transforms `values` complex numbers of x; returns where the result lies, in x or in y. */
static float *FN(fourier_passes)(const fourier_ints *p, const float *roots, float *x, float *y, int64_t values) {
  const int64_t length = p->length, unit = length / values;
  for (int64_t pass = 0, left = values, near = 1; left > 1; pass++) {
    const int64_t radix = p->radices[pass], m = left / radix, far = near * m * 2 * VL;
    FN(fourier_turns) own;
    for (int64_t u = 0; u < radix; u++)
      own.re[u] = FN(set)(roots[u * (length / radix)]), own.im[u] = FN(set)(roots[length + u * (length / radix)]);
    FN(fourier_beside)(x, far, y, near, NULL, &own, radix);
    for (int64_t j = 1; j < m; j++) {
      FN(fourier_turns) by;
      for (int64_t u = 1, k = unit * near * j; u < radix; u++)
        by.re[u] = FN(set)(roots[u * k]), by.im[u] = FN(set)(roots[length + u * k]);
      by.re[0] = FN(set)(1.f), by.im[0] = FN(set)(0.f);
      FN(fourier_beside)(x + near * j * 2 * VL, far, y + near * radix * j * 2 * VL, near, &by, &own, radix);
    }
    float *const other = x;
    x = y, y = other, left = m, near *= radix;
  }
  return x;
}
/* Zeros behind what a row has: `stride` from one to the next. */
TI_INLINE void FN(fourier_fill)(float *x, int64_t given, int64_t length, int64_t stride) {
  if (given < length) memset(x + given * stride, 0, (size_t)((length - given) * stride) * sizeof(float));
}

TI_KERNEL(fourier) {
  const fourier_ints *const p = (const fourier_ints *)ints;
  const int64_t turned = p->is_inverse ? VL : 0;
  float *const x = (float *)scratch, *const y = x + p->length * 2 * VL;
  for (int64_t item = begin; item < end; item++) {
    const FN(fourier_rows) in = FN(fourier_rows_of)(p, item, p->given), out = FN(fourier_rows_of)(p, item, p->kept);
    for (int64_t lane = 0; lane < in.count; lane += VL) {
      FN(fourier_in)(x + turned, 2 * VL, (const float *)args[2], &in, lane, p->given);
      FN(fourier_in)(x + VL - turned, 2 * VL, (const float *)args[3], &in, lane, p->given);
      FN(fourier_fill)(x, p->given, p->length, 2 * VL);
      const float *z = FN(fourier_passes)(p, (const float *)args[4], x, y, p->length);
      FN(fourier_out)((float *)args[0], &out, lane, z + turned, 2 * VL, p->kept);
      FN(fourier_out)((float *)args[1], &out, lane, z + VL - turned, 2 * VL, p->kept);
    }
  }
  return TI_OK;
}

/* Of values 2 j and 2 j + 1 as parts: the spectrum is that of the even ones, and that of the odd ones turned. */
TI_KERNEL(fourier_of_real) {
  const fourier_ints *const p = (const fourier_ints *)ints;
  const int64_t length = p->length, values = length / 2;
  const float *const roots = (const float *)args[3];
  const VF half = FN(set)(0.5f);
  float *const x = (float *)scratch, *const y = x + (values + 1) * 2 * VL;
  for (int64_t item = begin; item < end; item++) {
    const FN(fourier_rows) in = FN(fourier_rows_of)(p, item, p->given), out = FN(fourier_rows_of)(p, item, p->kept);
    for (int64_t lane = 0; lane < in.count; lane += VL) {
      FN(fourier_in)(x, VL, (const float *)args[2], &in, lane, p->given);
      FN(fourier_fill)(x, p->given, length, VL);
      const float *z = FN(fourier_passes)(p, roots, x, y, values);
      float *const found = z == x ? y : x;
      for (int64_t k = 0; k < p->kept; k++) {
        const float *a = z + (k < values ? k : 0) * 2 * VL, *b = z + (k ? values - k : 0) * 2 * VL;
        const VF c = FN(set)(roots[k]), s = FN(set)(roots[length + k]);
        const VF re = FN(load)(a), im = FN(load)(a + VL), mirror = FN(load)(b), mirrored = FN(load)(b + VL);
        const VF odd = half * (im + mirrored), odder = half * (mirror - re);
        FN(store)(found + k * 2 * VL, FN(fma)(half, re + mirror, FN(fma)(odd, c, -(odder * s))));
        FN(store)(found + k * 2 * VL + VL, FN(fma)(half, im - mirrored, FN(fma)(odd, s, odder * c)));
      }
      FN(fourier_out)((float *)args[0], &out, lane, found, 2 * VL, p->kept);
      FN(fourier_out)((float *)args[1], &out, lane, found + VL, 2 * VL, p->kept);
    }
  }
  return TI_OK;
}

TI_KERNEL(fourier_to_real) {
  const fourier_ints *const p = (const fourier_ints *)ints;
  const int64_t length = p->length, values = length / 2;
  const float *const roots = (const float *)args[3];
  const VF zero = FN(set)(0.f);
  float *const x = (float *)scratch, *const y = x + (values + 1) * 2 * VL;
  for (int64_t item = begin; item < end; item++) {
    const FN(fourier_rows) in = FN(fourier_rows_of)(p, item, p->given), out = FN(fourier_rows_of)(p, item, p->kept);
    for (int64_t lane = 0; lane < in.count; lane += VL) {
      FN(fourier_in)(y, 2 * VL, (const float *)args[1], &in, lane, p->given);
      FN(fourier_in)(y + VL, 2 * VL, (const float *)args[2], &in, lane, p->given);
      FN(fourier_fill)(y, p->given, values + 1, 2 * VL);
      FN(store)(y + VL, zero);
      FN(store)(y + values * 2 * VL + VL, zero);
      for (int64_t k = 0; k < values; k++) {  /* parts have changed places */
        const float *a = y + k * 2 * VL, *b = y + (values - k) * 2 * VL;
        const VF c = FN(set)(roots[k]), s = FN(set)(roots[length + k]);
        const VF re = FN(load)(a), im = FN(load)(a + VL), mirror = FN(load)(b), mirrored = FN(load)(b + VL);
        const VF odd = re - mirror, odder = im + mirrored;
        FN(store)(x + k * 2 * VL, (im - mirrored) + FN(fma)(odd, c, odder * s));
        FN(store)(x + k * 2 * VL + VL, (re + mirror) - FN(fma)(odder, c, -(odd * s)));
      }
      const float *z = FN(fourier_passes)(p, roots, x, y, values);
      const float *turned[] = {z + VL, z};  /* even values, odd ones */
      float *const found = z == x ? y : x;
      for (int64_t i = 0; i < p->kept; i++) FN(store)(found + i * VL, FN(load)(turned[i % 2] + i / 2 * 2 * VL));
      FN(fourier_out)((float *)args[0], &out, lane, found, VL, p->kept);
    }
  }
  return TI_OK;
}
