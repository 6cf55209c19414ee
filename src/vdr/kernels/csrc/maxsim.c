/* MaxSim on the CPU: products and maxima are formed in registers, so that no product is ever written to memory.
 *
 * Lanes run over query vectors (stored transposed, [block][D][lanes]), rows over page vectors, so one page element is
 * broadcast against up to NV vectors of query lanes. Pages are visited in strips that stay in the first-level cache and
 * are widened to fp32 there. Callers split the pages over threads; every output element is written by one call, in an
 * order that does not depend on the number of threads.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vec.h"

enum { F32 = 0, BF16 = 1, F16 = 2, PAIRS = 3 };
enum { STRIP = 16 * 1024, AHEAD = 8 * 1024, CHUNK = 16 };

int vdr_lanes(void) { return VL; }

static inline float half_to_float(uint16_t h) {
#if defined(__F16C__) || defined(__ARM_FP16_FORMAT_IEEE)
    _Float16 x;
    memcpy(&x, &h, 2);
    return (float)x;
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, bits;
    if (e == 0) {
        float f = ldexpf((float)m, -24);
        return sign ? -f : f;
    }
    bits = sign | (e == 31 ? 0x7f800000u | m << 13 : (e + 112) << 23 | m << 13);
    float f;
    memcpy(&f, &bits, 4);
    return f;
#endif
}

static void widen(float *to, const void *from, int64_t n, int kind) {
    const uint16_t *h = from;
    if (kind == BF16) {
        uint32_t *bits = (uint32_t *)to;
        for (int64_t i = 0; i < n; i++) bits[i] = (uint32_t)h[i] << 16;
    } else {
        int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
#endif
        for (; i < n; i++) to[i] = half_to_float(h[i]);
    }
}

/* Fold the products of NR rows in one vector of lanes, PRODUCT(a) for row a, into the running maxima, NaN marks and, with at, winners. */
#define FOLD(F, I, MAX, NR, PRODUCT, best, bad, at)                                                                    \
    do {                                                                                                               \
        F top_ = *(const F *)(best);                                                                                   \
        I mark_ = *(const I *)(bad);                                                                                   \
        if (at) {                                                                                                      \
            I won_ = *(const I *)(at);                                                                                 \
            _Pragma("GCC unroll 16") for (int a = 0; a < NR; a++) {                                                     \
                const F y_ = PRODUCT(a);                                                                               \
                const I more_ = y_ > top_;                                                                             \
                top_ = MAX(y_, top_);                                                                                  \
                mark_ |= y_ != y_;                                                                                     \
                won_ = (more_ & ((I){0} + id[a])) | (~more_ & won_);                                                   \
            }                                                                                                          \
            *(I *)(at) = won_;                                                                                         \
        } else {                                                                                                       \
            _Pragma("GCC unroll 16") for (int a = 0; a < NR; a++) {                                                     \
                const F y_ = PRODUCT(a);                                                                               \
                top_ = MAX(y_, top_);                                                                                  \
                mark_ |= y_ != y_;                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
        *(F *)(best) = top_;                                                                                           \
        *(I *)(bad) = mark_;                                                                                           \
    } while (0)

#define FULL(a) (acc[a][v] * s[a])
#define REST(a) (half[a] * s[a])
/* One group of NR page rows against NV vectors and, with H, half a vector of query lanes, for every width in turn. */
#define GROUP(name, NV, H, NR)                                                                                         \
    static void name(const float *const *row, const int32_t *id, const float *q, int nw, const int32_t *width,         \
                     const float *const *inv, const char *next, int ahead, float *best, int32_t *bad, int32_t *at) {   \
        enum { LANES = NV * VL + H * VL / 2 };                                                                         \
        vf acc[NR][NV + 1];                                                                                            \
        hf half[NR];                                                                                                   \
        const float *r[NR];                                                                                            \
        for (int a = 0; a < NR; a++) {                                                                                 \
            r[a] = row[a];                                                                                             \
            for (int v = 0; v < NV; v++) acc[a][v] = (vf){0};                                                          \
            half[a] = (hf){0};                                                                                         \
        }                                                                                                              \
        int k = 0;                                                                                                     \
        for (int w = 0; w < nw; w++) {                                                                                 \
            while (k < width[w]) {                                                                                     \
                const int stop = k + CHUNK < width[w] ? k + CHUNK : width[w];                                          \
                for (int a = 0; a < ahead; a++, next += 64) __builtin_prefetch(next, 0, 3);                            \
                for (; k < stop; k++) {                                                                                \
                    const float *x = q + (size_t)k * LANES;                                                            \
                    vf u[NV + 1];                                                                                      \
                    hf t = {0};                                                                                        \
                    _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) u[v] = *(const vf *)(x + v * VL);             \
                    if (H) t = *(const hf *)(x + NV * VL);                                                             \
                    _Pragma("GCC unroll 16") for (int a = 0; a < NR; a++) {                                             \
                        const vf y = splat(r[a] + k);                                                                  \
                        _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) acc[a][v] += u[v] * y;                    \
                        if (H) half[a] += t * low_half(y);                                                             \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            float s[NR];                                                                                               \
            for (int a = 0; a < NR; a++) s[a] = inv ? inv[a][w] : 1.0f;                                                \
            float *top = best + w * LANES;                                                                             \
            int32_t *mark = bad + w * LANES;                                                                           \
            _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                                       \
                FOLD(vf, vi, vmax, NR, FULL, top + v * VL, mark + v * VL, at ? at + v * VL : 0);                       \
            if (H) FOLD(hf, hi, hmax, NR, REST, top + NV * VL, mark + NV * VL, at ? at + NV * VL : 0);                 \
        }                                                                                                              \
    }
#ifdef __AVX512BF16__
#if VL == 16
static inline vf splat_pair(int32_t pair) { return (vf)_mm512_set1_epi32(pair); }
static inline vf add_pairs(vf sum, vf x, vf y) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y); }
static inline hf add_half_pairs(hf sum, hf x, hf y) { return (hf)_mm256_dpbf16_ps((__m256)sum, (__m256bh)x, (__m256bh)y); }
#else
static inline vf splat_pair(int32_t pair) { return (vf)_mm256_set1_epi32(pair); }
static inline vf add_pairs(vf sum, vf x, vf y) { return (vf)_mm256_dpbf16_ps((__m256)sum, (__m256bh)x, (__m256bh)y); }
static inline hf add_half_pairs(hf sum, hf x, hf y) { return (hf)_mm_dpbf16_ps((__m128)sum, (__m128bh)x, (__m128bh)y); }
#endif
/* The same for bf16 rows of one width as they lie: the processor multiplies pairs of bf16 exactly and adds them in fp32 (VDPBF16PS),
 * two products a lane. q holds, for every two columns, one pair a lane; the width is even. */
#define FULL_PAIRS(a) ((vf)acc[a][v])
#define REST_PAIRS(a) ((hf)half[a])
#define PAIR_GROUP(name, NV, H, NR)                                                                                    \
    static void name(const float *const *row, const int32_t *id, const float *q, int nw, const int32_t *width,         \
                     const float *const *inv, const char *next, int ahead, float *best, int32_t *bad, int32_t *at) {   \
        enum { LANES = NV * VL + H * VL / 2 };                                                                         \
        vf acc[NR][NV + 1];                                                                                            \
        hf half[NR];                                                                                                   \
        const char *r[NR];                                                                                             \
        for (int a = 0; a < NR; a++) {                                                                                 \
            r[a] = (const char *)row[a];                                                                               \
            for (int v = 0; v < NV; v++) acc[a][v] = (vf){0};                                                          \
            half[a] = (hf){0};                                                                                         \
        }                                                                                                              \
        const int pairs = width[0] / 2;                                                                                \
        for (int k = 0; k < pairs;) {                                                                                  \
            const int stop = k + CHUNK / 2 < pairs ? k + CHUNK / 2 : pairs;                                            \
            for (int a = 0; a < ahead; a++, next += 64) __builtin_prefetch(next, 0, 3);                                \
            for (; k < stop; k++) {                                                                                    \
                const float *x = q + (size_t)k * LANES;                                                                \
                vf u[NV + 1];                                                                                          \
                hf t = {0};                                                                                            \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) u[v] = *(const vf *)(x + v * VL);                 \
                if (H) t = *(const hf *)(x + NV * VL);                                                                 \
                _Pragma("GCC unroll 16") for (int a = 0; a < NR; a++) {                                                \
                    int32_t pair;                                                                                      \
                    memcpy(&pair, r[a] + 4 * k, 4);                                                                    \
                    const vf y = splat_pair(pair);                                                                     \
                    _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) acc[a][v] = add_pairs(acc[a][v], u[v], y);    \
                    if (H) half[a] = add_half_pairs(half[a], t, low_half(y));                                          \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                                           \
            FOLD(vf, vi, vmax, NR, FULL_PAIRS, best + v * VL, bad + v * VL, at ? at + v * VL : 0);                     \
        if (H) FOLD(hf, hi, hmax, NR, REST_PAIRS, best + NV * VL, bad + NV * VL, at ? at + NV * VL : 0);               \
    }
PAIR_GROUP(pairs_1, 0, 1, 12)
PAIR_GROUP(pairs_2, 1, 0, 12)
PAIR_GROUP(pairs_3, 1, 1, 8)
PAIR_GROUP(pairs_4, 2, 0, 8)
PAIR_GROUP(pairs_5, 2, 1, 8)
PAIR_GROUP(pairs_6, 3, 0, 8)
#endif
int vdr_pairs(void) {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

typedef void Group(const float *const *, const int32_t *, const float *, int, const int32_t *, const float *const *,
                   const char *, int, float *, int32_t *, int32_t *);
/* By half vectors of lanes, 1..6: as many rows as 16 registers hold, or 32. Each divides 24, the step of a strip. */
#if defined(__AVX512VL__)
enum { R12 = 12, R34 = 8, R56 = 8 };
#else
enum { R12 = 8, R34 = 6, R56 = 4 };
#endif
GROUP(group_1, 0, 1, R12)
GROUP(group_2, 1, 0, R12)
GROUP(group_3, 1, 1, R34)
GROUP(group_4, 2, 0, R34)
GROUP(group_5, 2, 1, R56)
GROUP(group_6, 3, 0, R56)
static Group *const groups[7] = {0, group_1, group_2, group_3, group_4, group_5, group_6};
static const int rows_of[7] = {0, R12, R12, R34, R34, R56, R56};
#ifdef __AVX512BF16__
static Group *const pair_groups[7] = {0, pairs_1, pairs_2, pairs_3, pairs_4, pairs_5, pairs_6};
static const int pair_rows[7] = {0, 12, 12, 8, 8, 8, 8};
#else
static Group *const *const pair_groups = groups;
static const int *const pair_rows = rows_of;
#endif
enum { HALF = VL / 2, BLOCK = 3 * VL };

static inline int halves(int64_t left) { return left >= BLOCK ? 6 : (int)((left + HALF - 1) / HALF); }

/* queries: blocks of BLOCK lanes, the last rounded up to half vectors; qt[b] holds D*lanes floats, transposed.
 * weight[t] is 1 for query vectors that count, 0 otherwise; query i owns lanes qo[i]..qo[i+1].
 * pages: rows po[j]..pe[j] of `pages` (kind F32|BF16|F16, width `stride` elements), those with mask 0 left out. Kind PAIRS, where
 *        vdr_pairs() says so: bf16 rows against bf16 queries, one even width, no `unit`; qt[b] holds pairs of bf16, D/2*lanes of them.
 * widths: nw nested widths, the last <= stride; with `unit` rows and queries are divided by the norm of each prefix
 *         (1/norm of query vectors in qinv [nw][T]; zero rows stay zero).
 * scores[w][i][j - first] at w*sw + i*si + (j - first); at[t][j - first], the winning row within the page, if not NULL.
 * mean: divide by the sum of weights. Returns 0, or 1 when memory is short. */
int vdr_maxsim(const float *const *qt, int64_t T, const float *weight, const int64_t *qo, int64_t nq, const void *pages,
               int kind, int64_t stride, const int64_t *po, const int64_t *pe, int64_t first, int64_t last, const uint8_t *mask, int nw,
               const int32_t *width, int unit, const float *qinv, int mean, float *scores, int64_t sw, int64_t si,
               int32_t *at, int64_t sa) {
    const int64_t blocks = (T + BLOCK - 1) / BLOCK, lanes = blocks * BLOCK;
    const int size = kind == F32 ? 4 : 2;
    const int D = width[nw - 1];
    int64_t strip = STRIP / 4 / (D > 0 ? D : 1) / 24 * 24;
    if (strip < 24) strip = 24;
    float *wide = malloc(strip * D * 4 + 64), *norms = malloc(strip * nw * 4 + 64);
    float *best = malloc((size_t)nw * lanes * 4 + 64);
    int32_t *bad = malloc((size_t)nw * lanes * 4 + 64), *win = malloc(lanes * 4 + 64), *id = malloc((strip + 12) * 4);
    const float **row = malloc((strip + 12) * sizeof(float *)), **inv = malloc((strip + 12) * sizeof(float *));
    Group *const *const group = kind == PAIRS ? pair_groups : groups;
    const int *const rows = kind == PAIRS ? pair_rows : rows_of;
    int failed = !wide || !norms || !best || !bad || !win || !id || !row || !inv;
    for (int64_t j = first; j < last && !failed; j++) {
        for (int64_t i = 0; i < nw * lanes; i++) best[i] = -INFINITY;
        memset(bad, 0, (size_t)nw * lanes * 4);
        memset(win, 0, lanes * 4);
        int64_t r = po[j];
        while (r < pe[j]) {
            int n = 0;
            for (; r < pe[j] && n < strip; r++) {
                if (mask && !mask[r]) continue;
                const char *source = (const char *)pages + (size_t)r * stride * size;
                id[n] = (int32_t)(r - po[j]);
                if (kind == F32 || kind == PAIRS) {
                    row[n] = (const float *)source;
                } else {
                    row[n] = wide + (size_t)n * D;
                    widen(wide + (size_t)n * D, source, D, kind);
                }
                if (unit) {
                    float square = 0;
                    for (int w = 0, k = 0; w < nw; w++) {
                        for (; k < width[w]; k++) square += row[n][k] * row[n][k];
                        norms[n * nw + w] = square > 0 ? 1.0f / sqrtf(square) : (square == 0 ? 0.0f : NAN);
                    }
                    inv[n] = norms + n * nw;
                }
                n++;
            }
            if (!n) continue;
            for (int a = 0; a < 12; a++) { /* repeating the last row fills the last group and changes no maximum */
                row[n + a] = row[n - 1];
                inv[n + a] = unit ? inv[n - 1] : 0;
                id[n + a] = id[n - 1];
            }
            for (int64_t b = 0; b < blocks; b++) {
                const int h = halves(T - b * BLOCK), step = rows[h];
                float *bb = best + (size_t)b * nw * BLOCK;
                int32_t *nn = bad + (size_t)b * nw * BLOCK, *ww = at ? win + b * BLOCK : 0;
                for (int a = 0; a < n; a += step) {
                    /* the memory is asked for the rows of a later group, little by little, while this one is computed */
                    const char *next = (const char *)pages + (size_t)(r - n + a) * stride * size + AHEAD;
                    group[h](row + a, id + a, qt[b], nw, width, unit ? inv + a : 0, next,
                              b == 0 && !mask ? step * size / 4 : 0, bb, nn, ww);
                }
            }
        }
        for (int w = 0; w < nw; w++) {
            for (int64_t i = 0; i < nq; i++) {
                double sum = 0, count = 0;
                for (int64_t t = qo[i]; t < qo[i + 1]; t++) {
                    if (weight && weight[t] == 0) continue;
                    const int64_t b = t / BLOCK;
                    const size_t lane = (size_t)b * nw * BLOCK + w * halves(T - b * BLOCK) * HALF + t % BLOCK;
                    sum += bad[lane] ? NAN : (double)best[lane] * (unit ? qinv[w * T + t] : 1.0f);
                    count += 1;
                }
                scores[w * sw + i * si + (j - first)] = (float)(mean && count > 0 ? sum / count : sum);
            }
        }
        if (at)
            for (int64_t t = 0; t < T; t++) at[t * sa + (j - first)] = win[t];
    }
    free(wide), free(norms), free(best), free(bad), free(win), free(id), free((void *)row), free((void *)inv);
    return failed;
}

/* Gradient of the pages: gp[j][at[t][j]] += g[i(t)][j] * q[t], pages first..last, each written by one caller. */
void vdr_maxsim_grad_pages(const float *q, const float *weight, const int64_t *qo, int64_t nq, int64_t D, const float *g,
                           int64_t sg, const int32_t *at, int64_t sa, int64_t lp, int64_t first, int64_t last, float *gp) {
    for (int64_t j = first; j < last; j++)
        for (int64_t i = 0; i < nq; i++) {
            const float s = g[i * sg + j];
            if (s == 0) continue;
            for (int64_t t = qo[i]; t < qo[i + 1]; t++) {
                if (weight[t] == 0) continue;
                const float *x = q + t * D;
                float *y = gp + ((size_t)j * lp + at[t * sa + j]) * D;
                for (int64_t k = 0; k < D; k++) y[k] += s * x[k];
            }
        }
}

/* Gradient of the queries: gq[t] += g[i][j] * p[j][at[t][j]], queries first..last, each written by one caller. */
void vdr_maxsim_grad_queries(const float *p, const float *weight, const int64_t *qo, int64_t first, int64_t last, int64_t D,
                             const float *g, int64_t sg, const int32_t *at, int64_t sa, int64_t lp, int64_t np, float *gq) {
    for (int64_t i = first; i < last; i++)
        for (int64_t j = 0; j < np; j++) { /* pages outside: the page's rows stay in cache for all of the query's vectors */
            const float s = g[i * sg + j];
            if (s == 0) continue;
            for (int64_t t = qo[i]; t < qo[i + 1]; t++) {
                if (weight[t] == 0) continue;
                const float *x = p + ((size_t)j * lp + at[t * sa + j]) * D;
                float *y = gq + t * D;
                for (int64_t k = 0; k < D; k++) y[k] += s * x[k];
            }
        }
}
