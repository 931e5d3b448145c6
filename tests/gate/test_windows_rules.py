"""What keeps the code working on Windows and in any locale, as far as the source shows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.gate.test_house_rules import PACKAGES, name_of, sources

PATH_LIKE = re.compile(r"(?i)path|file|folder| / ")
"""What has an `open()` of files; a channel has one of its own."""
READS_OR_WRITES = {"read_text": 0, "write_text": 1, "TextIOWrapper": 1}
"""Where the encoding stands among the arguments."""

POSIX_MODULES = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog"}
POSIX_NAMES = {
    "os": """chown chroot fchmod fchown fork forkpty geteuid getegid getgid getgroups getlogin_r getpgid getpgrp getsid
        getuid killpg lchown mkfifo mknod nice openpty pidfd_open pipe2 register_at_fork sched_getaffinity sendfile
        set_blocking setegid seteuid setgid setpgid setpgrp setsid setuid statvfs sync sysconf ttyname uname wait wait3
        wait4 waitid O_ACCMODE O_CLOEXEC O_NONBLOCK O_NOFOLLOW O_DIRECTORY WNOHANG""",
    "signal": """SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGXFSZ
        alarm pause pthread_kill pthread_sigmask setitimer sigwait sigwaitinfo""",
    "select": "poll epoll kqueue POLLIN POLLOUT POLLHUP POLLERR",
    "socket": "AF_UNIX SO_REUSEPORT socketpair_unix fromshare_unix",
    "time": "clock_getres tzset",
}
POSIX_ONLY = {f"{module}.{name}" for module, names in POSIX_NAMES.items() for name in names.split()}
POSIX_FILES = {"engine/supervisor/posix.py", "engine/supervisor/launcher.py", "serve/workers.py"}
"""Nothing imports these on Windows: `serve.config` refuses `--workers` there."""
POSIX_IN = {("tools/dev.py", "os.geteuid")}
"""Where a caller has refused Windows before."""
GUARD = re.compile(r"sys\.platform|os\.name|hasattr\(|shutil\.which\(|_WINDOWS")

CHILD_STARTERS = {
    "engine/supervisor/posix.py": "the supervisor",
    "engine/supervisor/windows.py": "the supervisor, into a job object",
    "engine/model.py": "pip, which is waited for",
    "engine/fake/player.py": "the orphan that a script asks for",
}
SPLITS_AS_POSIX = {
    "serve/command_line.py": "where the system is POSIX",
    "tools/words.py": "where the system is POSIX",
    "tools/gateway_servers.py": "what shlex.join made; by hand only beside nginx, on POSIX",
}
PRINTS_ASCII = {"tools/gateway_upstream.py": "one line with a number in it"}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def called(node: ast.AST) -> str:
    """The last name of what is called."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def given(node: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in node.keywords if one.arg == name), None)


