/* What the pass of engine/passes/elements.py over both sides counts: errors beyond a tolerance, their decades, and
 * where those lie that may be among the worst. Compiled as if no value were NaN or Inf: only for sides without any.
 */
#include "lanes.h"

enum { MOST_EDGES = 16 };

/* In the order of the fields of library.py's ErrorsAsked. */
typedef struct {
    double atol, rtol, rounding; /* of an error and of what it may be, relative */
    double zero, worst, worst_relative; /* errors and relative errors from which on an item is told */
    double largest; /* of all errors of the tensor */
    int64_t edge_count, room; /* places that may be told of either kind */
    double edges[MOST_EDGES]; /* of the decades that are counted */
} ErrorsAsked;

/* In the order of the fields of library.py's ErrorsFound. */
typedef struct {
    double largest;
    int64_t surely_outside, maybe_outside, nonzero, worst, worst_relative;
    int64_t at_least[MOST_EDGES];
} ErrorsFound;

#define ERRORS(REAL, NAME, ABS, LEAST)                                                                                \
    /* Counts the errors of `count` items. Places of those that may be among the worst go to `worst` and to           \
     * `relative`; where there are more than room for them, only their number counts. `weights`: (error / largest)    \
     * squared, of which the shares of an axis are sums. */                                                           \
    BODY int pt_errors_##NAME##_body(int row, const REAL *x, const REAL *y, int64_t count, const ErrorsAsked *asked,  \
                                     REAL *weights, int32_t *worst, int32_t *relative, ErrorsFound *out) {            \
        const REAL low_atol = (REAL)(asked->atol * (1 - asked->rounding));                                            \
        const REAL low_rtol = (REAL)(asked->rtol * (1 - asked->rounding));                                            \
        const REAL high_atol = (REAL)(asked->atol * (1 + asked->rounding));                                           \
        const REAL high_rtol = (REAL)(asked->rtol * (1 + asked->rounding));                                           \
        const REAL zero = (REAL)asked->zero, least = (REAL)asked->worst, ratio = (REAL)asked->worst_relative;         \
        const REAL of_all = (REAL)asked->largest;                                                                     \
        const int edge_count = (int)asked->edge_count;                                                                \
        ErrorsFound found;                                                                                            \
        memset(&found, 0, sizeof found);                                                                              \
        REAL edges[MOST_EDGES] = {0}, largest = 0;                                                                    \
        for (int e = 0; e < edge_count; e++) edges[e] = asked->edges[e] > LEAST ? (REAL)asked->edges[e] : LEAST;      \
        for (int64_t at = 0; at < count; at += row) {                                                                 \
            int n = (int)(count - at < row ? count - at : row);                                                       \
            REAL errors[LONGEST_ROW], top = 0;                                                                        \
            int32_t maybe = 0, surely = 0, nonzero = 0, near_worst = 0, near_relative = 0;                            \
            for (int i = 0; i < n; i++) {                                                                             \
                REAL error = ABS(x[at + i] - y[at + i]), size = ABS(y[at + i]);                                       \
                REAL weight = error / of_all;                                                                         \
                errors[i] = error;                                                                                    \
                weights[at + i] = weight * weight;                                                                    \
                top = error > top ? error : top;                                                                      \
                maybe += error > low_rtol * size + low_atol;                                                          \
                surely += error > high_rtol * size + high_atol;                                                       \
                nonzero += error > 0;                                                                                 \
                near_worst += (error >= least) & (error > 0);                                                         \
                near_relative += (error >= ratio * size) & (error > 0) & (size > zero);                               \
            }                                                                                                         \
            for (int e = 0; e < edge_count; e++) {                                                                    \
                if (edges[e] > top) continue;                                                                         \
                const REAL edge = edges[e];                                                                           \
                int32_t above = 0;                                                                                    \
                for (int i = 0; i < n; i++) above += errors[i] >= edge;                                               \
                found.at_least[e] += above;                                                                           \
                if (above == nonzero) { /* of the smaller edges too */                                                \
                    for (e++; e < edge_count; e++) found.at_least[e] += above;                                        \
                }                                                                                                     \
            }                                                                                                         \
            if (found.worst + near_worst > asked->room) {                                                             \
                found.worst += near_worst;                                                                            \
            } else if (near_worst) {                                                                                  \
                for (int i = 0; i < n && found.worst < asked->room; i++)                                              \
                    if (errors[i] >= least && errors[i] > 0) worst[found.worst++] = (int32_t)(at + i);                \
            }                                                                                                         \
            if (found.worst_relative + near_relative > asked->room) {                                                 \
                found.worst_relative += near_relative;                                                                \
            } else if (near_relative) {                                                                               \
                for (int i = 0; i < n && found.worst_relative < asked->room; i++)                                     \
                    if (errors[i] >= ratio * ABS(y[at + i]) && errors[i] > 0 && ABS(y[at + i]) > zero)                \
                        relative[found.worst_relative++] = (int32_t)(at + i);                                         \
            }                                                                                                         \
            largest = top > largest ? top : largest;                                                                  \
            found.maybe_outside += maybe;                                                                             \
            found.surely_outside += surely;                                                                           \
            found.nonzero += nonzero;                                                                                 \
        }                                                                                                             \
        found.largest = largest;                                                                                      \
        *out = found;                                                                                                 \
        return 0;                                                                                                     \
    }                                                                                                                 \
    PER_PROCESSOR(pt_errors_##NAME, (const REAL *x, const REAL *y, int64_t count, const ErrorsAsked *asked,           \
                                     REAL *weights, int32_t *worst, int32_t *relative, ErrorsFound *out),             \
                  x, y, count, asked, weights, worst, relative, out)

ERRORS(float, float32, fabsf, 0x1p-149f)
ERRORS(double, float64, fabs, 0x1p-1074)
