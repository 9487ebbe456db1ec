/*
 * What python.py needs and Python cannot do: a library that is preloaded into the one Python that serves executions.
 *
 * One file, because a preloaded library is one object, whose parts share the execution that is now running.
 *
 *   run        The outermost loop. python.py is a generator: it yields a function and its arguments, which are called from here while the
 *              generator is suspended, with no frame of ours below. The user's module has no caller, as in `python3 script.py`.
 *   write …    A thread that outlives its execution prints where that execution printed, and so do the children that it starts,
 *              although descriptors 1 and 2 then belong to another execution. This is done in libc's functions, so that there is no class
 *              of ours between users and their streams.
 *   nudged     SIGINT may come between Python's last check for signals and a blocking system call such as `time.sleep`, and would be
 *              handled only after it. The agent's SIGURG ends the call; Python then checks, and continues to wait if there was no signal.
 *   receive, send, enter, leave: the agent's messages and an execution's descriptors, with no descriptor of ours open in between
 *
 * Build: gcc -O2 -Wall -Wextra -shared -fPIC -o /usr/lib/exec-sandbox/python.so python.c
 * No headers are needed: what is used of CPython 3.13 is declared below; its binary exports it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* ---- Python ------------------------------------------------------------------------------------------------------------------------- */

typedef struct object PyObject;
typedef struct thread PyThreadState;
typedef struct { int type; const char *function, *message; int exit_code; } PyStatus;
typedef struct { const char *name; PyObject *(*function)(PyObject *, PyObject *const *, ssize_t); int flags; const char *doc; } PyMethodDef;

enum { METH_FASTCALL = 0x80, FILE_INPUT = 257, SENT_RETURN = 0, SENT_NEXT = 1 };

extern void PyConfig_InitPythonConfig(void *), PyObject_GC_Track(void *), PyObject_GC_UnTrack(void *), PyErr_SetRaisedException(PyObject *), Py_IncRef(PyObject *), Py_DecRef(PyObject *), PyErr_Print(void),
    PyErr_WriteUnraisable(PyObject *), PyEval_RestoreThread(PyThreadState *);
extern void __attribute__((noreturn)) Py_ExitStatusException(PyStatus), Py_Exit(int);
extern PyStatus PyConfig_SetBytesArgv(void *, ssize_t, char *const *), Py_InitializeFromConfig(const void *);
extern void Py_SetRecursionLimit(int);
extern int Py_GetRecursionLimit(void), PyStatus_Exception(PyStatus), PyErr_CheckSignals(void), PyErr_ExceptionMatches(PyObject *), PyObject_IsTrue(PyObject *),
    PyIter_Send(PyObject *, PyObject *, PyObject **), PyDict_SetItemString(PyObject *, const char *, PyObject *);
extern long PyLong_AsLong(PyObject *);
extern ssize_t PyTuple_Size(PyObject *);
extern PyThreadState *PyEval_SaveThread(void);
extern const char *PyUnicode_AsUTF8AndSize(PyObject *, ssize_t *);
extern PyObject *PyDict_New(void), *PyDict_GetItemString(PyObject *, const char *), *PyTuple_GetItem(PyObject *, ssize_t),
    *PyErr_GetRaisedException(void), *PyErr_SetFromErrno(PyObject *), *PyUnicode_FromString(const char *),
    *PyBytes_FromStringAndSize(const char *, ssize_t), *PyBool_FromLong(long), *PyImport_ImportModule(const char *),
    *PyObject_GetAttr(PyObject *, PyObject *), *PyObject_GetAttrString(PyObject *, const char *), *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *),
    *PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *), *Py_CompileString(const char *, const char *, int),
    *PyEval_EvalCode(PyObject *, PyObject *, PyObject *), *PyCMethod_New(PyMethodDef *, PyObject *, PyObject *, PyObject *);
extern PyObject *PyExc_OSError, *PyExc_StopIteration, _Py_NoneStruct;

#define None (&_Py_NoneStruct)

static PyObject *new_none(void) {
  Py_IncRef(None);
  return None;
}

/* ---- Whose output it is --------------------------------------------------------------------------------------------------------------- */

/* An execution, which exists until it is over and the threads that it started have ended. */
struct execution {
  int threads;
  bool over;
  int kept[2]; /* after its end: copies of its pipes, or -1 */
  struct { dev_t device; ino_t inode; } pipe[2];
};

