/*
 * The loop that keeps one bash alive between executions: a loadable builtin (`enable -f bash.so exec_sandbox`) that never returns.
 *
 * Why C: a script does not survive `exit 5`, `set -e; false` or SIGINT, and everything that it defines is visible to the user. Inside
 * the shell's own process these are jumps to `top_level`, which we catch, and we need no variable, function (except the not-found hook),
 * trap or open descriptor. An execution takes no fork, no external command and no parsing of our own code.
 *
 * One file, because a loadable builtin is one object, and what it does between two commands is one sequence.
 *
 * Build: gcc -O2 -Wall -Wextra -shared -fPIC -o /usr/lib/exec-sandbox/bash.so bash.c
 * The declarations below are those of bash 5.2, whose binary exports these names for loadable builtins.
 *
 * Choices: an EXIT trap runs when the execution ends (by `exit` or at its last line), as it would in a script, and is then removed.
 * $SECONDS counts from the clone's start. `exec` of a program replaces the shell: the agent starts another. What remains visible: the
 * function command_not_found_handle (in `declare -f`), and the builtin in `enable -p`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- bash ---------------------------------------------------------------------------------------------------------------------- */

typedef struct word_desc { char *word; int flags; } WORD_DESC;
typedef struct word_list { struct word_list *next; WORD_DESC *word; } WORD_LIST;
typedef struct variable {
  char *name, *value, *exportstr;
  void *dynamic_value, *assign_func;
  int attributes, context;
} SHELL_VAR;
typedef struct bucket_contents { struct bucket_contents *next; char *key; void *data; unsigned khash; int times_found; } BUCKET;
struct builtin { char *name; int (*function)(WORD_LIST *); int flags; char *const *long_doc; const char *short_doc; char *handle; };

enum { ATT_EXPORTED = 0x1, ATT_READONLY = 0x2, ATT_ARRAY = 0x4, ATT_ASSOC = 0x40, ATT_INVISIBLE = 0x1000, ATT_IMPORTED = 0x8000 };
enum { SEVAL_NONINT = 0x1, SEVAL_NOHIST = 0x4, SEVAL_RESETLINE = 0x10, SEVAL_NOHISTEXP = 0x200, SEVAL_NOOPTIMIZE = 0x400 };
enum { EXIT_TRAP = 0, EXITPROG = 3 /* jump code */ };

extern sigjmp_buf top_level;
extern int last_command_exit_value, last_command_exit_signal, parse_and_execute_level, variable_context, return_catch_flag, loop_level,
    breaking, continuing, funcnest, evalnest, sourcelevel, executing_list, indirection_level, executing_builtin, executing_command_builtin,
    comsub_ignore_return, running_trap, read_but_dont_execute, startup_state, array_needs_making,
    already_making_children;
extern volatile sig_atomic_t interrupt_state;
extern char *the_printed_command, *the_current_working_directory, *trap_list[], *dollar_vars[];
extern time_t shell_start_time;
extern void *invalid_env;
extern int exec_builtin(WORD_LIST *), (*this_shell_builtin)(WORD_LIST *);

extern int parse_and_execute(char *, const char *, int);
extern void jump_to_top_level(int), run_unwind_protects(void), clear_unwind_protect_list(int), reset_parser(void),
    cleanup_the_pipeline(void), unfreeze_jobs_list(void), restore_default_signal(int);
extern int __sigaction(int, const struct sigaction *, struct sigaction *); /* libc's own name for it */
extern void termsig_sighandler(int), sigint_sighandler(int), trap_handler(int), sbrand(unsigned long), set_working_directory(char *);
extern int signal_is_trapped(int), legal_identifier(const char *), unbind_variable(const char *);
extern void (*set_signal_handler(int, void (*)(int)))(int);
extern SHELL_VAR *find_variable(const char *), *find_function(const char *), *bind_variable(const char *, char *, int);
extern void stupidly_hack_special_variables(char *);
extern void *xmalloc(size_t), *hash_create(int);
extern void xfree(void *);
extern BUCKET *hash_insert(char *, void *, int), *hash_remove(const char *, void *, int);