def says(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


# --- encodings -----------------------------------------------------------------------------------------


def without_encoding(tree: ast.Module) -> Iterator[str]:
    """The calls that take the locale's encoding."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and given(node, "encoding") is None and takes_text(node):
            yield f"line {node.lineno}: {called(node)}"


def takes_text(node: ast.Call) -> bool:
    """Whether a call that names no encoding opens a file or pipe as text."""
    match called(node):
        case "read_text" | "write_text" | "TextIOWrapper" as name:
            return len(node.args) <= READS_OR_WRITES[name]
        case "open" | "fdopen" as name:
            return is_text_file(node, name)
        case "run" | "Popen" | "check_output" | "call" | "check_call":
            # errors alone makes text of it, too
            return any(says(given(node, name)) for name in ("text", "universal_newlines", "errors"))
        case "FileHandler" | "RotatingFileHandler" | "TimedRotatingFileHandler":
            return len(node.args) < 3
        case "basicConfig":
            return given(node, "filename") is not None
        case "getoutput" | "getstatusoutput" | "popen" | "FileType":
            return True
        case "NamedTemporaryFile" | "TemporaryFile" | "SpooledTemporaryFile":
            mode = says(given(node, "mode") or (node.args[0] if node.args else None))
            return isinstance(mode, str) and "b" not in mode
        case _:
            return False


def is_text_file(node: ast.Call, name: str) -> bool:
    """Whether the call opens a file as text: the builtin, `os.fdopen`, or a path's method."""
    method = isinstance(node.func, ast.Attribute) and name == "open"
    if method and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("os", "webbrowser"):
        return False
    place = 0 if method else 1
    mode = says(given(node, "mode") or (node.args[place] if len(node.args) > place else None))
    if not isinstance(mode, str):
        of_path = isinstance(node.func, ast.Attribute) and bool(PATH_LIKE.search(ast.unparse(node.func.value)))
        return len(node.args) == place and (not method or of_path)
    return bool(re.fullmatch(r"[rwax]\+?t?", mode)) and len(node.args) <= place + 2


def found(check: Callable[[ast.Module], Iterable[object]], *folders: str) -> dict[str, list[object]]:
    """What a check finds in the files of these folders, by file."""
    told = {name_of(path): list(check(tree_of(path))) for path in sources(*folders)}
    return {name: what for name, what in told.items() if what}


def test_every_text_file_and_pipe_has_its_encoding() -> None:
    """The default is the locale's, which can be anything."""
    assert found(without_encoding, *PACKAGES, "tests") == {}


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("open('a')", True),
        ("open('a', 'w')", True),
        ("open('a', 'rb')", False),
        ("open('a', encoding='utf-8')", False),
        ("path.open('w')", True),
        ("path.open('wb')", False),
        ("path.open()", True),
        ("(root / 'a').open(errors='replace')", True),
        ("path.open(encoding='utf-8')", False),
        ("rig.open()", False),
        ("body.open(b'')", False),
        ("os.open('a', 0)", False),
        ("os.fdopen(3, 'w')", True),
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text('x')", True),
        ("subprocess.run([], text=True)", True),
        ("subprocess.run([], text=True, encoding='utf-8')", False),
        ("subprocess.run([], errors='replace')", True),
        ("subprocess.getoutput('x')", True),
        ("argparse.FileType('r')", True),
        ("logging.basicConfig(filename='a')", True),
        ("logging.basicConfig(level=0)", False),
        ("subprocess.Popen([])", False),
        ("tempfile.NamedTemporaryFile('w')", True),
        ("logging.FileHandler('a')", True),
    ],
)
def test_the_rule_of_encodings_bites(line: str, bad: bool) -> None:
    assert bool(list(without_encoding(ast.parse(line)))) is bad


def reads_the_console(tree: ast.Module) -> Iterator[str]:
    """What reads stdin as text, which has the locale's encoding whatever wrote it."""
    for node in ast.walk(tree):
        if called(node) == "input":
            yield f"line {node.lineno}: input"  # type: ignore[attr-defined]  # a call
        if isinstance(node, ast.Attribute) and node.attr in ("buffer", "fileno", "isatty"):
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Attribute) and child.attr == "stdin" and ast.unparse(child) == "sys.stdin":
                yield f"line {child.lineno}: sys.stdin"


def test_what_comes_on_stdin_is_bytes() -> None:
    assert found(reads_the_console, *PACKAGES) == {}


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("sys.stdin.read()", True),
        ("for line in sys.stdin:\n    pass", True),
        ("json.load(sys.stdin)", True),
        ("input('?')", True),
        ("sys.stdin.buffer.read()", False),
        ("sys.stdin.isatty()", False),
    ],
)
def test_the_rule_of_stdin_bites(line: str, bad: bool) -> None:
    assert bool(list(reads_the_console(ast.parse(line)))) is bad


# --- POSIX only ----------------------------------------------------------------------------------------


def unguarded(tree: ast.Module) -> Iterator[str]:
    """What Windows lacks and nothing around it asks for."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        for name in posix_names(node):
            if not any(is_guard(above, node) for above in lineage(node, parents)):
                yield name


def posix_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in POSIX_ONLY:
        yield name
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names if one.name in POSIX_MODULES)
    if isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{one.name}" for one in node.names if f"{node.module}.{one.name}" in POSIX_ONLY)


def lineage(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in parents:
        node = parents[node]
        yield node


def is_guard(above: ast.AST, node: ast.AST) -> bool:
    """Whether this node around it asks for the system, or takes the name's absence."""
    match above:
        case ast.If(test=test) | ast.IfExp(test=test):
            return bool(GUARD.search(ast.unparse(test)))
        case ast.BoolOp(values=[first, *_]):
            return bool(GUARD.search(ast.unparse(first)))
        case ast.Try(handlers=handlers):
            return any(
                "ImportError" in (said := ast.unparse(one.type or one)) or "AttributeError" in said for one in handlers
            )
        case ast.FunctionDef(body=body):
            before = (one for one in body if one.lineno < getattr(node, "lineno", 0))
            return any(
                isinstance(one, ast.If)
                and GUARD.search(ast.unparse(one.test))
                and (isinstance(one.body[-1], ast.Return | ast.Raise) or called_last(one) in ("_exit", "exit"))
                for one in before
            )
        case _:
            return False