static struct execution *now;            /* the latest execution */
static bool nowhere;                     /* descriptors 0, 1 and 2 are our /dev/null and not its files */
static char place[512];                  /* the slot whose pipes descriptors 1 and 2 still are after an execution */
static int living;                       /* threads except the main one */
static bool touched;                     /* descriptor 0 has been read */
static __thread struct execution *birth; /* the execution that started this thread; NULL for the main one, which always runs `now` */
static pid_t server;
static pthread_key_t thread_end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { NULL_FLAGS = O_RDWR | O_APPEND }; /* distinguish our /dev/null from a user's */

static ssize_t (*libc_write)(int, const void *, size_t);
static ssize_t (*libc_read)(int, void *, size_t);
static off_t (*libc_lseek)(int, off_t, int);
static int (*libc_pthread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static __typeof__(&posix_spawn) libc_posix_spawn, libc_posix_spawnp;
static int (*libc_system)(const char *);

static bool is_pipe(int fd, const struct execution *it, int which) {
  struct stat status;
  return fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == it->pipe[which].device && status.st_ino == it->pipe[which].inode;
}

/* Whether a descriptor is one that we opened: our /dev/null, or a pipe of any execution. Only the directories of executions have FIFOs on
   that device. */
static bool is_ours(int fd, const struct execution *it) {
  struct stat status;
  if (fstat(fd, &status) < 0) return false;
  if (S_ISFIFO(status.st_mode)) return status.st_dev == it->pipe[0].device;
  return status.st_rdev == makedev(1, 3) && (fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND)) == NULL_FLAGS;
}

/* Whether this thread belongs to an execution whose files are no longer descriptors 1 and 2. */
static bool stray(void) { return birth && (birth != now || nowhere); }

static int kept(int which) { return is_pipe(birth->kept[which], birth, which) ? birth->kept[which] : -1; }

/* Called in a child of a stray thread, or in a thread with descriptors of its own: points them at the execution's pipes again. They are
   as they were when the child was made: since then other executions may have run, while the thread waits for a child that shares our
   memory. */
static void return_home(struct execution *it) {
  for (int i = 0; i < 2; i++) {
    if (is_pipe(1 + i, it, i) || !is_ours(1 + i, it)) continue;
    if (is_pipe(it->kept[i], it, i)) {
      dup2(it->kept[i], 1 + i);
    } else {
      int null = open("/dev/null", O_RDWR | O_CLOEXEC);
      if (null < 0) continue;
      dup2(null, 1 + i);
      close(null);
    }
  }
}

static void let_pipes_go(struct execution *it) {
  for (int i = 0; i < 2; i++) {
    if (is_pipe(it->kept[i], it, i)) close(it->kept[i]);
    it->kept[i] = -1;
  }
}

/* Called with the lock held: frees an execution when nothing of it is left that could print. */
static void settle(struct execution *it) {
  if (!it->over || it->threads > 0) return;
  let_pipes_go(it);
  if (it != now) free(it);
}

ssize_t write(int fd, const void *data, size_t size) {
  if ((fd == 1 || fd == 2) && stray()) {
    fd = kept(fd - 1);
    if (fd < 0) return (ssize_t)size;
  }
  return libc_write(fd, data, size);
}

ssize_t read(int fd, void *data, size_t size) {
  if (fd == 0) touched = true;
  return libc_read(fd, data, size);
}

off_t lseek64(int fd, off_t offset, int whence) {
  if (fd == 0) touched = true;
  return libc_lseek(fd, offset, whence);
}

struct start { void *(*function)(void *); void *argument; struct execution *birth; };

static void *begin_thread(void *data) {
  struct start start = *(struct start *)data;
  free(data);
  birth = start.birth;
  pthread_setspecific(thread_end, birth);
  return start.function(start.argument);
}

static void count_thread(struct execution *it, int change) {
  pthread_mutex_lock(&lock);
  it->threads += change;
  living += change;
  settle(it);
  pthread_mutex_unlock(&lock);
}

static void end_thread(void *data) {
  birth = NULL;
  count_thread(data, -1);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
  struct execution *it = birth ? birth : now;
  struct start *start = it ? malloc(sizeof *start) : NULL;
  if (!start) return libc_pthread_create(thread, attributes, function, argument);
  *start = (struct start){function, argument, it};
  count_thread(it, 1);
  int error = libc_pthread_create(thread, attributes, begin_thread, start);
  if (error) count_thread(it, -1), free(start);
  return error;
}

