"""Results to text: one small file per command and format. Nothing here computes; numbers are rounded only here."""
