/* What surrounds the matrix products of a decoder layer on the CPU: RMSNorm, SwiGLU and grouped-query causal attention, each
 * forwards and backwards, in one pass over memory. fp32. One thread; every output is written in one fixed order.
 *
 * Sizes that the vectors do not divide (head width not a multiple of 8, at most 64; inner width not a multiple of 8) are left
 * to the caller's torch path.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE v8 all(float x) { return (v8){x, x, x, x, x, x, x, x}; }
INLINE v8 load(const float *x) { return *(const v8 *)x; }
INLINE void store(float *x, v8 y) { *(v8 *)x = y; }
INLINE float sum8(v8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }

/* exp for arguments in [-87, 87]; beyond, exp of the nearer end. Relative error under 2e-7. */
INLINE v8 exp8(v8 x) {
    const v8 low = all(-87.0f), high = all(87.0f), magic = all(12582912.0f);
    const i8 under = x < low, over = x > high;
    x = (v8)((under & (i8)low) | (over & (i8)high) | (~(under | over) & (i8)x));
    const v8 t = x * 1.44269504088896341f + magic; /* rounds to an integer in the low bits */
    const v8 n = t - magic;
    const v8 f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    v8 p = all(1.9875691500e-4f);
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    const i8 power = ((i8)t - (i8)magic + 127) << 23;
    return p * (v8)power;
}

/* y = x · scale, scale = 1 / sqrt(mean(x²) + eps); x, y [n, h], scale [n]. */
void vdr_norm(const float *x, float *y, float *scale, int64_t n, int64_t h, float eps) {
    for (int64_t r = 0; r < n; r++) {
        const float *a = x + r * h;
        float *b = y + r * h;
        v8 total = all(0);
        float rest = 0;
        int64_t c = 0;
        for (; c + 8 <= h; c += 8) total += load(a + c) * load(a + c);
        for (; c < h; c++) rest += a[c] * a[c];
        const float s = 1.0f / sqrtf((sum8(total) + rest) / (float)h + eps);
        for (c = 0; c + 8 <= h; c += 8) store(b + c, load(a + c) * s);
        for (; c < h; c++) b[c] = a[c] * s;
        scale[r] = s;
    }
}

/* dx = scale · (dy − y · mean(dy · y)) + add, where y is vdr_norm's output; add may be NULL, dx may be dy. All [n, h]. */
void vdr_norm_backward(const float *dy, const float *y, const float *scale, const float *add, float *dx, int64_t n, int64_t h) {
    for (int64_t r = 0; r < n; r++) {
        const float *d = dy + r * h, *b = y + r * h;
        v8 total = all(0);
        float rest = 0;
        int64_t c = 0;
        for (; c + 8 <= h; c += 8) total += load(d + c) * load(b + c);
        for (; c < h; c++) rest += d[c] * b[c];
        const float along = (sum8(total) + rest) / (float)h, s = scale[r];
        const float *more = add ? add + r * h : NULL;
        float *to = dx + r * h;
        for (c = 0; c + 8 <= h; c += 8) {
            v8 g = (load(d + c) - load(b + c) * along) * s;
            if (more) g += load(more + c);
            store(to + c, g);
        }
        for (; c < h; c++) to[c] = (d[c] - b[c] * along) * s + (more ? more[c] : 0.0f);
    }
}

/* inner = gate · σ(gate) · value and sig = σ(gate), from both = [gate | value] [n, 2·half]; half a multiple of 8. */
void vdr_swiglu(const float *both, float *sig, float *inner, int64_t n, int64_t half) {
    for (int64_t r = 0; r < n; r++) {
        const float *gate = both + r * 2 * half, *value = gate + half;
        for (int64_t c = 0; c < half; c += 8) {
            const v8 g = load(gate + c), s = 1.0f / (1.0f + exp8(-g));
            store(sig + r * half + c, s);
            store(inner + r * half + c, g * s * load(value + c));
        }
    }
}

/* d = [d gate | d value] [n, 2·half] from d inner [n, half]. */
void vdr_swiglu_backward(const float *both, const float *sig, const float *d_inner, float *d, int64_t n, int64_t half) {
    for (int64_t r = 0; r < n; r++) {
        const float *gate = both + r * 2 * half, *value = gate + half;
        float *dg = d + r * 2 * half, *dv = dg + half;
        for (int64_t c = 0; c < half; c += 8) {
            const v8 g = load(gate + c), s = load(sig + r * half + c), in = load(d_inner + r * half + c), swish = g * s;
            store(dv + c, in * swish);
            store(dg + c, in * load(value + c) * (s + swish * (1.0f - s)));
        }
    }
}

/* The keys (or values) that one sequence sees for one key head: `before` shared rows, then its own; as rows [s][d] and, where
 * asked, transposed [d][wide]. Rows of the source are `stride` floats apart. */