/* Every child between its fork and its program calls this, including one that shares our memory (vfork), usually first: it closes what
   the program must not inherit, including our copies. */
int close_range(unsigned first, unsigned last, int flags) {
  if (stray() && getpid() != server) return_home(birth);
  return (int)syscall(SYS_close_range, first, last, flags);
}

int execve(const char *path, char *const arguments[], char *const environment[]) {
  if (stray()) return_home(birth);
  return (int)syscall(SYS_execve, path, arguments, environment);
}

int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }

static void in_child(void) {
  pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
  lock = unlocked;
  if (stray()) return_home(birth), nowhere = false;
  birth = NULL;
}

/* Runs what forks inside libc in a thread that has descriptors of its own. */
struct call { struct execution *birth; int result, error; int (*run)(struct call *); const void *arguments[7]; };

static void *elsewhere(void *data) {
  struct call *call = data;
  if (unshare(CLONE_FILES) == 0) return_home(call->birth);
  call->result = call->run(call);
  call->error = errno;
  return NULL;
}

static int run_elsewhere(struct call *call) {
  pthread_t thread;
  call->birth = birth;
  if (libc_pthread_create(&thread, NULL, elsewhere, call) != 0) return call->run(call);
  pthread_join(thread, NULL);
  errno = call->error;
  return call->result;
}

static int run_spawn(struct call *call) {
  const void **it = call->arguments;
  return (it[6] ? libc_posix_spawnp : libc_posix_spawn)((pid_t *)it[0], it[1], it[2], it[3], (char *const *)it[4], (char *const *)it[5]);
}

static int run_system(struct call *call) { return libc_system(call->arguments[0]); }

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                char *const arguments[], char *const environment[]) {
  struct call call = {.run = run_spawn, .arguments = {pid, path, actions, attributes, arguments, environment, NULL}};
  return stray() ? run_elsewhere(&call) : run_spawn(&call);
}

int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const arguments[], char *const environment[]) {
  struct call call = {.run = run_spawn, .arguments = {pid, path, actions, attributes, arguments, environment, ""}};
  return stray() ? run_elsewhere(&call) : run_spawn(&call);
}

int system(const char *command) {
  struct call call = {.run = run_system, .arguments = {command}};
  return stray() ? run_elsewhere(&call) : run_system(&call);
}

/* ---- Functions for python.py ------------------------------------------------------------------------------------------------------------ */

enum { MESSAGE = 4096 }; /* bytes that one write to, or read from, a FIFO transfers at once (PIPE_BUF) */

static const char *home; /* DIR */

static int open_file(const char *directory, const char *name, int flags) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int fd = open(path, flags, 0600);
  if (fd >= 0 || errno != EMFILE) return fd;
  /* User code has used up the descriptors. Allow a few more: this is only the user's own (soft) limit. */
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_cur + 16 < limit.rlim_max ? limit.rlim_cur + 16 : limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return open(path, flags, 0600);
}

/* receive(): the agent's next message. The user's signal handlers run meanwhile. */
static PyObject *receive(PyObject *self, PyObject *const *arguments, ssize_t count) {
  (void)self, (void)arguments, (void)count;
  char message[MESSAGE];
  ssize_t size = -1;
  while (size < 0) {
    PyThreadState *state = PyEval_SaveThread();
    /* Opened again each time (the agent keeps the other end open), so it works whatever user code closes. */
    int fd = open_file(home, "in", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) size = libc_read(fd, message, sizeof message);
    int error = errno;
    if (fd >= 0) close(fd);
    PyEval_RestoreThread(state);
    while (PyErr_CheckSignals() < 0) PyErr_WriteUnraisable(NULL);
    if (size < 0 && error != EINTR) {
      errno = error;
      return PyErr_SetFromErrno(PyExc_OSError);
    }
  }
  return PyBytes_FromStringAndSize(message, size);
}