/* ---- Files --------------------------------------------------------------------------------------------------------------------- */

enum { MESSAGE = 4096 }; /* bytes that one write to, or read from, a FIFO transfers at once (PIPE_BUF) */

static char home[512];     /* DIR */
static char current[600];  /* DIR/SLOT; inherited by children, which write reports in it */
static pid_t serving;     /* the shell that runs executions, not its children */

static const char *in(const char *directory, const char *name) {
  static char path[1024];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return path;
}

/* The whole file as a string from bash's allocator, or NULL. */
static char *read_file(const char *path, size_t *length) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) < 0) {
    if (fd >= 0) close(fd);
    return NULL;
  }
  char *text = xmalloc(status.st_size + 1);
  size_t used = 0;
  for (ssize_t n; used < (size_t)status.st_size; used += n) {
    n = read(fd, text + used, status.st_size - used);
    if (n < 0 && errno == EINTR) n = 0;
    else if (n <= 0) break;
  }
  close(fd);
  text[used] = 0;
  if (length) *length = used;
  return text;
}

static void write_file(const char *path, int flags, const char *text, size_t length) {
  int fd = open(path, flags | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return;
  while (length > 0) {
    ssize_t n = write(fd, text, length);
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text += n, length -= n;
  }
  close(fd);
}

static void say(const char *format, ...) {
  char line[128];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  write_file(in(home, "out"), 0, line, length);
}

/* Redirects descriptor fd to the file NAME of this execution. */
static void redirect(const char *name, int flags, int fd) {
  int new = open(in(current, name), flags);
  if (new < 0 || new == fd) return;
  dup2(new, fd);
  close(new);
}

/* ---- Evidence: which command could not be run ----------------------------------------------------------------------------------- */

/* TEXT as a JSON string; bytes that are not UTF-8 become U+FFFD. */
static char *quote(char *out, const char *text, size_t room) {
  const unsigned char *s = (const unsigned char *)text;
  char *end = out + room - 16;
  *out++ = '"';
  while (*s && out < end) {
    uint32_t code = *s;
    int more = code < 0x80 ? 0 : code >= 0xc2 && code < 0xe0 ? 1 : code >= 0xe0 && code < 0xf0 ? 2 : code >= 0xf0 && code < 0xf5 ? 3 : -1;
    if (more > 0) {
      code &= 0x3f >> more;
      for (int i = 1; i <= more; i++) {
        if ((s[i] & 0xc0) != 0x80) { more = -1; break; }
        code = code << 6 | (s[i] & 0x3f);
      }
    }
    if (more < 0 || (more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) || (more == 3 && (code < 0x10000 || code > 0x10ffff)))
      code = 0xfffd, more = 0;
    if (code == '"' || code == '\\') *out++ = '\\', *out++ = code;
    else if (code >= 0x20 && code < 0x7f) *out++ = code;
    else if (code < 0x10000) out += sprintf(out, "\\u%04x", code);
    else out += sprintf(out, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + ((code - 0x10000) & 0x3ff));
    s += more + 1;
  }
  *out++ = '"';
  *out = 0;
  return out;
}

/* The last child of the serving shell that ended with 126 or 127; 0 when the shell itself could not execute a program. */
static volatile pid_t last_failed;

static pid_t parent_of(pid_t pid) {
  char path[32], text[512], *name;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC), parent = 0;
  ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  text[n > 0 ? n : 0] = 0;
  if ((name = strrchr(text, ')'))) sscanf(name, ") %*c %d", &parent);
  return parent;
}

/* The child of the serving shell that this process is, or descends from; 0: this is that shell. */
static pid_t branch(void) {
  pid_t pid = getpid(), parent;
  for (int i = 0; pid != serving && i < 64; i++, pid = parent) {
    parent = pid == getpid() ? getppid() : parent_of(pid);
    if (parent == serving) return pid;
    if (parent <= 1) return -1;
  }
  return 0;
}

