/* Ask for the line of memory at an address before it is its turn; where the compiler has no word for that, nothing. */
#ifndef SHARDIO_PREFETCH_H
#define SHARDIO_PREFETCH_H

#if defined(__GNUC__) || defined(__clang__)
#define SHARDIO_PREFETCH(p) __builtin_prefetch(p)
#elif defined(_M_X64)
#include <intrin.h>
#define SHARDIO_PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#else
#define SHARDIO_PREFETCH(p) ((void)(p))
#endif

#endif