/* send(line): to the agent */
static PyObject *send(PyObject *self, PyObject *const *arguments, ssize_t count) {
  (void)self, (void)count;
  ssize_t size;
  const char *line = PyUnicode_AsUTF8AndSize(arguments[0], &size);
  int fd = line ? open_file(home, "out", O_WRONLY | O_CLOEXEC) : -1;
  if (!line) return NULL;
  while (size > 0) {
    ssize_t n = libc_write(fd, line, (size_t)size);
    if (n > 0) line += n, size -= n;
    else if (errno != EINTR) break;
  }
  if (size > 0) PyErr_SetFromErrno(PyExc_OSError);
  if (fd >= 0) close(fd);
  return size > 0 ? NULL : new_none();
}

static bool redirect(const char *directory, const char *name, int flags, int fd) {
  int new = open_file(directory, name, flags);
  if (new < 0) return false;
  if (new == fd) return true;
  dup2(new, fd);
  close(new);
  return true;
}

static bool is_null(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 && status.st_rdev == makedev(1, 3);
}

/* Whether a descriptor is as redirect() left it: user code may have set its flags, or opened it again, and children may have made it
   non-blocking (Node does). */
static bool is_plain(int fd, int flags) {
  return (fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK | O_APPEND | O_ASYNC | O_DIRECT)) == flags && fcntl(fd, F_GETFD) == 0;
}

/* Whether descriptors 0, 1 and 2 are already those of an execution, because the last one had the same slot. */
static bool are_there(const char *directory) {
  if (!place[0] || strcmp(place, directory) != 0 || !is_null(0) || !is_plain(0, O_RDONLY)) return false;
  for (int i = 0; i < 2; i++)
    if (!is_pipe(1 + i, now, i) || !is_plain(1 + i, O_WRONLY)) return false;
  return true;
}

/* enter(DIR/SLOT, whether there is input): redirects descriptors 0, 1 and 2 to an execution's files */
static PyObject *enter(PyObject *self, PyObject *const *arguments, ssize_t count) {
  (void)self, (void)count;
  const char *directory = PyUnicode_AsUTF8AndSize(arguments[0], NULL);
  int input = PyObject_IsTrue(arguments[1]);
  struct execution *it = directory ? calloc(1, sizeof *it) : NULL;
  if (!it) return directory ? PyErr_SetFromErrno(PyExc_OSError) : NULL;
  if (!input && are_there(directory)) {
    memcpy(it->pipe, now->pipe, sizeof it->pipe);
  } else {
    if ((input || !nowhere) && !redirect(input ? directory : "/dev", input ? "stdin" : "null", O_RDONLY, 0))
      return free(it), PyErr_SetFromErrno(PyExc_OSError);
    if (!redirect(directory, "stdout", O_WRONLY, 1) || !redirect(directory, "stderr", O_WRONLY, 2))
      return free(it), PyErr_SetFromErrno(PyExc_OSError);
    for (int i = 0; i < 2; i++) {
      struct stat status;
      fstat(1 + i, &status);
      it->pipe[i].device = status.st_dev, it->pipe[i].inode = status.st_ino;
    }
    snprintf(place, sizeof place, "%s", input ? "" : directory);
  }
  it->kept[0] = it->kept[1] = -1;
  pthread_mutex_lock(&lock);
  struct execution *former = now;
  now = it;
  nowhere = touched = false;
  if (former) settle(former);
  pthread_mutex_unlock(&lock);
  return new_none();
}

/* leave(whether to stay): the execution is over. The descriptors stay as they are if it may still print in the main thread, or if that is
   the only thread: the agent checks whether this process is alone, and then gives the next execution the same slot. Otherwise its pipes
   are closed, except copies for its threads, so that the agent can see whether another process has them open. Returns the word for the
   agent. */
static PyObject *leave(PyObject *self, PyObject *const *arguments, ssize_t count) {
  (void)self, (void)count;
  bool stay = PyObject_IsTrue(arguments[0]) == 1;
  pthread_mutex_lock(&lock);
  now->over = true;
  if (now->threads > 0)
    for (int i = 0; i < 2; i++) now->kept[i] = is_pipe(1 + i, now, i) ? fcntl(1 + i, F_DUPFD_CLOEXEC, 3) : -1;
  if (living > 0) place[0] = 0;
  int null = stay || place[0] ? -1 : open_file("/dev", "null", NULL_FLAGS);
  if (null >= 0) {
    for (int fd = 0; fd < 3; fd++)
      if (fd != null) dup2(null, fd);
    if (null > 2) close(null);
    nowhere = true;
  }
  settle(now);
  pthread_mutex_unlock(&lock);
  return PyUnicode_FromString(!stay && place[0] ? "held" : "done");
}