static void gather(const float *shared, const float *own, int64_t stride, int64_t before, int64_t s, int64_t d, int64_t wide, float *rows,
                   float *turned) {
    for (int64_t j = 0; j < s; j++) {
        const float *from = j < before ? shared + j * stride : own + (j - before) * stride;
        memcpy(rows + j * d, from, d * sizeof(float));
        if (turned)
            for (int64_t t = 0; t < d; t++) turned[t * wide + j] = from[t];
    }
    if (turned)
        for (int64_t t = 0; t < d; t++)
            for (int64_t j = s; j < wide; j++) turned[t * wide + j] = 0;
}

/* to[j] = Σ_t x[t] · turned[t][j] for j < n, n a multiple of 16. */
INLINE void products(const float *x, const float *turned, int64_t d, int64_t wide, int64_t n, float *to) {
    int64_t j = 0;
    for (; j + 32 <= n; j += 32) {
        v8 a = all(0), b = all(0), c = all(0), e = all(0);
        for (int64_t t = 0; t < d; t++) {
            const float *y = turned + t * wide + j;
            const v8 q = all(x[t]);
            a += q * load(y), b += q * load(y + 8), c += q * load(y + 16), e += q * load(y + 24);
        }
        store(to + j, a), store(to + j + 8, b), store(to + j + 16, c), store(to + j + 24, e);
    }
    for (; j < n; j += 16) {
        v8 a = all(0), b = all(0);
        for (int64_t t = 0; t < d; t++) {
            const float *y = turned + t * wide + j;
            const v8 q = all(x[t]);
            a += q * load(y), b += q * load(y + 8);
        }
        store(to + j, a), store(to + j + 8, b);
    }
}

/* to = Σ_{j<n} weight[j] · rows[j], width 8·W; two chains of additions hide the latency. */
#define MIX(W)                                                                                                                   \
    INLINE void mix##W(const float *weight, const float *rows, int64_t n, float *to) {                                           \
        v8 a[W], b[W];                                                                                                           \
        for (int w = 0; w < W; w++) a[w] = b[w] = all(0);                                                                        \
        int64_t j = 0;                                                                                                           \
        for (; j + 2 <= n; j += 2) {                                                                                             \
            const v8 p = all(weight[j]), q = all(weight[j + 1]);                                                                 \
            for (int w = 0; w < W; w++) a[w] += p * load(rows + j * 8 * W + 8 * w), b[w] += q * load(rows + (j + 1) * 8 * W + 8 * w); \
        }                                                                                                                        \
        if (j < n)                                                                                                               \
            for (int w = 0; w < W; w++) a[w] += all(weight[j]) * load(rows + j * 8 * W + 8 * w);                                 \
        for (int w = 0; w < W; w++) store(to + 8 * w, a[w] + b[w]);                                                              \
    }                                                                                                                            \
    /* rows[j] += weight[j] · x for j < n */                                                                                     \
    INLINE void spread##W(const float *weight, const float *x, int64_t n, float *rows) {                                         \
        v8 y[W];                                                                                                                 \
        for (int w = 0; w < W; w++) y[w] = load(x + 8 * w);                                                                      \
        for (int64_t j = 0; j < n; j++) {                                                                                        \
            const v8 p = all(weight[j]);                                                                                         \
            float *to = rows + j * 8 * W;                                                                                        \
            for (int w = 0; w < W; w++) store(to + 8 * w, load(to + 8 * w) + p * y[w]);                                          \
        }                                                                                                                        \
    }
MIX(1) MIX(2) MIX(3) MIX(4) MIX(8)

#define EVERY(call)                                                                                                              \
    switch (d) {                                                                                                                 \
    case 8: call(1); break;                                                                                                      \
    case 16: call(2); break;                                                                                                     \
    case 24: call(3); break;                                                                                                     \
    case 32: call(4); break;                                                                                                     \
    default: call(8);                                                                                                            \
    }

/* Causal attention of `count` sequences of `length` tokens that begin at row `start`, behind `before` shared tokens that begin
 * at row `shared`. qk [N][heads + kv][d] rotated, v rows `v_stride` floats apart [kv][d], out [N][heads][d],
 * prob [count][heads][length][wide] with wide = before + length rounded up to 16. Returns 0, or 1 without memory, 2 for a
 * width it does not do. */
