/* Integers of 64 bits, signed or not, which float64 cannot hold: the sums of engine/integers.py over one side and over
 * both sides of a pair.
 *
 * They are taken apart into two halves of 32 bits. Each half is exact in float64, and so are differences of halves and
 * their products with 2**32: what is put together of both is rounded once. Unsigned ones are turned by 2**63 first, so
 * that all keep their order as signed ones; the upper half gets back what that takes from it.
 */
#include "lanes.h"

enum { ITEMS = 256 }; /* of a row: its float64 values stay in the innermost cache */

static const uint64_t TOP_BIT = (uint64_t)1 << 63;

/* In the order of the fields of library.py's IntegerSums. The total of the upper halves and of the lower ones, as of
 * integers that are 2**63 more if they are signed. */
typedef struct {
    uint64_t high_total, low_total;
    int64_t low, high, zeros; /* unsigned ones as their bits */
    double deviations;
} IntegerSums;

/* In the order of the fields of library.py's IntegerPairs. */
typedef struct {
    double dot, npu_squares, golden_squares, error_squares, error_total, relative_total, max_error, max_relative;
    int64_t max_error_at;
} IntegerPairs;

/* The bits that make an integer a signed one in the same order, and what the upper half of that is short of. */
BODY uint64_t turn_of(int64_t is_unsigned) { return is_unsigned ? TOP_BIT : 0; }
BODY double short_of(int64_t is_unsigned) { return is_unsigned ? 0x1p31 : 0; }

BODY double upper(uint64_t turned) { return (double)(int32_t)(turned >> 32); }
BODY double lower(uint64_t turned) { return (double)(uint32_t)turned; }

/* The sums of `count` integers of one side, at least one and below 2**31. */
BODY int pt_side_integers_body(int row, const uint64_t *x, int64_t count, int64_t is_unsigned, IntegerSums *out) {
    (void)row;
    const uint64_t turn = turn_of(is_unsigned);
    uint64_t high_total = 0, low_total = 0, zeros = 0;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int64_t i = 0; i < count; i++) {
        uint64_t turned = x[i] ^ turn, above = turned ^ TOP_BIT; /* from the least that there is */
        int64_t value = (int64_t)turned;
        high_total += above >> 32;
        low_total += above & 0xFFFFFFFFu;
        low = value < low ? value : low;
        high = value > high ? value : high;
        zeros += x[i] == 0;
    }
    /* The integer next to the mean, in halves: below 2**63 each, the rests of the division fit together. What the mean
     * is above it is at most a half, so that nothing cancels when it is taken out of the squares. */
    const uint64_t n = (uint64_t)count;
    uint64_t rest = ((high_total % n) << 32) + low_total + n / 2;
    const double high_mean = (double)(int64_t)(high_total / n) - 0x1p31, low_mean = (double)(int64_t)(rest / n);
    const double above_mean = ((double)(int64_t)(rest % n) - (double)(int64_t)(n / 2)) / (double)count;
    double squares = 0;
    for (int64_t at = 0; at < count; at += ITEMS) {
        int items = (int)(count - at < ITEMS ? count - at : ITEMS);
        double sum = 0;
        for (int i = 0; i < items; i++) {
            uint64_t turned = x[at + i] ^ turn;
            double apart = (upper(turned) - high_mean) * 0x1p32 + (lower(turned) - low_mean);
            sum += apart * apart;
        }
        squares += sum;
    }
    squares -= (double)count * above_mean * above_mean;
    IntegerSums found = {
        high_total, low_total, (int64_t)((uint64_t)low ^ turn), (int64_t)((uint64_t)high ^ turn), (int64_t)zeros,
        squares > 0 ? squares : 0,
    };
    *out = found;
    return 0;
}
PER_PROCESSOR(pt_side_integers, (const uint64_t *x, int64_t count, int64_t is_unsigned, IntegerSums *out),
              x, count, is_unsigned, out)

/* The sums of `count` pairs, in float64, of integers that are rounded to it and of their differences, which are not
 * before. */
BODY int pt_first_integers_body(int row, const uint64_t *x, int64_t x_unsigned, const uint64_t *y, int64_t y_unsigned,
                                int64_t count, IntegerPairs *out) {
    (void)row;
    const uint64_t x_turn = turn_of(x_unsigned), y_turn = turn_of(y_unsigned);
    const double x_short = short_of(x_unsigned), y_short = short_of(y_unsigned);
    IntegerPairs found;
    memset(&found, 0, sizeof found);
    found.max_error = -1;
    for (int64_t at = 0; at < count; at += ITEMS) {
        int n = (int)(count - at < ITEMS ? count - at : ITEMS);
        double a[ITEMS], b[ITEMS], errors[ITEMS];
        for (int i = 0; i < n; i++) {
            uint64_t p = x[at + i] ^ x_turn, q = y[at + i] ^ y_turn;
            double p_high = upper(p) + x_short, q_high = upper(q) + y_short, p_low = lower(p), q_low = lower(q);
            a[i] = p_high * 0x1p32 + p_low;
            b[i] = q_high * 0x1p32 + q_low;
            errors[i] = fabs((p_high - q_high) * 0x1p32 + (p_low - q_low));
        }
        double dot = 0, aa = 0, bb = 0, ee = 0, e_sum = 0, r_sum = 0, e_top = 0, r_top = 0;
        for (int i = 0; i < n; i++) {
            double e = errors[i], size = fabs(b[i]);
            double r = e / (size > 0 ? size : 1);
            r = size > 0 ? r : 0;
            dot += a[i] * b[i];
            aa += a[i] * a[i];
            bb += b[i] * b[i];
            ee += e * e;
            e_sum += e;
            r_sum += r;
            e_top = e > e_top ? e : e_top;
            r_top = r > r_top ? r : r_top;
        }
        if (e_top > found.max_error) {
            int i = 0;
            while (i < n - 1 && errors[i] != e_top) i++;
            found.max_error = e_top;
            found.max_error_at = at + i;
        }
        found.max_relative = r_top > found.max_relative ? r_top : found.max_relative;
        found.dot += dot;
        found.npu_squares += aa;
        found.golden_squares += bb;
        found.error_squares += ee;
        found.error_total += e_sum;
        found.relative_total += r_sum;
    }
    *out = found;
    return 0;
}
PER_PROCESSOR(pt_first_integers, (const uint64_t *x, int64_t x_unsigned, const uint64_t *y, int64_t y_unsigned,
                                  int64_t count, IntegerPairs *out),
              x, x_unsigned, y, y_unsigned, count, out)

/* How far `count` integers are from `base`, which is one of their kind, in float64. */
BODY int pt_offsets_body(int row, const uint64_t *x, int64_t count, int64_t is_unsigned, uint64_t base, double *out) {
    (void)row;
    const uint64_t turn = turn_of(is_unsigned);
    const double high = upper(base ^ turn), low = lower(base ^ turn);
    for (int64_t i = 0; i < count; i++) {
        uint64_t turned = x[i] ^ turn;
        out[i] = (upper(turned) - high) * 0x1p32 + (lower(turned) - low);
    }
    return 0;
}
PER_PROCESSOR(pt_offsets, (const uint64_t *x, int64_t count, int64_t is_unsigned, uint64_t base, double *out),
              x, count, is_unsigned, base, out)
