"""Keeps one Python alive between executions.

The agent starts `python3 python.py DIR` once, with python.so preloaded, and then writes `exec NNN SLOT` into the FIFO DIR/in for every
execution, with settings and code below that line where they are short; DIR/SLOT holds the FIFOs for its output, and files for what is
long. We answer through DIR/out (`ready`, `started NNN reseeded`, `done NNN EVIDENCE`; long evidence goes to DIR/SLOT/evidence), with
`held` in place of `done` when descriptors 1 and 2 are still the execution's and we will not print there. The agent's package
`interpreter` is the other end of this protocol.

User code runs in the main thread, in a real and clean `__main__`, and may do anything to this process. So the rules here are:
  * nothing of ours is reachable by name from `__main__`, and no descriptor of ours is open while user code runs;
  * no frame of ours is on the stack while user code runs: the user's code, and what calls it indirectly (`__repr__`, `__str__`, `flush`),
    is yielded, as a function and its arguments, to the loop in python.c, which calls it and sends us what it returns;
  * every name we need is bound here first, from a private copy of the builtins, so that shadowing or patching does not affect us;
  * what calls the user's code indirectly is part of the execution and can be interrupted too.

It is one file: importing parts of it would leave modules of ours where user code finds them.

`receive`, `send`, `enter`, `leave` and `unread` are in python.c, which also sends a left-over thread's output to the execution that
started it.
"""

import builtins

# Functions look builtins up here (they get this dictionary when they are created): `builtins.len = None` must not break us.
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

# What most programs import anyway, and what draws no random numbers (a template must not contain any): already loaded in every clone.
import collections, dataclasses, datetime, functools, json, math, pathlib, re, subprocess, time, typing  # noqa: E401, F401

MESSAGE = 4096  # bytes that one write to, or read from, a FIFO transfers at once (PIPE_BUF)
PARSE_ONLY = 0x400  # ast.PyCF_ONLY_AST

# Evidence is sent in one frame of at most 256 KiB. These limit its parts, in bytes of JSON text.
REPR_LIMIT = JSON_LIMIT = TRACEBACK_LIMIT = 48 * 1024
MESSAGE_LIMIT = 16 * 1024
ITEM_LIMIT = 16 * 1024  # items of a list, set or dict for which repr is called

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
    # User code has used up the descriptors. Allow a few more: this is only the user's own (soft) limit.
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft + 16, hard), hard))
    return open_(path, flags, 0o600)


def close_quietly(fd):
    try:
        close(fd)
    except OSError:
        pass  # a thread of the user closed it


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


spare = []  # streams for the next execution, made while no execution waits


def state(stream):
    """What user code can have changed about a stream; streams with an equal state behave the same."""
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
    """Whether an execution's streams are like new ones. (Making them is a third of a short execution.)"""
    try:
        return [state(stream) for stream in streams] == new_states
    except Exception:
        return False  # detached, closed or worse


def set_streams():
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = spare.pop() if spare else make_streams()
    return sys.stdin, sys.stdout, sys.stderr


def give_up(fd, stream):
    """Drops what a stream could not write, as at the end of any process; otherwise a later execution would print it."""
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
            flushed = False  # the user closed it, which flushed it
    ctypes = sys.modules.get("ctypes")
    if ctypes:  # C code that the user loaded may have printed through libc
        try:
            ctypes.pythonapi.fflush(None)
        except Exception:
            pass
    return flushed


# --- Fresh randomness ----------------------------------------------------------------------------------------------------------------


def reseed(entropy):
    """Make this clone's random numbers its own.

    `os.urandom`, `secrets`, `uuid.uuid4` and `random.SystemRandom` ask the kernel, which the agent has reseeded. Generators with a
    state in this process are reseeded here. The secret of `hash(str)` cannot change in a running process: it is the same in all clones
    of a template, and it only protects a process against hash collisions made by its own input.
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
    """`value` as JSON if JSON and JavaScript represent it exactly; raises NotPlain if not, or if longer than room[0]."""
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
    """repr(value), without building a huge text for a huge plain value."""
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
    """The command that could not be started, according to an uncaught OSError of `subprocess`."""
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
    """The name of an OSError's number; errors of name resolution have numbers of their own."""
    if type(error).__name__ == "gaierror" and error.errno == -3:
        return "EAI_AGAIN"
    return errno.errorcode.get(error.errno)


def cause_errno(error):
    """The JSON of the errno of the OSError that caused an exception, as libraries that wrap errors keep it."""
    for _ in range(16):
        inner = error.__cause__
        if inner is None:
            inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((it for it in error.args if isinstance(it, BaseException)), None)
        # An OSError raised from another keeps its cause; any other context may be unrelated.
        if inner is None and isinstance(error, OSError) and not error.__suppress_context__:
            inner = error.__context__
        if inner is None:
            return ""
        error = inner
        if isinstance(error, OSError) and (name := errno_name(error)):
            return f',"causeErrno":{quote(name)}'
    return ""


