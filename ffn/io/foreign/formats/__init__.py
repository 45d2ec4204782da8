"""One module for each format, found because it is here; `ffn.io.foreign.Format` says what it defines."""
