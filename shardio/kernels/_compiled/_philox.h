/* Permutations of ranges of places, from the words of one Philox-4x64-10 stream, and a permutation of 0 .. n - 1 by a
 * network; see `_reference/_orders.py`.
 *
 * Any word of the stream costs the same to reach: block i of four words is a function of the key and the counter i + 1.
 */
#ifndef SHARDIO_PHILOX_H
#define SHARDIO_PHILOX_H

#include <stdint.h>

#if defined(__SIZEOF_INT128__)
static inline uint64_t shardio_high(uint64_t a, uint64_t b) {
    return (uint64_t)(((unsigned __int128)a * b) >> 64);
}
#else
static inline uint64_t shardio_high(uint64_t a, uint64_t b) {
    uint64_t al = a & 0xFFFFFFFFu, ah = a >> 32, bl = b & 0xFFFFFFFFu, bh = b >> 32;
    uint64_t mid = ah * bl + ((al * bl) >> 32);
    return ah * bh + (mid >> 32) + (((mid & 0xFFFFFFFFu) + al * bh) >> 32);
}
#endif

/* The four words of block `number`. */
static inline void shardio_philox(uint64_t k0, uint64_t k1, uint64_t number, uint64_t *out) {
    uint64_t c0 = number + 1, c1 = 0, c2 = 0, c3 = 0, high0, high1, low0, low1;
    int round;
    for (round = 0; round < 10; round++) {
        high0 = shardio_high(0xD2E7470EE14C6C93u, c0);
        low0 = 0xD2E7470EE14C6C93u * c0;
        high1 = shardio_high(0xCA5A826395121157u, c2);
        low1 = 0xCA5A826395121157u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B97F4A7C15u;
        k1 += 0xBB67AE8584CAA73Bu;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The words of the four blocks that begin with `number`, side by side: one alone would wait for each product. */
static inline void shardio_philox_four(uint64_t k0, uint64_t k1, uint64_t number, uint64_t *out) {
    uint64_t c0[4], c1[4], c2[4], c3[4], high0, high1, low0, low1;
    int round, k;
    for (k = 0; k < 4; k++) {
        c0[k] = number + (uint64_t)k + 1;
        c1[k] = c2[k] = c3[k] = 0;
    }
    for (round = 0; round < 10; round++) {
        for (k = 0; k < 4; k++) {
            high0 = shardio_high(0xD2E7470EE14C6C93u, c0[k]);
            low0 = 0xD2E7470EE14C6C93u * c0[k];
            high1 = shardio_high(0xCA5A826395121157u, c2[k]);
            low1 = 0xCA5A826395121157u * c2[k];
            c0[k] = high1 ^ c1[k] ^ k0;
            c1[k] = low1;
            c2[k] = high0 ^ c3[k] ^ k1;
            c3[k] = low0;
        }
        k0 += 0x9E3779B97F4A7C15u;
        k1 += 0xBB67AE8584CAA73Bu;
    }
    for (k = 0; k < 4; k++) {
        out[4 * k] = c0[k];
        out[4 * k + 1] = c1[k];
        out[4 * k + 2] = c2[k];
        out[4 * k + 3] = c3[k];
    }
}

/* Shuffle 0 .. count - 1 with the words [start, start + count), the last place first. */
static inline void shardio_shuffle(uint64_t k0, uint64_t k1, uint64_t start, int64_t count, uint32_t *out) {
    uint64_t words[16], word, first = ~(uint64_t)0;
    int64_t at;
    uint32_t other, moved;
    for (at = 0; at < count; at++) out[at] = (uint32_t)at;
    for (at = count - 1; at > 0; at--) {
        word = start + (uint64_t)at;
        if (word < first) {
            if (at >= 8 && word >= 12) {
                first = (word & ~(uint64_t)3) - 12;
                shardio_philox_four(k0, k1, first >> 2, words);
            } else {
                first = word & ~(uint64_t)3;
                shardio_philox(k0, k1, first >> 2, words);
            }
        }
        other = (uint32_t)shardio_high(words[word - first], (uint64_t)at + 1);
        moved = out[at];
        out[at] = out[other];
        out[other] = moved;
    }
}

static inline uint64_t shardio_mix(uint64_t half, uint64_t word) {
    uint64_t y = (half + word) * 0x9E3779B97F4A7C15u;
    y ^= y >> 32;
    return y * 0x9E3779B97F4A7C15u;
}

/* The number at a place of the permutation of 0 .. n - 1; high is ceil(n / 2^bits). */
static inline uint64_t shardio_permuted(uint64_t x, const uint64_t *words, int bits, uint64_t high, uint64_t n) {
    uint64_t low, top, mask = ((uint64_t)1 << bits) - 1;
    int round;
    do {
        low = x & mask;
        top = x >> bits;
        for (round = 0; round < 8; round += 2) {
            low ^= shardio_mix(top, words[round]) >> (64 - bits);
            top += (shardio_mix(low, words[round + 1]) >> 32) * high >> 32;
            if (top >= high) top -= high;
        }
        x = top << bits | low;
    } while (x >= n);
    return x;
}

/* What `shardio_permuted` makes of four numbers, side by side. */
static inline void shardio_permuted_four(int64_t *x, const uint64_t *words, int bits, uint64_t high, uint64_t n) {
    uint64_t low[4], top[4], mask = ((uint64_t)1 << bits) - 1;
    int round, k;
    for (k = 0; k < 4; k++) {
        low[k] = (uint64_t)x[k] & mask;
        top[k] = (uint64_t)x[k] >> bits;
    }
    for (round = 0; round < 8; round += 2) {
        for (k = 0; k < 4; k++) low[k] ^= shardio_mix(top[k], words[round]) >> (64 - bits);
        for (k = 0; k < 4; k++) {
            top[k] += (shardio_mix(low[k], words[round + 1]) >> 32) * high >> 32;
            if (top[k] >= high) top[k] -= high;
        }
    }
    for (k = 0; k < 4; k++) {
        x[k] = (int64_t)(top[k] << bits | low[k]);
        if ((uint64_t)x[k] >= n) x[k] = (int64_t)shardio_permuted((uint64_t)x[k], words, bits, high, n);
    }
}

/* The place at which a number stands. */
static inline uint64_t shardio_place(uint64_t x, const uint64_t *words, int bits, uint64_t high, uint64_t n) {
    uint64_t low, top, step, mask = ((uint64_t)1 << bits) - 1;
    int round;
    do {
        low = x & mask;
        top = x >> bits;
        for (round = 6; round >= 0; round -= 2) {
            step = (shardio_mix(low, words[round + 1]) >> 32) * high >> 32;
            top = top >= step ? top - step : top + high - step;
            low ^= shardio_mix(top, words[round]) >> (64 - bits);
        }
        x = top << bits | low;
    } while (x >= n);
    return x;
}

#endif
