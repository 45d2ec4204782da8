"""The command line of `ffn report`."""

from pathlib import Path

from ffn.cli import main


def test_the_page_is_written_into_the_run_unless_it_is_given(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.report.page.report", lambda *given: calls.append(given))
    assert main(["report", "results/demo"]) == main(["report", "results/demo", "--out", "a.html"]) == 0
    assert calls == [("results/demo", str(Path("results/demo/report.html"))), ("results/demo", "a.html")]


def test_the_summary_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr("ffn.report.score_table.format_summary", lambda *given: " ".join(given))
    assert main(["report", "results/demo", "--summary", "--out", "a.html"]) == 0
    assert capsys.readouterr().out == "results/demo a.html\n"
