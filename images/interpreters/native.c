/*
 * The few things that javascript.mjs needs and JavaScript cannot do, as a Node-API addon:
 *   listen     a thread that waits for the agent's messages and for SIGINT, so that neither depends on descriptors or signal handlers
 *              that user code can reach; it starts executions with no JavaScript frame of ours below them
 *   redirect   redirect descriptors 0, 1, 2 to an execution's files (dup2); letGo redirects them to /dev/null
 *   write      write a whole buffer to a pipe, even if a process has made it non-blocking
 *   terminate  stop the running JavaScript (process.exit, SIGINT), which V8 can do but Node-API cannot
 *   reseed     mix entropy into Node's own OpenSSL, whose state a clone shares with its template
 *
 * Build: gcc -O2 -Wall -Wextra -shared -fPIC -o /usr/lib/exec-sandbox/native.node native.c
 * (for arm64: aarch64-linux-gnu-gcc, same options). No headers are needed: what is used of Node 24 is declared below.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Node-API, V8 and OpenSSL as exported by the node binary ----------------------------------------------------------------------- */

typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_ref__ *napi_ref;
typedef struct napi_callback_info__ *napi_callback_info;
typedef struct napi_threadsafe_function__ *napi_threadsafe_function;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);

extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
extern int napi_get_cb_info(napi_env, napi_callback_info, size_t *, napi_value *, napi_value *, void **);
extern int napi_get_value_string_utf8(napi_env, napi_value, char *, size_t, size_t *);
extern int napi_get_value_bool(napi_env, napi_value, bool *);
extern int napi_get_value_int32(napi_env, napi_value, int32_t *);
extern int napi_get_buffer_info(napi_env, napi_value, void **, size_t *);
extern int napi_get_typedarray_info(napi_env, napi_value, int *, size_t *, void **, napi_value *, size_t *);
extern int napi_create_string_utf8(napi_env, const char *, size_t, napi_value *);
extern int napi_create_int32(napi_env, int32_t, napi_value *);
extern int napi_get_undefined(napi_env, napi_value *);
extern int napi_typeof(napi_env, napi_value, int *);
extern int napi_call_function(napi_env, napi_value, napi_value, size_t, const napi_value *, napi_value *);
extern int napi_get_and_clear_last_exception(napi_env, napi_value *);
extern int napi_create_reference(napi_env, napi_value, uint32_t, napi_ref *);
extern int napi_get_reference_value(napi_env, napi_ref, napi_value *);
extern int napi_create_threadsafe_function(napi_env, napi_value, napi_value, napi_value, size_t, size_t, void *, void *, void *,
                                           void (*)(napi_env, napi_value, void *, void *), napi_threadsafe_function *);
extern int napi_ref_threadsafe_function(napi_env, napi_threadsafe_function);
extern int napi_unref_threadsafe_function(napi_env, napi_threadsafe_function);
extern int napi_call_threadsafe_function(napi_threadsafe_function, void *, int);

extern void *v8_isolate_current(void) __asm__("_ZN2v87Isolate10GetCurrentEv");
extern void v8_request_interrupt(void *, void (*)(void *, void *), void *) __asm__(
    "_ZN2v87Isolate16RequestInterruptEPFvPS0_PvES2_");
extern void v8_terminate(void *) __asm__("_ZN2v87Isolate18TerminateExecutionEv");
extern void v8_cancel_terminate(void *) __asm__("_ZN2v87Isolate24CancelTerminateExecutionEv");
extern void v8_set_oom_handler(void *, void (*)(const char *, const void *)) __asm__(
    "_ZN2v87Isolate18SetOOMErrorHandlerEPFvPKcRKNS_10OOMDetailsEE");

extern void RAND_seed(const void *, int);
extern int RAND_poll(void);

enum { NAPI_STRING = 4, NAPI_NONBLOCKING = 0 };

/* ---- State ------------------------------------------------------------------------------------------------------------------------- */

static char home[512];                    /* DIR */
static char evidence[1024];               /* of the running execution, for the out-of-memory handler */
static void *isolate;
static pthread_t listener;
static napi_threadsafe_function queue;    /* from any thread to on_message, on the main thread */
static napi_ref prepare, settle, interrupt, connection, dispatch;
static atomic_bool running;               /* user code is running: SIGINT is for it */
struct text { size_t size; char text[]; };
static struct text settle_only;           /* a message that is neither an execution nor an interrupt */
static atomic_int interrupts, acknowledged;
static uint32_t *async_stack_length;      /* Node's own count of nested asynchronous contexts */
static struct pollfd vital[32];           /* Node's own descriptors: without them its event loop aborts, or blocks for ever */
static int vital_count;

