/* Makes a disk slow: every fsync and fdatasync takes so many milliseconds longer as stand in the file SLOW_SYNC_FILE.
 * The file is read at each of them, so that a database can be slowed and freed while it runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void wait_as_told(void) {
    const char *path = getenv("SLOW_SYNC_FILE");
    char text[32];
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return;
    text[n] = 0;
    long ms = strtol(text, NULL, 10);
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (ms > 0 && nanosleep(&left, &left) == -1 && errno == EINTR) {
    }
}

static int synced(const char *symbol, int fd) {
    wait_as_told();
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, symbol);
    return real(fd);
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