def child_status(error):
    """The JSON of the status of the program that failed, according to an exception of `subprocess`; below 0 it is a signal."""
    status = error.returncode if type(error).__name__ == "CalledProcessError" else None
    return f',"childStatus":{status}' if type(status) is int else ""


def describe_exception(error, message, text):
    """The JSON of an exception and of the commands that caused it."""
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
        except Exception:  # the object is the user's, and reading it may do anything
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
    """The environment and directory of one execution, restored afterwards unless the user changed them."""

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
                pass  # it was removed
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
    """Lets tracebacks, warnings and `inspect` show the user's lines."""
    if "\r" in source:
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line + "\n" for line in source.split("\n")] if "\n" in source else [source + "\n"]
    try:
        linecache.cache[name] = (len(source), None, lines, name)
    except Exception:
        pass  # the user replaced it


def compile_code(data, name):
    """(body, trailing expression), each a code object or None. What follows an exception is done outside its handler, so that the
    traceback of a second exception does not contain the first."""
    try:
        source = data.decode()
    except UnicodeDecodeError:
        source = None
    if source is None:
        return compile(data, name, "exec", 0, True), None  # raises Python's own error
    source = source.removeprefix("\ufeff")
    remember_source(name, source)
    if len(source) < 200 and "\n" not in source and "\\" not in source and source[:1] not in (" ", "\t", "\f"):
        # It may be a single expression, which needs no tree. (With a backslash there could be two warnings.)
        try:
            return None, compile(source, name, "eval", 0, True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    try:
        tree = compile(source, name, "exec", PARSE_ONLY, True)
    except RecursionError:
        tree = None
    if tree is None:
        return compile(source, name, "exec", 0, True), None  # too deep for an AST, but maybe not for the compiler
    last = tree.body.pop() if tree.body and type(tree.body[-1]) is _ast.Expr else None
    body = compile(tree, name, "exec", 0, True) if tree.body else None
    return body, last and compile(_ast.Expression(last.value), name, "eval", 0, True)


def exit_status(error, stream):
    """The exit status of a process for this SystemExit."""
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
    """Prints an exception that user code did not catch, and returns it as the outcome."""
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
        # Calls the user's `__str__` once; an exception in it, or an interrupt, becomes part of the text.
        summary = yield partial(traceback.TracebackException, type(error), error, trace, compact=True),
        message, text = str(summary), "".join(summary.format())
    except Exception:  # the user patched what `traceback` needs
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
    """The part of an execution that is, or may call, the user's code."""
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
    """Between executions there is nothing to interrupt. (The user's background children would inherit SIG_IGN.)"""
    hooks.missed = True




class Hooks:
    """What SIGINT does: a handler that the user set is for the user's code only, and must not interrupt ours."""

    interrupt = _signal.default_int_handler
    missed = False  # a SIGINT came before the execution that it is for

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
                pass  # one arrived at this moment


hooks = Hooks()


def run_interruptibly(*arguments):
    try:
        hooks.enter()
        outcome = yield from run_code(*arguments)
        hooks.leave()
    except BaseException as late:  # a SIGINT during the report of the outcome
        hooks.leave()
        outcome = Outcome(130)
        outcome.exception = describe_exception(late, "", "KeyboardInterrupt\n")[0]
    return outcome


def execute(directory, number, settings):
    """Runs an execution; returns the exit status in a child that user code forked, None otherwise."""
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
            del sys.path_importer_cache[path]  # a directory of packages may have been made since
    overlay = Overlay(env, cwd.decode()) if env or cwd else None
    outcome = yield from run_interruptibly(code, f"<exec-{number}>", overlay, streams[1:])
    if getpid() != pid:
        return outcome.exit_code  # a child that the user forked reached the end of the code: it exits
    if overlay:
        overlay.remove()
    evidence = outcome.json()
    if len(evidence) > MESSAGE - 64:
        try:
            write_file(directory + "/evidence", evidence)
        except OSError:
            pass  # for example the disk is full: the agent reports an execution without evidence
        evidence = b""
    word = leave(_signal.getsignal(_signal.SIGALRM) is not _signal.SIG_DFL)
    send(f"{word} {number} {evidence.decode()}\n" if evidence else f"{word} {number}\n")
    if unread() and outcome.flushed and untouched(streams):
        spare[:] = [streams]
    return None


def make_spare():
    """Does work for the next execution that can be done now."""
    if spare:
        return
    try:
        spare[:] = [make_streams()]
    except OSError:
        pass  # the user closed a descriptor


def serve(directory):
    """The generator that python.c runs: yields the user's (function, argument…), gets what it returns, and returns the exit status."""
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
    """Runs every code path of an execution once, so that its pages and caches are warm in each clone."""
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
    gc.freeze()  # these objects stay: later collections must not visit them, which would unshare their pages in every clone


def new_main():
    """The user's `__main__`, like that of `python3 -c`."""
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
