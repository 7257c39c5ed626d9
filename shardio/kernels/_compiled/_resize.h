/* Images of bytes in another size, as Pillow makes them, bit by bit: first along rows, then along columns, each
 * number a sum of numbers with weights in fixed point, rounded and cut to a byte in between.
 *
 * Pillow's loops make one number at a time, and four channels where there are three.  Here eight sums are made at once
 * where the processor has AVX2, which is found at run time; elsewhere the loops are left to the compiler.  Sums
 * are integers, so both ways give the same bytes.
 */
#ifndef SHARDIO_RESIZE_H
#define SHARDIO_RESIZE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define SHARDIO_AVX2 1
#include <immintrin.h>
#define SHARDIO_WIDE __attribute__((target("avx2")))
#endif

enum { SHARDIO_BILINEAR = 0, SHARDIO_BICUBIC = 1, SHARDIO_BITS = 22 };

typedef struct {
    int taps;     /* room for weights of one output */
    int *first;   /* [outputs] number of the first input */
    int *count;   /* [outputs] inputs that count */
    int *weights; /* [outputs * taps] in fixed point */
} shardio_axis;

static double shardio_filter(int kind, double x) {
    const double a = -0.5;
    if (x < 0.0) x = -x;
    if (kind == SHARDIO_BILINEAR) return x < 1.0 ? 1.0 - x : 0.0;
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

/* Memory of an axis in one piece, which the caller frees; NULL where there is none.  `from` and `to` are where on it the part
 * begins and ends that is wanted; Pillow has them as floats, so their difference is one, too. */
static int *shardio_plan(shardio_axis *axis, int inputs, float from, float to, int outputs, int kind, int flip) {
    float part = to - from;
    double scale = (double)part / outputs, stretch = scale < 1.0 ? 1.0 : scale;
    double support = (kind == SHARDIO_BILINEAR ? 1.0 : 2.0) * stretch, step = 1.0 / stretch;
    int taps = (int)ceil(support) * 2 + 1;
    double *exact = malloc((size_t)taps * sizeof(double));
    int *memory = malloc(((size_t)outputs * (taps + 2)) * sizeof(int));
    if (!exact || !memory) {
        free(exact);
        free(memory);
        return NULL;
    }
    axis->taps = taps;
    axis->first = memory;
    axis->count = memory + outputs;
    axis->weights = memory + 2 * (size_t)outputs;
    for (int place = 0; place < outputs; place++) {
        int output = flip ? outputs - 1 - place : place;
        double center = from + (place + 0.5) * scale, total = 0.0;
        int first = (int)(center - support + 0.5), stop = (int)(center + support + 0.5);
        if (first < 0) first = 0;
        if (stop > inputs) stop = inputs;
        int count = stop - first, *weights = axis->weights + (size_t)output * taps;
        for (int k = 0; k < count; k++) {
            exact[k] = shardio_filter(kind, (k + first - center + 0.5) * step);
            total += exact[k];
        }
        for (int k = 0; k < count; k++) {
            double weight = total != 0.0 ? exact[k] / total : exact[k];
            weights[k] = (int)((weight < 0 ? -0.5 : 0.5) + weight * (1 << SHARDIO_BITS));
        }
        for (int k = count; k < taps; k++) weights[k] = 0;
        axis->first[output] = first;
        axis->count[output] = count;
    }
    free(exact);
    return memory;
}

static inline uint8_t shardio_byte(int sum) {
    sum >>= SHARDIO_BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* One row of pixels of 1, 3 or 4 channels. */
static void shardio_row(const uint8_t *in, uint8_t *out, const shardio_axis *axis, int outputs, int channels) {
    for (int x = 0; x < outputs; x++) {
        const int *weights = axis->weights + (size_t)x * axis->taps;
        const uint8_t *from = in + (size_t)axis->first[x] * channels;
        for (int c = 0; c < channels; c++) {
            int sum = 1 << (SHARDIO_BITS - 1);
            for (int k = 0; k < axis->count[x]; k++) sum += from[k * channels + c] * weights[k];
            *out++ = shardio_byte(sum);
        }
    }
}

/* One row of `bytes` bytes out of `count` rows that follow each other. */
static void shardio_column(
    const uint8_t *in, size_t stride, uint8_t *out, size_t bytes, const int *weights, int count, size_t from
) {
    for (size_t j = from; j < bytes; j++) {
        int sum = 1 << (SHARDIO_BITS - 1);
        for (int k = 0; k < count; k++) sum += in[k * stride + j] * weights[k];
        out[j] = shardio_byte(sum);
    }
}

#ifdef SHARDIO_AVX2
/* Two rows of RGB at once, four bytes of each pixel: the fourth is the next pixel's, and its sum is overwritten.  So rows of the
 * input must be followed by a byte that may be read, and those of the output by one that may be written. */
SHARDIO_WIDE static void shardio_rows_avx2(
    const uint8_t *in0, const uint8_t *in1, uint8_t *out0, uint8_t *out1, const shardio_axis *axis, int outputs
) {
    const __m256i half = _mm256_set1_epi32(1 << (SHARDIO_BITS - 1));
    for (int x = 0; x < outputs; x++) {
        const int *weights = axis->weights + (size_t)x * axis->taps;
        size_t from = (size_t)axis->first[x] * 3;
        int count = axis->count[x];
        __m256i sum = half;
        for (int k = 0; k < count; k++) {
            int a, b;
            memcpy(&a, in0 + from + 3 * k, 4);
            memcpy(&b, in1 + from + 3 * k, 4);
            __m128i both = _mm_insert_epi32(_mm_cvtsi32_si128(a), b, 1);
            sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(both), _mm256_set1_epi32(weights[k])));
        }
        sum = _mm256_srai_epi32(sum, SHARDIO_BITS);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sum, sum), sum);
        int a = _mm256_extract_epi32(bytes, 0), b = _mm256_extract_epi32(bytes, 4);
        memcpy(out0 + 3 * x, &a, 4);
        memcpy(out1 + 3 * x, &b, 4);
    }
}