int vdr_attention(const float *qk, const float *v, int64_t v_stride, float *out, float *prob, int64_t start, int64_t count, int64_t length,
                  int64_t shared, int64_t before, int64_t heads, int64_t kv, int64_t d, float scale) {
    if (d != 8 && d != 16 && d != 24 && d != 32 && d != 64) return 2;
    const int64_t s = before + length, wide = (s + 15) / 16 * 16, per = heads / kv, row = (heads + kv) * d;
    float *memory = malloc(sizeof(float) * (2 * s * d + d * wide + d));
    if (!memory) return 1;
    float *keys = memory, *values = keys + s * d, *turned = values + s * d, *query = turned + d * wide;
    for (int64_t b = 0; b < count; b++)
        for (int64_t c = 0; c < kv; c++) {
            const int64_t first = start + b * length;
            gather(qk + shared * row + (heads + c) * d, qk + first * row + (heads + c) * d, row, before, s, d, wide, keys, turned);
            gather(v + shared * v_stride + c * d, v + first * v_stride + c * d, v_stride, before, s, d, wide, values, NULL);
            for (int64_t h = c * per; h < (c + 1) * per; h++)
                for (int64_t i = 0; i < length; i++) {
                    const int64_t n = before + i + 1, up = (n + 15) / 16 * 16;
                    const float *q = qk + (first + i) * row + h * d;
                    float *p = prob + ((b * heads + h) * length + i) * wide;
                    for (int64_t t = 0; t < d; t++) query[t] = q[t] * scale;
                    products(query, turned, d, wide, up, p);
                    float top = p[0];
                    for (int64_t j = 1; j < n; j++) top = p[j] > top ? p[j] : top;
                    v8 total = all(0);
                    for (int64_t j = n; j < up; j++) p[j] = -1e30f;
                    for (int64_t j = 0; j < up; j += 8) {
                        const v8 e = exp8(load(p + j) - top);
                        store(p + j, e);
                        total += e;
                    }
                    float sum = sum8(total);
                    for (int64_t j = n; j < up; j++) sum -= p[j], p[j] = 0;
                    const float part = 1.0f / sum;
                    for (int64_t j = 0; j < up; j += 8) store(p + j, load(p + j) * part);
                    float *o = out + (first + i) * heads * d + h * d;
#define CALL(W) mix##W(p, values, n, o)
                    EVERY(CALL)
#undef CALL
                }
        }
    free(memory);
    return 0;
}

/* Adds to dqk [N][heads + kv][d] and dv (rows dv_stride apart), from d out [N][heads][d] and what vdr_attention was given and
 * gave. A group is done before the shared tokens it adds to are themselves. */
int vdr_attention_backward(const float *qk, const float *v, int64_t v_stride, const float *prob, const float *d_out, float *dqk, float *dv,
                           int64_t dv_stride, int64_t start, int64_t count, int64_t length, int64_t shared, int64_t before, int64_t heads,
                           int64_t kv, int64_t d, float scale) {
    if (d != 8 && d != 16 && d != 24 && d != 32 && d != 64) return 2;
    const int64_t s = before + length, wide = (s + 15) / 16 * 16, per = heads / kv, row = (heads + kv) * d;
    float *memory = malloc(sizeof(float) * (4 * s * d + d * wide + wide + d));
    if (!memory) return 1;
    float *keys = memory, *values = keys + s * d, *d_keys = values + s * d, *d_values = d_keys + s * d, *turned = d_values + s * d;
    float *ds = turned + d * wide, *dq = ds + wide;
    for (int64_t b = 0; b < count; b++)
        for (int64_t c = 0; c < kv; c++) {
            const int64_t first = start + b * length;
            gather(qk + shared * row + (heads + c) * d, qk + first * row + (heads + c) * d, row, before, s, d, wide, keys, NULL);
            gather(v + shared * v_stride + c * d, v + first * v_stride + c * d, v_stride, before, s, d, wide, values, turned);
            memset(d_keys, 0, sizeof(float) * 2 * s * d);
            for (int64_t h = c * per; h < (c + 1) * per; h++)
                for (int64_t i = 0; i < length; i++) {
                    const int64_t n = before + i + 1, up = (n + 15) / 16 * 16;
                    const float *p = prob + ((b * heads + h) * length + i) * wide;
                    const float *g = d_out + (first + i) * heads * d + h * d, *q = qk + (first + i) * row + h * d;
                    products(g, turned, d, wide, up, ds);
                    v8 along = all(0);
                    for (int64_t j = 0; j < up; j += 8) along += load(p + j) * load(ds + j);
                    const float mean = sum8(along);
                    for (int64_t j = 0; j < up; j += 8) store(ds + j, load(p + j) * (load(ds + j) - mean) * scale);
                    float *to = dqk + (first + i) * row + h * d;
#define CALL(W) mix##W(ds, keys, n, dq), spread##W(ds, q, n, d_keys), spread##W(p, g, n, d_values)
                    EVERY(CALL)
#undef CALL
                    for (int64_t t = 0; t < d; t++) to[t] += dq[t];
                }
            for (int64_t j = 0; j < s; j++) {
                const int64_t at = j < before ? shared + j : first + j - before;
                float *dk = dqk + at * row + (heads + c) * d, *dw = dv + at * dv_stride + c * d;
                for (int64_t t = 0; t < d; t++) dk[t] += d_keys[j * d + t], dw[t] += d_values[j * d + t];
            }
        }
    free(memory);
    return 0;
}
