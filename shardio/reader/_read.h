/* Reads at a place of a file, which leave no pages of it with the process. Windows has no such call for several parts;
   there rows are looked into through the map. */
#include <errno.h>
#include <stdint.h>

#ifdef _WIN32

#define SHARDIO_READS 0
static int shardio_open(const char *path) { (void)path; return -1; }
static void shardio_close(int file) { (void)file; }
static int64_t shardio_read(int file, void *target, int64_t size, int64_t start, int *code) {
    (void)file; (void)target; (void)size; (void)start;
    *code = ENOSYS;
    return 0;
}
static int64_t shardio_read_frame(int file, void *head, void *payload, int64_t length, void *tail, int64_t start, int *code) {
    (void)head; (void)tail;
    return shardio_read(file, payload, length, start, code);
}

#else

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHARDIO_READS 1
static int shardio_open(const char *path) { return open(path, O_RDONLY | O_CLOEXEC); }
static void shardio_close(int file) { if (file >= 0) close(file); }

/* Bytes that were read: fewer where the file ends, or `code` says what failed. */
static int64_t shardio_read(int file, void *target, int64_t size, int64_t start, int *code) {
    int64_t done = 0;
    while (done < size) {
        ssize_t found = pread(file, (char *)target + done, (size_t)(size - done), start + done);
        if (found > 0) done += found;
        else if (found == 0) break;
        else if (errno != EINTR) { *code = errno; break; }
    }
    return done;
}

static int64_t shardio_read_frame(int file, void *head, void *payload, int64_t length, void *tail, int64_t start, int *code) {
    struct iovec parts[3] = {{head, 12}, {payload, (size_t)length}, {tail, 4}};
    int64_t done = preadv(file, parts, 3, start);
    if (done == length + 16) return done;
    /* One call returns at most 2 GiB, and less where a signal came in between. */
    done = shardio_read(file, head, 12, start, code);
    if (done == 12) done += shardio_read(file, payload, length, start + 12, code);
    if (done == 12 + length) done += shardio_read(file, tail, 4, start + done, code);
    return done;
}

#endif
