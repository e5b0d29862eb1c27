/* A layer between a program and the system that dies at the n-th call that writes.

   Loaded by LD_PRELOAD. Calls that change files below one folder are counted. From the n-th on they fail
   with EIO, and change nothing: what is on the disk is what a process would have left that was killed
   between two calls, or, where the last call is a write that is cut, within one. With `fault_power`, the data
   that no fsync has waited for is lost too: such files are emptied. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 65536
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static size_t folder_length;
static long count, limit;
static int cut, dead;
/* Files with data that is not on the disk yet. */
static struct { dev_t device; ino_t inode; } dirty[MOST];
static int num_dirty;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

void fault_start(const char *path, long at, int cut_write) {
  pthread_mutex_lock(&lock);
  strncpy(folder, path, PATH_MAX - 1);
  folder_length = strlen(folder);
  count = 0; limit = at; cut = cut_write; dead = 0; num_dirty = 0;
  pthread_mutex_unlock(&lock);
}
long fault_stop(void) { pthread_mutex_lock(&lock); long n = count; folder_length = 0; pthread_mutex_unlock(&lock); return n; }
int fault_dead(void) { return dead; }
int fault_is_dirty(unsigned long device, unsigned long inode) {
  for (int i = 0; i < num_dirty; i++) if (dirty[i].device == device && dirty[i].inode == inode) return 1;
  return 0;
}

static int ours(const char *path) { return folder_length && !strncmp(path, folder, folder_length); }
static int ours_at(int at, const char *path) {
  if (!folder_length) return 0;
  if (path[0] == '/' || at == AT_FDCWD) return ours(path);
  char link[64], where[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", at);
  ssize_t n = readlink(link, where, PATH_MAX - 1);
  if (n < 0) return 0;
  where[n] = 0;
  return ours(where);
}
static int ours_fd(int fd) { return ours_at(fd, ""); }

/* Count a call; say whether it may happen: 1 yes, 0 no, 2 a part of it. */
static int may(void) {
  pthread_mutex_lock(&lock);
  int answer = 0;
  if (!dead) {
    count++;
    answer = 1;
    if (limit && count >= limit) { dead = 1; answer = cut ? 2 : 0; }
  }
  pthread_mutex_unlock(&lock);
  return answer;
}
#define REFUSE do { errno = EIO; return -1; } while (0)
#define GUARD(mine) if ((mine) && may() != 1) REFUSE

static void written(int fd) {
  struct stat found;
  if (fstat(fd, &found)) return;
  pthread_mutex_lock(&lock);
  if (!fault_is_dirty(found.st_dev, found.st_ino) && num_dirty < MOST) {
    dirty[num_dirty].device = found.st_dev;
    dirty[num_dirty++].inode = found.st_ino;
  }
  pthread_mutex_unlock(&lock);
}
static void synced(int fd) {
  struct stat found;
  if (fstat(fd, &found)) return;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_dirty; i++)
    if (dirty[i].device == found.st_dev && dirty[i].inode == found.st_ino) { dirty[i] = dirty[--num_dirty]; break; }
  pthread_mutex_unlock(&lock);
}

#define WRITES(flags) ((flags) & (O_CREAT | O_TRUNC))
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    GUARD(WRITES(flags) && ours(path)); \
    return REAL(name)(path, flags, mode); }
#define OPENAT(name) \
  int name(int at, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    GUARD(WRITES(flags) && ours_at(at, path)); \
    return REAL(name)(at, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

#define WRITE(call, length, some) \
  if (ours_fd(fd)) { \
    int allowed = may(); \
    if (!allowed) REFUSE; \
    if (allowed == 2) { some; written(fd); REFUSE; } \
    ssize_t done = call; \
    written(fd); \
    return done; \
  } \
  return call;
ssize_t write(int fd, const void *data, size_t n) { WRITE(REAL(write)(fd, data, n), n, REAL(write)(fd, data, n / 2)) }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { WRITE(REAL(pwrite)(fd, data, n, at), n, REAL(pwrite)(fd, data, n / 2, at)) }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { WRITE(REAL(pwrite64)(fd, data, n, at), n, REAL(pwrite64)(fd, data, n / 2, at)) }
ssize_t writev(int fd, const struct iovec *parts, int n) { WRITE(REAL(writev)(fd, parts, n), n, REAL(writev)(fd, parts, n / 2)) }
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) { WRITE(REAL(pwritev)(fd, parts, n, at), n, REAL(pwritev)(fd, parts, n / 2, at)) }

int ftruncate(int fd, off_t n) { GUARD(ours_fd(fd)); return REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { GUARD(ours_fd(fd)); return REAL(ftruncate64)(fd, n); }
int fsync(int fd) { GUARD(ours_fd(fd)); int e = REAL(fsync)(fd); if (!e) synced(fd); return e; }
int fdatasync(int fd) { GUARD(ours_fd(fd)); int e = REAL(fdatasync)(fd); if (!e) synced(fd); return e; }
int rename(const char *a, const char *b) { GUARD(ours(a) || ours(b)); return REAL(rename)(a, b); }
int renameat(int c, const char *a, int d, const char *b) { GUARD(ours_at(c, a) || ours_at(d, b)); return REAL(renameat)(c, a, d, b); }
int renameat2(int c, const char *a, int d, const char *b, unsigned f) { GUARD(ours_at(c, a) || ours_at(d, b)); return REAL(renameat2)(c, a, d, b, f); }
int unlink(const char *a) { GUARD(ours(a)); return REAL(unlink)(a); }
int unlinkat(int c, const char *a, int f) { GUARD(ours_at(c, a)); return REAL(unlinkat)(c, a, f); }
int rmdir(const char *a) { GUARD(ours(a)); return REAL(rmdir)(a); }
int mkdir(const char *a, mode_t m) { GUARD(ours(a)); return REAL(mkdir)(a, m); }
int mkdirat(int c, const char *a, mode_t m) { GUARD(ours_at(c, a)); return REAL(mkdirat)(c, a, m); }
int link(const char *a, const char *b) { GUARD(ours(a) || ours(b)); return REAL(link)(a, b); }
int symlink(const char *a, const char *b) { GUARD(ours(b)); return REAL(symlink)(a, b); }
