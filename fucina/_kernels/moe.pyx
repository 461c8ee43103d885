"""Mixtures of experts, but for their products: which experts, how much of each, which rows go where, and the sum.

Routing looks at one token at a time and adds in the order of the choice, so a token has the same experts and the same
bits alone and among others.
"""

from libc.stdint cimport int64_t

from simd cimport f8_add, f8_load, f8_mul, f8_set1, f8_store
from team cimport core_t, run_team, share_start

# Below this a sum of weights is not divided by: half precision's smallest normal number.
cdef float LEAST = <float> 6.103515625e-05


cdef struct TopArgs:
    const float* x
    int64_t* ids
    Py_ssize_t m, n, k


cdef void top_k(const TopArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Insertion into the few best: an element moves ahead of those that are smaller, never of equal ones."""
    cdef Py_ssize_t r, i, j, have
    cdef const float* x
    cdef int64_t* ids
    for r in range(share_start(a.m, ith, nth), share_start(a.m, ith + 1, nth)):
        x = a.x + r * a.n
        ids = a.ids + r * a.k
        have = 0
        for i in range(a.n):
            if x[i] != x[i]:
                continue
            if have == a.k:
                if not x[i] > x[ids[a.k - 1]]:
                    continue
                j = a.k - 1
            else:
                j = have
                have += 1
            while j > 0 and x[i] > x[ids[j - 1]]:
                ids[j] = ids[j - 1]
                j -= 1
            ids[j] = i
        i = 0
        while have < a.k:
            if x[i] != x[i]:
                ids[have] = i
                have += 1
            i += 1


def top_k_into_unchecked(const float[:, ::1] x, long long[:, ::1] ids, Py_ssize_t nth):
    """Places of the largest elements of rows of x [m, n], largest first; of equal ones the first; NaN comes last."""
    cdef TopArgs a
    a.x = &x[0, 0]
    a.ids = <int64_t*> &ids[0, 0]
    a.m = x.shape[0]
    a.n = x.shape[1]
    a.k = ids.shape[1]
    with nogil:
        run_team(<core_t> top_k, &a, min(a.m, 4 * nth), nth)


cdef struct WeighArgs:
    const float* scores
    const int64_t* ids
    float* weights
    Py_ssize_t m, n, k
    float scale
    bint normalize


cdef void weigh(const WeighArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t r, j
    cdef float total
    cdef float* w
    for r in range(share_start(a.m, ith, nth), share_start(a.m, ith + 1, nth)):
        w = a.weights + r * a.k
        for j in range(a.k):
            w[j] = a.scores[r * a.n + a.ids[r * a.k + j]]
        if a.normalize:
            total = w[0]
            for j in range(1, a.k):
                total = total + w[j]
            if total < LEAST:
                total = LEAST
            for j in range(a.k):
                w[j] = w[j] / total
        for j in range(a.k):
            w[j] = w[j] * a.scale


def weigh_into_unchecked(const float[:, ::1] scores, const long long[:, ::1] ids, bint normalize, float scale,
                         float[:, ::1] weights, Py_ssize_t nth):
    """The scores of the chosen, over their sum (in the order of the choice) if asked for, times a factor."""
    cdef WeighArgs a
    a.scores = &scores[0, 0]
    a.ids = <const int64_t*> &ids[0, 0]
    a.weights = &weights[0, 0]
    a.m = ids.shape[0]
    a.n = scores.shape[1]
    a.k = ids.shape[1]
    a.scale = scale
    a.normalize = normalize
    with nogil:
        run_team(<core_t> weigh, &a, min(a.m, 4 * nth), nth)


def group_into_unchecked(const long long[::1] ids, long long[::1] starts, long long[::1] order, Py_ssize_t nth):
    """Counting sort: expert e has the slots ``order[starts[e] : starts[e + 1]]``, in ascending order.

    Two passes over a few numbers per token: too little work to share, ``nth`` changes nothing.
    """
    cdef Py_ssize_t experts = starts.shape[0] - 1
    cdef Py_ssize_t i, e
    with nogil:
        for e in range(experts + 1):
            starts[e] = 0
        for i in range(ids.shape[0]):
            starts[ids[i] + 1] += 1
        for e in range(experts):
            starts[e + 1] += starts[e]
        for i in range(ids.shape[0]):
            order[starts[ids[i]]] = i
            starts[ids[i]] += 1
        # Every start has moved to its end, which is the start of the next one.
        for e in range(experts, 0, -1):
            starts[e] = starts[e - 1]
        starts[0] = 0


cdef struct CombineArgs:
    const float* y
    const int64_t* at
    const float* weights
    float* out
    Py_ssize_t m, n, k


cdef void combine(const CombineArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t t, i, j
    cdef const float* y
    cdef float* out
    cdef float w
    for t in range(share_start(a.m, ith, nth), share_start(a.m, ith + 1, nth)):
        out = a.out + t * a.n
        for j in range(a.k):
            y = a.y + a.at[t * a.k + j] * a.n
            w = a.weights[t * a.k + j]
            i = 0
            if j == 0:
                while i + 8 <= a.n:
                    f8_store(out + i, f8_mul(f8_set1(w), f8_load(y + i)))
                    i += 8
                while i < a.n:
                    out[i] = w * y[i]
                    i += 1
            else:
                while i + 8 <= a.n:
                    f8_store(out + i, f8_add(f8_load(out + i), f8_mul(f8_set1(w), f8_load(y + i))))
                    i += 8
                while i < a.n:
                    out[i] = out[i] + w * y[i]
                    i += 1


def combine_into_unchecked(const float[:, ::1] y, const long long[:, ::1] at, const float[:, ::1] weights,
                           float[:, ::1] out, Py_ssize_t nth):
    """out[t] = sum of weights[t, j] * y[at[t, j]], products rounded, added in the order of j."""
    cdef CombineArgs a
    a.y = &y[0, 0]
    a.at = <const int64_t*> &at[0, 0]
    a.weights = &weights[0, 0]
    a.out = &out[0, 0]
    a.m = out.shape[0]
    a.n = out.shape[1]
    a.k = at.shape[1]
    with nogil:
        run_team(<core_t> combine, &a, min(a.m, 4 * nth), nth)
