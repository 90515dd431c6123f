"""Recorded traces: read row by row or whole, described, and written as a traffic file that is drawn like them."""
