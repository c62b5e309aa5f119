/* The sums of engine/kernel.py over both sides of a pair. What is done to one side alone is in values.c.
 *
 * Optional: without this library numpy does the same work. Loaded through ctypes, so there is no Python in it.
 * Runs of a row are added in their own type, 16 items in each lane that the processor has; the rest in float64.
 * Compiled with reassociation of sums but with exact division, and never linked with -ffast-math, which would
 * change how the whole process treats subnormal numbers. NaN and Inf are found by their bits, before any sum counts.
 */
#include "lanes.h"

/* Goes up with every change of what a function takes or returns; native/library.py asks for it. */
#define INTERFACE 6

/* Runs of a row, and those of what is mostly one small value beside a few large ones. */
enum { RUNS = 4, SHORT_RUNS = 8 };

/* Benchmark values up to this size count as zero for relative errors (ZERO_BELOW of model/comparison.py). */
static const double ZERO_BELOW = 2.2e-16;
/* A row's variance below this share of its squared mean is computed around the mean (_CANCELLED of engine/kernel.py). */
static const double CANCELLED = 0.25;

#if defined(__x86_64__) && defined(__GNUC__)
static int used; /* 0 until asked; threads that ask at the same time find the same */
int pt_kind(void) {
    if (!used) {
        __builtin_cpu_init();
        int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        used = avx2 && avx512 ? 3 : avx2 ? 2 : 1;
    }
    return used;
}
/* For tests: works as on a processor of this kind, if this one is as good (0: as on this one). */
void pt_use_processor(int kind) {
    used = 0;
    if (kind > 0 && kind < pt_kind()) used = kind;
}
const char *pt_processor(void) {
    static const char *const names[] = {"", "x86-64", "AVX2", "AVX-512"};
    return names[pt_kind()];
}
#else
void pt_use_processor(int kind) { (void)kind; }
const char *pt_processor(void) { return "plain"; }
#endif

/* In the order of the fields of library.py's FirstSums. */
typedef struct {
    double dot, npu_squares, golden_squares, error_squares, error_total, relative_total;
    double npu_total, npu_deviations, npu_low, npu_high;
    double golden_total, golden_deviations, golden_low, golden_high;
    double max_error, max_relative;
    int64_t max_error_at, npu_zeros, golden_zeros;
} FirstSums;

typedef struct {
    double p, q, apart, p_log_ratio;
} SecondSums;

int pt_interface(void) { return INTERFACE; }

/* The rows of one side. What their means are apart from that of the first is exactly zero where all are the same, and
 * small enough beside what the first row itself adds that nothing cancels. */
typedef struct {
    double count, mean, apart, apart_squares, deviations;
} Side;

static inline void add_side_row(Side *side, double sum, double deviations, double count) {
    double mean = sum / count;
    if (side->count == 0) side->mean = mean;
    double apart = mean - side->mean;
    side->count += count;
    side->apart += count * apart;
    side->apart_squares += count * apart * apart;
    side->deviations += deviations;
}

static inline void end_side(const Side *side, double *total, double *deviations) {
    double between = side->count > 0 ? side->apart_squares - side->apart * side->apart / side->count : 0;
    *total = side->count * side->mean + side->apart;
    *deviations = side->deviations + (between > 0 ? between : 0);
}

