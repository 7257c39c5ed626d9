/* CRC-32C by what the processor has, found at run time: wide products of polynomials, its own instruction, or tables;
 * CRC-32 by tables.
 *
 * The instruction takes eight bytes in one cycle but answers after three, so long runs are cut into three lanes
 * whose CRCs are computed side by side and then joined: appending LANE zero bytes to a CRC is a linear map, four
 * table look-ups.  Bytes that come from memory arrive half as fast again when the next three lanes are asked for ahead:
 * the processor's own guesses see three streams in one page.
 *
 * Wide products take 64 bytes in two of them: what was read, as a polynomial, is moved on by 64 bytes or more with one
 * multiplication by a constant for each eight bytes, and added to what comes there.  64 bytes with the CRC of all are
 * left at the end, for the instruction.  Byte order: little-endian hosts only, which setup.py sees to.
 */
#ifndef SHARDIO_CRC_H
#define SHARDIO_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_prefetch.h"

#if defined(__x86_64__) || defined(_M_X64)
#define SHARDIO_X86 1
#include <nmmintrin.h>
#if defined(_MSC_VER)
#include <intrin.h>
#define SHARDIO_TARGET
#else
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 9)
#define SHARDIO_WIDE __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#include <immintrin.h>
#endif
#define SHARDIO_TARGET __attribute__((target("sse4.2")))
#define SHARDIO_CARRYLESS __attribute__((target("sse4.2,pclmul")))
#include <wmmintrin.h>
#endif
#define SHARDIO_STEP8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define SHARDIO_STEP1(crc, byte) _mm_crc32_u8((crc), (byte))
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__)) && (defined(__GNUC__) || defined(__clang__))
#define SHARDIO_ARM 1
#if defined(__clang__)
#define SHARDIO_TARGET __attribute__((target("crc")))
#else
#define SHARDIO_TARGET __attribute__((target("+crc")))
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#define SHARDIO_STEP8(crc, word) shardio_step8((crc), (word))
#define SHARDIO_STEP1(crc, byte) shardio_step1((crc), (byte))
SHARDIO_TARGET static inline uint32_t shardio_step8(uint32_t crc, uint64_t word) {
    __asm__("crc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
SHARDIO_TARGET static inline uint32_t shardio_step1(uint32_t crc, uint8_t byte) {
    __asm__("crc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}
#endif

enum { SHARDIO_CRC32C = 0, SHARDIO_CRC32 = 1, SHARDIO_LANE = 512, SHARDIO_AHEAD = 1536 };

static uint32_t shardio_tables[2][8][256]; /* [polynomial][zero bytes that follow][byte] */
static uint32_t shardio_lane[4][256];      /* CRC-32C after LANE zero bytes, by byte of the CRC */
static int shardio_instruction = 0;

static inline uint64_t shardio_load8(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static uint32_t shardio_by_table(int kind, uint32_t crc, const uint8_t *p, size_t n) {
    const uint32_t(*t)[256] = shardio_tables[kind];
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w = shardio_load8(p) ^ crc;
        crc = t[7][w & 255] ^ t[6][w >> 8 & 255] ^ t[5][w >> 16 & 255] ^ t[4][w >> 24 & 255] ^
              t[3][w >> 32 & 255] ^ t[2][w >> 40 & 255] ^ t[1][w >> 48 & 255] ^ t[0][w >> 56];
    }
    for (; n; n--, p++) crc = t[0][(crc ^ *p) & 255] ^ crc >> 8;
    return crc;
}

#if defined(SHARDIO_TARGET)
SHARDIO_TARGET static uint32_t shardio_by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 3 * SHARDIO_LANE; n -= 3 * SHARDIO_LANE, p += 3 * SHARDIO_LANE) {
        uint32_t b = 0, c = 0;
        for (size_t i = 0; i < SHARDIO_LANE; i += 8) {
            if (i % 64 == 0) { /* may point behind the end: asking ahead never faults */
                SHARDIO_PREFETCH(p + i + 3 * SHARDIO_LANE);
                SHARDIO_PREFETCH(p + i + 4 * SHARDIO_LANE);
                SHARDIO_PREFETCH(p + i + 5 * SHARDIO_LANE);
            }
            crc = SHARDIO_STEP8(crc, shardio_load8(p + i));
            b = SHARDIO_STEP8(b, shardio_load8(p + i + SHARDIO_LANE));
            c = SHARDIO_STEP8(c, shardio_load8(p + i + 2 * SHARDIO_LANE));
        }
        for (int lane = 0; lane < 2; lane++) {
            crc = shardio_lane[0][crc & 255] ^ shardio_lane[1][crc >> 8 & 255] ^
                  shardio_lane[2][crc >> 16 & 255] ^ shardio_lane[3][crc >> 24];
            crc ^= lane ? c : b;
        }
    }
    for (; n >= 8; n -= 8, p += 8) crc = SHARDIO_STEP8(crc, shardio_load8(p));
    for (; n; n--, p++) crc = SHARDIO_STEP1(crc, *p);
    return crc;
}
#endif

#if defined(SHARDIO_WIDE)
enum { SHARDIO_FOLD = 128 }; /* bytes from which wide products are the faster way */

static int shardio_wide = 0;
/* Pairs that move 128 bits on by 64 bytes and its multiples: of the first eight of sixteen bytes, and of the others. */
static uint64_t shardio_folds[4][2];

#define SHARDIO_FOLDED(x, k, y)                                                                      \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), y, 0x96)

SHARDIO_WIDE static inline __m512i shardio_fold_by(int lines) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)shardio_folds[lines - 1]));
}

