"""Web servers on this machine."""

import contextlib
import functools
import http.server
import threading


@contextlib.contextmanager
def serving(handler):
    """Answer requests for the length of a ``with`` block; yield the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def serving_files(folder, asked):
    """Serve the files of a folder, and note the paths that are asked for."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    return serving(functools.partial(Handler, directory=str(folder)))
