/* What the compiled kernel does to one side alone: decoding, its own sums, the codes of its largest values; and the
 * items of both sides that are finite on both, brought together.
 *
 * Compiled as if no value were NaN or Inf, so whatever may be one is told apart by its bits, and only those are
 * compared; a value is taken into a sum where its bits say so.
 */
#include "lanes.h"

/* In the order of the fields of library.py's SideSums. */
typedef struct {
    double total, deviations, low, high;
    int64_t count, zeros, nans, positive_infinities, negative_infinities;
} SideSums;

/* In the order of the fields of library.py's Together. */
typedef struct {
    int64_t count, mismatches, nan_mismatches, first_mismatch;
} Together;

/* In the order of the fields of library.py's Codes. */
typedef struct {
    int64_t largest, saturated, nans, positive_infinities, negative_infinities;
} Codes;

#define ONE_SIDE(REAL, NAME, BITS, INFINITE, MOST)                                                                    \
    /* The sums of the finite ones of `count` values, in float64, and how many others there are. Without any finite   \
     * one `low` is above `high`. */                                                                                  \
    BODY int pt_side_##NAME##_body(int row, const REAL *x, int64_t count, SideSums *out) {                            \
        const BITS sign = (BITS)1 << (8 * sizeof(BITS) - 1);                                                          \
        int64_t finite = 0, zeros = 0, nans = 0, infinite = 0, negative = 0;                                          \
        REAL low = MOST, high = -MOST;                                                                                \
        double total = 0, deviations = 0;                                                                             \
        for (int64_t at = 0; at < count; at += row) {                                                                 \
            int n = (int)(count - at < row ? count - at : row);                                                       \
            BITS finite_row = 0, zeros_row = 0, nans_row = 0, infinite_row = 0, negative_row = 0;                     \
            double sum = 0;                                                                                           \
            for (int i = 0; i < n; i++) {                                                                             \
                BITS bits;                                                                                            \
                memcpy(&bits, x + at + i, sizeof bits);                                                               \
                BITS size = bits & ~sign;                                                                             \
                REAL value = size < INFINITE ? x[at + i] : 0;                                                         \
                REAL least = size < INFINITE ? x[at + i] : MOST, most = size < INFINITE ? x[at + i] : -MOST;          \
                sum += value;                                                                                         \
                low = least < low ? least : low;                                                                      \
                high = most > high ? most : high;                                                                     \
                finite_row += size < INFINITE;                                                                        \
                zeros_row += size == 0;                                                                               \
                nans_row += size > INFINITE;                                                                          \
                infinite_row += size == INFINITE;                                                                     \
                negative_row += bits == (INFINITE | sign);                                                            \
            }                                                                                                         \
            total += sum;                                                                                             \
            finite += finite_row;                                                                                     \
            zeros += zeros_row;                                                                                       \
            nans += nans_row;                                                                                         \
            infinite += infinite_row;                                                                                 \
            negative += negative_row;                                                                                 \
        }                                                                                                             \
        const double mean = finite ? total / finite : 0;                                                              \
        for (int64_t at = 0; at < count; at += row) {                                                                 \
            int n = (int)(count - at < row ? count - at : row);                                                       \
            double sum = 0;                                                                                           \
            for (int i = 0; i < n; i++) {                                                                             \
                BITS bits;                                                                                            \
                memcpy(&bits, x + at + i, sizeof bits);                                                               \
                double apart = (double)x[at + i] - mean;                                                              \
                apart = (bits & ~sign) < INFINITE ? apart : 0;                                                        \
                sum += apart * apart;                                                                                 \
            }                                                                                                         \
            deviations += sum;                                                                                        \
        }                                                                                                             \
        SideSums found = {total, deviations, low, high, finite, zeros, nans, infinite - negative, negative};          \
        *out = found;                                                                                                 \
        return 0;                                                                                                     \
    }                                                                                                                 \
                                                                                                                      \
    /* Brings the items together that are finite on both sides, in float64, with their places. A mismatch is an item  \
     * that is not, nor the same NaN or infinity on both. All three arrays have room for `count` items. */            \
    BODY int pt_together_##NAME##_body(int row, const REAL *x, const REAL *y, int64_t count, double *x_out,           \
                                       double *y_out, int32_t *places, Together *out) {                               \
        (void)row;                                                                                                    \
        const BITS sign = (BITS)1 << (8 * sizeof(BITS) - 1);                                                          \
        Together found = {0, 0, 0, -1};                                                                               \
        for (int64_t i = 0; i < count; i++) {                                                                         \
            BITS a, b;                                                                                                \
            memcpy(&a, x + i, sizeof a);                                                                              \
            memcpy(&b, y + i, sizeof b);                                                                              \
            BITS a_size = a & ~sign, b_size = b & ~sign;                                                              \
            int finite = (a_size < INFINITE) & (b_size < INFINITE);                                                   \
            int a_nan = a_size > INFINITE, b_nan = b_size > INFINITE;                                                 \
            x_out[found.count] = (double)x[i];                                                                        \
            y_out[found.count] = (double)y[i];                                                                        \
            places[found.count] = (int32_t)i;                                                                         \
            found.count += finite;                                                                                    \
            int wrong = !(finite | (a_nan & b_nan) | ((a_size == INFINITE) & (a == b)));                              \
            if (wrong) {                                                                                              \
                if (!found.mismatches) found.first_mismatch = i;                                                      \
                found.mismatches++;                                                                                   \
                found.nan_mismatches += a_nan | b_nan;                                                                \
            }                                                                                                         \
        }                                                                                                             \
        *out = found;                                                                                                 \
        return 0;                                                                                                     \
    }                                                                                                                 \
                                                                                                                      \
    /* Adds the finite ones of `count` values, none below `low` nor above `low + span`, to the counts of `bins` equal \
     * bins; the last one is closed. */                                                                               \
    BODY int pt_bins_##NAME##_body(int row, const REAL *x, int64_t count, double low, double span, int64_t bins,      \
                                   int64_t *counts) {                                                                 \
        const BITS sign = (BITS)1 << (8 * sizeof(BITS) - 1);                                                          \
        int32_t places[LONGEST_ROW];                                                                                  \
        for (int64_t at = 0; at < count; at += row) {                                                                 \
            int n = (int)(count - at < row ? count - at : row);                                                       \
            for (int i = 0; i < n; i++) {                                                                             \
                IN_ORDER /* the product of a large value and `bins` would overflow */                                 \
                BITS bits;                                                                                            \
                memcpy(&bits, x + at + i, sizeof bits);                                                               \
                REAL value = (bits & ~sign) < INFINITE ? x[at + i] : (REAL)low;                                       \
                int32_t place = (int32_t)(((double)value - low) / span * (double)bins);                               \
                place = place < (int32_t)bins ? place : (int32_t)bins - 1;                                            \
                places[i] = (bits & ~sign) < INFINITE ? place : -1;                                                   \
            }                                                                                                         \
            for (int i = 0; i < n; i++)                                                                               \
                if (places[i] >= 0) counts[places[i]]++;                                                              \
        }                                                                                                             \
        return 0;                                                                                                     \
    }