def does_otherwise(tree: ast.Module) -> Iterator[str]:
    """What is on Windows, and does another thing there."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="rename")):  # raises where the name is taken; `replace` does not
                yield f"line {node.lineno}: rename"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="shlex"), attr="split")):  # eats backslashes
                yield f"line {node.lineno}: shlex.split"
            case _:
                pass


def test_what_windows_does_otherwise_is_not_used() -> None:
    assert found(does_otherwise, *PACKAGES, "tests").keys() == SPLITS_AS_POSIX.keys()
    assert len(list(does_otherwise(ast.parse("path.rename(other)\nshlex.split(line)\npath.replace(other)")))) == 2


def test_what_windows_lacks_is_asked_for_first() -> None:
    said = found(unguarded, *PACKAGES)
    lacking = {name: [one for one in what if (name, one) not in POSIX_IN] for name, what in said.items()}
    assert {name: what for name, what in lacking.items() if what and name not in POSIX_FILES} == {}


def called_last(block: ast.If) -> str:
    last = block.body[-1]
    return called(last.value) if isinstance(last, ast.Expr) else ""


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("os.kill(1, signal.SIGKILL)", True),
        ("if os.name != 'nt':\n    os.killpg(1, 9)", False),
        ("if hasattr(select, 'poll'):\n    select.poll()", False),
        ("def f():\n    if sys.platform == 'win32':\n        return\n    os.setsid()", False),
        ("def f():\n    os.setsid()\n    if sys.platform == 'win32':\n        return", True),
        ("try:\n    import resource\nexcept ImportError:\n    pass", False),
        ("import fcntl", True),
        ("from signal import SIGKILL", True),
        ("x = 0 if os.name == 'nt' else os.getuid()", False),
        ("os.kill(1, signal.SIGTERM)", False),
    ],
)
def test_the_rule_of_posix_bites(text: str, bad: bool) -> None:
    assert bool(list(unguarded(ast.parse(text)))) is bad


# --- processes, ports, consoles ------------------------------------------------------------------------


def starts_a_process(tree: ast.Module) -> Iterator[str]:
    yield from (called(node) for node in ast.walk(tree) if called(node) == "Popen")


def test_only_the_supervisor_starts_engines() -> None:
    """The children of others would outlive a kill -9 of the server on Windows."""
    assert found(starts_a_process, "engine", "serve").keys() == CHILD_STARTERS.keys()


def shares_a_port(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "SO_REUSEADDR":
            yield node.attr
        bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        if any(base.endswith(("HTTPServer", "TCPServer")) for base in bases):
            said = ast.unparse(node)
            if "allow_reuse_address = os.name != 'nt'" not in said or "SO_EXCLUSIVEADDRUSE" not in said:
                yield bases[0]


def test_no_port_is_shared() -> None:
    """On Windows SO_REUSEADDR lets a second server take a port that is served."""
    assert found(shares_a_port, *PACKAGES) == {}
    assert list(shares_a_port(ast.parse("class S(ThreadingHTTPServer):\n    pass"))) == ["ThreadingHTTPServer"]


def prints(tree: ast.Module) -> Iterator[str]:
    """What goes to stdout, which raises at what its code page lacks (stderr never does) unless it is told not to."""
    if "reconfigure" in (text := ast.unparse(tree)) or "plain_console" in text:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            told = ast.unparse(node)
            to_stderr = any(word in told for word in ("stderr", "file="))
            if told.startswith(("sys.stdout.write", "print(", "Console(")) and not to_stderr:
                yield f"line {node.lineno}"


def test_no_console_makes_printing_raise() -> None:
    assert found(prints, *PACKAGES).keys() == PRINTS_ASCII.keys()


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("print('x')", True),
        ("print('x', file=sys.stderr)", False),
        ("sys.stdout.write('x')", True),
        ("Console().print(table)", True),
        ("Console(stderr=True).print('x')", False),
        ("sys.stdout.reconfigure(errors='replace'); print('x')", False),
    ],
)
def test_the_rule_of_consoles_bites(text: str, bad: bool) -> None:
    assert bool(list(prints(ast.parse(text)))) is bad