/* Called where NAME could not be run, usually in a child: writes the child of the shell and what failed to a file. Only the last failure
   can have decided the execution's status, and it did if it happened in the child of the shell that failed last. */
static void blame(const char *name, const char *kind, const char *path) {
  char text[20000], *end = text;
  pid_t from = branch();
  if (from == 0) last_failed = 0;
  end += sprintf(end, "%d ", (int)from);
  end = stpcpy(end, "{\"name\":");
  end = quote(end, name, 8000);
  end += sprintf(end, ",\"kind\":\"%s\",\"path\":", kind);
  end = path ? quote(end, path, 8000) : stpcpy(end, "null");
  end = stpcpy(end, "}");
  write_file(in(current, "command"), O_CREAT | O_TRUNC, text, end - text);
}

/* A file that bash does not try to run as a script: see check_binary_file. */
static int is_binary(const char *path) {
  char head[80];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);
  if (fd >= 0) close(fd);
  if (n >= 4 && memcmp(head, "\177ELF", 4) == 0) return 1;
  for (ssize_t i = 0; i < n && head[i] != '\n'; i++)
    if (head[i] == 0) return 1;
  return 0;
}

/* Bash's own calls come here, because we are preloaded: only here are both the file and the kernel's answer known. */
int execve(const char *path, char *const argv[], char *const envp[]) {
  int result = syscall(SYS_execve, path, argv, envp), error = errno;
  if (serving) {
    struct stat status;
    const char *name = argv[0] ? argv[0] : path;
    int exists = stat(path, &status) == 0;
    if (error == EACCES) blame(name, "permission", path);
    else if (error == ENOENT && !exists) blame(name, "not-found", path);
    else if (error == ENOENT || (error == ENOEXEC && is_binary(path))) blame(name, "not-executable", path);
  }
  errno = error;
  return result;
}

/* The hook that bash calls, in a child, for a command it did not find: its arguments are file, line and name for bash's usual message. */
static const char hook[] =
    "command_not_found_handle() { builtin exec_sandbox \"${BASH_SOURCE[1]:-$0}\" \"${BASH_LINENO[0]}\" \"$1\"; }";

static int not_found(const char *file, const char *line, const char *name) {
  fprintf(stderr, "%s: line %s: %s: command not found\n", file, line, name);
  fflush(stderr);
  blame(name, "not-found", NULL);
  return 127;
}

/* ---- Evidence: whose status it was --------------------------------------------------------------------------------------------- */

/* The latest children, oldest first from `children % CHILDREN`: TEXT is a hash of the command that the shell was running. */
enum { CHILDREN = 32 };
static struct child { pid_t pid; int status, overlaps; uint64_t text; } latest[CHILDREN];
static unsigned children;
static pid_t (*real_fork)(void), (*real_waitpid)(pid_t, int *, int);

static uint64_t text_of(const char *text) {
  uint64_t hash = 14695981039346656037u; /* FNV-1a */
  while (text && *text) hash = (hash ^ (unsigned char)*text++) * 1099511628211u;
  return hash;
}

/* Bash's own calls come here, and those of its children. */
pid_t fork(void) {
  if (!real_fork) real_fork = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
  if (!serving || getpid() != serving) return real_fork();
  struct child *before = &latest[(children + CHILDREN - 1) % CHILDREN], *child = &latest[children % CHILDREN];
  *child = (struct child){0, -1, children > 0 && before->pid && before->status < 0, text_of(the_printed_command)};
  children++;
  pid_t pid = real_fork();
  /* A child that SIGCHLD's handler has collected already is not recorded: it cannot have met a refusal so quickly. */
  if (pid > 0) child->pid = pid;
  return pid;
}

