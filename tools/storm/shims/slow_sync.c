/* A disk that takes its time: fsync and fdatasync wait as many milliseconds as the file STORM_SYNC says. No file: none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static void take_time(void) {
    const char *path = getenv("STORM_SYNC");
    char text[16] = {0};
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    if (read(file, text, sizeof text - 1) > 0) usleep((useconds_t)atoi(text) * 1000);
    close(file);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    take_time();
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    take_time();
    return real(file);
}
