"""Batches are polled until they are over; result files → outcomes; what is left goes on."""
