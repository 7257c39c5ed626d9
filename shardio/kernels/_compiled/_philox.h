/* Permutations of ranges of places, from the words of one Philox-4x64-10 stream, and a permutation of 0 .. n - 1 by a
 * network; see `_orders.pyx`.
 *
 * Any word of the stream costs the same to reach: block i of four words is a function of the key and the counter i + 1.
 */
#ifndef SHARDIO_PHILOX_H
#define SHARDIO_PHILOX_H

#include <stdint.h>

#if defined(__SIZEOF_INT128__)
/* Both halves of a product, of which compilers make one multiplication. */
static inline uint64_t shardio_product(uint64_t a, uint64_t b, uint64_t *low) {
    unsigned __int128 product = (unsigned __int128)a * b;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
}
#else
static inline uint64_t shardio_product(uint64_t a, uint64_t b, uint64_t *low) {
    uint64_t al = a & 0xFFFFFFFFu, ah = a >> 32, bl = b & 0xFFFFFFFFu, bh = b >> 32;
    uint64_t mid = ah * bl + ((al * bl) >> 32);
    *low = a * b;
    return ah * bh + (mid >> 32) + (((mid & 0xFFFFFFFFu) + al * bh) >> 32);
}
#endif

typedef struct {
    uint64_t c0, c1, c2, c3;
} shardio_block;

static inline shardio_block shardio_round(shardio_block c, uint64_t k0, uint64_t k1) {
    shardio_block next;
    uint64_t high0 = shardio_product(0xD2E7470EE14C6C93u, c.c0, &next.c3);
    uint64_t high1 = shardio_product(0xCA5A826395121157u, c.c2, &next.c1);
    next.c0 = high1 ^ c.c1 ^ k0;
    next.c2 = high0 ^ c.c3 ^ k1;
    return next;
}

/* The four words of block `number`. */
static inline void shardio_philox(uint64_t k0, uint64_t k1, uint64_t number, shardio_block *out) {
    shardio_block c = {number + 1, 0, 0, 0};
    int round;
    for (round = 0; round < 10; round++) {
        c = shardio_round(c, k0, k1);
        k0 += 0x9E3779B97F4A7C15u;
        k1 += 0xBB67AE8584CAA73Bu;
    }
    *out = c;
}

/* The words of block `number` and the next one, side by side: one alone would wait for each product, and of more the
 * registers are too few. */
static inline void shardio_philox_two(uint64_t k0, uint64_t k1, uint64_t number, shardio_block *out) {
    shardio_block c = {number + 1, 0, 0, 0}, d = {number + 2, 0, 0, 0};
    int round;
    for (round = 0; round < 10; round++) {
        c = shardio_round(c, k0, k1);
        d = shardio_round(d, k0, k1);
        k0 += 0x9E3779B97F4A7C15u;
        k1 += 0xBB67AE8584CAA73Bu;
    }
    out[0] = c;
    out[1] = d;
}

/* Shuffle 0 .. count - 1 with the words [start, start + count), the last place first. */
static inline void shardio_shuffle(uint64_t k0, uint64_t k1, uint64_t start, int64_t count, uint32_t *out) {
    union {
        shardio_block blocks[2];
        uint64_t words[8];
    } of;
    uint64_t first, low;
    int64_t at, stop;
    uint32_t other, moved;
    for (at = 0; at < count; at++) out[at] = (uint32_t)at;
    for (at = count - 1; at > 0;) {
        first = (start + (uint64_t)at) & ~(uint64_t)3;
        /* The word of place 0 is not needed. */
        if (first > start + 1) {
            first -= 4;
            shardio_philox_two(k0, k1, first >> 2, of.blocks);
        } else {
            shardio_philox(k0, k1, first >> 2, of.blocks);
        }
        stop = first > start ? (int64_t)(first - start) : 1;
        for (; at >= stop; at--) {
            other = (uint32_t)shardio_product(of.words[start + (uint64_t)at - first], (uint64_t)at + 1, &low);
            moved = out[at];
            out[at] = out[other];
            out[other] = moved;
        }
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
