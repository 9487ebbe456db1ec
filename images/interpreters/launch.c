/*
 * The short step between the agent's fork and a program: it enters the program's cgroup before the program starts, gives up every
 * privilege and the agent's priority, and executes the program. It searches PATH as a shell does, but never runs a file with a shell.
 *
 *   launch PROCS UID GID FILE_SIZE REPORT CWD PROGRAM [ARGUMENT]...
 *
 * PROCS is the cgroup's cgroup.procs. FILE_SIZE limits the files that the program writes, in bytes; 0 is no limit. REPORT is the
 * descriptor for the report why the program cannot be started: a letter, the errno, a NUL and the path or step. 0: report on stderr, for
 * an interpreter. With an empty CWD the working directory does not change.
 *
 * It has no C library and no relocations: under emulation what a process does before its own first line is most of the cost of a
 * short program.
 */
#include <asm/unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* The fifth argument is always 0, as prctl requires. */
#if defined(__x86_64__)
static long call(long number, long a, long b, long c, long d) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = 0;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return result;
}
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
#elif defined(__aarch64__)
static long call(long number, long a, long b, long c, long d) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = 0;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
}
__asm__(".globl _start\n_start: mov x0, sp\n bl begin\n");
#endif

enum { PATH_ROOM = 8192 };

static int report;

static size_t length(const char *text) {
  size_t n = 0;
  while (text[n]) n++;
  return n;
}

static int number(const char *text, long *value) {
  long n = 0;
  if (!*text) return 0;
  for (; *text; text++) {
    if (*text < '0' || *text > '9') return 0;
    n = n * 10 + (*text - '0');
  }
  *value = n;
  return 1;
}

/* Reports with one write why the program cannot be started, and exits. */
static void __attribute__((noreturn)) fail(char kind, long error, const char *about) {
  char text[PATH_ROOM + 32];
  size_t at = 0, digits = 0;
  char reversed[16];
  text[at++] = kind;
  do reversed[digits++] = (char)('0' + error % 10);
  while ((error /= 10) > 0);
  while (digits) text[at++] = reversed[--digits];
  text[at++] = report ? '\0' : ' ';
  for (; *about && at < sizeof text - 1; about++) text[at++] = *about;
  if (!report) text[at++] = '\n';
  call(__NR_write, report ? report : 2, (long)text, (long)at, 0);
  for (;;) call(__NR_exit_group, 127, 0, 0, 0);
}

static void check(long result, const char *step) {
  if (result < 0) fail('s', -result, step);
}

static void put(const char *file, const char *step) {
  long fd = call(__NR_openat, AT_FDCWD, (long)file, O_WRONLY | O_CLOEXEC, 0);
  check(fd, step);
  check(call(__NR_write, fd, (long)"0", 1, 0), step);
  call(__NR_close, fd, 0, 0, 0);
}

static void limit(int resource, unsigned long soft, unsigned long hard) {
  unsigned long value[2] = {soft, hard};
  check(call(__NR_prlimit64, 0, resource, (long)value, 0), "setting a limit");
}

__attribute__((unused)) static void enter(const char *procs, long uid, long gid, long file_size) {
  put(procs, "entering the cgroup");
  put("/proc/self/oom_score_adj", "resetting the OOM score");
  check(call(__NR_setpriority, PRIO_PROCESS, 0, 0, 0), "resetting the priority");
  limit(RLIMIT_CORE, 0, 0);
  limit(RLIMIT_NOFILE, 1024, 65536);
  limit(RLIMIT_NPROC, ~0UL, ~0UL); /* the cgroup limits processes, not the user as a whole */
  if (file_size > 0) limit(RLIMIT_FSIZE, (unsigned long)file_size, (unsigned long)file_size);
  check(call(__NR_setgroups, 0, 0, 0, 0), "dropping groups");
  check(call(__NR_setresgid, gid, gid, gid, 0), "becoming the group");
  check(call(__NR_setresuid, uid, uid, uid, 0), "becoming the user");
  if (uid == 0) return; /* root already has every privilege */
  check(call(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0), "setting no_new_privs");
}

struct refusal {
  char kind;
  long error;
};

/* Why the kernel did not execute a file. */
static struct refusal refused(const char *path, long error) {
  struct stat file;
  int seen = call(__NR_newfstatat, AT_FDCWD, (long)path, (long)&file, 0) == 0;
  switch (error) {
  case ENOENT: /* if the file exists, its interpreter is missing */
    return (struct refusal){seen ? 'x' : 'n', error};
  case ENOTDIR:
  case ELOOP:
  case ENAMETOOLONG:
    return (struct refusal){'n', error};
  case EACCES:
  case EPERM:
    return (struct refusal){seen && !S_ISREG(file.st_mode) ? 'x' : 'p', error};
  case E2BIG:
    return (struct refusal){'l', error};
  }
  return (struct refusal){'x', error};
}

static void __attribute__((noreturn)) give_up(struct refusal why, const char *path) {
  fail(why.kind, why.error, why.kind == 'n' || why.kind == 'l' ? "" : path);
}

static struct refusal execute(const char *path, char **argv, char **env) {
  long error = -call(__NR_execve, (long)path, (long)argv, (long)env, 0);
  return refused(path, error);
}

static void __attribute__((noreturn)) become(char **argv, char **env) {
  static char path[PATH_ROOM], denied_path[PATH_ROOM];
  struct refusal denied = {0, 0};
  const char *name = argv[0], *directories = "";
  size_t size = length(name);
  if (!size) fail('n', ENOENT, "");
  for (size_t i = 0; i < size; i++)
    if (name[i] == '/') give_up(execute(name, argv, env), name);
  for (char **e = env; *e; e++)
    if ((*e)[0] == 'P' && (*e)[1] == 'A' && (*e)[2] == 'T' && (*e)[3] == 'H' && (*e)[4] == '=') directories = *e + 5;
  for (;;) {
    size_t n = 0;
    while (directories[n] && directories[n] != ':') n++;
    if (n + size + 3 < sizeof path) {
      size_t at = 0;
      if (!n) path[at++] = '.';
      for (size_t i = 0; i < n; i++) path[at++] = directories[i];
      path[at++] = '/';
      for (size_t i = 0; i <= size; i++) path[at++] = name[i];
      struct refusal why = execute(path, argv, env);
      if (why.kind != 'n') {
        if (why.error != EACCES) give_up(why, path);
        if (!denied.kind) { /* another directory may have one that may be executed */
          denied = why;
          for (size_t i = 0; i < at; i++) denied_path[i] = path[i];
        }
      }
    }
    if (!directories[n]) break;
    directories += n + 1;
  }
  if (denied.kind) give_up(denied, denied_path);
  fail('n', ENOENT, "");
}

void __attribute__((noreturn, used)) begin(long *stack) {
  long count = stack[0], uid, gid, file_size, descriptor;
  char **argv = (char **)(stack + 1), **env = argv + count + 1;
  if (count < 8 || !number(argv[2], &uid) || !number(argv[3], &gid) || !number(argv[4], &file_size) || !number(argv[5], &descriptor))
    fail('s', EINVAL, "reading its arguments");
  report = (int)descriptor;
#ifndef WITHOUT_PRIVILEGES /* in a test */
  enter(argv[1], uid, gid, file_size);
#endif
  if (report) call(__NR_fcntl, report, F_SETFD, FD_CLOEXEC, 0); /* so that the program cannot write false reports */
  long error = *argv[6] ? -call(__NR_chdir, (long)argv[6], 0, 0, 0) : 0;
  if (error) fail('c', error, argv[6]);
  become(argv + 7, env);
}