/* Also called in a signal handler. */
pid_t waitpid(pid_t which, int *status, int options) {
  if (!real_waitpid) real_waitpid = (pid_t (*)(pid_t, int *, int))dlsym(RTLD_NEXT, "waitpid");
  int ended = 0;
  pid_t pid = real_waitpid(which, &ended, options);
  if (pid > 0 && status) *status = ended;
  if (pid > 0 && WIFEXITED(ended) && (WEXITSTATUS(ended) | 1) == 127) last_failed = pid;
  if (pid > 0 && serving && (WIFEXITED(ended) || WIFSIGNALED(ended)))
    for (int i = 0; i < CHILDREN; i++)
      if (latest[i].pid == pid && latest[i].status < 0) latest[i].status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
  return pid;
}

/* The children of the command that ran last, which may be a pipeline; none if it was a builtin. */
static int deciding(struct child *found) {
  int count = 0, waited = the_printed_command && strncmp(the_printed_command, "wait", 4) == 0;
  for (unsigned i = children; i > 0 && i + CHILDREN > children; i--) {
    struct child *child = &latest[(i - 1) % CHILDREN];
    if (i == children && !waited && child->text != text_of(the_printed_command)) break;
    if (child->pid) found[count++] = *child;
    if (!child->overlaps && !waited) break;
  }
  return count;
}

/* Bash does not call the hook when `exec` finds no command, but prints a message that the builtin `exec` uses for nothing else. */
static int say_formatted(const char *function, FILE *file, int flag, const char *format, va_list arguments) {
  if (serving && this_shell_builtin == exec_builtin && strcmp(format, "%s: not found") == 0) {
    va_list name;
    va_copy(name, arguments);
    blame(va_arg(name, const char *), "not-found", NULL);
    va_end(name);
  }
  void *libc = dlsym(RTLD_NEXT, function);
  if (flag < 0) return ((int (*)(FILE *, const char *, va_list))libc)(file, format, arguments);
  return ((int (*)(FILE *, int, const char *, va_list))libc)(file, flag, format, arguments);
}

int __vfprintf_chk(FILE *file, int flag, const char *format, va_list arguments) {
  return say_formatted("__vfprintf_chk", file, flag, format, arguments);
}

int vfprintf(FILE *file, const char *format, va_list arguments) { return say_formatted("vfprintf", file, -1, format, arguments); }

/* An explicit `exit 127`: the user's own choice, whatever failed before. */
static int typed_exit(void) {
  const char *text = the_printed_command;
  if (!text || strncmp(text, "exit ", 5) != 0) return 0;
  return strspn(text + 5, "0123456789 ") == strlen(text + 5);
}

/* Tells the agent how the execution ended; in a file if it does not fit a message. */
static void conclude(const char *number, int status, int typed, const struct child *last, int count) {
  char text[21000], failed[CHILDREN * 12 + 16] = "", line[MESSAGE];
  for (int i = 0; status != 0 && i < count; i++)
    if (last[i].status == status) sprintf(failed + strlen(failed), "%s%d", *failed ? "," : ",\"failed\":[", (int)last[i].pid);
  if (*failed) strcat(failed, "]");
  int too_large = status == 128 + SIGXFSZ && last_command_exit_signal == SIGXFSZ; /* the command that decided the status */
  char *command = status == 126 || status == 127 ? read_file(in(current, "command"), NULL) : NULL;
  char *words = command ? strchr(command, '{') : NULL;
  int decided = words && !typed && atoi(command) == (int)last_failed;
  int length = snprintf(text, sizeof text, "{\"exitCode\":%d,\"exception\":null,\"commands\":[%s],\"result\":null%s%s}", status,
                        decided ? words : "", too_large ? ",\"tooLarge\":true" : "", failed);
  if (command) xfree(command);
  unlink(in(current, "command"));
  int fits = length < MESSAGE - 64;
  if (!fits) write_file(in(current, "evidence"), O_CREAT | O_TRUNC, text, length);
  if (!number) return;
  length = snprintf(line, sizeof line, fits ? "done %s %s\n" : "done %s\n", number, text);
  write_file(in(home, "out"), 0, line, length);
}

