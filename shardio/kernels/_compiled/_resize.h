/* Images of bytes in another size, as Pillow makes them, bit by bit: first along rows, then along columns, each
 * number a sum of numbers with weights in fixed point, rounded and cut to a byte in between.
 *
 * Pillow's loops make one number at a time, and four channels where there are three.  Here sixteen products are
 * made at once where the processor has AVX2, which is found at run time: of words, so that a weight is two of them, its high bits
 * and its low ones, and a sum is two sums.  Elsewhere the loops are left to the compiler.  Sums are integers, so both ways give the
 * same bytes.
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

enum { SHARDIO_BILINEAR = 0, SHARDIO_BICUBIC = 1, SHARDIO_BITS = 22, SHARDIO_SPLIT = 11 };

typedef struct {
    int taps;     /* room for weights of one output */
    int *first;   /* [outputs] number of the first input */
    int *count;   /* [outputs] inputs that count */
    int *weights; /* [outputs * taps] in fixed point */
    int pitch;    /* room for pairs of one output */
    int *pairs;   /* [outputs * pitch] of two weights each the high bits, then the low ones, as words; NULL where they do not fit */
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
    int pitch = (taps + 1) / 2 * 2, fits = 1;
    int *memory = malloc(((size_t)outputs * (taps + 2 + pitch)) * sizeof(int));
    if (!exact || !memory) {
        free(exact);
        free(memory);
        return NULL;
    }
    axis->taps = taps;
    axis->first = memory;
    axis->count = memory + outputs;
    axis->weights = memory + 2 * (size_t)outputs;
    axis->pitch = pitch;
    axis->pairs = axis->weights + (size_t)outputs * taps;
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
        for (int k = 0; k < taps; k += 2) {
            int one = weights[k], two = k + 1 < taps ? weights[k + 1] : 0, low = (1 << SHARDIO_SPLIT) - 1;
            int *pair = axis->pairs + (size_t)output * pitch + k;
            pair[0] = (int)((uint32_t)(one >> SHARDIO_SPLIT & 0xFFFF) | (uint32_t)(two >> SHARDIO_SPLIT) << 16);
            pair[1] = (one & low) | (two & low) << 16;
            fits &= abs(one) < 1 << 26 && abs(two) < 1 << 26;
        }
        axis->first[output] = first;
        axis->count[output] = count;
    }
    if (!fits) axis->pairs = NULL;
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
/* Two rows of RGB at once, two pixels of each as eight bytes, of which six count; of an output four are written, and the fourth is
 * overwritten.  So rows of the input must be followed by five bytes that may be read, and those of the output by one that may be
 * written. */
SHARDIO_WIDE static void shardio_rows_avx2(
    const uint8_t *in0, const uint8_t *in1, uint8_t *out0, uint8_t *out1, const shardio_axis *axis, int outputs
) {
    const __m256i half = _mm256_set1_epi32(1 << (SHARDIO_BITS - 1));
    /* Of two pixels: reds, greens, blues, each a pair of words. */
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    for (int x = 0; x < outputs; x++) {
        const int *pairs = axis->pairs + (size_t)x * axis->pitch;
        size_t from = (size_t)axis->first[x] * 3;
        __m256i high = _mm256_setzero_si256(), low = half;
        for (int k = 0; k < axis->count[x]; k += 2, from += 6, pairs += 2) {
            __m128i upper = _mm_loadl_epi64((const __m128i *)(in0 + from));
            __m128i lower = _mm_loadl_epi64((const __m128i *)(in1 + from));
            __m256i both = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(upper), lower, 1), order);
            high = _mm256_add_epi32(high, _mm256_madd_epi16(both, _mm256_set1_epi32(pairs[0])));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(both, _mm256_set1_epi32(pairs[1])));
        }
        __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, SHARDIO_SPLIT), low);
        sum = _mm256_srai_epi32(sum, SHARDIO_BITS);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sum, sum), sum);
        int a = _mm256_extract_epi32(bytes, 0), b = _mm256_extract_epi32(bytes, 4);
        memcpy(out0 + 3 * x, &a, 4);
        memcpy(out1 + 3 * x, &b, 4);
    }
}

SHARDIO_WIDE static void shardio_column_avx2(
    const uint8_t *in, size_t stride, uint8_t *out, size_t bytes, const shardio_axis *axis, int y
) {
    const __m256i half = _mm256_set1_epi32(1 << (SHARDIO_BITS - 1));
    int count = axis->count[y];
    size_t j = 0;
    for (; j + 16 <= bytes; j += 16) {
        const int *pairs = axis->pairs + (size_t)y * axis->pitch;
        const uint8_t *row = in + j;
        __m256i high0 = _mm256_setzero_si256(), high1 = high0, low0 = half, low1 = half;
        for (int k = 0; k < count; k += 2, row += 2 * stride, pairs += 2) {
            __m128i one = _mm_loadu_si128((const __m128i *)row);
            /* Behind the last row that counts the weight is 0. */
            __m128i two = k + 1 < count ? _mm_loadu_si128((const __m128i *)(row + stride)) : one;
            __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(one, two));
            __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(one, two));
            __m256i large = _mm256_set1_epi32(pairs[0]), small = _mm256_set1_epi32(pairs[1]);
            high0 = _mm256_add_epi32(high0, _mm256_madd_epi16(first, large));
            high1 = _mm256_add_epi32(high1, _mm256_madd_epi16(second, large));
            low0 = _mm256_add_epi32(low0, _mm256_madd_epi16(first, small));
            low1 = _mm256_add_epi32(low1, _mm256_madd_epi16(second, small));
        }
        low0 = _mm256_add_epi32(_mm256_slli_epi32(high0, SHARDIO_SPLIT), low0);
        low1 = _mm256_add_epi32(_mm256_slli_epi32(high1, SHARDIO_SPLIT), low1);
        low0 = _mm256_srai_epi32(low0, SHARDIO_BITS);
        low1 = _mm256_srai_epi32(low1, SHARDIO_BITS);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low0, low1), 0xD8);
        __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(out + j), packed);
    }
    shardio_column(in, stride, out, bytes, axis->weights + (size_t)y * axis->taps, count, j);
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
    /* Rows that are made have room for the fourth byte of a last pixel, a copy of the last one that is read for five. */
    uint8_t *between = malloc(pitch * height), *last = malloc((size_t)width * channels + 5);
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
        /* A row is followed by the next one, which has five bytes if it has two pixels. */
        if (wide && channels == 3 && width > 1 && across.pairs) {
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
            if (wide && down.pairs) {
                shardio_column_avx2(from, pitch, out + y * bytes, bytes, &down, y);
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
