"""Recorded traces: read row by row or as arrays, described, and turned into a traffic file that resembles them."""
