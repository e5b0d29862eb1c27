/* A layer between a program and the system that kills the program at its n-th call that writes.

   Loaded by LD_PRELOAD. Calls that change files below one folder are counted. At the n-th the process ends by
   SIGKILL: before the call, or, where the call is a write that is cut, after half of it. Other threads stop
   where they write. The counts and the files whose data no fsync has waited for are in a file that the process
   and the campaign both map, so that they are still there afterwards. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 65536
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  char folder[PATH_MAX];
  size_t folder_length;
  long count, limit;
  int cut, dead, num_dirty;
  struct { dev_t device; ino_t inode; } dirty[MOST];
} *state;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void map_state(void) {
  const char *path = getenv("BMRJAX_FAULT_STATE");
  int fd = path ? REAL(open)(path, O_RDWR | O_CREAT, 0600) : -1;
  if (fd < 0 || REAL(ftruncate)(fd, sizeof *state)) abort();
  state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (state == MAP_FAILED) abort();
  close(fd);
}

/* Count the calls of a process that is still to begin. */
void fault_start(const char *path, long at, int cut_write) {
  strncpy(state->folder, path, PATH_MAX - 1);
  state->count = 0; state->limit = at; state->cut = cut_write; state->dead = 0; state->num_dirty = 0;
  state->folder_length = strlen(state->folder);
}
/* Stop counting when it has ended; return how many calls there were. */
long fault_stop(void) { state->folder_length = 0; return state->count; }
int fault_dead(void) { return state->dead; }
int fault_is_dirty(unsigned long device, unsigned long inode) {
  for (int i = 0; i < state->num_dirty; i++)
    if (state->dirty[i].device == device && state->dirty[i].inode == inode) return 1;
  return 0;
}

static int ours(const char *path) { return state->folder_length && !strncmp(path, state->folder, state->folder_length); }
static int ours_at(int at, const char *path) {
  if (!state->folder_length) return 0;
  if (path[0] == '/' || at == AT_FDCWD) return ours(path);
  char link[64], where[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", at);
  ssize_t n = readlink(link, where, PATH_MAX - 1);
  if (n < 0) return 0;
  where[n] = 0;
  return ours(where);
}
static int ours_fd(int fd) { return ours_at(fd, ""); }

static void die(void) { for (;;) kill(getpid(), SIGKILL); }

/* Count a call, and end at the last one; say whether only a part of it may happen. */
static int only_part(void) {
  pthread_mutex_lock(&lock);
  if (state->dead) die();
  int last = ++state->count >= state->limit && state->limit;
  if (last) state->dead = 1;
  if (last && !state->cut) die();
  pthread_mutex_unlock(&lock);
  return last;
}
#define GUARD(mine) if ((mine) && only_part()) die()

static void written(int fd) {
  struct stat found;
  if (fstat(fd, &found)) return;
  pthread_mutex_lock(&lock);
  if (!fault_is_dirty(found.st_dev, found.st_ino) && state->num_dirty < MOST) {
    state->dirty[state->num_dirty].device = found.st_dev;
    state->dirty[state->num_dirty++].inode = found.st_ino;
  }
  pthread_mutex_unlock(&lock);
}
static void synced(int fd) {
  struct stat found;
  if (fstat(fd, &found)) return;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < state->num_dirty; i++)
    if (state->dirty[i].device == found.st_dev && state->dirty[i].inode == found.st_ino) {
      state->dirty[i] = state->dirty[--state->num_dirty];
      break;
    }
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

#define WRITE(call, some) \
  if (ours_fd(fd)) { \
    int part = only_part(); \
    written(fd); \
    if (part) { ssize_t half = some; (void)half; die(); } \
  } \
  return call;
ssize_t write(int fd, const void *data, size_t n) { WRITE(REAL(write)(fd, data, n), REAL(write)(fd, data, n / 2)) }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { WRITE(REAL(pwrite)(fd, data, n, at), REAL(pwrite)(fd, data, n / 2, at)) }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { WRITE(REAL(pwrite64)(fd, data, n, at), REAL(pwrite64)(fd, data, n / 2, at)) }
ssize_t writev(int fd, const struct iovec *parts, int n) { WRITE(REAL(writev)(fd, parts, n), REAL(writev)(fd, parts, n / 2)) }
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) { WRITE(REAL(pwritev)(fd, parts, n, at), REAL(pwritev)(fd, parts, n / 2, at)) }

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
