/* Level tables and the nearest level of eight values. */
#ifndef FUCINA_LEVELS_H
#define FUCINA_LEVELS_H

#include "dot.h"

/* Sixteen levels, denser around zero (ggml: kvalues_iq4nl). */
static const int8_t fu_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* The same as products take them, see dot.h. */
#define CODE(level) (int8_t)((level) + S8_BIAS)
static const int8_t fu_iq4_codes[16] = {CODE(-127), CODE(-104), CODE(-83), CODE(-65), CODE(-49), CODE(-35), CODE(-22),
                                        CODE(-10), CODE(1), CODE(13), CODE(25), CODE(38), CODE(53), CODE(69), CODE(89),
                                        CODE(113)};
#undef CODE
/* Four-bit floats E2M1, doubled to be integers. */
static const int8_t fu_fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Distances to two neighbouring levels are exact around their middle, so comparing with the middle is comparing them:
 * from the highest level down, a step for every middle that lies above the value. Half-way goes up, NaN to the top. */
FU void f8_iq4(f8 v, f8* index, f8* level) {
    f8 i = f8_set1(15), l = f8_set1(fu_iq4_levels[15]);
    for (int k = 0; k < 15; k++) {
        fu_i32 below = v < (float)(fu_iq4_levels[k] + fu_iq4_levels[k + 1]) / 2;
        i -= (f8)(below & (fu_i32)f8_set1(1));
        l -= (f8)(below & (fu_i32)f8_set1((float)(fu_iq4_levels[k + 1] - fu_iq4_levels[k])));
    }
    *index = i;
    *level = l;
}

/* Number of the level k with the smallest |d * k - x|, the first of equal ones; 0 where d is 0. */
FU f8 f8_fp4(f8 x, float d) {
    f8 a = f8_abs(x), i = f8_zero();
    if (d == 0) return i;
    for (int k = 0; k < 7; k++) {
        fu_i32 above = a > d * ((float)(fu_fp4_levels[k] + fu_fp4_levels[k + 1]) / 2);
        i += (f8)(above & (fu_i32)f8_set1(1));
    }
    fu_i32 minus = (x < 0) & (i > 0);
    return i + (f8)(minus & (fu_i32)f8_set1(8));
}

#endif
