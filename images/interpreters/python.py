"""Keeps one Python alive between executions.

The agent starts `python3 python.py DIR` once, with python.so preloaded, and then writes `exec NNN SLOT` into the FIFO DIR/in for every
execution, with settings and code below that line where they are short; DIR/SLOT holds the FIFOs for its output, and files for what is
long. We answer through DIR/out (`ready`, `started NNN reseeded`, `done NNN EVIDENCE`; long evidence goes to DIR/SLOT/evidence), with
`held` in place of `done` when descriptors 1 and 2 are the execution's still and nothing of ours will print there. The
agent's end of it is agent/run/interpreter.go.

User code runs in the main thread, in a real and clean `__main__`, and may do anything to this process. Hence the habits here:
  * nothing of ours is reachable by name from `__main__`, and no descriptor of ours is open while user code runs;
  * no frame of ours is on the stack while user code runs: what is the user's, or runs the user's code in disguise (`__repr__`, `__str__`,
    `flush`), is yielded, as a function and its arguments, to the loop in python.c, which calls it and sends us what it returns;
  * every name we need is bound here first, from a private copy of the builtins, so that shadowing or patching does not reach us;
  * what runs the user's code in disguise is part of the execution and can be interrupted like it.

`receive`, `send`, `enter`, `leave` and `unread` are python.c's, as is what gives a left-over thread's output to the execution that started it.
"""

import builtins

# Functions look builtins up here (the dictionary is taken when a function is created): `builtins.len = None` must not break us.
__builtins__ = dict(vars(builtins))

import _ast
import _frozen_importlib
import _json
import _operator
import _signal
import errno
import gc
import itertools
import linecache
import os
import site
import sys
import traceback
import types
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper

# What most programs import anyway, and what draws no random numbers (a template must not hold any): warm in every clone.
import collections, dataclasses, datetime, functools, json, math, pathlib, re, subprocess, time, typing  # noqa: E401, F401

MESSAGE = 4096  # bytes that a FIFO takes or gives at once (PIPE_BUF)
PARSE_ONLY = 0x400  # ast.PyCF_ONLY_AST

# Evidence travels in one frame of at most 256 KiB. These bound its parts, in bytes of JSON text.
REPR_LIMIT = JSON_LIMIT = TRACEBACK_LIMIT = 48 * 1024
MESSAGE_LIMIT = 16 * 1024
ITEM_LIMIT = 16 * 1024  # items of a list, set or dict whose repr is asked for

open_, read, write, close, fstat, dup, dup2, O_RDONLY, O_WRONLY, O_FILE = (
    os.open,
    os.read,
    os.write,
    os.close,
    os.fstat,
    os.dup,
    os.dup2,
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
)
getpid, chdir, getcwd, fsdecode, environ = os.getpid, os.chdir, os.getcwd, os.fsdecode, os.environ
partial, flush = functools.partial, _operator.methodcaller("flush")
quote = _json.encode_basestring_ascii
NULL = "null"


# --- Files ---------------------------------------------------------------------------------------------------------------------------


def open_path(path, flags):
    try:
        return open_(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    # User code has used up its descriptors. Allow a few more: the limit is the user's own (soft) one.
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft + 16, hard), hard))
    return open_(path, flags, 0o600)


def close_quietly(fd):
    try:
        close(fd)
    except OSError:
        pass  # closed under us by a thread of the user's


def read_file(path):
    fd = open_path(path, O_RDONLY)
    try:
        size = fstat(fd).st_size + 1
        chunks = [read(fd, size)]
        while chunks[-1] and len(chunks[-1]) == size:
            chunks.append(read(fd, size))
    finally:
        close_quietly(fd)
    return b"".join(chunks)


def write_file(path, data):
    fd = open_path(path, O_FILE)
    try:
        while data:
            data = data[write(fd, data) :]
    finally:
        close_quietly(fd)


# --- Standard streams ----------------------------------------------------------------------------------------------------------------

