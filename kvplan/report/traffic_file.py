"""How a report names a traffic file, and the command that writes an answer into one."""

from shlex import quote


def file_name(file: str) -> str:
    """A traffic file as its reader names it: a bundled mix by its name.

    >>> file_name("/somewhere/profiles/traffic/chat.yaml"), file_name("loads/traffic.yaml")
    ('chat', 'loads/traffic.yaml')
    """
    bundled = any(folder in file.replace("\\", "/") for folder in ("/profiles/traffic/", "/_profiles/traffic/"))
    return file.replace("\\", "/").rpartition("/")[2].removesuffix(".yaml") if bundled else file


def write_step(file: str) -> str:
    """The command that writes the answer beside the file, or over it where it has the usual name."""
    name = file_name(file)
    output = f"{name} --force" if name == "traffic.yaml" else "traffic.yaml"
    return f"kvplan recommend {quote(name)} --write --output {output}"