#define FIRST_PASS(REAL, BITS, INFINITE, ABS, TINY)                                                                   \
    /* What the first pass knows while it goes through rows of this type. */                                          \
    typedef struct {                                                                                                  \
        REAL x_low, x_high, y_low, y_high, worst_error, worst_relative;                                               \
        BITS x_size, y_size;                                                                                          \
    } REAL##_state;                                                                                                   \
                                                                                                                      \
    /* The squared deviations of a row from its mean, around the mean where the squares would lose them. */           \
    BODY double REAL##_deviations(const REAL *a, int n, int run, double sum, double squares, double *exact) {         \
        double mean = sum / n, deviations = squares - sum * mean;                                                     \
        *exact = sum;                                                                                                 \
        if (!(deviations < CANCELLED * sum * mean)) return deviations;                                                \
        REAL centre = (REAL)mean;                                                                                     \
        double offset = 0, around = 0;                                                                                \
        for (int start = 0; start < n; start += run) {                                                                \
            int stop = n - start < run ? n : start + run;                                                             \
            REAL offset_run = 0, around_run = 0;                                                                      \
            for (int i = start; i < stop; i++) {                                                                      \
                REAL apart = a[i] - centre;                                                                           \
                offset_run += apart;                                                                                  \
                around_run += apart * apart;                                                                          \
            }                                                                                                         \
            offset += offset_run;                                                                                     \
            around += around_run;                                                                                     \
        }                                                                                                             \
        *exact = n * (double)centre + offset;                                                                         \
        deviations = around - offset * offset / n;                                                                    \
        return deviations > 0 ? deviations : 0;                                                                       \
    }                                                                                                                 \
                                                                                                                      \
    /* Adds a row of `n` items, at most LONGEST_ROW, of which the first is item `at`; 1 if a value is NaN or Inf. */  \
    BODY int REAL##_row(const REAL *x, const REAL *y, int n, int run, int64_t at, REAL##_state *t, Side *sides,       \
                        FirstSums *s) {                                                                               \
        const REAL zero = (REAL)ZERO_BELOW;                                                                           \
        const BITS sign = (BITS)1 << (8 * sizeof(BITS) - 1);                                                          \
        BITS x_top = 0, y_top = 0;                                                                                    \
        for (int i = 0; i < n; i++) {                                                                                 \
            BITS a, b;                                                                                                \
            memcpy(&a, x + i, sizeof a);                                                                              \
            memcpy(&b, y + i, sizeof b);                                                                              \
            a &= ~sign;                                                                                               \
            b &= ~sign;                                                                                               \
            x_top = a > x_top ? a : x_top;                                                                            \
            y_top = b > y_top ? b : y_top;                                                                            \
        }                                                                                                             \
        if (x_top >= INFINITE || y_top >= INFINITE) return 1;                                                         \
        t->x_size = x_top > t->x_size ? x_top : t->x_size;                                                            \
        t->y_size = y_top > t->y_size ? y_top : t->y_size;                                                            \
        double dot = 0, xx = 0, yy = 0, errors = 0, x_sum = 0, y_sum = 0, e_sum = 0, r_sum = 0;                       \
        REAL x_low = t->x_low, x_high = t->x_high, y_low = t->y_low, y_high = t->y_high, e_top = 0, r_top = 0;        \
        BITS x_zeros = 0, y_zeros = 0;                                                                                \
        for (int start = 0; start < n; start += run) {                                                                \
            int stop = n - start < run ? n : start + run;                                                             \
            REAL xy_run = 0, xx_run = 0, yy_run = 0, ee_run = 0, x_run = 0, y_run = 0, e_run = 0, r_run = 0;          \
            for (int i = start; i < stop; i++) {                                                                      \
                REAL a = x[i], b = y[i], e = a - b;                                                                   \
                xy_run += a * b;                                                                                      \
                xx_run += a * a;                                                                                      \
                yy_run += b * b;                                                                                      \
                ee_run += e * e;                                                                                      \
                x_run += a;                                                                                           \
                y_run += b;                                                                                           \
                x_low = a < x_low ? a : x_low;                                                                        \
                x_high = a > x_high ? a : x_high;                                                                     \
                y_low = b < y_low ? b : y_low;                                                                        \
                y_high = b > y_high ? b : y_high;                                                                     \
            }                                                                                                         \
            for (int i = start; i < stop; i++) {                                                                      \
                REAL e = ABS(x[i] - y[i]), size = ABS(y[i]);                                                          \
                REAL r = e / (size > zero ? size : (REAL)1);                                                          \
                r = size > zero ? r : 0;                                                                              \
                e_run += e;                                                                                           \
                r_run += r;                                                                                           \
                e_top = e > e_top ? e : e_top;                                                                        \
                r_top = r > r_top ? r : r_top;                                                                        \
                x_zeros += x[i] == 0;                                                                                 \
                y_zeros += y[i] == 0;                                                                                 \
            }                                                                                                         \
            dot += xy_run;                                                                                            \
            xx += xx_run;                                                                                             \
            yy += yy_run;                                                                                             \
            errors += ee_run;                                                                                         \
            x_sum += x_run;                                                                                           \
            y_sum += y_run;                                                                                           \
            e_sum += e_run;                                                                                           \
            r_sum += r_run;                                                                                           \
        }                                                                                                             \
        t->x_low = x_low;                                                                                             \
        t->x_high = x_high;                                                                                           \
        t->y_low = y_low;                                                                                             \
        t->y_high = y_high;                                                                                           \
        if (0 < e_top && e_top < TINY) { /* their squares vanish in this type */                                      \
            errors = 0;                                                                                               \
            for (int i = 0; i < n; i++) errors += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);      \
        }                                                                                                             \
        if (e_top > t->worst_error) {                                                                                 \
            int i = 0;                                                                                                \
            while (i < n - 1 && ABS(x[i] - y[i]) != e_top) i++;                                                       \
            t->worst_error = e_top;                                                                                   \
            if (e_top > s->max_error) {                                                                               \
                s->max_error = e_top;                                                                                 \
                s->max_error_at = at + i;                                                                             \
            }                                                                                                         \
        }                                                                                                             \
        if (r_top > t->worst_relative) { /* told without the rounding of this type */                                 \
            int i = 0;                                                                                                \
            while (i < n && !(ABS(y[i]) > zero && ABS(x[i] - y[i]) / ABS(y[i]) == r_top)) i++;                        \
            t->worst_relative = r_top;                                                                                \
            double exact = i < n ? fabs((double)x[i] - (double)y[i]) / fabs((double)y[i]) : (double)r_top;            \
            s->max_relative = exact > s->max_relative ? exact : s->max_relative;                                      \
        }                                                                                                             \
        double x_exact, y_exact;                                                                                      \
        double x_apart = REAL##_deviations(x, n, run, x_sum, xx, &x_exact);                                           \
        double y_apart = REAL##_deviations(y, n, run, y_sum, yy, &y_exact);                                           \
        add_side_row(sides, x_exact, x_apart, n);                                                                     \
        add_side_row(sides + 1, y_exact, y_apart, n);                                                                 \
        s->dot += dot;                                                                                                \
        s->npu_squares += xx;                                                                                         \
        s->golden_squares += yy;                                                                                      \
        s->error_squares += errors;                                                                                   \
        s->error_total += e_sum;                                                                                      \
        s->relative_total += r_sum;                                                                                   \
        s->npu_zeros += x_zeros;                                                                                      \
        s->golden_zeros += y_zeros;                                                                                   \
        return 0;                                                                                                     \
    }                                                                                                                 \
                                                                                                                      \
    BODY void REAL##_start(const REAL *x, const REAL *y, REAL##_state *t) {                                           \
        t->x_low = t->x_high = x[0];                                                                                  \
        t->y_low = t->y_high = y[0];                                                                                  \
        t->worst_error = -1;                                                                                          \
        t->worst_relative = 0;                                                                                        \
        t->x_size = t->y_size = 0;                                                                                    \
    }                                                                                                                 \
                                                                                                                      \
    /* Ends the rows of this type: 2 if a side's largest is neither zero nor from `smallest` to `largest`. */         \
    BODY int REAL##_end(const REAL##_state *t, double smallest, double largest, FirstSums *s) {                       \
        REAL sizes[2];                                                                                                \
        memcpy(sizes, &t->x_size, sizeof t->x_size);                                                                  \
        memcpy(sizes + 1, &t->y_size, sizeof t->y_size);                                                              \
        for (int side = 0; side < 2; side++)                                                                          \
            if (sizes[side] != 0 && !(smallest <= sizes[side] && sizes[side] <= largest)) return 2;                   \
        s->npu_low = t->x_low < s->npu_low ? t->x_low : s->npu_low;                                                   \
        s->npu_high = t->x_high > s->npu_high ? t->x_high : s->npu_high;                                              \
        s->golden_low = t->y_low < s->golden_low ? t->y_low : s->golden_low;                                          \
        s->golden_high = t->y_high > s->golden_high ? t->y_high : s->golden_high;                                     \
        return 0;                                                                                                     \
    }