enum { MESSAGE = 4096 };  /* bytes that one write to, or read from, a FIFO transfers at once (PIPE_BUF) */
enum { GRACE = 50 };  /* milliseconds for the event loop to handle an interrupt, before the running JavaScript is stopped */

/* ---- The main thread's side ---------------------------------------------------------------------------------------------------------- */

/* Calls a function, and clears its exception or termination. */
static napi_value call(napi_env env, napi_value self, napi_ref function, size_t count, const napi_value *arguments) {
  napi_value callee, result = NULL, ignored;
  if (!self) napi_get_undefined(env, &self);
  napi_get_reference_value(env, function, &callee);
  if (napi_call_function(env, self, callee, count, arguments, &result) != 0) {
    v8_cancel_terminate(isolate);
    napi_get_and_clear_last_exception(env, &ignored);
    return NULL;
  }
  return result;
}

/* Runs an execution: prepare(message) returns the inspector's message; the inspector, called from here, runs it with no frame of ours. */
static void on_message(napi_env env, napi_value unused, void *context, void *data) {
  (void)unused, (void)context;
  struct text *received = data;
  if (!env) return;
  if (received == &settle_only) {
    call(env, NULL, settle, 0, NULL);
  } else if (received) {
    napi_value order, message, self;
    int type = 0;
    napi_create_string_utf8(env, received->text, received->size, &order);
    message = call(env, NULL, prepare, 1, &order);
    if (message) napi_typeof(env, message, &type);
    if (type == NAPI_STRING) {
      napi_get_reference_value(env, connection, &self);
      call(env, self, dispatch, 1, &message);
    }
    free(received);
    call(env, NULL, settle, 0, NULL);
  } else {
    atomic_store(&acknowledged, atomic_load(&interrupts));
    call(env, NULL, interrupt, 0, NULL);
  }
}

/* ---- The listener --------------------------------------------------------------------------------------------------------------------- */

static void on_sigint(int number) {
  int error = errno;
  if (!pthread_equal(pthread_self(), listener)) pthread_kill(listener, number);
  else atomic_fetch_add(&interrupts, 1);
  errno = error;
}

static void watch_sigint(void) {
  static void (*node_default)(int);
  struct sigaction current, ours = {.sa_handler = on_sigint};
  sigaction(SIGINT, NULL, &current);
  if (!node_default) node_default = current.sa_handler;
  /* Not while the user's own `process.on("SIGINT")` is set; after its removal Node sets the default, which kills the process. */
  if (current.sa_handler == SIG_DFL || current.sa_handler == node_default) sigaction(SIGINT, &ours, NULL);
}

/* Runs on the main thread, between two steps of JavaScript. Code that is stopped does not leave its asynchronous contexts: for Node, a
   count of 0 means "already left" (as after an uncaught exception), and any other mismatch is corruption. If the event loop has handled
   the interrupt meanwhile, its handler must not be stopped. */
static void stop(void *unused, void *data) {
  (void)unused, (void)data;
  if (!atomic_load(&running) || atomic_load(&acknowledged) == atomic_load(&interrupts)) return;
  *async_stack_length = 0;
  v8_terminate(isolate);
}

