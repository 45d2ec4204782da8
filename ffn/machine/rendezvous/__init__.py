"""How the ranks of `ffn launch` meet: a server, its clients, and a relay in each rank that spares the server."""
