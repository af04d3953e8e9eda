/* A disk that fails now and then, loaded before a program (LD_PRELOAD): calls that write below ORCH_DISK_HOME return
 * EIO, ENOSPC, EDQUOT, EROFS or EINTR, or write less than they were given.
 *
 * ORCH_DISK_SEED chooses what fails, ORCH_DISK_EVERY is how many such calls there are to one that fails, ORCH_DISK_LASTS
 * how many calls of the same kind fail after it as well (a disk that is full stays full for a while). Each fault is a
 * line in ORCH_DISK_LOG. A process that is forked may be told by its own environment. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE, SYNC, OPEN, RENAME, UNLINK, KINDS };
static const char *const NAMES[] = {"write", "sync", "open", "rename", "unlink"};
static const int SHORT = -1;
static const int FAULTS[KINDS][6] = {
    {EIO, ENOSPC, EDQUOT, EINTR, SHORT, SHORT},
    {EIO, EIO, ENOSPC, EDQUOT, EIO, EINTR},
    {EIO, ENOSPC, EROFS, EDQUOT, EINTR, EROFS},
    {EIO, ENOSPC, EROFS, EDQUOT, EIO, EROFS},
    {EIO, EROFS, EIO, EROFS, EIO, EROFS},
};

static const char *home, *log_path;
static size_t home_length;
static uint64_t seed, every, lasts;
static atomic_uint_fast64_t calls;
static atomic_int still[KINDS], same[KINDS];

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 10) : otherwise;
}

static void begin(void) {
    if (home_length || !(home = getenv("ORCH_DISK_HOME"))) return;
    log_path = getenv("ORCH_DISK_LOG");
    seed = number("ORCH_DISK_SEED", 1) + 0x9E3779B97F4A7C15ull * (uint64_t)getpid();
    every = number("ORCH_DISK_EVERY", 0);
    lasts = number("ORCH_DISK_LASTS", 0);
    home_length = strlen(home);
}

static uint64_t drawn(void) { /* splitmix64 of the call's number */
    uint64_t x = seed + 0x9E3779B97F4A7C15ull * (atomic_fetch_add(&calls, 1) + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static int is_below(const char *path) {
    return home_length && strncmp(path, home, home_length) == 0 && (path[home_length] == '/' || !path[home_length]);
}

static int is_ours(int folder, const char *path) {
    char whole[PATH_MAX];
    begin();
    if (!home_length || !every || !path) return 0;
    if (path[0] == '/') return is_below(path);
    if (folder == AT_FDCWD) {
        if (!getcwd(whole, sizeof whole)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, whole, sizeof whole - 1);
        if (length < 0) return 0;
        whole[length] = 0;
    }
    size_t length = strlen(whole);
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return is_below(whole);
}

static int is_ours_open(int fd, char *path, size_t size) {
    char link[64];
    begin();
    if (!home_length || !every) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static void told(enum kind kind, int fault, const char *path) {
    char line[PATH_MAX + 64];
    if (!log_path) return;
    int length = snprintf(line, sizeof line, "%s %s %s\n", NAMES[kind],
                          fault == SHORT ? "short" : strerrorname_np(fault), path + home_length);
    int fd = REAL(open)(log_path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (fd >= 0) {
        if (REAL(write)(fd, line, length) < 0) {}
        close(fd);
    }
}

/* 0, or what this call fails with. */
static int fault_of(enum kind kind, const char *path) {
    uint64_t dice = drawn();
    int fault;
    if (atomic_load(&still[kind]) > 0) {
        atomic_fetch_sub(&still[kind], 1);
        fault = atomic_load(&same[kind]);
    } else {
        if (dice % every) return 0;
        fault = FAULTS[kind][(dice >> 32) % 6];
        if (fault != SHORT && fault != EINTR) {
            atomic_store(&same[kind], fault);
            atomic_store(&still[kind], (int)lasts);
        }
    }
    told(kind, fault, path);
    return fault;
}

#define FAIL(kind, path, failed)                    \
    do {                                            \
        int fault_ = fault_of(kind, path);          \
        if (fault_ > 0) { errno = fault_; return failed; } \
    } while (0)

#define WRITES(name, parameters, whole, part)                                     \
    ssize_t name parameters {                                                      \
        char path[PATH_MAX];                                                        \
        if (is_ours_open(fd, path, sizeof path)) {                                  \
            int fault = fault_of(WRITE, path);                                      \
            if (fault > 0) { errno = fault; return -1; }                            \
            if (fault == SHORT && count > 1) return REAL(name) part;                \
        }                                                                           \
        return REAL(name) whole;                                                    \
    }
WRITES(write, (int fd, const void *data, size_t count), (fd, data, count), (fd, data, count / 2))
WRITES(pwrite, (int fd, const void *data, size_t count, off_t at), (fd, data, count, at), (fd, data, count / 2, at))
WRITES(pwrite64, (int fd, const void *data, size_t count, off64_t at), (fd, data, count, at), (fd, data, count / 2, at))

#define SYNCS(name)                                                 \
    int name(int fd) {                                              \
        char path[PATH_MAX];                                        \
        if (is_ours_open(fd, path, sizeof path)) FAIL(SYNC, path, -1); \
        return REAL(name)(fd);                                      \
    }
SYNCS(fsync)
SYNCS(fdatasync)

#define MODE                                             \
    mode_t mode = 0;                                     \
    if (flags & (O_CREAT | __O_TMPFILE)) {               \
        va_list more;                                    \
        va_start(more, flags);                           \
        mode = va_arg(more, mode_t);                     \
        va_end(more);                                    \
    }
static int is_for_writing(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT); }
#define OPENS(name)                                                                        \
    int name(const char *path, int flags, ...) {                                          \
        MODE if (is_for_writing(flags) && is_ours(AT_FDCWD, path)) FAIL(OPEN, path, -1);   \
        return REAL(name)(path, flags, mode);                                              \
    }
#define OPENS_AT(name)                                                                     \
    int name(int folder, const char *path, int flags, ...) {                              \
        MODE if (is_for_writing(flags) && is_ours(folder, path)) FAIL(OPEN, path, -1);     \
        return REAL(name)(folder, path, flags, mode);                                      \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

int rename(const char *from, const char *to) {
    if (is_ours(AT_FDCWD, to)) FAIL(RENAME, to, -1);
    return REAL(rename)(from, to);
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    if (is_ours(to_folder, to)) FAIL(RENAME, to, -1);
    return REAL(renameat)(from_folder, from, to_folder, to);
}
int unlink(const char *path) {
    if (is_ours(AT_FDCWD, path)) FAIL(UNLINK, path, -1);
    return REAL(unlink)(path);
}
int unlinkat(int folder, const char *path, int flags) {
    if (is_ours(folder, path)) FAIL(UNLINK, path, -1);
    return REAL(unlinkat)(folder, path, flags);
}