/* ---- Settings: one execution's environment and directory -------------------------------------------------------------------------- */

struct saved { struct saved *next; char *name, *value, *old; int attributes; };
static struct saved *overlay;
static char *overlay_cwd, *former_cwd;

static char *copy(const char *text) { return text ? strcpy(xmalloc(strlen(text) + 1), text) : NULL; }

static void set_variable(char *pair) {
  char *value = strchr(pair, '=');
  if (!value) return;
  *value++ = 0;
  struct saved *saved = xmalloc(sizeof *saved);
  SHELL_VAR *variable = legal_identifier(pair) ? find_variable(pair) : NULL;
  *saved = (struct saved){overlay, copy(pair), copy(value), NULL, -1};
  if (!legal_identifier(pair)) {
    if (!invalid_env) invalid_env = hash_create(64);
    BUCKET *bucket = hash_insert(copy(pair), invalid_env, 0);
    variable = xmalloc(sizeof *variable);
    *variable = (SHELL_VAR){copy(pair), copy(value), NULL, NULL, NULL, ATT_EXPORTED | ATT_IMPORTED, 0};
    bucket->data = variable;
  } else if (variable && variable->attributes & (ATT_READONLY | ATT_ARRAY | ATT_ASSOC)) {
    fprintf(stderr, "%s: %s: cannot be set for one execution\n", dollar_vars[0], pair);
  } else {
    if (variable) saved->old = copy(variable->value), saved->attributes = variable->attributes;
    variable = bind_variable(pair, value, 0);
    if (variable) variable->attributes = (variable->attributes | ATT_EXPORTED) & ~ATT_INVISIBLE;
    stupidly_hack_special_variables(pair);
  }
  overlay = saved;
  array_needs_making = 1;
}

static void restore_variable(struct saved *saved) {
  if (!legal_identifier(saved->name)) {
    hash_remove(saved->name, invalid_env, 0);
    return;
  }
  SHELL_VAR *variable = find_variable(saved->name);
  if (!variable || !variable->value || variable->attributes & (ATT_READONLY | ATT_ARRAY | ATT_ASSOC)) return;
  if (strcmp(variable->value, saved->value) != 0) return; /* keep the user's own change */
  if (saved->attributes < 0) {
    unbind_variable(saved->name);
  } else {
    variable = bind_variable(saved->name, saved->old ? saved->old : "", 0);
    if (variable) variable->attributes = saved->attributes;
  }
  stupidly_hack_special_variables(saved->name);
}

static int change_directory(const char *path) {
  if (chdir(path) < 0) return -1;
  char *real = getcwd(NULL, 0);
  set_working_directory(real ? real : (char *)path);
  SHELL_VAR *variable = bind_variable("PWD", real ? real : (char *)path, 0);
  if (variable) variable->attributes |= ATT_EXPORTED;
  array_needs_making = 1;
  free(real);
  return 0;
}

/* Decodes in place a word that the agent quoted: 'text' with '\'' for a quote. Returns the end of the word. */
static char *unquote(char *from, char **word) {
  char *to = *word = from;
  while (*from && *from != ' ' && *from != '\n') {
    if (*from == '\'') {
      for (from++; *from && *from != '\'';) *to++ = *from++;
      if (*from) from++;
    } else {
      if (*from == '\\' && from[1]) from++;
      *to++ = *from++;
    }
  }
  char *end = *from ? from + 1 : from;
  *to = 0;
  return end;
}

struct settings { char *entropy, *cwd, *code; int input; };

