/* Copies between orders of axes, for numbers/layouts.py, where the items that follow each other on one side are far
 * apart on the other. In tiles of whole cache lines of both sides: going through either in its own order touches a
 * line of the other for every item, and where those lie a power of two apart, none of them stays in the cache.
 */
#include <stdint.h>
#include <string.h>

enum { MOST_AXES = 64, TILE = 16 };

#define TILES(ITEM)                                                                                                   \
    /* Items of two axes: `a`, along which the target's follow each other, and `b`, along which the source's do. */   \
    static void copy_##ITEM(const char *from, char *to, int64_t a_extent, int64_t b_extent, int64_t from_a,           \
                            int64_t to_b) {                                                                           \
        const int64_t size = sizeof(ITEM);                                                                            \
        for (int64_t b = 0; b < b_extent; b += TILE) {                                                                \
            int64_t b_count = b_extent - b < TILE ? b_extent - b : TILE;                                              \
            for (int64_t a = 0; a < a_extent; a += TILE) {                                                            \
                int64_t a_count = a_extent - a < TILE ? a_extent - a : TILE;                                          \
                if (a_count == TILE && b_count == TILE) { /* apart, for loops of known length */                      \
                    ITEM tile[TILE][TILE];                                                                            \
                    for (int i = 0; i < TILE; i++)                                                                    \
                        memcpy(tile[i], from + (a + i) * from_a + b * size, sizeof tile[i]);                          \
                    for (int j = 0; j < TILE; j++) {                                                                  \
                        ITEM *line = (ITEM *)(to + (b + j) * to_b) + a;                                               \
                        for (int i = 0; i < TILE; i++) line[i] = tile[i][j];                                          \
                    }                                                                                                 \
                    continue;                                                                                         \
                }                                                                                                     \
                for (int64_t j = b; j < b + b_count; j++) {                                                           \
                    ITEM *line = (ITEM *)(to + j * to_b);                                                             \
                    for (int64_t i = a; i < a + a_count; i++) line[i] = ((const ITEM *)(from + i * from_a))[j];       \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    }

TILES(uint16_t)
TILES(uint32_t)
TILES(uint64_t)

/* Copies an array of `rank` axes, given the distances of items along each in bytes. 1, and nothing is done, where there
 * is no axis of each side along which its items follow each other, or it is the same one, and for other sizes of items.
 * Items lie where their size says. */
int pt_copy_axes(int64_t item, int64_t rank, const int64_t *shape, const int64_t *from_steps, const int64_t *to_steps,
                 const char *from, char *to) {
    int64_t a = -1, b = -1, index[MOST_AXES] = {0};
    if (rank > MOST_AXES || (item != 2 && item != 4 && item != 8)) return 1;
    for (int64_t axis = 0; axis < rank; axis++) {
        if (shape[axis] == 0) return 0;
        if (shape[axis] > 1 && to_steps[axis] == item) a = axis;
        if (shape[axis] > 1 && from_steps[axis] == item) b = axis;
    }
    if (a < 0 || b < 0 || a == b) return 1;
    for (;;) {
        if (item == 2) copy_uint16_t(from, to, shape[a], shape[b], from_steps[a], to_steps[b]);
        if (item == 4) copy_uint32_t(from, to, shape[a], shape[b], from_steps[a], to_steps[b]);
        if (item == 8) copy_uint64_t(from, to, shape[a], shape[b], from_steps[a], to_steps[b]);
        int64_t axis = rank - 1;
        for (; axis >= 0; axis--) {
            if (axis == a || axis == b) continue;
            from += from_steps[axis];
            to += to_steps[axis];
            if (++index[axis] < shape[axis]) break;
            from -= from_steps[axis] * shape[axis];
            to -= to_steps[axis] * shape[axis];
            index[axis] = 0;
        }
        if (axis < 0) return 0;
    }
}
