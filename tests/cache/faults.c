/* Lets the n-th call of one function of the C library fail, for files below one folder; loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char function[16], folder[4096];
static int countdown = 0, error_number = 0, hits = 0;

void fault_arm(const char *name, int n, int number, const char *below) {
    strncpy(function, name, sizeof function - 1);
    strncpy(folder, below, sizeof folder - 1);
    countdown = n;
    error_number = number;
    if (n) hits = 0;
}

int fault_struck(void) { return hits; }

static int strikes(const char *name, const char *path) {
    if (countdown <= 0 || strcmp(name, function) || strncmp(path, folder, strlen(folder))) return 0;
    if (--countdown) return 0;
    hits = 1;
    errno = error_number;
    return 1;
}

static int strikes_file(const char *name, int file) {
    char link[64], path[4096];
    if (countdown <= 0 || strcmp(name, function)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strikes(name, path);
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) {
    return strikes_file("write", file) ? -1 : REAL(write)(file, data, size);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return strikes_file("write", file) ? -1 : REAL(pwrite64)(file, data, size, at);
}
ssize_t read(int file, void *data, size_t size) {
    return strikes_file("read", file) ? -1 : REAL(read)(file, data, size);
}
int fsync(int file) { return strikes_file("fsync", file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return strikes_file("fsync", file) ? -1 : REAL(fdatasync)(file); }
int rename(const char *old, const char *new) { return strikes("rename", old) ? -1 : REAL(rename)(old, new); }
int unlink(const char *path) { return strikes("unlink", path) ? -1 : REAL(unlink)(path); }
int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return strikes("open", path) ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return strikes("open", path) ? -1 : REAL(open64)(path, flags, mode);
}