static struct settings apply_settings(char *text) {
  struct settings settings = {"", "", NULL, 0};
  for (char *at = text; at && *at;) {
    if (strncmp(at, "__exec_sandbox_entropy=", 23) == 0) {
      at = unquote(at + 23, &settings.entropy);
    } else if (strncmp(at, "__exec_sandbox_cwd=", 19) == 0) {
      at = unquote(at + 19, &settings.cwd);
    } else if (strncmp(at, "__exec_sandbox_code=", 20) == 0) {
      at = unquote(at + 20, &settings.code);
    } else if (strncmp(at, "__exec_sandbox_stdin=1", 22) == 0) {
      settings.input = 1;
      at += 22;
    } else if (strncmp(at, "__exec_sandbox_env=(", 20) == 0) {
      at += 20;
      while (*at == ' ' || *at == '\n') at++;
      while (*at && *at != ')') {
        char *pair;
        at = unquote(at, &pair);
        set_variable(pair);
        while (*at == ' ' || *at == '\n') at++;
      }
      if (*at) at++;
    } else {
      at++;
    }
  }
  return settings;
}

static void remove_settings(void) {
  while (overlay) {
    struct saved *saved = overlay;
    overlay = saved->next;
    restore_variable(saved);
    xfree(saved->name), xfree(saved->value), saved->old ? xfree(saved->old) : (void)0, xfree(saved);
    array_needs_making = 1;
  }
  if (former_cwd) {
    if (the_current_working_directory && strcmp(the_current_working_directory, overlay_cwd) == 0) change_directory(former_cwd);
    xfree(former_cwd), xfree(overlay_cwd);
    former_cwd = overlay_cwd = NULL;
  }
}

/* For $RANDOM; $SRANDOM asks the kernel each time. The clock may have jumped since the template was made. */
static void reseed(const char *hex) {
  unsigned seed;
  if (sscanf(hex, "%8x", &seed) == 1) sbrand(seed);
  shell_start_time = time(NULL);
}

/* ---- One execution --------------------------------------------------------------------------------------------------------------- */

static sigjmp_buf end_of_run;

/* Runs TEXT (which is freed) and returns how it ended: 0, or the code of the jump to top_level that ended it. */
static int run(char *text) {
  parse_and_execute_level = variable_context = return_catch_flag = loop_level = breaking = continuing = funcnest = evalnest = sourcelevel =
      executing_list = indirection_level = executing_builtin = executing_command_builtin = comsub_ignore_return = running_trap = 0;
  read_but_dont_execute = 0; /* `set -n` ends with its execution: no command could turn it off */
  int code = sigsetjmp(top_level, 1);
  if (code == 0) {
    memcpy(end_of_run, top_level, sizeof end_of_run);
    parse_and_execute(text, dollar_vars[0], SEVAL_NONINT | SEVAL_NOHIST | SEVAL_NOHISTEXP | SEVAL_RESETLINE | SEVAL_NOOPTIMIZE);
  } else {
    /* A child without a place of its own to jump to (the not-found hook under `set -e`) must not run executions. */
    if (getpid() != serving) exit(last_command_exit_value);
    run_unwind_protects();
    reset_parser();
    cleanup_the_pipeline(); /* the next command would wait for a half-built one */
    already_making_children = 0;
    unfreeze_jobs_list();
  }
  parse_and_execute_level = 0;
  return code;
}

static void (*waits)(int); /* bash's handler of SIGINT while it waits for a command in the foreground */

/*
 * Replaces that handler. bash 5.2 first sets it and then saves the previous one. A SIGINT in between finds no saved handler to restore,
 * and the handler sends SIGINT to itself for ever. So restore the previous handler here, which then gets that signal.
 */
static void while_waiting(int number) {
  sigset_t before, after;
  struct sigaction current;
  sigpending(&before);
  waits(number);
  sigpending(&after);
  if (sigismember(&before, SIGINT) || !sigismember(&after, SIGINT)) return;
  __sigaction(SIGINT, NULL, &current);
  if (current.sa_handler != while_waiting) return;
  current.sa_handler = getpid() == serving ? sigint_sighandler : SIG_DFL;
  __sigaction(SIGINT, &current, NULL);
}