static void *listen_for_messages(void *unused) {
  (void)unused;
  char path[600], line[MESSAGE];
  int fd = -1, handled = 0;
  sigset_t during_poll;
  pthread_sigmask(SIG_SETMASK, NULL, &during_poll);
  sigdelset(&during_poll, SIGINT);
  snprintf(path, sizeof path, "%s/in", home);
  for (;;) {
    /* The agent keeps the other end open, so the FIFO can be opened again whenever user code has closed it. */
    if (fd < 0) fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) _exit(70);
    struct pollfd events = {fd, POLLIN, 0};
    struct timespec grace = {0, GRACE * 1000000L};
    bool waiting = atomic_load(&running) && handled != atomic_load(&acknowledged);
    int ready = ppoll(&events, 1, waiting ? &grace : NULL, &during_poll);
    if (atomic_load(&interrupts) != handled) {
      handled = atomic_load(&interrupts);
      if (atomic_load(&running)) napi_call_threadsafe_function(queue, NULL, NAPI_NONBLOCKING);
      else atomic_store(&acknowledged, handled);
    } else if (ready == 0 && waiting) {
      v8_request_interrupt(isolate, stop, NULL);
    } else if (ready > 0) {
      ssize_t n = read(fd, line, sizeof line);
      if (n < 0 && errno != EAGAIN && errno != EINTR) close(fd), fd = -1;
      if (n <= 0) continue;
      struct text *order = n > 5 && memcmp(line, "exec ", 5) == 0 ? malloc(sizeof *order + (size_t)n - 5) : NULL;
      if (!order) continue;
      order->size = (size_t)n - 5;
      memcpy(order->text, line + 5, order->size);
      napi_call_threadsafe_function(queue, order, NAPI_NONBLOCKING);
    }
  }
  return NULL;
}

/* V8 is out of heap and does not continue after this: write the evidence, then abort as Node would. */
static void on_out_of_memory(const char *location, const void *details) {
  static const char text[] =
      "{\"exitCode\":134,\"exception\":{\"type\":\"MemoryError\",\"message\":\"JavaScript heap out of memory\",\"traceback\":\"\","
      "\"errno\":null,\"path\":null,\"module\":null,\"code\":\"ERR_OUT_OF_MEMORY\"},\"commands\":[],\"result\":null}";
  (void)details;
  if (evidence[0]) {
    int fd = open(evidence, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0 && write(fd, text, sizeof text - 1) < 0) evidence[0] = 0;
    if (fd >= 0) close(fd);
  }
  dprintf(2, "FATAL ERROR: %s - JavaScript heap out of memory\n", location ? location : "V8");
  abort();
}

/* ---- Functions for javascript.mjs ------------------------------------------------------------------------------------------------------ */

#define ARGUMENTS(n)         \
  size_t count = n;          \
  napi_value argument[n];    \
  napi_get_cb_info(env, info, &count, argument, NULL, NULL)

static void note_vital_descriptors(void) {
  for (int fd = 3; fd < 32; fd++)
    if (fcntl(fd, F_GETFD) >= 0) vital[vital_count++] = (struct pollfd){fd, 0, 0};
}

/* User code has closed descriptors that Node needs: fail now, as Node itself would, and not in the next execution. */
static void check_vital_descriptors(void) {
  poll(vital, vital_count, 0);
  for (int i = 0; i < vital_count; i++)
    if (vital[i].revents & POLLNVAL) abort();
}

/* listen(DIR, prepare, settle, interrupt, connection, dispatch, async hook fields, index of the stack's length in them) */
static napi_value js_listen(napi_env env, napi_callback_info info) {
  ARGUMENTS(8);
  napi_value name;
  void *fields = NULL;
  int32_t index = 0;
  sigset_t all, before;
  napi_ref *references[] = {&prepare, &settle, &interrupt, &connection, &dispatch};
  napi_get_value_string_utf8(env, argument[0], home, sizeof home, NULL);
  for (int i = 0; i < 5; i++) napi_create_reference(env, argument[i + 1], 1, references[i]);
  napi_get_typedarray_info(env, argument[6], NULL, NULL, &fields, NULL, NULL);
  napi_get_value_int32(env, argument[7], &index);
  async_stack_length = (uint32_t *)fields + index;
  v8_set_oom_handler(isolate, on_out_of_memory);
  note_vital_descriptors();
  napi_create_string_utf8(env, "exec-sandbox", 12, &name);
  napi_create_threadsafe_function(env, NULL, NULL, name, 0, 1, NULL, NULL, NULL, on_message, &queue);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 * 1024);
  pthread_create(&listener, &small, listen_for_messages, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  watch_sigint();
  return NULL;
}

/* run(DIR/SLOT or ""): from here on user code is running (or not). While it runs, only it keeps the event loop alive: see onIdle. */
static napi_value js_run(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  size_t length = 0;
  napi_get_value_string_utf8(env, argument[0], evidence, sizeof evidence - 16, &length);
  if (length > 0) strcpy(evidence + length, "/evidence");
  watch_sigint();
  atomic_store(&running, length > 0);
  if (queue) (length > 0 ? napi_unref_threadsafe_function : napi_ref_threadsafe_function)(env, queue);
  if (length == 0) v8_cancel_terminate(isolate), check_vital_descriptors();
  return NULL;
}

