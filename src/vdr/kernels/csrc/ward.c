/* Ward's minimum-variance clustering of one page by the nearest-neighbour chain.
 *
 * Twice the merge cost, 2·|a||b|/(|a|+|b|)·‖mean a − mean b‖² (SciPy's squared height), is kept in an fp32 matrix that
 * only *proposes* neighbours: every candidate within the matrix's error of the row minimum is recomputed in fp64 from
 * the clusters' sums, so that decisions and heights are those of an fp64 computation. Rows are contiguous; clusters
 * that are gone are masked and squeezed out when they outnumber the living by half.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vec.h"

/* Relative error that the matrix may have after any number of Lance-Williams steps; measured far below. */
#define WINDOW 1e-4f

/* Squared distances between all rows of x [n][d]; m [n][ld], padding columns +inf. xt: [d][ld]. */
static void distances(const float *x, const float *xt, int64_t n, int64_t d, float *m, int64_t ld) {
    for (int64_t i = 0; i < n; i += 4) {
        const int64_t i1 = i + 1 < n ? i + 1 : n - 1, i2 = i + 2 < n ? i + 2 : n - 1, i3 = i + 3 < n ? i + 3 : n - 1;
        const float *x0 = x + i * d, *x1 = x + i1 * d, *x2 = x + i2 * d, *x3 = x + i3 * d;
        for (int64_t j = i / (2 * VL) * (2 * VL); j < ld; j += 2 * VL) {
            vf a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
            for (int64_t k = 0; k < d; k++) {
                const vf u = *(const vf *)(xt + k * ld + j), v = *(const vf *)(xt + k * ld + j + VL);
                vf e, f;
                e = u - x0[k], f = v - x0[k], a0 += e * e, b0 += f * f;
                e = u - x1[k], f = v - x1[k], a1 += e * e, b1 += f * f;
                e = u - x2[k], f = v - x2[k], a2 += e * e, b2 += f * f;
                e = u - x3[k], f = v - x3[k], a3 += e * e, b3 += f * f;
            }
            float tile[4][2 * VL];
            *(vf *)tile[0] = a0, *(vf *)(tile[0] + VL) = b0, *(vf *)tile[1] = a1, *(vf *)(tile[1] + VL) = b1;
            *(vf *)tile[2] = a2, *(vf *)(tile[2] + VL) = b2, *(vf *)tile[3] = a3, *(vf *)(tile[3] + VL) = b3;
            /* A row may end inside the tile (ld is a multiple of 16, the tile of 2·VL): what lies behind belongs to the next row. */
            const int64_t wide = ld - j < 2 * VL ? ld - j : 2 * VL;
            for (int64_t r = 0; r < 4 && i + r < n; r++) memcpy(m + (i + r) * ld + j, tile[r], wide * sizeof(float));
            for (int64_t c = 0; c < 2 * VL && j + c < n; c++)
                for (int64_t r = 0; r < 4 && i + r < n; r++) m[(j + c) * ld + i + r] = tile[r][c];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = n; j < ld; j++) m[i * ld + j] = INFINITY;
        m[i * ld + i] = INFINITY;
    }
}

/* Floats from row to row: whole registers, an odd number of cache lines, so that a column does not fall into one set. */
static int64_t stride_of(int64_t n) { return (n + 31) / 32 * 32 + 16; }

static double exact(const double *a, double na, const double *b, double nb, int64_t d) {
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    const double ra = 1 / na, rb = 1 / nb;
    int64_t k = 0;
    for (; k + 4 <= d; k += 4) {
        const double e0 = a[k] * ra - b[k] * rb, e1 = a[k + 1] * ra - b[k + 1] * rb;
        const double e2 = a[k + 2] * ra - b[k + 2] * rb, e3 = a[k + 3] * ra - b[k + 3] * rb;
        s0 += e0 * e0, s1 += e1 * e1, s2 += e2 * e2, s3 += e3 * e3;
    }
    for (; k < d; k++) {
        const double e = a[k] * ra - b[k] * rb;
        s0 += e * e;
    }
    return ((s0 + s1) + (s2 + s3)) * 2 * na * nb / (na + nb);
}

/* x [n][d] finite fp32 -> merges in chain order: left, right (SciPy's slots: the merged cluster lives in `right`), height²
 * (twice the cost). Returns 0, 1 when memory is short, 2 when the chain does not close. */