FIRST_PASS(float, uint32_t, 0x7F800000u, fabsf, 1e-12f)
FIRST_PASS(double, uint64_t, 0x7FF0000000000000u, fabs, 0)

/* All sums start at zero, and what is largest or least where anything replaces it. */
static void start_sums(FirstSums *s) {
    memset(s, 0, sizeof *s);
    s->npu_low = s->golden_low = DBL_MAX;
    s->npu_high = s->golden_high = -DBL_MAX;
    s->max_error = -1;
}

static void end_sides(const Side *sides, FirstSums *s) {
    end_side(sides, &s->npu_total, &s->npu_deviations);
    end_side(sides + 1, &s->golden_total, &s->golden_deviations);
}

/* The sums of `count` items of both sides. 0 if all is well; else `out` is void: 1 if a value is NaN or Inf, 2 where
 * a side's largest is beyond `limits`: of a type's squares and quotients the range that they are in. What is left of
 * float32 behind whole rows is added in float64, so that its one sum loses nothing. */
BODY int pt_first_float32_body(int row, const float *x, const float *y, int64_t count, const double *limits,
                               FirstSums *out) {
    int64_t whole = count / row * row;
    int left = (int)(count - whole);
    Side sides[2];
    memset(sides, 0, sizeof sides);
    start_sums(out);
    if (whole) {
        float_state state;
        float_start(x, y, &state);
        for (int64_t at = 0; at < whole; at += row)
            if (float_row(x + at, y + at, row, row / RUNS, at, &state, sides, out)) return 1;
        if (float_end(&state, limits[0], limits[1], out)) return 2;
    }
    if (left) {
        double a[LONGEST_ROW] = {0}, b[LONGEST_ROW] = {0};
        for (int i = 0; i < left; i++) {
            a[i] = x[whole + i];
            b[i] = y[whole + i];
        }
        double_state state;
        double_start(a, b, &state);
        if (double_row(a, b, left, row / RUNS, whole, &state, sides, out)) return 1;
        if (double_end(&state, limits[2], limits[3], out)) return 2;
    }
    end_sides(sides, out);
    return 0;
}

