"""A Python that has imported what the tests need: it forks a process for each test file and each rank, where a new one would import PyTorch again.

    warm.py start MODULE     starts it, until `stop` or the end of the caller's parent
    warm.py run ARGUMENTS…   what python ARGUMENTS… does, in a process that is forked from it; by a new Python where none was started
    warm.py stop

RESHARD_WARM names its socket; beside it is a log with the processor time of each process and its children. A forked process has the environment, the folder, the arguments and the output of who asked for it, and is killed with that.
"""

import os
import sys

FILE = os.path.abspath(__file__)
VARIABLE = "RESHARD_WARM"


def main():
    word, arguments = sys.argv[1], sys.argv[2:]
    path = os.environ.get(VARIABLE)
    if word == "start":
        stop(path)
        start(path, arguments[0], os.getppid())
    elif word == "stop":
        stop(path)
    elif word == "serve":
        serve(*arguments[:2], owner=int(arguments[2]), ready=int(arguments[3]))
    elif word == "run":
        try:
            process = Process(path, arguments)
        except OSError as error:
            print(f"warm.py: {path}: {error.strerror}: a new Python runs this", file=sys.stderr, flush=True)
            os.execv(sys.executable, [sys.executable, *arguments])
        code = process.wait(None)
        sys.exit(code if code >= 0 else 128 - code)
    else:
        sys.exit(f"warm.py: '{word}' is no word: choose start, run or stop")


# --- who asks -----------------------------------------------------------------------------------------------------


def in_folder_of(path, action):
    """Calls action(name of the socket) in the folder of the socket: the path of a socket has 107 characters at most."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(os.path.dirname(path))
        return action(os.path.basename(path))
    finally:
        os.fchdir(here)
        os.close(here)


class Process:
    """A forked process, as seen by who asked for it."""

    def __init__(self, path, arguments):
        import json
        import socket

        if not path:
            raise FileNotFoundError(2, f"{VARIABLE} is not set")
        self.connection = socket.socket(socket.AF_UNIX)
        try:
            in_folder_of(path, self.connection.connect)
        except OSError:
            self.connection.close()
            raise
        request = json.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
        socket.send_fds(self.connection, [len(request).to_bytes(8, "little")], [0, 1, 2])
        self.connection.sendall(request)

    def wait(self, seconds):
        """The exit code, negative for a signal, or None while it still runs."""
        self.connection.settimeout(seconds)
        try:
            answer = self.connection.recv(4)
        except TimeoutError:
            return None
        return int.from_bytes(answer, "little", signed=True) if answer else -9

    def kill(self):
        self.connection.close()


def start(path, module, owner):
    """Returns when `module` is imported."""
    import subprocess

    ready, its_end = os.pipe()
    with open(f"{path}.log", "wb") as log:
        subprocess.Popen([sys.executable, FILE, "serve", path, module, str(owner), str(its_end)],
                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[its_end])
    os.close(its_end)
    with os.fdopen(ready, "rb") as answer:
        if answer.read() != b"ready":
            with open(f"{path}.log") as log:
                sys.exit(f"warm.py: {module} cannot be imported:\n{log.read()}")


def stop(path):
    try:
        Process(path, []).wait(10)
    except OSError:
        pass  # there is none


# --- who forks ----------------------------------------------------------------------------------------------------


def serve(path, module, owner, ready):
    import gc
    import importlib
    import select
    import signal
    import socket

    importlib.import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        sys.exit(f"warm.py: {module} started {threads - 1} threads, which a forked process would not have")
    gc.collect()
    gc.freeze()  # or each forked process would copy what it visits

    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(path):
        os.unlink(path)
    in_folder_of(path, listener.bind)
    listener.listen(64)
    wake, its_end = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(its_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(its_end, warn_on_full_buffer=False)
    os.write(ready, b"ready")
    os.close(ready)

    running = {}  # connection -> process id
    asked = {}  # process id -> arguments
    stopped = None
    while stopped is None and is_alive(owner):
        readable, _, _ = select.select([listener, wake, *running], [], [], 1)
        for one in readable:
            if one == wake:
                os.read(wake, 4096)
            elif one == listener:
                connection, request, files = accept(listener)
                if request is None:
                    connection.close()
                elif not request["arguments"]:
                    stopped = connection
                else:
                    process = os.fork()
                    if process == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for file in (wake, its_end):
                            os.close(file)
                        for other in (listener, connection, *running):
                            other.close()
                        run_as(request, files)
                    running[connection] = process
                    asked[process] = request["arguments"]
                for file in files:
                    os.close(file)
            else:  # who asked has ended
                kill(running.pop(one))
                one.close()
        while True:
            try:
                process, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if process == 0:
                break
            print(f"{used.ru_utime + used.ru_stime:7.1f} s  {' '.join(asked.pop(process))}", flush=True)
            for connection in [each for each, its in running.items() if its == process]:
                del running[connection]
                try:
                    connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
                except OSError:
                    pass  # who asked has just ended
                connection.close()
    for process in running.values():
        kill(process)
    os.unlink(path)


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def kill(process):
    import signal

    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet, or has ended
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def accept(listener):
    import json
    import socket

    connection, _ = listener.accept()
    connection.settimeout(5)
    try:
        size, files, _, _ = socket.recv_fds(connection, 8, 3)
        request = bytearray()
        while len(request) < int.from_bytes(size, "little"):
            part = connection.recv(1 << 16)
            if not part:
                return connection, None, files
            request += part
        return connection, json.loads(request), files
    except TimeoutError:
        return connection, None, []
    finally:
        connection.settimeout(None)


def run_as(request, files):
    """Never returns."""
    import atexit
    import traceback

    code = 1
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        run(request["arguments"])
        code = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code & 0xFF)


def run(arguments):
    import runpy

    more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    of_a_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if of_a_module else arguments
    first = os.getcwd() if of_a_module else os.path.dirname(os.path.abspath(arguments[0]))
    sys.path[:1] = [first, *more]  # instead of the folder of this file
    if of_a_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