/* unread(): whether stdin has not been read */
static PyObject *unread(PyObject *self, PyObject *const *arguments, ssize_t count) {
  (void)self, (void)arguments, (void)count;
  return PyBool_FromLong(!touched);
}

static PyMethodDef functions[] = {
    {"receive", receive, METH_FASTCALL, NULL}, {"send", send, METH_FASTCALL, NULL},
    {"enter", enter, METH_FASTCALL, NULL}, {"leave", leave, METH_FASTCALL, NULL}, {"unread", unread, METH_FASTCALL, NULL},
};

/* ---- The outermost loop ----------------------------------------------------------------------------------------------------------------- */

/* The user's trace or profile function, which is for the user's code only and must not see python.py. */
struct hook { PyObject *get, *set, *function; };
static struct hook hooks[2];
static PyObject *delegate; /* "gi_yieldfrom" */

enum { RECURSION = 1000 }; /* Python's default, and ours; users may set another for their code */
static int recursion = RECURSION;

static PyObject *call(PyObject *function, PyObject *argument) {
  PyObject *const arguments[] = {NULL, argument};
  return PyObject_Vectorcall(function, arguments + 1, argument ? 1 : 0, NULL);
}

static void discard(PyObject *object) {
  if (object) Py_DecRef(object);
}

static void set_hook(struct hook *hook, PyObject *function) {
  PyObject *done = call(hook->set, function);
  if (!done) PyErr_WriteUnraisable(NULL);
  discard(done);
}

/* Hides the suspended generators, each of which delegates to the next, from the user's `gc`, which could close them. Returns how many there
   are. */
enum { DEEPEST = 8 };
static int hide(PyObject *generator, PyObject **hidden) {
  int count = 0;
  Py_IncRef(generator);
  while (generator && generator != None && count < DEEPEST) {
    PyObject_GC_UnTrack(generator);
    hidden[count++] = generator;
    generator = PyObject_GetAttr(generator, delegate);
  }
  discard(generator);
  return count;
}

static void unhide(PyObject **hidden, int count) {
  while (count-- > 0) {
    PyObject_GC_Track(hidden[count]);
    Py_DecRef(hidden[count]);
  }
}

/* Calls what the generator yielded: (function, argument…). */
static PyObject *call_for_user(PyObject *request) {
  PyObject *items[8];
  ssize_t count = PyTuple_Size(request);
  for (ssize_t i = 0; i < count && i < 8; i++) items[i] = PyTuple_GetItem(request, i);
  for (int i = 0; i < 2; i++)
    if (hooks[i].function) set_hook(&hooks[i], hooks[i].function);
  if (recursion != RECURSION) Py_SetRecursionLimit(recursion);
  PyObject *result = PyObject_Vectorcall(items[0], items + 1, (size_t)count - 1, NULL);
  PyObject *error = result ? NULL : PyErr_GetRaisedException();
  recursion = Py_GetRecursionLimit();
  if (recursion != RECURSION) Py_SetRecursionLimit(RECURSION);
  for (int i = 0; i < 2; i++) {
    discard(hooks[i].function);
    hooks[i].function = call(hooks[i].get, NULL);
    if (hooks[i].function == None) Py_DecRef(None), hooks[i].function = NULL;
    else set_hook(&hooks[i], None);
  }
  if (error) PyErr_SetRaisedException(error);
  return result;
}

/* Runs the generator until it returns: its value is the exit status. */
static int serve(PyObject *generator) {
  PyObject *throw = PyUnicode_FromString("throw"), *request, *value = new_none();
  delegate = PyUnicode_FromString("gi_yieldfrom");
  int sent = PyIter_Send(generator, value, &request);
  while (sent == SENT_NEXT) {
    Py_DecRef(value);
    PyObject *hidden[DEEPEST];
    int count = hide(generator, hidden);
    value = call_for_user(request);
    unhide(hidden, count);
    Py_DecRef(request);
    if (value) {
      sent = PyIter_Send(generator, value, &request);
      continue;
    }
    PyObject *error = PyErr_GetRaisedException(), *const arguments[] = {generator, error};
    request = PyObject_VectorcallMethod(throw, arguments, 2, NULL);
    sent = request ? SENT_NEXT : -1;
    Py_DecRef(error);
    value = new_none();
    if (!request && PyErr_ExceptionMatches(PyExc_StopIteration)) {
      PyObject *stop = PyErr_GetRaisedException();
      request = PyObject_GetAttrString(stop, "value");
      sent = SENT_RETURN;
    }
  }
  if (sent != SENT_RETURN) return PyErr_Print(), 1;
  return (int)PyLong_AsLong(request);
}