def text_output(fd, name, errors):
    raw = FileIO(fd, "w", closefd=False)
    raw.name = name
    stream = TextIOWrapper(BufferedWriter(raw), "utf-8", errors, "\n", line_buffering=True)
    stream.mode = "w"
    return stream


def text_input():
    raw = FileIO(0, "r", closefd=False)
    raw.name = "<stdin>"
    stream = TextIOWrapper(BufferedReader(raw), "utf-8", "surrogateescape", "\n")
    stream.mode = "r"
    return stream


def make_streams():
    return text_input(), text_output(1, "<stdout>", "surrogateescape"), text_output(2, "<stderr>", "backslashreplace")


spare = []  # streams for the next execution, made while nobody waits for us


def state(stream):
    """What user code can have changed about a stream; no two equal ones behave differently."""
    raw = stream.buffer.raw
    return (
        type(stream),
        stream.closed,
        stream.encoding,
        stream.errors,
        stream.line_buffering,
        stream.write_through,
        stream.__dict__,
        type(stream.buffer),
        stream.buffer.__dict__,
        type(raw),
        raw.__dict__,
    )


def untouched(streams):
    """Whether an execution's streams are as new. (Making them is a third of a short execution.)"""
    try:
        return [state(stream) for stream in streams] == new_states
    except Exception:
        return False  # detached, closed or worse


def set_streams():
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = spare.pop() if spare else make_streams()
    return sys.stdin, sys.stdout, sys.stderr


def give_up(fd, stream):
    """What a stream could not write is lost, as at the end of any process; it would else come out where a later execution prints."""
    saved = null = -1
    try:
        try:
            saved = dup(fd)
        except OSError:
            pass  # closed
        null = open_path("/dev/null", O_WRONLY)
        if null != fd:
            dup2(null, fd)
        TextIOWrapper.flush(stream)
    except Exception:
        pass
    finally:
        if saved >= 0:
            dup2(saved, fd)
        elif null >= 0:
            close_quietly(fd)
        for temporary in {saved, null} - {fd, -1}:
            close_quietly(temporary)


def flush_streams(streams):
    """Returns whether the execution's own streams have nothing left to write."""
    flushed = True
    for fd, stream in enumerate(streams, 1):
        try:
            TextIOWrapper.flush(stream)
        except OSError:
            flushed = False  # nowhere to write
            give_up(fd, stream)
        except Exception:
            flushed = False  # closed by the user, who had it flushed
    ctypes = sys.modules.get("ctypes")
    if ctypes:  # C code loaded by the user may have printed through libc
        try:
            ctypes.pythonapi.fflush(None)
        except Exception:
            pass
    return flushed


# --- Fresh randomness ----------------------------------------------------------------------------------------------------------------


def reseed(entropy):
    """Make this clone's random numbers its own.

    `os.urandom`, `secrets`, `uuid.uuid4` and `random.SystemRandom` ask the kernel, which the agent has reseeded. What remembers a state
    in this process is dealt with here. The secret of `hash(str)` cannot change in a running process: it is the same in all clones of a
    template, and it only protects a process against hash collisions made by its own input.
    """
    modules = sys.modules.copy()
    number = int.from_bytes(entropy, "little")
    if "random" in modules:
        modules["random"]._inst.seed(number)
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "uuid" in modules:
        modules["uuid"]._node = modules["uuid"]._last_timestamp = None
    if "numpy.random" in modules:
        modules["numpy.random"].seed([number >> shift & 0xFFFFFFFF for shift in range(0, 256, 32)])
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "_ssl" in modules:
        modules["_ssl"].RAND_add(entropy, float(len(entropy)))


# --- Evidence ------------------------------------------------------------------------------------------------------------------------


