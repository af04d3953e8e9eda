"""Words, errors, time and the bounds on what strangers send: what every room uses. Imports no other room."""