/*
 * Without a terminal, bash lets SIGINT kill the shell. Whenever it asks for that (at its start, after `trap - INT`) it gets the handler
 * of interactive shells instead, which ends what is running with a jump. Children and the user's traps are not changed.
 */
int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
  struct sigaction ours;
  if (number != SIGINT || !serving) return __sigaction(number, action, old);
  if (action) {
    void (*handler)(int) = action->sa_handler;
    ours = *action;
    if (handler == termsig_sighandler || handler == SIG_DFL) {
      if (getpid() == serving) ours.sa_handler = sigint_sighandler;
    } else if (handler != SIG_IGN && handler != sigint_sighandler && handler != trap_handler && handler != while_waiting) {
      waits = handler;
      ours.sa_handler = while_waiting;
    }
    action = &ours;
  }
  int failed = __sigaction(number, action, old);
  if (!failed && old && old->sa_handler == while_waiting) old->sa_handler = waits;
  return failed;
}

/* Bash exits here without a jump to top_level when `exec` fails, after running the user's EXIT trap. */
void exit(int status) {
  void (*leave)(int) = (void (*)(int))dlsym(RTLD_NEXT, "exit");
  if (serving && getpid() == serving) {
    last_command_exit_value = status;
    memcpy(top_level, end_of_run, sizeof end_of_run); /* bash's own places to jump to are no longer valid */
    jump_to_top_level(EXITPROG);
  }
  leave(status);
  _exit(status);
}

static void run_exit_trap(void) {
  if (!signal_is_trapped(EXIT_TRAP) || !trap_list[EXIT_TRAP]) return;
  int status = last_command_exit_value;
  char *text = copy(trap_list[EXIT_TRAP]);
  restore_default_signal(EXIT_TRAP);
  if (run(text) == 0) last_command_exit_value = status;
}

/* Unless the user has defined one. */
static void define_hook(void) {
  if (find_function("command_not_found_handle")) return;
  run(copy(hook));
  SHELL_VAR *function = find_function("command_not_found_handle");
  if (function) function->attributes |= ATT_INVISIBLE; /* at least for completion */
}

/* Redirects descriptors 1 and 2 away from the execution's pipes, so that the agent can see whether another process has them open. */
static void let_go(void) {
  int null = open("/dev/null", O_RDWR);
  if (null < 0) return;
  for (int fd = 0; fd < 3; fd++)
    if (fd != null) dup2(null, fd);
  if (null > 2) close(null);
}

/* Runs an execution; SETTINGS is its text, or empty when it is in a file. */
static void execute(const char *number, char *settings_text) {
  size_t length = 0;
  char *file = *settings_text ? NULL : read_file(in(current, "settings.sh"), NULL);
  redirect("stdout", O_WRONLY, 1);
  redirect("stderr", O_WRONLY, 2);
  clearerr(stdout), clearerr(stderr);
  struct settings settings = apply_settings(file ? file : settings_text);
  char *code = settings.code ? copy(settings.code) : read_file(in(current, "code"), &length);
  if (settings.code) length = strlen(code);
  if (settings.input) redirect("stdin", O_RDONLY, 0);
  int reseeded = settings.entropy[0] != 0, typed = 0;
  if (reseeded) reseed(settings.entropy);
  define_hook();
  if (number && reseeded) say("started %s reseeded\n", number);
  interrupt_state = 0;
  last_command_exit_signal = 0;
  last_failed = 0;
  struct child last[CHILDREN];
  int count = 0;
  children = 0;
  memset(latest, 0, sizeof latest);
  if (settings.cwd[0]) {
    former_cwd = copy(the_current_working_directory);
    if (change_directory(settings.cwd) < 0) {
      fprintf(stderr, "%s: cd: %s: %s\n", dollar_vars[0], settings.cwd, strerror(errno));
      last_command_exit_value = 1;
      if (code) xfree(code);
      code = NULL;
    }
    overlay_cwd = copy(the_current_working_directory);
  }
  if (code && memchr(code, 0, length)) { /* bash cannot represent a NUL: such code does not run at all */
    fprintf(stderr, "%s: the code contains a NUL byte\n", dollar_vars[0]);
    last_command_exit_value = 2;
  } else if (code) {
    last_command_exit_value = 0;
    typed = run(code) != 0 && typed_exit();
    count = deciding(last);
    run_exit_trap();
  }
  fflush(stdout), fflush(stderr);
  int status = last_command_exit_value & 0xff;
  interrupt_state = 0;
  remove_settings();
  if (file) xfree(file);
  let_go();
  conclude(number, status, typed, last, count);
}

