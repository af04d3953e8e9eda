"""Routes of the server, one module a part of the API: HTTP in, wire objects out."""