int vdr_ward(const float *x, int64_t n, int64_t d, int32_t *left, int32_t *right, double *height) {
    if (n < 2) return 0;
    int64_t ld = stride_of(n), active = n, gone = 0;
    float *m = malloc((size_t)n * ld * 4 + 64), *xt = calloc(d * ld + 16, 4), *off = calloc(ld + 16, 4);
    float *count = calloc(ld + 16, 4);
    double *sum = malloc((size_t)n * d * 8 + 8);
    int32_t *slot = malloc(n * 4), *chain = malloc((n + 1) * 4), *pos = malloc(n * 4), *keep = malloc(n * 4);
    int failed = !m || !xt || !off || !count || !sum || !slot || !chain || !pos || !keep;
    if (failed) goto done;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++) xt[k * ld + i] = x[i * d + k], sum[i * d + k] = x[i * d + k];
    distances(x, xt, n, d, m, ld);
    for (int64_t i = 0; i < n; i++) count[i] = 1, slot[i] = pos[i] = (int32_t)i;
    for (int64_t i = n; i < ld; i++) off[i] = INFINITY;
    int64_t width = n, length = 0, start = 0; /* columns in use; length of the chain; first living column */
    for (int64_t step = 0; step < n - 1; step++) {
        if (!length) {
            while (off[start] != 0) start++;
            chain[length++] = slot[start];
        }
        int32_t a, b;
        double h;
        for (;;) {
            a = chain[length - 1];
            const int64_t ca = pos[a];
            const float *row = m + ca * ld;
            vf low = {0};
            low += INFINITY;
            for (int64_t j = 0; j < width; j += VL) {
                const vf y = *(const vf *)(row + j) + *(const vf *)(off + j);
                low = vmin(y, low);
            }
            float minimum = INFINITY;
            for (int v = 0; v < VL; v++) minimum = low[v] < minimum ? low[v] : minimum;
            const float limit = minimum * (1 + WINDOW);
            b = length > 1 ? chain[length - 2] : -1; /* SciPy prefers the chain's previous element among equals */
            if (minimum == 0) { /* equal vectors: nothing to recompute, and there may be hundreds of them */
                if (b < 0 || row[pos[b]] != 0)
                    for (int64_t j = 0; j < width; j++)
                        if (row[j] == 0 && off[j] == 0) { b = slot[j]; break; }
                if (length > 1 && b == chain[length - 2]) break;
                if (length > active) goto open;
                chain[length++] = b;
                continue;
            }
            h = INFINITY;
            int32_t only = -1, found = 0;
            for (int64_t j = 0; j < width; j += VL) {
                const vf y = *(const vf *)(row + j) + *(const vf *)(off + j);
                const vi hit = y <= limit;
                if (!any(hit)) continue;
                for (int v = 0; v < VL; v++) {
                    if (!hit[v] || j + v == ca) continue;
                    const int32_t c = slot[j + v];
                    if (++found == 1) {
                        only = c;
                        continue;
                    }
                    if (found == 2) {
                        if (b >= 0) h = exact(sum + a * d, count[ca], sum + b * d, count[pos[b]], d);
                        const double e = exact(sum + a * d, count[ca], sum + only * d, count[pos[only]], d);
                        if (e < h) h = e, b = only;
                    }
                    const double e = exact(sum + a * d, count[ca], sum + c * d, count[j + v], d);
                    if (e < h) h = e, b = c;
                }
            }
            if (found == 1) b = only;
            if (length > 1 && b == chain[length - 2]) break;
            if (length > active) {
            open: /* cannot happen while the matrix keeps within its window */
                failed = 2;
                goto done;
            }
            chain[length++] = b;
        }
        length -= 2;
        if (a > b) { const int32_t t = a; a = b, b = t; }
        const int64_t ca = pos[a], cb = pos[b];
        const float na = count[ca], nb = count[cb];
        h = m[ca * ld + cb] == 0 ? 0 : exact(sum + a * d, na, sum + b * d, nb, d);
        left[step] = a, right[step] = b, height[step] = h;
        off[ca] = INFINITY;
        float *ra = m + ca * ld, *rb = m + cb * ld;
        const float hf = (float)h;
        for (int64_t j = 0; j < width; j += VL) {
            const vf nk = *(const vf *)(count + j), da = *(const vf *)(ra + j), db = *(const vf *)(rb + j);
            *(vf *)(rb + j) = ((nk + na) * da + (nk + nb) * db - nk * hf) / (nk + (na + nb));
        }
        rb[cb] = INFINITY;
        for (int64_t k = 0; k < d; k++) sum[b * d + k] += sum[a * d + k];
        count[cb] = na + nb;
        for (int64_t j = 0; j < width; j++) m[j * ld + cb] = rb[j];
        active--, gone++;
        if (gone * 5 > width * 2 && active > 2 * VL) { /* squeeze out the masked rows and columns, order kept */
            int64_t kept = 0;
            for (int64_t j = 0; j < width; j++)
                if (off[j] == 0) keep[kept++] = (int32_t)j;
            const int64_t tight = stride_of(kept) < ld ? stride_of(kept) : ld;
            for (int64_t r = 0; r < kept; r++) { /* in place: nothing is written before it has been read */
                float *target = m + r * tight;
                const float *source = m + (int64_t)keep[r] * ld;
                for (int64_t c = 0; c < kept; c++) target[c] = source[keep[c]];
                for (int64_t c = kept; c < tight; c++) target[c] = INFINITY;
            }
            for (int64_t c = 0; c < kept; c++) {
                slot[c] = slot[keep[c]], count[c] = count[keep[c]], off[c] = 0;
                pos[slot[c]] = (int32_t)c;
            }
            for (int64_t c = kept; c < ld; c++) off[c] = INFINITY, count[c] = 0;
            ld = tight, width = kept, gone = 0, start = 0;
        }
    }
