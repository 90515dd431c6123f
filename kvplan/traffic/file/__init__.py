"""The traffic file: its text, the shapes it may have, the complaints about it, and the values it stands for."""
