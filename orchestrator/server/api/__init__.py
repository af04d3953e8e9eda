"""Routes of the server, one module per part of the API: HTTP in, wire objects out."""