/* Runs the code paths of an execution once, so that their pages are in memory in each clone. */
static void warm_up(void) {
  static const char *const names[] = {"stdout", "stderr"};
  static const char code[] = "x=(a b); f() { local y=$1; [[ $y == a* ]] && echo \"${x[@]}\" | read -r y; }; f abc; exec_sandbox_none; exit 127";
  char settings[512];
  snprintf(settings, sizeof settings, "__exec_sandbox_code='%s'\n__exec_sandbox_entropy=''\n__exec_sandbox_cwd='/'\n"
           "__exec_sandbox_env=( 'x=1' )\n", code);
  snprintf(current, sizeof current, "%s/warm-up", home);
  mkdir(current, 0700);
  for (int i = 0; i < 2; i++)
    if (symlink("/dev/null", in(current, names[i])) < 0) return;
  execute(NULL, settings);
  for (int i = 0; i < 2; i++) unlink(in(current, names[i]));
  rmdir(current);
  unbind_variable("x");
  char *text = copy("unset -f f; hash -r; set --");
  run(text);
  last_command_exit_value = 0;
}

/* The agent sends SIGURG some time after a SIGINT, in case a blocking system call began after bash last checked for SIGINT: this ends the
   call, and bash checks again. While bash waits for commands in the foreground it does not check, and commands that it started after the
   SIGINT have not received it: send it to them. */
static void nudged(int number) {
  (void)number;
  if (interrupt_state && !running_trap && getpid() == serving) kill(0, SIGINT);
}

static int serve(const char *directory) {
  snprintf(home, sizeof home, "%s", directory);
  /* This builtin never returns: drop what the shell would restore after it, and the traces of how it was started. */
  clear_unwind_protect_list(0);
  startup_state = 0;
  unbind_variable("LD_PRELOAD");
  unbind_variable("BASH_EXECUTION_STRING");
  unsetenv("LD_PRELOAD");
  serving = getpid();
  set_signal_handler(SIGINT, SIG_DFL);
  sigaction(SIGURG, &(struct sigaction){.sa_handler = nudged}, NULL);
  warm_up();
  say("ready\n");
  for (;;) {
    char line[MESSAGE + 1], number[32], slot[32];
    /* Opened again each time (the agent keeps the other end open), so it works whatever user code closes. */
    int fd = open(in(home, "in"), O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == EINTR) continue;
    if (fd < 0) _exit(70);
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    interrupt_state = 0; /* ignore a SIGINT while idle */
    if (n <= 0) continue;
    line[n] = 0;
    if (sscanf(line, "exec %31s %31s", number, slot) != 2) continue;
    snprintf(current, sizeof current, "%s/%s", home, slot);
    char *settings = strchr(line, '\n');
    execute(number, settings ? settings + 1 : "");
  }
}

/* ---- The builtin ----------------------------------------------------------------------------------------------------------------- */

static int exec_sandbox_builtin(WORD_LIST *list) {
  if (list && list->next && list->next->next)
    return not_found(list->word->word, list->next->word->word, list->next->next->word->word);
  return list && !serving ? serve(list->word->word) : 2;
}

static char *const documentation[] = {"Serve executions (used by exec-sandbox itself).", NULL};

/* What `enable -f` looks for; 1: enabled. */
struct builtin exec_sandbox_struct = {"exec_sandbox", exec_sandbox_builtin, 1, documentation, "exec_sandbox", 0};