done:
    free(m), free(xt), free(off), free(count), free(sum), free(slot), free(chain), free(pos), free(keep);
    return failed;
}

typedef struct { double height; int32_t step; } Merge;

static int by_height(const void *a, const void *b) {
    const Merge *x = a, *y = b;
    if (x->height != y->height) return x->height < y->height ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

static int32_t root(int32_t *parent, int32_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
}

/* The partition after the n - k cheapest merges (stable among equals; a merge never precedes those it builds on).
 * labels [n] count clusters in the order of their smallest member. */
int vdr_ward_cut(int64_t n, int64_t k, const int32_t *left, const int32_t *right, const double *height, int32_t *labels) {
    Merge *order = malloc(n * sizeof(Merge));
    double *reached = malloc(n * 8);
    int32_t *parent = malloc(n * 4), *name = malloc(n * 4);
    const int failed = !order || !reached || !parent || !name;
    if (!failed) {
        for (int64_t i = 0; i < n; i++) parent[i] = (int32_t)i, reached[i] = 0, name[i] = -1;
        for (int64_t s = 0; s < n - 1; s++) {
            double h = height[s];
            h = reached[left[s]] > h ? reached[left[s]] : h;
            h = reached[right[s]] > h ? reached[right[s]] : h;
            reached[right[s]] = h;
            order[s] = (Merge){h, (int32_t)s};
        }
        qsort(order, n - 1, sizeof(Merge), by_height);
        for (int64_t s = 0; s < n - k; s++) {
            const int32_t a = root(parent, left[order[s].step]), b = root(parent, right[order[s].step]);
            if (a < b) parent[b] = a; else parent[a] = b;
        }
        int32_t next = 0;
        for (int64_t i = 0; i < n; i++) {
            const int32_t r = root(parent, (int32_t)i);
            if (name[r] < 0) name[r] = next++;
            labels[i] = name[r];
        }
    }
    free(order), free(reached), free(parent), free(name);
    return failed;
}

/* Means of the rows of v [n][d] by label, normalised; fp32, rows added in order; a zero mean stays zero. out [k][d]. */
void vdr_centroids(const float *v, const int32_t *labels, int64_t n, int64_t d, int64_t k, float *out) {
    int32_t *count = calloc(k + 1, 4);
    memset(out, 0, k * d * 4);
    for (int64_t i = 0; i < n; i++) {
        float *row = out + labels[i] * d;
        if (count) count[labels[i]]++;
        for (int64_t j = 0; j < d; j++) row[j] += v[i * d + j];
    }
    for (int64_t c = 0; c < k; c++) {
        float *row = out + c * d, square = 0;
        for (int64_t j = 0; j < d; j++) {
            if (count) row[j] /= (float)count[c];
            square += row[j] * row[j];
        }
        const float scale = square > 0 ? 1 / sqrtf(square) : 0;
        for (int64_t j = 0; j < d; j++) row[j] *= scale;
    }
    free(count);
}