ONE_SIDE(float, float32, uint32_t, 0x7F800000u, FLT_MAX)
ONE_SIDE(double, float64, uint64_t, 0x7FF0000000000000u, DBL_MAX)
PER_PROCESSOR(pt_side_float32, (const float *x, int64_t count, SideSums *out), x, count, out)
PER_PROCESSOR(pt_side_float64, (const double *x, int64_t count, SideSums *out), x, count, out)
PER_PROCESSOR(pt_bins_float32, (const float *x, int64_t count, double low, double span, int64_t bins, int64_t *counts),
              x, count, low, span, bins, counts)
PER_PROCESSOR(pt_bins_float64, (const double *x, int64_t count, double low, double span, int64_t bins, int64_t *counts),
              x, count, low, span, bins, counts)
PER_PROCESSOR(pt_together_float32, (const float *x, const float *y, int64_t count, double *x_out, double *y_out,
                                  int32_t *places, Together *out),
              x, y, count, x_out, y_out, places, out)
PER_PROCESSOR(pt_together_float64, (const double *x, const double *y, int64_t count, double *x_out, double *y_out,
                                   int32_t *places, Together *out),
              x, y, count, x_out, y_out, places, out)

/* Of `count` stored floating-point numbers: the largest code of a finite one without its sign, and how many are NaN,
 * infinite or the largest number of their type, `top`. Infinity is the code behind it. */
