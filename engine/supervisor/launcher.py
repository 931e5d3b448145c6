"""Becomes the child: ties its life to the parent's (Linux), then replaces itself by the program.

Run as `python -I -S launcher.py PARENT_PID ERROR_FD KEEP_LOCALE PROGRAM ARG…`. The parent-death signal has to be asked
for in the new process, between fork and exec, where running Python code is not safe in a program with threads: so that
step is a program of its own. The process id stays the same. A failed exec is told on ERROR_FD as the error number; on
success ERROR_FD closes without a byte. It imports nothing of the package.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # without it the child still ends when its stdin closes, if it looks


def main() -> None:
    parent, error_fd, keep_locale, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    os.set_inheritable(error_fd, False)
    if keep_locale == "0":  # this interpreter may have put it there itself (PEP 538)
        os.environ.pop("LC_CTYPE", None)
    for name in ("SIGPIPE", "SIGXFSZ"):  # the interpreter ignores them, and exec would pass that on
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    _die_with_parent()
    if os.getppid() != parent:  # it died before the signal was asked for
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(error_fd, str(error.errno).encode("ascii"))
    os._exit(127)


if __name__ == "__main__":
    main()