static char *read_text(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) < 0) return NULL;
  char *text = calloc(1, (size_t)status.st_size + 1);
  if (text && libc_read(fd, text, (size_t)status.st_size) != status.st_size) text[0] = 0;
  close(fd);
  return text;
}

/* Loads python.py as a module that no list of modules has, with the functions above; its `serve(DIR)` is the generator. */
static PyObject *load(const char *path, const char *text) {
  PyObject *code = Py_CompileString(text, path, FILE_INPUT), *module = PyDict_New(), *sys = PyImport_ImportModule("sys"), *arguments[1];
  if (!code || !sys) return NULL;
  static const char *const names[][2] = {{"getprofile", "setprofile"}, {"gettrace", "settrace"}};
  for (int i = 0; i < 2; i++) {
    hooks[i].get = PyObject_GetAttrString(sys, names[i][0]);
    hooks[i].set = PyObject_GetAttrString(sys, names[i][1]);
  }
  PyDict_SetItemString(module, "__name__", PyUnicode_FromString("exec_sandbox"));
  PyDict_SetItemString(module, "__file__", PyUnicode_FromString(path));
  PyDict_SetItemString(module, "__builtins__", PyImport_ImportModule("builtins"));
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    PyDict_SetItemString(module, functions[i].name, PyCMethod_New(&functions[i], NULL, NULL, NULL));
  if (!PyEval_EvalCode(code, module, module)) return NULL;
  arguments[0] = PyUnicode_FromString(home);
  return PyObject_Vectorcall(PyDict_GetItemString(module, "serve"), arguments, 1, NULL);
}

static void nudged(int number) { (void)number; }

/* Replaces the main function of `python3 python.py DIR`. */
static int run(int count, char **arguments, char **environment) {
  static _Alignas(max_align_t) char config[8192]; /* for PyConfig, which is ten times smaller */
  (void)environment;
  unsetenv("LD_PRELOAD");
  PyConfig_InitPythonConfig(config);
  PyStatus status = PyConfig_SetBytesArgv(config, count, arguments);
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(config);
  if (PyStatus_Exception(status)) Py_ExitStatusException(status);
  sigaction(SIGURG, &(struct sigaction){.sa_handler = nudged}, NULL);
  home = arguments[2];
  char *text = read_text(arguments[1]);
  PyObject *generator = text ? load(arguments[1], text) : NULL;
  free(text);
  if (!generator) PyErr_Print();
  Py_Exit(generator ? serve(generator) : 1);
}

int __libc_start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

int __libc_start_main(int (*main)(int, char **, char **), int count, char **arguments, void (*begin)(void), void (*end)(void),
                      void (*loader_end)(void), void *stack) {
  (void)main;
  __typeof__(&__libc_start_main) start = (__typeof__(&__libc_start_main))dlsym(RTLD_NEXT, "__libc_start_main");
  server = getpid();
  pthread_key_create(&thread_end, end_thread);
  pthread_atfork(NULL, NULL, in_child);
  return start(run, count, arguments, begin, end, loader_end, stack);
}

static void __attribute__((constructor)) find_functions(void) {
  libc_write = (__typeof__(libc_write))dlsym(RTLD_NEXT, "write");
  libc_read = (__typeof__(libc_read))dlsym(RTLD_NEXT, "read");
  libc_lseek = (__typeof__(libc_lseek))dlsym(RTLD_NEXT, "lseek64");
  libc_pthread_create = (__typeof__(libc_pthread_create))dlsym(RTLD_NEXT, "pthread_create");
  libc_posix_spawn = (__typeof__(libc_posix_spawn))dlsym(RTLD_NEXT, "posix_spawn");
  libc_posix_spawnp = (__typeof__(libc_posix_spawnp))dlsym(RTLD_NEXT, "posix_spawnp");
  libc_system = (__typeof__(libc_system))dlsym(RTLD_NEXT, "system");
}