/* Of SHARDIO_FOLD bytes or more; four lines at once where there are many. */
SHARDIO_WIDE static uint32_t shardio_by_folding(uint32_t crc, const uint8_t *p, size_t n) {
    const __m512i one = shardio_fold_by(1);
    __m512i d = _mm512_loadu_si512(p);
    uint8_t left[64];
    d = _mm512_xor_si512(d, _mm512_inserti32x4(_mm512_setzero_si512(), _mm_cvtsi32_si128((int)crc), 0));
    n -= 64, p += 64;
    if (n >= 448) {
        const __m512i four = shardio_fold_by(4);
        __m512i a = d, b = _mm512_loadu_si512(p), c = _mm512_loadu_si512(p + 64);
        d = _mm512_loadu_si512(p + 128);
        for (n -= 192, p += 192; n >= 256; n -= 256, p += 256) {
            for (int line = 0; line < 256; line += 64) SHARDIO_PREFETCH(p + line + SHARDIO_AHEAD);
            a = SHARDIO_FOLDED(a, four, _mm512_loadu_si512(p));
            b = SHARDIO_FOLDED(b, four, _mm512_loadu_si512(p + 64));
            c = SHARDIO_FOLDED(c, four, _mm512_loadu_si512(p + 128));
            d = SHARDIO_FOLDED(d, four, _mm512_loadu_si512(p + 192));
        }
        d = SHARDIO_FOLDED(c, one, d);
        d = SHARDIO_FOLDED(b, shardio_fold_by(2), d);
        d = SHARDIO_FOLDED(a, shardio_fold_by(3), d);
    }
    for (; n >= 64; n -= 64, p += 64) d = SHARDIO_FOLDED(d, one, _mm512_loadu_si512(p));
    _mm512_storeu_si512(left, d);
    crc = 0;
    for (int i = 0; i < 64; i += 8) crc = SHARDIO_STEP8(crc, shardio_load8(left + i));
    for (; n >= 8; n -= 8, p += 8) crc = SHARDIO_STEP8(crc, shardio_load8(p));
    for (; n; n--, p++) crc = SHARDIO_STEP1(crc, *p);
    return crc;
}
#endif

/* Masked as TFRecord stores it. */
static inline uint32_t shardio_mask(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8u; }

/* The CRC of what has `crc`, followed by n bytes. */
static inline uint32_t shardio_crc_on(int kind, uint32_t crc, const uint8_t *p, size_t n) {
#if defined(SHARDIO_WIDE)
    if (kind == SHARDIO_CRC32C && n >= SHARDIO_FOLD && shardio_wide) return ~shardio_by_folding(~crc, p, n);
#endif
#if defined(SHARDIO_TARGET)
    if (kind == SHARDIO_CRC32C && shardio_instruction) return ~shardio_by_instruction(~crc, p, n);
#endif
    return ~shardio_by_table(kind, ~crc, p, n);
}

static inline uint32_t shardio_crc(int kind, const uint8_t *p, size_t n) { return shardio_crc_on(kind, 0, p, n); }

/* The product of two polynomials modulo that of CRC-32C, in the reflected order of its CRCs. */
static uint32_t shardio_product(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a >> 31) product ^= b;
        b = b & 1 ? b >> 1 ^ 0x82F63B78u : b >> 1;
    }
    return product;
}

static uint32_t shardio_powers[64]; /* x to the power 8 * 2^k */

/* x to a power. */
static uint32_t shardio_power(uint32_t power) {
    uint32_t found = 0x80000000u, square = 0x40000000u;
    for (; power; power >>= 1, square = shardio_product(square, square))
        if (power & 1) found = shardio_product(square, found);
    return found;
}