SHARDIO_WIDE static void shardio_column_avx2(
    const uint8_t *in, size_t stride, uint8_t *out, size_t bytes, const int *weights, int count
) {
    const __m256i half = _mm256_set1_epi32(1 << (SHARDIO_BITS - 1));
    size_t j = 0;
    for (; j + 16 <= bytes; j += 16) {
        __m256i low = half, high = half;
        for (int k = 0; k < count; k++) {
            __m128i row = _mm_loadu_si128((const __m128i *)(in + k * stride + j));
            __m256i weight = _mm256_set1_epi32(weights[k]);
            low = _mm256_add_epi32(low, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(row), weight));
            high = _mm256_add_epi32(high, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(row, 8)), weight));
        }
        low = _mm256_srai_epi32(low, SHARDIO_BITS);
        high = _mm256_srai_epi32(high, SHARDIO_BITS);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
        __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(out + j), packed);
    }
    shardio_column(in, stride, out, bytes, weights, count, j);
}
#endif

/* Resize a part of `in` [height, width, channels], rows `stride` bytes apart, to `out` [out_height, out_width, channels] without
 * gaps.  The part is box = left, top, right, bottom; pixels beside it count at its edges, as filters reach there.  Returns 0, or -1 where there is no memory. */
static int shardio_resize(
    const uint8_t *in, size_t stride, int height, int width, int channels,
    uint8_t *out, int out_height, int out_width, const float *box, int kind, int flip
) {
    shardio_axis across, down;
    size_t bytes = (size_t)out_width * channels, pitch = bytes + 4;
    int wide = 0, result = -1;
    int *memory_across = shardio_plan(&across, width, box[0], box[2], out_width, kind, flip);
    int *memory_down = shardio_plan(&down, height, box[1], box[3], out_height, kind, 0);
    /* Rows that are made, and a copy of the last one that is read, have room for the fourth byte of a last pixel. */
    uint8_t *between = malloc(pitch * height), *last = malloc((size_t)width * channels + 4);
    if (!memory_across || !memory_down || !between || !last) goto end;
    result = 0;
#ifdef SHARDIO_AVX2
    wide = __builtin_cpu_supports("avx2");
#endif
    if (box[0] == 0 && box[2] == width && width == out_width && !flip) {
        for (int y = 0; y < height; y++) memcpy(between + y * pitch, in + y * stride, bytes);
    } else {
        int y = 0;
#ifdef SHARDIO_AVX2
        if (wide && channels == 3) {
            memcpy(last, in + (size_t)(height - 1) * stride, (size_t)width * 3);
            for (; y + 2 <= height; y += 2) {
                const uint8_t *upper = in + y * stride, *lower = y + 2 == height ? last : upper + stride;
                uint8_t *to = between + y * pitch;
                shardio_rows_avx2(upper, lower, to, to + pitch, &across, out_width);
            }
        }
#endif
        for (; y < height; y++) shardio_row(in + y * stride, between + y * pitch, &across, out_width, channels);
    }
    if (box[1] == 0 && box[3] == height && height == out_height) {
        for (int y = 0; y < height; y++) memcpy(out + y * bytes, between + y * pitch, bytes);
    } else {
        for (int y = 0; y < out_height; y++) {
            const uint8_t *from = between + down.first[y] * pitch;
            const int *weights = down.weights + (size_t)y * down.taps;
#ifdef SHARDIO_AVX2
            if (wide) {
                shardio_column_avx2(from, pitch, out + y * bytes, bytes, weights, down.count[y]);
                continue;
            }
#endif
            shardio_column(from, pitch, out + y * bytes, bytes, weights, down.count[y], 0);
        }
    }
end:
    free(memory_across);
    free(memory_down);
    free(between);
    free(last);
    return result;
}
#endif