BODY int pt_first_float64_body(int row, const double *x, const double *y, int64_t count, const double *limits,
                               FirstSums *out) {
    Side sides[2];
    memset(sides, 0, sizeof sides);
    start_sums(out);
    double_state state;
    double_start(x, y, &state);
    int64_t at = 0;
    for (; at + row <= count; at += row)
        if (double_row(x + at, y + at, row, row / RUNS, at, &state, sides, out)) return 1;
    if (at < count && double_row(x + at, y + at, (int)(count - at), row / RUNS, at, &state, sides, out)) return 1;
    if (double_end(&state, limits[2], limits[3], out)) return 2;
    end_sides(sides, out);
    return 0;
}

PER_PROCESSOR(pt_first_float32, (const float *x, const float *y, int64_t count, const double *limits, FirstSums *out),
              x, y, count, limits, out)
PER_PROCESSOR(pt_first_float64, (const double *x, const double *y, int64_t count, const double *limits, FirstSums *out),
              x, y, count, limits, out)

/* The natural logarithm of p / q, both positive and normal; error below 2e-7 of it, however near to 1 the quotient is.
 * log(1 + t) = t - t*t/2 + t*t*t*Q(t) for t from sqrt(1/2) - 1 to sqrt(2) - 1; Q is the polynomial of degree 7 whose
 * largest relative error in the logarithm is least (6e-9, by weighted least squares on Chebyshev points). */
BODY float log_ratio(float p, float q) {
    float inverse = 1.0f / q, ratio = p * inverse;
    int32_t bits;
    memcpy(&bits, &ratio, sizeof bits);
    /* The exponent of the quotient over sqrt(1/2), and the quotient without it. */
    int32_t exponent = (bits - 0x3F3504F3) >> 23;
    bits -= (int32_t)((uint32_t)exponent << 23);
    float m;
    memcpy(&m, &bits, sizeof m);
    /* Of near values the difference is exact, and small beside the rounding of their quotient. */
    float t = exponent == 0 ? (p - q) * inverse : m - 1.0f;
    float tt = t * t, e = (float)exponent;
    float c = -0.07634492963552475f;
    c = c * t + 0.12761574983596802f;
    c = c * t - 0.13160182535648346f;
    c = c * t + 0.14201758801937103f;
    c = c * t - 0.16623356938362122f;
    c = c * t + 0.20001226663589478f;
    c = c * t - 0.2500081956386566f;
    c = c * t + 0.3333333134651184f;
    /* log(2) in two parts, the first with few digits: its product with an exponent is exact. */
    return e * 0.693359375f + (t + (e * -2.12194440e-4f + (tt * t * c - 0.5f * tt)));
}

/* The sums of p, q, q - p and p*log2(p/q), where p and q are the values above the least, at least the side's floor.
 * `limits`: both sides' least values, both floors. What is left behind whole rows is added in float64. */
