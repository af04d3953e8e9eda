"""Batches are looked at until they are over; result files → outcomes; what is left goes on."""
