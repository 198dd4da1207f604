/* Products whose running sums are halves, as the matrix unit keeps them with half partials.
 *
 * Products of halves are exact in a float. The sums of a group of channels are floats; then the sum so far is written back as a
 * half, rounded as the machine does: source ipu_hardware.md, section 5.
 */
#include "rowmath_body.h"
#include "rounding_body.h"

/* half_product: args out, left, right, then if flagged addend, then if flagged the random words of the result; all
 * float, halves by value.
 *
 *   ints    [groups, rows, columns, taps, channels, has addend, addend strides by group, row and column, overflow,
 *            is stochastic, channels of a group]
 *   scalars [alpha, beta]
 *   items   rows of all groups
 *
 * left [groups, rows, taps, channels], right [groups, taps, channels, columns], out [groups, rows, columns]:
 * out = alpha * sum + beta * addend. The bits of a partial are those of element (1 + its number) * results + the
 * number of its result, each row of results taking a multiple of 32; the result itself has those that come first. */
static int FN(half_product)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                            void *scratch) {
  (void)scratch;
  const int64_t rows = ints[1], columns = ints[2], taps = ints[3], channels = ints[4];
  const int64_t padded = (columns + 31) / 32 * 32, results = ints[0] * rows * padded;
  const int64_t size = ints[11];
  const int overflow = (int)ints[9], has_addend = (int)ints[5];
  const int64_t *state = ints[10] ? (const int64_t *)args[3 + has_addend] : 0;
  const int is_stochastic = ints[10] && !FN(rounds_to_nearest)(state);
  const FN(keys) keys = is_stochastic ? FN(keys_of)(state) : (FN(keys)){0, 0};
  for (int64_t item = begin; item < end; item++) {
    const int64_t group = item / rows, row = item % rows;
    const float *left = (const float *)args[1] + item * taps * channels;
    const float *right = (const float *)args[2] + group * taps * channels * columns;
    float *out = (float *)args[0] + item * columns;
    for (int64_t j = 0; j < columns; j += VL) {
      const int64_t width = columns - j;
      VF sum = FN(set)(0.0f);
      int64_t number = 1;
      for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t c = 0; c < channels; c += size, number++) {
          const int64_t last = channels < c + size ? channels : c + size;
          for (int64_t k = tap * channels + c; k < tap * channels + last; k++) {
            const float *p = right + k * columns + j;
            sum += left[k] * (width < VL ? FN(ldn)(p, width, (VF){0}) : FN(ld)(p));
          }
          sum = is_stochastic
                    ? (VF)FN(rounded_by)((FN(vf))sum, FN(random_halves)(keys, number * results + item * padded + j),
                                         overflow)
                    : (VF)FN(rounded_to_nearest)((FN(vf))sum, overflow);
        }
      sum *= (float)scalars[0];
      float lanes[VL];
      FN(st)(lanes, sum);
      for (int64_t i = 0; i < VL && i < width; i++) {
        const int64_t place = group * ints[6] + row * ints[7] + (j + i) * ints[8];
        out[j + i] = lanes[i] + (has_addend ? (float)scalars[1] * ((const float *)args[3])[place] : 0.0f);
      }
    }
  }
  return TI_OK;
}