static void redirect(const char *directory, const char *name, int flags, int fd) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int new = open(path, flags);
  if (new < 0 || new == fd) return;
  dup2(new, fd);
  close(new);
}

/* redirect(DIR/SLOT, whether there is input) */
static napi_value js_redirect(napi_env env, napi_callback_info info) {
  ARGUMENTS(2);
  char directory[1000];
  bool input = false;
  napi_get_value_string_utf8(env, argument[0], directory, sizeof directory, NULL);
  napi_get_value_bool(env, argument[1], &input);
  if (input) redirect(directory, "stdin", O_RDONLY, 0);
  else redirect("/dev", "null", O_RDONLY, 0);
  redirect(directory, "stdout", O_WRONLY, 1);
  redirect(directory, "stderr", O_WRONLY, 2);
  return NULL;
}

/* letGo(): redirects descriptors 1 and 2, so that the agent can see whether another process has the execution's pipes open */
static napi_value js_let_go(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  for (int fd = 0; fd < 3; fd++) redirect("/dev", "null", O_RDWR, fd);
  return NULL;
}

static void write_all(int fd, const char *data, size_t length) {
  while (length > 0) {
    ssize_t n = write(fd, data, length);
    if (n > 0) {
      data += n, length -= n;
    } else if (n < 0 && errno == EAGAIN) {
      struct pollfd events = {fd, POLLOUT, 0};
      poll(&events, 1, -1);
    } else if (n < 0 && errno != EINTR) {
      return; /* the user closed it, or there is no reader any more */
    }
  }
}

/* write(fd, buffer) */
static napi_value js_write(napi_env env, napi_callback_info info) {
  ARGUMENTS(2);
  int32_t fd = -1;
  void *data = NULL;
  size_t length = 0;
  napi_get_value_int32(env, argument[0], &fd);
  napi_get_buffer_info(env, argument[1], &data, &length);
  write_all(fd, data, length);
  return NULL;
}

/* send(line): to the agent */
static napi_value js_send(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  char path[600], line[MESSAGE];
  size_t length = 0;
  napi_get_value_string_utf8(env, argument[0], line, sizeof line, &length);
  snprintf(path, sizeof path, "%s/out", home);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) _exit(70); /* the FIFO or every descriptor is gone: die, so that the agent notices this end */
  write_all(fd, line, length);
  close(fd);
  return NULL;
}

/* dup(fd): a copy that children do not inherit */
static napi_value js_dup(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  int32_t fd = -1;
  napi_value result;
  napi_get_value_int32(env, argument[0], &fd);
  napi_create_int32(env, fcntl(fd, F_DUPFD_CLOEXEC, 3), &result);
  return result;
}

/* kill(pid, number): 0, or an error number below 0 */
static napi_value js_kill(napi_env env, napi_callback_info info) {
  ARGUMENTS(2);
  int32_t pid = 0, number = 0;
  napi_value result;
  napi_get_value_int32(env, argument[0], &pid);
  napi_get_value_int32(env, argument[1], &number);
  napi_create_int32(env, kill(pid, number) == 0 ? 0 : -errno, &result);
  return result;
}

/* terminate(): stop the running JavaScript at once, then call `settle` from the event loop */
static napi_value js_terminate(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  napi_call_threadsafe_function(queue, &settle_only, NAPI_NONBLOCKING);
  *async_stack_length = 0;
  v8_terminate(isolate);
  return NULL;
}

/* reseed(buffer) */
static napi_value js_reseed(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  void *data = NULL;
  size_t length = 0;
  napi_get_buffer_info(env, argument[0], &data, &length);
  RAND_seed(data, length);
  RAND_poll();
  return NULL;
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  static const struct { const char *name; napi_callback function; } functions[] = {
      {"listen", js_listen}, {"run", js_run}, {"redirect", js_redirect}, {"letGo", js_let_go}, {"write", js_write},
      {"send", js_send}, {"dup", js_dup}, {"kill", js_kill}, {"terminate", js_terminate}, {"reseed", js_reseed},
  };
  isolate = v8_isolate_current();
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    napi_value function;
    napi_create_function(env, functions[i].name, strlen(functions[i].name), functions[i].function, NULL, &function);
    napi_set_named_property(env, exports, functions[i].name, function);
  }
  return exports;
}
