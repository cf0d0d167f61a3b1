/* Stands between SQLite and the kernel. Signs are files in the directory FAULTY_DISK_SIGNS:
 *   fail-sync   the next sync fails with EIO; the sign is removed
 *   tear-write  the next write of a page is cut in half and the process killed; the sign is removed */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static int sign(const char *name) {
    const char *dir = getenv("FAULTY_DISK_SIGNS");
    char path[4096];
    if (!dir || snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return 0;
    return unlink(path) == 0;
}

static int synced(const char *symbol, int fd) {
    if (sign("fail-sync")) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, symbol);
    return real(fd);
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

static ssize_t written(const char *symbol, int fd, const void *buf, size_t n, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) =
        (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, symbol);
    if (n >= 4096 && sign("tear-write")) {
        real(fd, buf, n / 2, at);
        kill(getpid(), SIGKILL);
    }
    return real(fd, buf, n, at);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at) { return written("pwrite", fd, buf, n, at); }
ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at) { return written("pwrite64", fd, buf, n, at); }