#if defined(SHARDIO_CARRYLESS)
static uint32_t shardio_lowered[64]; /* the same divided by x^32, which the instruction for CRCs multiplies by */
static int shardio_carryless = 0;

/* The processor multiplies polynomials, too, and its instruction for CRCs takes the remainder: some ten cycles. */
SHARDIO_CARRYLESS static uint32_t shardio_join_fast(uint32_t a, uint32_t b, uint64_t size) {
    for (int k = 0; size; k++, size >>= 1)
        if (size & 1) {
            __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)shardio_lowered[k]), 0);
            a = (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product) << 1);
        }
    return a ^ b;
}
#endif

/* CRC-32C of a followed by b, from the CRCs of both and the size of b: appending zeros is a multiplication. */
static inline uint32_t shardio_join(uint32_t a, uint32_t b, uint64_t size) {
#if defined(SHARDIO_CARRYLESS)
    if (shardio_carryless) return shardio_join_fast(a, b, size);
#endif
    for (int k = 0; size; k++, size >>= 1)
        if (size & 1) a = shardio_product(shardio_powers[k], a);
    return a ^ b;
}

/* CRC-32C of what has `before`, followed by a payload whose own CRC-32C is known: by arithmetic, or by a second walk
 * over what is in the cache, whichever costs less. */
static inline uint32_t shardio_payload_on(uint32_t before, const uint8_t *p, size_t n, uint32_t crc) {
#if defined(SHARDIO_CARRYLESS)
    if (n >= 64 && shardio_carryless) return shardio_join_fast(before, crc, n);
#endif
    return n < 16384 ? shardio_crc_on(SHARDIO_CRC32C, before, p, n) : shardio_join(before, crc, n);
}

/* Fill the tables; called once while the module is loaded.  Returns whether the instruction is there. */
static int shardio_crc_begin(void) {
    static const uint32_t polynomials[2] = {0x82F63B78u, 0xEDB88320u};
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ polynomials[kind] : crc >> 1;
            shardio_tables[kind][0][byte] = crc;
        }
    for (int kind = 0; kind < 2; kind++)
        for (int more = 1; more < 8; more++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t crc = shardio_tables[kind][more - 1][byte];
                shardio_tables[kind][more][byte] = crc >> 8 ^ shardio_tables[kind][0][crc & 255];
            }
    shardio_powers[0] = 0x00800000u; /* x^8: the bit of x^0 is the highest */
    for (int k = 1; k < 64; k++) shardio_powers[k] = shardio_product(shardio_powers[k - 1], shardio_powers[k - 1]);
#if defined(SHARDIO_CARRYLESS)
    /* x^-32 is x to the power 2^31 - 1 - 32, for the order of x is 2^31 - 1. */
    uint32_t inverse = shardio_power(0x7FFFFFFFu - 32);
    for (int k = 0; k < 64; k++) shardio_lowered[k] = shardio_product(shardio_powers[k], inverse);
    shardio_carryless = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
#endif
#if defined(SHARDIO_WIDE)
    for (int lines = 1; lines <= 4; lines++) {
        shardio_folds[lines - 1][0] = shardio_power(512u * lines + 31);
        shardio_folds[lines - 1][1] = shardio_power(512u * lines - 33);
    }
    shardio_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
#endif
    static const uint8_t zeros[SHARDIO_LANE];
    for (int part = 0; part < 4; part++)
        for (uint32_t byte = 0; byte < 256; byte++)
            shardio_lane[part][byte] = shardio_by_table(SHARDIO_CRC32C, byte << 8 * part, zeros, SHARDIO_LANE);
#if defined(SHARDIO_X86) && defined(_MSC_VER)
    int words[4];
    __cpuid(words, 1);
    shardio_instruction = words[2] >> 20 & 1;
#elif defined(SHARDIO_X86)
    shardio_instruction = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(SHARDIO_ARM) && defined(__APPLE__)
    shardio_instruction = 1;
#elif defined(SHARDIO_ARM)
    shardio_instruction = getauxval(AT_HWCAP) >> 7 & 1; /* HWCAP_CRC32 */
#endif
    return shardio_instruction;
}

/* For tests: use the tables although the instruction is there, or the instruction although wide products are. */
static inline void shardio_crc_use(int instruction, int wide) {
    (void)wide;
    shardio_instruction = instruction;
#if defined(SHARDIO_WIDE)
    shardio_wide = wide && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
#endif
#if defined(SHARDIO_CARRYLESS)
    shardio_carryless = instruction && __builtin_cpu_supports("pclmul");
#endif
}

#endif
