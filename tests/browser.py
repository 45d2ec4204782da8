"""A headless browser that tests look at pages with, and click and type in."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

from ffn.viewing.viewer import BROWSERS, FLAGS

CONTROL = 2  # modifier of a mouse event


@contextlib.contextmanager
def browser_at(link, profile):
    """Open a page; yield a function that sends a command of the DevTools protocol, with its parameters, to it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium; Debian's package is called chromium")
    options = [f"--user-data-dir={profile}", "--remote-debugging-port=0", "--window-size=1000,800"]
    process = subprocess.Popen([browser, *FLAGS, *options, link], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not (profile / "DevToolsActivePort").exists():
            time.sleep(0.1)
        port = (profile / "DevToolsActivePort").read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as pages:
            page = next(page for page in json.load(pages) if page["type"] == "page")
        run = IOLoop.current().run_sync
        connected = run(lambda: websocket_connect(page["webSocketDebuggerUrl"]))

        def send(method, parameters):
            run(lambda: connected.write_message(json.dumps({"id": 1, "method": method, "params": parameters})))
            return json.loads(run(connected.read_message))

        try:
            yield send
        finally:
            connected.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def press(send, key):
    """Press and release the key of a letter."""
    for event in ("keyDown", "keyUp"):
        send("Input.dispatchKeyEvent", {"type": event, "key": key, "code": f"Key{key.upper()}", "text": key})