#define CODES(WIDTH)                                                                                                  \
    BODY int pt_codes_##WIDTH##_body(int row, const uint##WIDTH##_t *x, int64_t count, int64_t top, Codes *out) {     \
        const uint##WIDTH##_t sign = (uint##WIDTH##_t)((uint64_t)1 << (WIDTH - 1)), most = (uint##WIDTH##_t)top;      \
        const uint##WIDTH##_t infinity = (uint##WIDTH##_t)(most + 1);                                                 \
        uint##WIDTH##_t largest = 0;                                                                                  \
        Codes found = {0, 0, 0, 0, 0};                                                                                \
        for (int64_t at = 0; at < count; at += row) {                                                                 \
            int n = (int)(count - at < row ? count - at : row);                                                       \
            uint##WIDTH##_t highest = 0;                                                                              \
            for (int i = 0; i < n; i++) {                                                                             \
                uint##WIDTH##_t size = x[at + i] & (uint##WIDTH##_t)~sign;                                            \
                highest = size > highest ? size : highest;                                                            \
            }                                                                                                         \
            if (highest < most) {                                                                                     \
                largest = highest > largest ? highest : largest;                                                      \
                continue;                                                                                             \
            }                                                                                                         \
            uint##WIDTH##_t nans = 0, saturated = 0, infinite = 0, negative = 0;                                      \
            for (int i = 0; i < n; i++) {                                                                             \
                uint##WIDTH##_t size = x[at + i] & (uint##WIDTH##_t)~sign;                                            \
                uint##WIDTH##_t finite = size < infinity ? size : 0;                                                  \
                largest = finite > largest ? finite : largest;                                                        \
                nans += size > infinity;                                                                              \
                saturated += size == most;                                                                            \
                infinite += size == infinity;                                                                         \
                negative += x[at + i] == (uint##WIDTH##_t)(infinity | sign);                                          \
            }                                                                                                         \
            found.nans += nans;                                                                                       \
            found.saturated += saturated;                                                                             \
            found.positive_infinities += infinite - negative;                                                         \
            found.negative_infinities += negative;                                                                    \
        }                                                                                                             \
        found.largest = (int64_t)largest;                                                                             \
        *out = found;                                                                                                 \
        return 0;                                                                                                     \
    }                                                                                                                 \
    PER_PROCESSOR(pt_codes_##WIDTH, (const uint##WIDTH##_t *x, int64_t count, int64_t top, Codes *out),               \
                  x, count, top, out)

CODES(16)
CODES(32)
CODES(64)

/* float16 to float32; exact. A NaN becomes a quiet one with its sign and payload. */
BODY int pt_decode_float16_body(int row, const uint16_t *from, float *to, int64_t count) {
    (void)row;
    for (int64_t i = 0; i < count; i++) {
        uint32_t sign = (uint32_t)(from[i] & 0x8000) << 16, size = (uint32_t)(from[i] & 0x7FFF) << 13;
        float value;
        uint32_t bits;
        memcpy(&value, &size, sizeof value);
        value *= 0x1p112f; /* the difference of the exponents' biases; exact, of subnormal numbers too */
        memcpy(&bits, &value, sizeof bits);
        uint32_t special = 0x7F800000u | size | (size > 0x0F800000u ? 0x00400000u : 0);
        bits = (size >= 0x0F800000u ? special : bits) | sign;
        memcpy(to + i, &bits, sizeof bits);
    }
    return 0;
}
PER_PROCESSOR(pt_decode_float16, (const uint16_t *from, float *to, int64_t count), from, to, count)

/* bfloat16 to float32: its upper half. */
BODY int pt_decode_bfloat16_body(int row, const uint16_t *from, float *to, int64_t count) {
    (void)row;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
    return 0;
}
PER_PROCESSOR(pt_decode_bfloat16, (const uint16_t *from, float *to, int64_t count), from, to, count)

/* Types of a byte an item, looked up among 256 values: as quick as their arithmetic. */
int pt_decode_byte(const uint8_t *from, const float *table, float *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) memcpy(to + i, table + from[i], sizeof *to);
    return 0;
}
