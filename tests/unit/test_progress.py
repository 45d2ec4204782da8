import io

from ffn import progress
from ffn.progress import track


def test_a_log_gets_whole_lines(capsys):
    assert list(track(iter("abc"), None, "letters")) == ["a", "b", "c"]
    list(track(range(4), 4, "blocks"))
    lines = capsys.readouterr().err.splitlines()
    assert "blocks: 100% 4/4" in lines[-1]
    assert not any("\r" in line for line in lines)
    with progress.progress_bar(8, "train", "step", done=4) as bar:
        bar.update(4)
    lines = capsys.readouterr().err.splitlines()
    assert "train:  50% 4/8" in lines[0] and "train: 100% 8/8" in lines[-1]


def test_a_log_gets_few_lines(capsys, monkeypatch):
    list(track(range(1000), 1000, "blocks"))
    assert len(capsys.readouterr().err.splitlines()) <= 3
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    list(track(range(10), 10, "blocks"))
    assert len(capsys.readouterr().err.splitlines()) >= 10


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    list(track(range(4), 4, "blocks"))
    assert "\r" in terminal.getvalue() and "4/4" in terminal.getvalue()
