/* What the files of the compiled kernel have in common: bodies that are compiled for each kind of processor. */
#ifndef PRECISION_TOOL_LANES_H
#define PRECISION_TOOL_LANES_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Items of a row where a register has 16, 8 or 4 numbers. */
enum { ROW_16 = 1024, ROW_8 = 512, ROW_4 = 256, LONGEST_ROW = ROW_16 };

/* At the beginning of a block: its arithmetic keeps its order, which clang otherwise changes even in a quotient. */
#if defined(__clang__)
#define IN_ORDER _Pragma("clang fp reassociate(off)")
#else
#define IN_ORDER
#endif

#define BODY static inline __attribute__((always_inline))

/* PER_PROCESSOR makes `NAME` of the body `NAME_body`: compiled for each kind of processor, chosen when it is called.
 * Not by target_clones, which needs more of the C library than every system has. Other machines have their vector
 * instructions always. */
#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#else
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")))
#endif
#define AVX2 __attribute__((target("avx2,fma")))
/* The kind of this processor, or the one that is asked for: 3 AVX-512, 2 AVX2, 1 every x86-64. */
__attribute__((visibility("hidden"))) int pt_kind(void);
#define PER_PROCESSOR(NAME, PARAMETERS, ...)                                                                          \
    AVX512 static int NAME##_avx512 PARAMETERS { return NAME##_body(ROW_16, __VA_ARGS__); }                           \
    AVX2 static int NAME##_avx2 PARAMETERS { return NAME##_body(ROW_8, __VA_ARGS__); }                                \
    static int NAME##_plain PARAMETERS { return NAME##_body(ROW_4, __VA_ARGS__); }                                    \
    int NAME PARAMETERS {                                                                                             \
        int kind = pt_kind();                                                                                         \
        if (kind == 3) return NAME##_avx512(__VA_ARGS__);                                                             \
        return kind == 2 ? NAME##_avx2(__VA_ARGS__) : NAME##_plain(__VA_ARGS__);                                      \
    }
#else
#define PER_PROCESSOR(NAME, PARAMETERS, ...)                                                                          \
    int NAME PARAMETERS { return NAME##_body(ROW_4, __VA_ARGS__); }
#endif

#endif