BODY int pt_second_float32_body(int row, const float *x, const float *y, int64_t count, const double *limits,
                                SecondSums *out) {
    const float x_low = (float)limits[0], y_low = (float)limits[1];
    const float x_floor = (float)limits[2], y_floor = (float)limits[3];
    double p_total = 0, q_total = 0, apart_total = 0, ratio_total = 0;
    const int length = row / SHORT_RUNS;
    int64_t whole = count / length * length;
    for (int64_t at = 0; at < whole; at += length) {
        float p_sum = 0, q_sum = 0, apart_sum = 0, ratio_sum = 0, apart[LONGEST_ROW / SHORT_RUNS];
        for (int i = 0; i < length; i++) {
            float p = x[at + i] - x_low, q = y[at + i] - y_low;
            p = p > x_floor ? p : x_floor;
            q = q > y_floor ? q : y_floor;
            apart[i] = q - p; /* added apart: the compiler may take q and then p to the sum, which loses digits */
            p_sum += p;
            q_sum += q;
            ratio_sum += p * log_ratio(p, q);
        }
        for (int i = 0; i < length; i++) apart_sum += apart[i];
        p_total += p_sum;
        q_total += q_sum;
        apart_total += apart_sum;
        ratio_total += ratio_sum;
    }
    for (int64_t i = whole; i < count; i++) {
        double p = x[i] - limits[0], q = y[i] - limits[1];
        p = p > limits[2] ? p : limits[2];
        q = q > limits[3] ? q : limits[3];
        p_total += p;
        q_total += q;
        apart_total += q - p;
        ratio_total += p * log(p / q);
    }
    out->p = p_total;
    out->q = q_total;
    out->apart = apart_total;
    out->p_log_ratio = ratio_total * 1.4426950408889634; /* log2(e) */
    return 0;
}
PER_PROCESSOR(pt_second_float32, (const float *x, const float *y, int64_t count, const double *limits, SecondSums *out),
              x, y, count, limits, out)

/* The natural logarithm of p / q, both positive and normal, to float64's rounding: the power of two next to the quotient
 * apart, the rest as 2 artanh((p - q) / (p + q)), whose difference is exact for near values. From 2/3 to 3/2 that is an
 * argument of at most a fifth, of which eleven terms of the series leave less than 2e-17. */
BODY double log_ratio_double(double p, double q) {
    uint64_t p_bits, q_bits;
    memcpy(&p_bits, &p, sizeof p_bits);
    memcpy(&q_bits, &q, sizeof q_bits);
    /* The exponent above 1,024 below zero, so that nothing is signed; as the last bits of 2**52 and it in float64: not
     * every processor shifts and converts signed numbers of 64 bits. */
    uint64_t above = (p_bits - q_bits + ((uint64_t)1 << 62) + ((uint64_t)1 << 51)) >> 52;
    uint64_t bits = above | ((uint64_t)0x433 << 52);
    double whole;
    memcpy(&whole, &bits, sizeof whole);
    whole -= 0x1p52 + 1024;
    p_bits -= (above - 1024) << 52;
    memcpy(&p, &p_bits, sizeof p);
    double s = (p - q) / (p + q), ss = s * s, series = 1.0 / 21;
    series = series * ss + 1.0 / 19;
    series = series * ss + 1.0 / 17;
    series = series * ss + 1.0 / 15;
    series = series * ss + 1.0 / 13;
    series = series * ss + 1.0 / 11;
    series = series * ss + 1.0 / 9;
    series = series * ss + 1.0 / 7;
    series = series * ss + 1.0 / 5;
    series = series * ss + 1.0 / 3;
    /* log(2) in two parts, the first with few digits: its product with an exponent is exact. */
    return whole * 0.693145751953125 + (2 * s + (whole * 1.4286068203094173e-06 + 2 * s * ss * series));
}

/* As `pt_second_float32`. */
BODY int pt_second_float64_body(int row, const double *x, const double *y, int64_t count, const double *limits,
                                SecondSums *out) {
    const double x_low = limits[0], y_low = limits[1], x_floor = limits[2], y_floor = limits[3];
    double p_total = 0, q_total = 0, apart_total = 0, ratio_total = 0;
    for (int64_t at = 0; at < count; at += row) {
        int n = (int)(count - at < row ? count - at : row);
        double p_sum = 0, q_sum = 0, apart_sum = 0, ratio_sum = 0, apart[LONGEST_ROW];
        for (int i = 0; i < n; i++) {
            double p = x[at + i] - x_low, q = y[at + i] - y_low;
            p = p > x_floor ? p : x_floor;
            q = q > y_floor ? q : y_floor;
            apart[i] = q - p; /* added apart, as above */
            p_sum += p;
            q_sum += q;
            ratio_sum += p * log_ratio_double(p, q);
        }
        for (int i = 0; i < n; i++) apart_sum += apart[i];
        p_total += p_sum;
        q_total += q_sum;
        apart_total += apart_sum;
        ratio_total += ratio_sum;
    }
    out->p = p_total;
    out->q = q_total;
    out->apart = apart_total;
    out->p_log_ratio = ratio_total * 1.4426950408889634; /* log2(e) */
    return 0;
}
PER_PROCESSOR(pt_second_float64, (const double *x, const double *y, int64_t count, const double *limits,
                                  SecondSums *out),
              x, y, count, limits, out)
