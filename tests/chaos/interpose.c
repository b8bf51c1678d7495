/* Loaded with LD_PRELOAD. Counts the calls of this process that change files below a folder, and
 * at the n-th of them kills the process or lets the call fail. Sleeps until chaos_arm is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct point {
    long count;      /* calls so far */
    long at;         /* the call that is disturbed, from 1; 0: none */
    long mode;       /* see enum */
    long error;      /* errno of FAIL and FAIL_ON */
    char last[480];  /* what was disturbed */
    char kinds[8192]; /* first letter of each call, in order */
};

enum { BEFORE = 1, TORN = 2, AFTER = 3, FAIL = 4, FAIL_ON = 5 };

static struct point *state;
static pid_t owner;
static char folder[PATH_MAX];

void chaos_arm(void *shared, const char *below) {
    strncpy(folder, below, sizeof folder - 1);
    owner = getpid();
    state = shared;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* 0: go on. 1: the call fails with errno set. 2: kill after half of it. 3: kill after it. */
static int met(const char *what, const char *path) {
    if (!state || getpid() != owner || strncmp(path, folder, strlen(folder))) return 0;
    long number = __sync_add_and_fetch(&state->count, 1);
    if (number <= (long)sizeof state->kinds) state->kinds[number - 1] = what[0];
    if (!state->at || number < state->at) return 0;
    if (number > state->at && state->mode != FAIL_ON) return 0;
    if (number == state->at)
        snprintf(state->last, sizeof state->last, "%s %s", what, path + strlen(folder));
    if (state->mode == BEFORE) die();
    if (state->mode == FAIL || state->mode == FAIL_ON) {
        /* What frees space works on a full disk. */
        if (state->error == ENOSPC && (what[0] == 'u' || !strcmp(what, "rmdir"))) return 0;
        errno = (int)state->error;
        return 1;
    }
    return (int)state->mode;
}

static int met_fd(const char *what, int fd) {
    char link[64], path[PATH_MAX];
    if (!state) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return met(what, path);
}

static int met_at(const char *what, int dir, const char *name) {
    char path[PATH_MAX], link[64], base[PATH_MAX / 2];
    if (!state) return 0;
    if (name[0] == '/') return met(what, name);
    if (dir == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t size = readlink(link, base, sizeof base - 1);
        if (size < 0) return 0;
        base[size] = 0;
    }
    snprintf(path, sizeof path, "%s/%s", base, name);
    return met(what, path);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define SIMPLE(check, call) \
    int how = check; \
    if (how == 1) return -1; \
    __auto_type result = call; \
    if (how) die(); \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    int how = met_fd("write", fd);
    if (how == 1) return -1;
    ssize_t result = real(fd, data, how == TORN ? size / 2 : size);
    if (how) die();
    return result;
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    SIMPLE(met_fd("write", fd), real(fd, parts, how == TORN && count > 1 ? 1 : count));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    SIMPLE(met_fd("write", fd), real(fd, data, how == TORN ? size / 2 : size, at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    SIMPLE(met_fd("write", fd), real(fd, data, how == TORN ? size / 2 : size, at));
}
ssize_t sendfile(int out, int in, off_t *at, size_t size) {
    REAL(sendfile);
    SIMPLE(met_fd("write", out), real(out, in, at, size));
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) {
    REAL(sendfile64);
    SIMPLE(met_fd("write", out), real(out, in, at, size));
}
int fsync(int fd) { REAL(fsync); SIMPLE(met_fd("fsync", fd), real(fd)); }
int fdatasync(int fd) { REAL(fdatasync); SIMPLE(met_fd("fsync", fd), real(fd)); }
int ftruncate(int fd, off_t size) { REAL(ftruncate); SIMPLE(met_fd("truncate", fd), real(fd, size)); }
int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    SIMPLE(met_fd("truncate", fd), real(fd, size));
}
int rename(const char *from, const char *to) {
    REAL(rename);
    SIMPLE(met_at("rename", AT_FDCWD, to), real(from, to));
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    REAL(renameat);
    SIMPLE(met_at("rename", to_dir, to), real(from_dir, from, to_dir, to));
}
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    REAL(renameat2);
    SIMPLE(met_at("rename", to_dir, to), real(from_dir, from, to_dir, to, flags));
}
int unlink(const char *path) { REAL(unlink); SIMPLE(met_at("unlink", AT_FDCWD, path), real(path)); }
int unlinkat(int dir, const char *path, int flags) {
    REAL(unlinkat);
    SIMPLE(met_at("unlink", dir, path), real(dir, path, flags));
}
int rmdir(const char *path) { REAL(rmdir); SIMPLE(met_at("rmdir", AT_FDCWD, path), real(path)); }
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    SIMPLE(met_at("mkdir", AT_FDCWD, path), real(path, mode));
}
int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(mkdirat);
    SIMPLE(met_at("mkdir", dir, path), real(dir, path, mode));
}

#define OPENED(check) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
    } \
    int how = flags & (O_CREAT | O_TRUNC) ? check : 0; \
    if (how == 1) return -1;
int open(const char *path, int flags, ...) {
    REAL(open);
    OPENED(met_at("open", AT_FDCWD, path))
    int result = real(path, flags, mode);
    if (how) die();
    return result;
}
int open64(const char *path, int flags, ...) {
    REAL(open64);
    OPENED(met_at("open", AT_FDCWD, path))
    int result = real(path, flags, mode);
    if (how) die();
    return result;
}
int openat(int dir, const char *path, int flags, ...) {
    REAL(openat);
    OPENED(met_at("open", dir, path))
    int result = real(dir, path, flags, mode);
    if (how) die();
    return result;
}
int openat64(int dir, const char *path, int flags, ...) {
    REAL(openat64);
    OPENED(met_at("open", dir, path))
    int result = real(dir, path, flags, mode);
    if (how) die();
    return result;
}