def clip(text, limit):
    """`text` as a JSON string of at most `limit` bytes."""
    quoted = quote(text[:limit])
    if len(quoted) <= limit and len(text) <= limit:
        return quoted
    return quote(text[: max(0, (limit - 3) * len(text[:limit]) // len(quoted))] + "…")


class NotPlain(Exception):
    pass


def plain_json(value, room, depth=0):
    """`value` as JSON if it is plain data that JSON and JavaScript hold exactly; raises NotPlain if not, or if longer than room[0]."""
    kind = type(value)
    if value is None or value is True or value is False:
        text = "null" if value is None else "true" if value else "false"
    elif kind is str and len(value) <= room[0]:
        text = quote(value)
    elif kind is int and -(2**53) < value < 2**53:
        text = int.__repr__(value)
    elif kind is float and value - value == 0:
        text = float.__repr__(value)
    elif depth > 50:
        raise NotPlain
    elif kind is list or kind is tuple:
        text = "[" + ",".join([plain_json(item, room, depth + 1) for item in value]) + "]"
    elif kind is dict:
        pairs = []
        for key, item in value.items():
            if type(key) is not str or len(key) > room[0]:
                raise NotPlain
            name = quote(key)
            room[0] -= len(name)
            pairs.append(name + ":" + plain_json(item, room, depth + 1))
        return "{" + ",".join(pairs) + "}"
    else:
        raise NotPlain
    room[0] -= 2 if kind is list or kind is tuple else len(text) + 1
    if room[0] < 0:
        raise NotPlain
    return text


def bounded_repr(value):
    """repr(value), without building a huge text of a huge plain value."""
    kind = type(value)
    if kind in (str, bytes, bytearray) and len(value) > REPR_LIMIT:
        value = value[:REPR_LIMIT]
    elif kind in (list, tuple) and len(value) > ITEM_LIMIT:
        value = value[:ITEM_LIMIT]
    elif kind in (set, frozenset) and len(value) > ITEM_LIMIT:
        value = kind(itertools.islice(value, ITEM_LIMIT))
    elif kind is dict and len(value) > ITEM_LIMIT:
        value = dict(itertools.islice(value.items(), ITEM_LIMIT))
    else:
        return (yield repr, value)
    return (yield repr, value)[:-1] + "…"


def describe_result(value):
    kind = type(value)
    try:
        text = value.__repr__() if kind is int or kind is bool or kind is float else (yield from bounded_repr(value))
    except Exception:
        text = object.__repr__(value)
    try:
        return f'{{"repr":{clip(text, REPR_LIMIT)},"json":{plain_json(value, [JSON_LIMIT])}}}'
    except (NotPlain, RuntimeError):
        return f'{{"repr":{clip(text, REPR_LIMIT)}}}'


def type_name(kind):
    module, name = kind.__module__, kind.__qualname__
    return name if module in ("builtins", "__main__") or type(module) is not str else f"{module}.{name}"


def describe_command(error):
    """The command that an uncaught OSError of `subprocess` says could not be started."""
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    if not frame or frame.tb_frame.f_code.co_qualname not in ("Popen._execute_child", "Popen._posix_spawn"):
        return ""
    known = frame.tb_frame.f_locals
    name = known.get("orig_executable") or known.get("executable")
    kind = {errno.ENOENT: "not-found", errno.EACCES: "permission", errno.ENOEXEC: "not-executable"}.get(error.errno)
    if kind is None or name is None or name != error.filename:
        return ""
    name = fsdecode(name)
    path = clip(name, 4096) if "/" in name else "null"
    return f'{{"name":{clip(name, 4096)},"kind":"{kind}","path":{path}}}'


def errno_name(error):
    """The name of an OSError's number; those of the search for a name are numbers of their own."""
    if type(error).__name__ == "gaierror" and error.errno == -3:
        return "EAI_AGAIN"
    return errno.errorcode.get(error.errno)


def cause_errno(error):
    """The JSON of the errno of the OSError that an exception was raised for: what a library that wraps errors passes on."""
    for _ in range(16):
        inner = error.__cause__
        if inner is None:
            inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((it for it in error.args if isinstance(it, BaseException)), None)
        # An error of the system raised for another passes it on; any other may only have happened meanwhile.
        if inner is None and isinstance(error, OSError) and not error.__suppress_context__:
            inner = error.__context__
        if inner is None:
            return ""
        error = inner
        if isinstance(error, OSError) and (name := errno_name(error)):
            return f',"causeErrno":{quote(name)}'
    return ""


def child_status(error):
    """The JSON of the status of the program that an exception of `subprocess` says has failed; below 0 it is a signal's."""
    status = error.returncode if type(error).__name__ == "CalledProcessError" else None
    return f',"childStatus":{status}' if type(status) is int else ""


def describe_exception(error, message, text):
    """The JSON of an exception and of the commands it blames."""
    number = path = module = "null"
    commands = cause = ""
    if isinstance(error, OSError):
        number = quote(errno_name(error) or str(error.errno)) if error.errno else "null"
        if isinstance(error.filename, (str, bytes, os.PathLike)):
            path = clip(fsdecode(error.filename), 4096)
        commands = describe_command(error)
    if isinstance(error, ModuleNotFoundError) and type(error.name) is str:
        module = clip(error.name, 4096)
    if number == "null":
        try:
            cause = cause_errno(error) + child_status(error)
        except Exception:  # it is the user's object, which may do anything when it is looked at
            pass
    return (
        f'{{"type":{clip(type_name(type(error)), 1024)},"message":{clip(message, MESSAGE_LIMIT)},'
        f'"traceback":{clip(text, TRACEBACK_LIMIT)},"errno":{number},"path":{path},"module":{module},"code":null{cause}}}'
    ), commands


# --- One execution -------------------------------------------------------------------------------------------------------------------


class Outcome:
    __slots__ = "exit_code", "exception", "commands", "result", "flushed"

    def __init__(self, exit_code=0):
        self.exit_code, self.exception, self.commands, self.result, self.flushed = exit_code, NULL, "", NULL, False

    def json(self):
        if self.exception is self.result is NULL and not self.commands:
            return b"%d" % self.exit_code
        return (
            f'{{"exitCode":{self.exit_code},"exception":{self.exception},"commands":[{self.commands}],"result":{self.result}}}'
        ).encode()


class Overlay:
    """The environment and directory of one execution, taken back afterwards where the user did not change them."""

    def __init__(self, env, cwd):
        self.env, self.cwd, self.saved_env, self.saved_cwd = env, cwd, {}, None

    def apply(self):
        for key, value in self.env.items():
            self.saved_env[key] = environ.get(key)
            environ[key] = value
        if self.cwd:
            try:
                self.saved_cwd = getcwd()
            except FileNotFoundError:
                pass  # it was removed: nothing to come back to
            chdir(self.cwd)
            self.cwd = getcwd()

    def remove(self):
        for key, old in self.saved_env.items():
            if environ.get(key) == self.env[key]:
                if old is None:
                    del environ[key]
                else:
                    environ[key] = old
        if self.saved_cwd:
            try:
                if getcwd() == self.cwd:
                    chdir(self.saved_cwd)
            except OSError:
                pass


def remember_source(name, source):
    """Let tracebacks, warnings and `inspect` show the user's lines."""
    if "\r" in source:
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line + "\n" for line in source.split("\n")] if "\n" in source else [source + "\n"]
    try:
        linecache.cache[name] = (len(source), None, lines, name)
    except Exception:
        pass  # the user has put something else there


def compile_code(data, name):
    """(body, trailing expression), each a code object or None. What an exception leads to is done outside of its handler, where a
    second one does not drag it into the traceback."""
    try:
        source = data.decode()
    except UnicodeDecodeError:
        source = None
    if source is None:
        return compile(data, name, "exec", 0, True), None  # says what is wrong, as Python does
    source = source.removeprefix("\ufeff")
    remember_source(name, source)
    if len(source) < 200 and "\n" not in source and "\\" not in source and source[:1] not in (" ", "\t", "\f"):
        # A single expression, perhaps: then there is no need for a tree. (What has a backslash could be warned of twice.)
        try:
            return None, compile(source, name, "eval", 0, True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    try:
        tree = compile(source, name, "exec", PARSE_ONLY, True)
    except RecursionError:
        tree = None
    if tree is None:
        return compile(source, name, "exec", 0, True), None  # too deep for an AST, perhaps not for the compiler
    last = tree.body.pop() if tree.body and type(tree.body[-1]) is _ast.Expr else None
    body = compile(tree, name, "exec", 0, True) if tree.body else None
    return body, last and compile(_ast.Expression(last.value), name, "eval", 0, True)


def exit_status(error, stream):
    """What a process ends with for this SystemExit."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    yield partial(print, code, file=stream),
    return 1


def without_our_frames(trace):
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def report(error, streams):
    """Print an exception that user code did not catch, and make it the outcome."""
    stderr = getattr(sys, "stderr", None)
    if stderr is None:
        stderr = streams[1]
    if isinstance(error, SystemExit):
        try:
            return Outcome((yield from exit_status(error, stderr)))
        except Exception:
            return Outcome(1)
    trace = error.__traceback__ = without_our_frames(error.__traceback__)
    try:
        # Calls the user's `__str__` once; what that raises, an interrupt too, is part of the text.
        summary = yield partial(traceback.TracebackException, type(error), error, trace, compact=True),
        message, text = str(summary), "".join(summary.format())
    except Exception:  # the user has patched what `traceback` needs
        message, text = "", f"{type_name(type(error))}\n"
    try:
        if sys.excepthook is not sys.__excepthook__:
            yield sys.excepthook, type(error), error, trace
        elif stderr is streams[1]:
            stderr.write(text)
        else:
            yield _operator.methodcaller("write", text), stderr
    except Exception:
        try:
            TextIOWrapper.write(streams[1], text)
        except Exception:
            pass
    outcome = Outcome(130 if isinstance(error, KeyboardInterrupt) else 1)
    outcome.exception, outcome.commands = describe_exception(error, message, text)
    return outcome


def run_code(data, name, overlay, streams):
    """All of an execution that is, or may call, code of the user's."""
    outcome = Outcome()
    try:
        if overlay:
            overlay.apply()
        body, last = compile_code(data, name)
        if body:
            yield exec, body, namespace
        if last:
            value = yield eval, last, namespace
            if value is not None:
                outcome.result = yield from describe_result(value)
                value = None
    except BaseException as error:
        outcome = yield from report(error, streams)
        error.__traceback__ = None
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        if stream is not streams[0] and stream is not streams[1]:
            try:
                yield flush, stream  # the user's own replacement
            except Exception:
                pass
    outcome.flushed = flush_streams(streams)
    return outcome


def ignore_interrupt(signum, frame):
    """Between executions there is nothing to interrupt. (SIG_IGN would be inherited by the user's background children.)"""
    hooks.missed = True




class Hooks:
    """What SIGINT does: what the user has set is for their own code only, and must not act on ours."""

    interrupt = _signal.default_int_handler
    missed = False  # SIGINT has come before the execution that it means has begun

    def enter(self):
        _signal.signal(_signal.SIGINT, self.interrupt)
        if self.missed:
            raise KeyboardInterrupt

    def leave(self):
        while True:
            try:
                self.interrupt = _signal.signal(_signal.SIGINT, ignore_interrupt) or self.interrupt
                return
            except BaseException:
                pass  # one arrived this very moment


hooks = Hooks()


def run_interruptibly(*arguments):
    try:
        hooks.enter()
        outcome = yield from run_code(*arguments)
        hooks.leave()
    except BaseException as late:  # SIGINT while we were reporting the outcome
        hooks.leave()
        outcome = Outcome(130)
        outcome.exception = describe_exception(late, "", "KeyboardInterrupt\n")[0]
    return outcome


def execute(directory, number, settings):
    """Run an execution; returns the exit status in a child that user code forked, None otherwise."""
    pid = getpid()
    _, marks, entropy, cwd, count, code = (settings or read_file(directory + "/settings")).split(b"\0", 5)
    env = {}
    if count != b"0":
        *pairs, code = code.split(b"\0", int(count))
        env = dict(pair.decode().split("=", 1) for pair in pairs)
    if b"c" not in marks:
        code = read_file(directory + "/code")
    enter(directory, b"s" in marks)
    streams = set_streams()
    if entropy:
        reseed(bytes.fromhex(entropy.decode()))
        send(f"started {number} reseeded\n")
    if None in sys.path_importer_cache.values():
        for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
            del sys.path_importer_cache[path]  # a directory of packages may have come into being
    overlay = Overlay(env, cwd.decode()) if env or cwd else None
    outcome = yield from run_interruptibly(code, f"<exec-{number}>", overlay, streams[1:])
    if getpid() != pid:
        return outcome.exit_code  # the user's child came to the end of the code: it ends as a process does
    if overlay:
        overlay.remove()
    evidence = outcome.json()
    if len(evidence) > MESSAGE - 64:
        try:
            write_file(directory + "/evidence", evidence)
        except OSError:
            pass  # the disk is full, say: the agent reports an execution without evidence
        evidence = b""
    word = leave(_signal.getsignal(_signal.SIGALRM) is not _signal.SIG_DFL)
    send(f"{word} {number} {evidence.decode()}\n" if evidence else f"{word} {number}\n")
    if unread() and outcome.flushed and untouched(streams):
        spare[:] = [streams]
    return None


def make_spare():
    """Work for the next execution that can be done now."""
    if spare:
        return
    try:
        spare[:] = [make_streams()]
    except OSError:
        pass  # the user has closed a descriptor


def serve(directory):
    """What python.c drives: yields (function, argument…) of the user's, is sent what it returns, and returns the exit status."""
    yield from warm_up(directory)
    send("ready\n")
    while True:
        message = yield receive,
        hooks.missed = False
        head, _, settings = message.partition(b"\n")
        _, number, slot = head.decode().split()
        status = yield from execute(f"{directory}/{slot}", number, settings)
        if status is not None:
            return status
        make_spare()


def warm_up(directory):
    """Take every path of an execution once, so that a clone finds its pages and caches warm."""
    path = directory + "/warm-up"
    os.mkdir(path)
    for name in "stdin", "stdout", "stderr":
        os.symlink("/dev/null", path + "/" + name)
    for code in "print(1)\n1 + 1", "print(input())", "raise SystemExit(1)", "(lambda: [1][2] + 1)()":
        settings = f"python\0sc\0\0/\0001\0A=1\0{code}"
        yield from execute(path, "0", settings.encode())
        make_spare()
    for name in os.listdir(path):
        os.unlink(path + "/" + name)
    os.rmdir(path)
    linecache.cache.clear()
    gc.collect()
    gc.freeze()  # what is here stays: later collections need not visit it, which would unshare its pages in every clone


def new_main():
    """The user's `__main__`: what `python3 -c` has, in place of this file."""
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    module.__loader__ = _frozen_importlib.BuiltinImporter
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    user_site = site.getusersitepackages()
    if site.ENABLE_USER_SITE and user_site not in sys.path:  # so that `pip install --user` needs no restart
        sys.path.insert(next((i for i, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path)), user_site)
    sys.argv[:] = [""]
    sys.orig_argv[:] = [sys.executable]
    return vars(module)


pristine = make_streams()  # kept, because closing changes them
new_states = [state(stream) for stream in pristine]

namespace = new_main()
_signal.signal(_signal.SIGINT, ignore_interrupt)
